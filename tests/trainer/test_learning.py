"""The trainer alone learns: a policy sampled from its published weights, rewarded for its tokens, earns more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl_trainer.config import Batch, Engines, Evaluation, Model, Optimization, RunConfig, SamplingOptions, TaskMix
from agentrl_trainer.report import read_metrics
from agentrl_trainer.run import train
from agentrl_trainer.types import NO_ENGINE, NO_VERSION, Group, Trajectory

SAMPLED = 6
PROMPT = [5, 9, 12]
TEMPERATURE = 0.8


class SamplingRollouts:
    """A rollout side without environments: the reward is the share of sampled ids that the task likes."""

    def __init__(self, policy: Path, likes: dict[str, Callable[[np.ndarray], np.ndarray]]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
        self._likes = likes
        self._random = torch.Generator().manual_seed(0)
        self._version = -1
        self._budget = 0
        self._number = 0

    def publish(self, path: Path, version: int, stale: bool) -> None:
        self._model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
        self._version = version
        self._budget = 4  # groups per version: synchronous

    def get_group(self, timeout: float) -> Group | None:
        if not self._budget:
            return None
        self._budget -= 1
        self._number += 1
        task = list(self._likes)[self._number % len(self._likes)]
        members = self._sample(task, 8)
        return Group(
            id=f"g{self._number}",
            task=task,
            sample_id=f"{task}/0",
            trajectories=members,
            admitted_version=self._version,
        )

    @torch.no_grad()
    def _sample(self, task: str, count: int) -> list[Trajectory]:
        ids = torch.tensor([PROMPT] * count)
        logps = []
        for _ in range(SAMPLED):
            logp = torch.log_softmax(self._model(ids).logits[:, -1] / TEMPERATURE, -1)
            token = torch.multinomial(logp.exp(), 1, generator=self._random)
            logps.append(logp.gather(1, token))
            ids = torch.cat([ids, token], 1)
        mask = np.arange(ids.shape[1]) >= len(PROMPT)
        made = []
        for row, logp in zip(ids.numpy(), torch.cat(logps, 1).numpy(), strict=True):
            reward = float(self._likes[task](row[mask]).mean())
            made.append(
                Trajectory(
                    task=task, sample_id=f"{task}/0", group_id=f"g{self._number}", replica=0, status="completed",
                    ids=row.astype(np.int32), prompt_length=len(PROMPT), mask=mask, reward=reward, success=reward > 0.9,
                    logprobs=np.concatenate([np.zeros(len(PROMPT)), logp]).astype(np.float32),
                    versions=np.where(mask, self._version, NO_VERSION).astype(np.int32),
                    engines=np.where(mask, 0, NO_ENGINE).astype(np.int8),
                    turns=mask.astype(np.int16),
                )
            )  # fmt: skip
        return made

    def consumed(self, trajectories: int) -> None: ...

    def evaluate(self, *args: Any) -> list[dict[str, Any]]:
        return []

    def stats(self) -> dict[str, Any]:
        return {"budget": self._budget}

    def close(self) -> None: ...


def test_rewarded_tokens_become_likely(policy_dir: Path, tmp_path: Path) -> None:
    config = RunConfig(
        model=Model(path=str(policy_dir), device="cpu"),
        tasks=(TaskMix(name="db"), TaskMix(name="kg")),
        steps=20,
        sampling=SamplingOptions(temperature=TEMPERATURE, max_new_tokens=8, max_context=32),
        batch=Batch(min_trajectories=32, max_trajectories=32, wait_s=30),
        optimization=Optimization(learning_rate=3e-3, warmup_steps=2),
        engines=Engines(weights_dir=tmp_path / "w"),
        evaluation=Evaluation(n=0),
        output=tmp_path / "run",
        progress="none",
    )
    # the second task's rewards are small and shifted: without the task normalization it would teach little
    likes = {"db": lambda ids: ids % 2 == 1, "kg": lambda ids: 0.05 * (ids % 2 == 1) + 0.3}
    train(config, rollouts=SamplingRollouts(policy_dir, likes))
    steps = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "step"]
    first, last = (np.mean([r["reward/db"] for r in part]) for part in (steps[:2], steps[-3:]))
    assert first < 0.5
    assert last > 0.85
    assert max(r.get("ratio/max_abs_log", 0.0) for r in steps) < 1e-3, "on-policy tokens have ratio 1"
