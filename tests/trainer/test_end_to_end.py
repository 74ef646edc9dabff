"""The real thing: trainer, rollout process, engines and tasks as processes, interrupted and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl_trainer import checkpoint
from agentrl_trainer.report import read_metrics

SETTINGS = [
    "tasks=db", "evaluation.n=0", "batch.min_trajectories=16", "batch.max_trajectories=16", "checkpoints.every=0",
    "progress=plain", "steps=200",
]  # fmt: skip
PATIENCE_S = 120.0


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, from the kernel's table."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        time.sleep(0.1)


class Run:
    """One `python -m agentrl_trainer.run` and the processes below it."""

    def __init__(self, output: Path, *settings: str) -> None:
        self.output = output
        self.log = output.parent / f"{output.name}.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentrl_trainer.run", *SETTINGS, f"output={output}", *settings],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.family: list[int] = []

    def wait_for_steps(self, count: int) -> None:
        def reached() -> bool:
            self.family = descendants(self.process.pid) or self.family
            assert self.process.poll() is None, self.log.read_text()
            return len([r for r in read_metrics(self.output / "metrics.jsonl") if r["kind"] == "step"]) >= count

        wait_for(reached, f"step {count}")
        assert len(self.family) >= 2, "a rollout process and an engine"

    def end(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        wait_for(lambda: not any(map(alive, self.family)), "end of every process", 10)
        return code

    def kill(self) -> None:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*settings: str) -> Run:
        runs.append(Run(tmp_path / "run", *settings))
        return runs[-1]

    yield start
    for each in runs:
        if each.process.poll() is None:
            each.kill()


def interrupt(run: Run) -> None:
    started = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.end(120) == 130, run.log.read_text()
    seconds = time.monotonic() - started
    assert seconds < 10 * max(1.0, os.getloadavg()[0] / 2), "10 s, on a machine that has its cores to itself"


def test_an_interrupted_run_leaves_a_checkpoint_and_no_process_within_seconds(run: Callable[..., Run]) -> None:
    interrupted = run("engines.cross_policy=none")
    interrupted.wait_for_steps(2)
    interrupt(interrupted)
    saved = checkpoint.newest_whole(interrupted.output)
    assert saved is not None
    step = checkpoint.step_of(saved)
    assert len(checkpoint.Cursor.load(saved).done) == 2 * step
    records = read_metrics(interrupted.output / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, step + 1))
    assert (
        f"stopped after step {step}; go on with output={interrupted.output} resume=auto" in interrupted.log.read_text()
    )


@pytest.mark.full
@pytest.mark.parametrize("victim", ["none", "rollout.process", "engines.process", "trainer"])
def test_a_run_whose_processes_die_says_why_and_goes_on_where_it_stopped(run: Callable[..., Run], victim: str) -> None:
    # without stale engines: a run that loses one of those goes on
    first = run("checkpoints.every=1", "rollout.restarts=0", "engines.restarts=0", "engines.cross_policy=none")
    first.wait_for_steps(2)
    if victim == "none":
        interrupt(first)
    elif victim == "trainer":
        first.process.kill()
        assert first.end(60) == -signal.SIGKILL
    else:
        os.kill(next(pid for pid in first.family if victim in command_of(pid)), signal.SIGKILL)
        assert first.end(60) == 4
        assert "signal SIGKILL" in first.log.read_text()
    saved = checkpoint.newest_whole(first.output)
    assert saved is not None
    done, step = checkpoint.Cursor.load(saved).done, checkpoint.step_of(saved)
    assert len(done) == 2 * step

    again = run("resume=auto", f"steps={step + 1}")
    assert again.end(PATIENCE_S) == 0, again.log.read_text()
    records: list[dict[str, Any]] = read_metrics(first.output / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, step + 2)), "no step is lost or doubled"
    cursor = checkpoint.Cursor.load(first.output / f"checkpoint-{step + 1}").done
    assert done < cursor
    assert len(cursor) == 2 * (step + 1), "no group is consumed twice"
    assert all(r["lag/max"] <= 2 for r in records)
    assert sum(r["batch/trained_tokens"] for r in records) > 0, "the tiny policy earns something to learn from"
    assert json.loads((first.output / "summary.json").read_text())["steps"] == step + 1


def command_of(pid: int) -> str:
    return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
