"""One process of a run over scripted rollouts: `torchrun rank_run.py POLICY OUTPUT GROUPS [key=value …]`.

The n-th group is the same whoever asks, so runs with one and with several processes see equal batches. After
GROUPS groups none comes any more.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(policy: str, output: str, groups: str, *settings: str) -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    spec = importlib.util.spec_from_file_location("trainer_conftest", Path(__file__).parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    toys = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toys)
    from agentrl_trainer.configfile import load_config
    from agentrl_trainer.run import train

    def group(number: int, newest: int) -> Any:
        if number >= int(groups):
            return None
        rng = np.random.default_rng(number)
        task = ("db", "kg")[number % 2]
        members = [
            toys.make_trajectory(
                rng=rng, reward=float(rng.integers(0, 3)), version=number // 3, task=task,
                engine=int(rng.integers(0, 2)),
                turns=[(int(rng.integers(1, 9)), 2) for _ in range(int(rng.integers(1, 4)))],
                logprobs=lambda ids: np.full(len(ids), -3.0) + rng.normal(0, 0.5, len(ids)),
            )
            for _ in range(5)
        ]  # fmt: skip
        return toys.make_group(members, number, admitted_version=number // 3)

    config = load_config(
        overrides=[
            f"model={policy}", f"output={output}", "model.device=cpu", "tasks=db,kg", "group_size=5", "steps=4",
            "sampling.max_new_tokens=16", "sampling.max_context=64", "batch.min_trajectories=15",
            "batch.max_trajectories=15", "batch.micro_batch_tokens=128", "batch.wait_s=60", "evaluation.n=0",
            "checkpoints.every=2", "progress=none", f"engines.weights_dir={output}-weights", "trl.optim=sgd",
            "optimization.learning_rate=0.1", "optimization.warmup_steps=0", *settings,
        ]
    )  # fmt: skip
    rollouts = toys.ScriptedRollouts(group)
    start = next((s for s in settings if s.startswith("resume=")), "")
    rollouts.number = 6 if start else 0  # what two steps have taken
    train(config, rollouts=rollouts)


if __name__ == "__main__":
    main(*sys.argv[1:])
