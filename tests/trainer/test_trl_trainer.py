"""The trainer on the installed TRL: gradients against their definition, and its configuration."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import Batch, Normalization, Optimization, RunConfig, SamplingOptions, Staleness
from agentrl_trainer.queue import StepBatch, TrajectoryQueue
from agentrl_trainer.trainer import PRIVATE_NAMES, AgentGRPOTrainer, grpo_config
from agentrl_trainer.trl_fields import IDLE, OURS
from agentrl_trainer.types import Group, Trajectory

TEMPERATURE = 0.8
Gradients = dict[str, torch.Tensor]


def config(**changes: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "group_size": 4,
        "sampling": SamplingOptions(temperature=TEMPERATURE, max_new_tokens=16, max_context=64),
        "batch": Batch(min_trajectories=4, max_trajectories=64, micro_batch_tokens=4096),
    }
    return RunConfig(**(defaults | changes))


def model_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def trainer_of(folder: Path, options: RunConfig, output: Path) -> AgentGRPOTrainer:
    queue = TrajectoryQueue(None, capacity=1)  # type: ignore[arg-type]  # never started: batches are given by hand
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return AgentGRPOTrainer(model_of(folder), options, queue, processing_class=tokenizer, output=output)


def gradients(trainer: AgentGRPOTrainer, groups: list[Group], version: int = 0) -> Gradients:
    trainer.model.zero_grad()
    batch = StepBatch(groups=tuple(groups), version=version, waited_s=0.0, left=0)
    trainer.current_gradient_accumulation_steps = 1
    trainer.training_step(trainer.model, {"batch": batch})
    found = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    return found


def log_probs(model: Any, ids: np.ndarray) -> torch.Tensor:
    """(T,) of each token after the ones before it, at the sampling temperature; the first is 0."""
    logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0] / TEMPERATURE
    picked = torch.log_softmax(logits, -1)[:-1].gather(1, torch.from_numpy(ids[1:].astype(np.int64))[:, None])[:, 0]
    return torch.cat([torch.zeros(1), picked])


def defined_gradients(folder: Path, rows: list[tuple[Trajectory, float, np.ndarray]]) -> Gradients:
    """The clipped objective written down: one sequence at a time, no padding, mean over all trained tokens."""
    model = model_of(folder)
    tokens = sum(int(mask.sum()) for _, _, mask in rows)
    loss = torch.zeros(())
    for trajectory, advantage, mask in rows:
        ratio = torch.exp(log_probs(model, trajectory.ids) - torch.from_numpy(trajectory.logprobs))
        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
        loss = (
            loss
            - torch.minimum(ratio.clamp(max=4.0) * advantage, clipped * advantage)[torch.from_numpy(mask)].sum()
            / tokens
        )
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def close(found: Gradients, expected: Gradients, tolerance: float) -> None:
    """The distance of two gradients, relative to their length."""
    assert found.keys() == expected.keys()
    length = sum(float((g.double() ** 2).sum()) for g in expected.values()) ** 0.5
    distance = sum(float(((found[n] - g).double() ** 2).sum()) for n, g in expected.items()) ** 0.5
    assert length > 1e-3, "a zero gradient proves nothing"
    assert distance <= tolerance * length, f"{distance / length:.2e} apart"


@pytest.fixture
def behaviour(policy_dir: Path) -> Callable[[np.ndarray], np.ndarray]:
    model = model_of(policy_dir)
    with torch.no_grad():
        return lambda ids: log_probs(model, ids).detach().numpy()


@pytest.fixture
def groups(
    make_trajectory: Callable[..., Trajectory], make_group: Callable[..., Group], behaviour: Callable[..., Any]
) -> list[Group]:
    rng = np.random.default_rng(3)
    made = []
    for number, task in enumerate(["db", "kg", "db"]):
        members = []
        for reward in (1.0, 0.0, -0.2, 0.5):
            turns = [(int(rng.integers(1, 6)), int(rng.integers(0, 5))) for _ in range(int(rng.integers(1, 4)))]
            prompt = int(rng.integers(2, 9))
            members.append(
                make_trajectory(rng=rng, prompt=prompt, turns=turns, reward=reward, task=task, logprobs=behaviour)
            )
        made.append(make_group(members, number))
    return made


RAW = Normalization(group_scale="none", task="none")


def plain_rows(groups: list[Group]) -> list[tuple[Trajectory, float, np.ndarray]]:
    return [(t, t.reward - np.mean([m.reward for m in g.trajectories]), t.mask) for g in groups for t in g.trajectories]


def test_every_private_name_exists_in_the_installed_trl() -> None:
    from transformers import Trainer
    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer) + inspect.getsource(Trainer)
    missing = [
        n for n in PRIVATE_NAMES if not (hasattr(GRPOTrainer, n) or hasattr(Trainer, n) or f"self.{n}" in source)
    ]
    assert not missing, f"this TRL has no {missing}; of {PRIVATE_NAMES}"
    read = inspect.getsource(GRPOTrainer._compute_loss)
    for name in ("completion_ids", "tool_mask", "advantages", "old_per_token_logps", "num_items_in_batch"):
        assert f'"{name}"' in read


def test_lag_0_with_one_engine_is_plain_grpo_on_the_same_tokens(
    policy_dir: Path, groups: list[Group], tmp_path: Path
) -> None:
    trainer = trainer_of(policy_dir, config(normalization=RAW, staleness=Staleness(max_lag=0)), tmp_path)
    found = gradients(trainer, groups)
    close(found, defined_gradients(policy_dir, plain_rows(groups)), 1e-5)
    assert trainer._metrics["train"]["ratio/max_abs_log"][-1] < 1e-4

    stock = trl_gradients(trainer, groups)
    close(found, stock, 1e-5)


def trl_gradients(trainer: AgentGRPOTrainer, groups: list[Group]) -> Gradients:
    """TRL's own loss on its own layout: prompts padded on the left, ratio 1 because nothing is off-policy."""
    rows = plain_rows(groups)
    width_p = max(t.prompt_length for t, _, _ in rows)
    width_c = max(len(t.ids) - t.prompt_length for t, _, _ in rows)
    inputs = {name: torch.zeros(len(rows), width_p, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    for name in ("completion_ids", "completion_mask", "tool_mask"):
        inputs[name] = torch.zeros(len(rows), width_c, dtype=torch.long)
    for i, (t, _, mask) in enumerate(rows):
        p, c = t.prompt_length, len(t.ids) - t.prompt_length
        inputs["prompt_ids"][i, width_p - p :] = torch.from_numpy(t.ids[:p].astype(np.int64))
        inputs["prompt_mask"][i, width_p - p :] = 1
        inputs["completion_ids"][i, :c] = torch.from_numpy(t.ids[p:].astype(np.int64))
        inputs["completion_mask"][i, :c] = 1
        inputs["tool_mask"][i, :c] = torch.from_numpy(mask[p:].astype(np.int64))
    inputs["advantages"] = torch.tensor([a for _, a, _ in rows])
    inputs["num_items_in_batch"] = inputs["tool_mask"].sum().float()
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, inputs).backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
def test_micro_batches_give_the_full_batch_gradient(
    policy_dir: Path, groups: list[Group], tmp_path: Path, loss_type: Any
) -> None:
    optimization = Optimization(loss_type=loss_type)
    whole = trainer_of(policy_dir, config(optimization=optimization), tmp_path)
    split = trainer_of(policy_dir, config(optimization=optimization, batch=small_micro_batches()), tmp_path)
    whole.model.double()
    split.model.double()  # what is left of the difference is then rounding in TRL's float32 log-probs
    found = gradients(split, groups)
    assert split._metrics["train"]["batch/micro_batches"][-1] > 3
    close(found, gradients(whole, groups), 1e-6)
    assert len(split._metrics["train"]["entropy"]) == 1


def small_micro_batches() -> Batch:
    return Batch(min_trajectories=4, max_trajectories=64, micro_batch_tokens=64)


def test_off_policy_tokens_are_weighted_by_the_engine_that_sampled_them(
    policy_dir: Path, groups: list[Group], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for group in groups:
        for t in group.trajectories:
            t.logprobs = np.where(t.mask, t.logprobs + rng.normal(0, 1.0, len(t.ids)), 0).astype(np.float32)
    trainer = trainer_of(policy_dir, config(normalization=RAW), tmp_path)
    close(gradients(trainer, groups), defined_gradients(policy_dir, plain_rows(groups)), 1e-5)
    assert 0 < trainer._metrics["train"]["ratio/ess"][-1] < 1


def test_tokens_over_the_lag_bound_give_no_gradient(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    rows = plain_rows(groups)
    for t, _, _ in rows:
        t.versions = np.where(t.mask, 7, t.versions).astype(np.int32)
    masks = []
    for i, (t, _, mask) in enumerate(rows):
        late = np.flatnonzero(mask)[: 1 + i % 2]
        t.versions[late] = 4  # version 7 - 4 = 3 > 2
        masks.append(mask & ~np.isin(np.arange(len(mask)), late))
    kept = [(t, a, m) for (t, a, _), m in zip(rows, masks, strict=True) if m.any()]
    trainer = trainer_of(policy_dir, config(normalization=RAW), tmp_path)
    close(gradients(trainer, groups, version=7), defined_gradients(policy_dir, kept), 1e-5)
    for t, _, _ in rows:
        t.versions = np.where(t.mask, 4, t.versions).astype(np.int32)
    assert gradients(trainer, groups, version=7) == {}


def test_unusable_trajectories_leave_no_trace(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir, config(), tmp_path)
    expected = gradients(trainer, groups)
    broken = [t for g in groups for t in g.trajectories][:1]
    ghost = Trajectory(**{f: getattr(broken[0], f) for f in Trajectory.__slots__} | {"usable": False, "reward": 99.0})
    groups[0].trajectories.append(ghost)
    close(gradients(trainer, groups), expected, 1e-9)


def test_the_kl_term_pulls_towards_the_initial_policy(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    plain = trainer_of(policy_dir, config(), tmp_path)
    tied = trainer_of(policy_dir, config(optimization=Optimization(kl=0.5)), tmp_path)
    close(gradients(tied, groups), gradients(plain, groups), 1e-4)  # at the initial policy it is flat
    assert tied._metrics["train"]["kl"][-1] == pytest.approx(0, abs=1e-6)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in tied.model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    before = dict(tied.model.state_dict())
    pulled = gradients(tied, groups)
    tied.beta = 0.0
    free = gradients(tied, groups)
    initial = dict(plain.model.state_dict())
    towards = sum(float(((free[n] - pulled[n]) * (initial[n] - before[n])).sum()) for n in pulled)
    assert towards > 0, "the step against the KL gradient leads back"


def test_the_trl_section_reaches_trl_and_cannot_contradict_ours(tmp_path: Path) -> None:
    assert grpo_config(config(trl={"entropy_coef": 0.5}), tmp_path, device="cpu").entropy_coef == 0.5
    assert grpo_config(config(trl={"adam_epsilon": "1e-6"}), tmp_path, device="cpu").adam_epsilon == 1e-6
    with pytest.raises(CallerError, match="decided elsewhere"):
        grpo_config(config(trl={"learning_rate": 1.0}), tmp_path, device="cpu")
    for field, value, told in (
        ("mask_truncated_completions", True, "does nothing here"),
        ("vllm_mode", "server", "does nothing here"),
        ("chat_template_kwargs", {}, "decided elsewhere"),
        ("entropy_coef", "x", "of type float"),
        ("torch_compile", "x", "of type bool"),
    ):
        with pytest.raises(CallerError, match=told):
            grpo_config(config(trl={field: value}), tmp_path, device="cpu")
    with pytest.raises(CallerError, match="'entropy_coef'"):
        grpo_config(config(trl={"entropy_coeff": 0.5}), tmp_path, device="cpu")
    with pytest.raises(CallerError, match="sharded weights cannot be published"):
        grpo_config(config(trl={"fsdp": "full_shard"}), tmp_path, device="cpu")
    from trl import GRPOConfig

    assert set(GRPOConfig.__dataclass_fields__) >= OURS | IDLE, "a field that TRL does not have"


def test_figures_go_to_the_trackers_that_are_named(
    policy_dir: Path, groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    from agentrl_trainer.run import train

    seen: list[dict[str, float]] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "mlflow", Tracker)
    with pytest.raises(CallerError, match="Did you mean 'wandb'"):
        config(report_to=("wandbb",))
    with pytest.raises(CallerError, match="pip install dvclive"):
        train(config(report_to=("dvclive",)))
    trainer = trainer_of(policy_dir, config(report_to=("mlflow",)), tmp_path)
    gradients(trainer, groups)
    trainer.log({"loss": 1.0})
    assert seen[-1]["batch/trajectories"] == 12
    assert seen[-1]["ratio/ess"] == pytest.approx(1)
