"""A thousand steps: neither the trainer nor the rollout process grows, and no file stays open."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from tinychat import chat_folder, make_model, model_folder
from trainer_runs import TOY

from agentrl_trainer.configfile import load_config
from agentrl_trainer.launch import train
from agentrl_trainer.report import read_metrics
from agentrl_trainer.rollout.process import RolloutProcess

__all__ = ["chat_folder", "make_model", "model_folder"]
STEPS = 1000
LOOK_S = 1.0
GROWTH_KB = 8 * 1024
"""Between the second and the last fifth; a leak of one trajectory per step would be more in the trainer alone."""


def memory_kb(pid: int) -> int:
    """Private memory that is in use."""
    lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Swap:")))


def files(pid: int) -> int:
    return len(list((Path("/proc") / str(pid) / "fd").iterdir()))


@pytest.mark.full
def test_memory_and_files_stay_flat_over_a_thousand_steps(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, output = tmp_path / "toy.py", tmp_path / "run"
    task.write_text(TOY)
    config = load_config(
        overrides=[
            f"model={make_model(num_hidden_layers=1)}", f"tasks={task}:TASK", f"output={output}", f"steps={STEPS}",
            "group_size=4", "batch.min_trajectories=8", "batch.max_trajectories=8", "rollout.max_groups=4",
            "sampling.max_context=400", "sampling.max_new_tokens=60", "checkpoints.every=100", "evaluation.n=0",
            "engines.canary=off", "progress=none",
        ]
    )  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    rollouts = RolloutProcess(config, logs=tmp_path / "logs", module="scripted_rollout").start()
    assert rollouts._child is not None
    pids = {"trainer": os.getpid(), "rollout process": rollouts._child.process.pid}
    seen: list[tuple[int, dict[str, tuple[int, int]]]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            # counted, not parsed: this is the trainer's process, and what is measured must not come from here
            path = output / "metrics.jsonl"
            steps = path.read_bytes().count(b"\n") if path.exists() else 0
            try:
                found = {name: (memory_kb(pid), files(pid)) for name, pid in pids.items()}
            except OSError:
                return  # the run has closed its rollout process
            if steps:
                seen.append((steps, found))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        train(config, rollouts=rollouts)
    finally:
        ended.set()
        watcher.join()
    records = read_metrics(output / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, STEPS + 1))
    assert all(r["loss"] is not None and r["lag/max"] <= 2 for r in records)
    for name in pids:
        early = [found[name] for step, found in seen if STEPS // 5 <= step < 2 * STEPS // 5]
        late = [found[name] for step, found in seen if step >= 4 * STEPS // 5]
        assert len(early) > 2
        assert len(late) > 2
        grown = median(m for m, _ in late) - median(m for m, _ in early)
        assert grown < GROWTH_KB, f"{name}: {grown} kB more"
        assert median(f for _, f in late) <= median(f for _, f in early) + 1, name
