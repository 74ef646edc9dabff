"""Task normalization inside a stock GRPOTrainer: its own generation, rewards and loss, our advantages."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import Normalization
from agentrl_trainer.mixin import PRIVATE_NAMES, TaskNormalizedMixin

# TRL's own use of names that transformers has renamed
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


class Trainer(TaskNormalizedMixin, GRPOTrainer):
    """What a user writes."""

    seen: list[dict[str, Any]]

    def _prepare_inputs(self, batch: Any) -> Any:
        inputs = super()._prepare_inputs(batch)
        self.seen = [*getattr(self, "seen", []), inputs]
        return inputs


def test_bases_in_the_wrong_order_are_refused_since_nothing_would_happen() -> None:
    with pytest.raises(CallerError, match=r"class Wrong\(TaskNormalizedMixin, GRPOTrainer\)"):

        class Wrong(GRPOTrainer, TaskNormalizedMixin):
            pass

    class Further(TaskNormalizedMixin):
        """A mixin of a user's own, for a trainer to come."""

    assert issubclass(type("Right", (Further, GRPOTrainer), {}), TaskNormalizedMixin)

    class Cooperative(GRPOTrainer):
        """Changes what the mixin has normalized."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return super()._generate_and_score_completions(inputs)

    assert issubclass(type("Right", (Cooperative, TaskNormalizedMixin, GRPOTrainer), {}), TaskNormalizedMixin)
    with pytest.raises(CallerError, match=r"Cooperative stands before the mixin"):
        type("Wrong", (Cooperative, TaskNormalizedMixin), {})


def length_reward(completions: list[str], task: list[str], **kwargs: Any) -> list[float]:
    """`count` pays by the word, `same` always the same."""
    return [float(len(c.split())) if t == "count" else 0.5 for c, t in zip(completions, task, strict=True)]


def trainer(policy_dir: Path, output: Path, *, tasks: list[str], **options: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        model=AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32),
        reward_funcs=length_reward,
        args=GRPOConfig(
            output_dir=str(output), max_steps=2, num_generations=4, per_device_train_batch_size=8, use_cpu=True,
            max_completion_length=6, report_to="none", save_strategy="steps", save_steps=1, disable_tqdm=True,
            activation_checkpointing=False, bf16=False, logging_steps=1, learning_rate=1e-6, shuffle_dataset=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4", "w5"], "task": tasks}),
        processing_class=AutoTokenizer.from_pretrained(policy_dir),
        **options,
    )  # fmt: skip


def test_a_stock_trainer_learns_from_advantages_of_mean_0_and_deviation_1_per_task(
    policy_dir: Path, tmp_path: Path
) -> None:
    trained = trainer(policy_dir, tmp_path, tasks=["count", "same"])
    trained.train()
    assert len(trained.seen) == 2
    for inputs in trained.seen:
        advantages, lengths = inputs["advantages"].numpy(), inputs["completion_mask"].sum(1).numpy()
        alive = advantages != 0
        assert alive.sum() <= 4, "the group whose rewards are equal teaches nothing"
        tokens = np.repeat(advantages[alive], lengths[alive])
        assert [tokens.mean(), tokens.std()] == pytest.approx([0, 1], abs=1e-5)
    assert trained.state.log_history[0]["advantage/same_max"] == 0


def test_running_statistics_come_back_with_the_trainers_checkpoint(policy_dir: Path, tmp_path: Path) -> None:
    options = Normalization(task="stream", decay=0.5)
    whole = trainer(policy_dir, tmp_path, tasks=["count", "count"], task_normalization=options)
    whole.train()
    assert whole.task_normalizer.state["count"].weight > 0
    again = trainer(policy_dir, tmp_path, tasks=["count", "count"], task_normalization=options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.task_normalizer.state == whole.task_normalizer.state


def test_a_row_without_a_task_names_the_column(policy_dir: Path, tmp_path: Path) -> None:
    lost = trainer(policy_dir, tmp_path, tasks=["count", "same"], task_column="tusk")
    with pytest.raises(CallerError, match="no 'tusk'"):
        lost.train()


def test_every_private_name_exists_in_the_installed_trl() -> None:
    from transformers import Trainer as Base

    source = inspect.getsource(GRPOTrainer)
    missing = [n for n in PRIVATE_NAMES if not (hasattr(Base, n) or hasattr(GRPOTrainer, n) or f"self.{n}" in source)]
    assert not missing
