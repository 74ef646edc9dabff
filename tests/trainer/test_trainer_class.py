"""The class as a user writes it: a model, a configuration, tasks, and train()."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentbench_fc.errors import CallerError, Conflict
from agentrl_trainer import AgentGRPOTrainer, RunConfig, TaskMix
from agentrl_trainer.config import Batch, Evaluation, Model, SamplingOptions
from agentrl_trainer.disk import RunFolder
from agentrl_trainer.policy import START, open_policy
from agentrl_trainer.queue import TrajectoryQueue
from agentrl_trainer.tiny_asset import FOLDER
from agentrl_trainer.types import Group


def test_a_loaded_model_trains_on_named_tasks_with_rollouts_of_its_own(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}
    trainer = AgentGRPOTrainer(
        model,
        RunConfig(
            steps=2,
            batch=Batch(min_trajectories=16, max_trajectories=32),
            evaluation=Evaluation(n=0),
            output=tmp_path / "run",
            progress="none",
        ),
        tasks=[TaskMix(name="kg", prompt="compact", options={"level": "easy", "max_turns": 8})],
        processing_class=AutoTokenizer.from_pretrained(FOLDER),
    )
    run = tmp_path / "run"
    with RunFolder(run), pytest.raises(Conflict, match="another run is at work"):
        trainer.train()
    assert not (run / START).exists(), "what the other run's engines read is not overwritten"
    assert trainer.train().global_step == 2
    assert torch.equal(load_file(run / START / "model.safetensors")["model.norm.weight"], start["model.norm.weight"])
    assert "2 steps" in trainer.summary
    assert "from stale engines" in trainer.summary
    assert any(not torch.equal(p, start[name]) for name, p in trainer.model.state_dict().items())
    assert (run / "model" / "config.json").exists()
    assert (run / "checkpoint-2" / "manifest.json").exists()


def test_with_a_queue_of_ones_own_nothing_is_started(
    policy_dir: Path,
    tmp_path: Path,
    make_trajectory: Callable[..., Any],
    make_group: Callable[..., Group],
    scripted: type[Any],
) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    source = scripted(lambda n, v: make_group([make_trajectory(rng=rng, reward=float(i % 2)) for i in range(4)], n))
    source.published.append((0, True))
    queue = TrajectoryQueue(source, capacity=2).start()
    options = RunConfig(
        steps=2,
        group_size=4,
        model=Model(path=str(policy_dir)),
        sampling=SamplingOptions(max_new_tokens=16, max_context=64),
        batch=Batch(min_trajectories=4, max_trajectories=8, micro_batch_tokens=64, wait_s=20),
    )
    trainer = AgentGRPOTrainer(args=options, queue=queue, output=tmp_path, device="cpu")
    assert trainer.train().global_step == 2
    queue.close()
    with pytest.raises(CallerError, match="nothing plays episodes"):
        trainer.evaluate()


def test_the_parts_must_fit_each_other(policy_dir: Path, tmp_path: Path) -> None:
    chosen = open_policy(str(policy_dir), None, tasks=["kg"], output=tmp_path)
    assert [task.name for task in chosen.config.tasks] == ["kg"]
    assert chosen.config.tasks[0].prompt == "default", "compact prompts are the tiny policy's"
    assert chosen.config.model.path == str(policy_dir)
    tiny = open_policy(None, RunConfig(), output=tmp_path)
    assert tiny.config.tasks[0].prompt == "compact"
    with pytest.raises(CallerError, match="Give tasks= too"):
        open_policy(str(policy_dir), RunConfig(), output=tmp_path)
    with pytest.raises(CallerError, match="Give a RunConfig"):
        AgentGRPOTrainer("tiny-fc", {"steps": 3}, output=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="without its tokenizer"):
        open_policy(chosen.model, RunConfig(), tasks=["kg"], output=tmp_path)
    with pytest.raises(CallerError, match="no such folder"):
        open_policy("./absent", None, tasks=["kg"], output=tmp_path)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import agentrl_trainer, sys; sys.exit('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
