"""A training run as a process of its own, the processes below it, and ways to end them one by one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_trainer.report import read_metrics

TOY = '''
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool


class Toy(ToolEpisode):
    """Any text is an answer; its length decides."""

    max_turns = 3

    def start(self):
        return f"Say {self.sample.data['word']}."

    @tool
    def say_word(self, word: str):
        """Says a word."""
        return self.finish("Thanks.", reward=1.0)

    def say(self, text):
        if len(text) % 3 == 0:
            return None
        return Reply("Noted.", reward=float(len(text) % 2), done=True)


TASK = make_task(Toy, samples={"train": [{"word": f"w{n}"} for n in range(50)], "dev": [{"word": "so"}]})
'''
SETTINGS = [
    "evaluation.n=0", "group_size=4", "batch.min_trajectories=8", "batch.max_trajectories=8", "rollout.max_groups=2",
    "sampling.max_context=400", "sampling.max_new_tokens=12", "checkpoints.every=1", "progress=plain",
]  # fmt: skip
PATIENCE_S = 240.0


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, from the kernel's table."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be collected does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def command_of(pid: int) -> str:
    """Its command line; empty: it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


class TrainerRun:
    """`python -m agentrl_trainer.run` into one folder; started again as often as wanted."""

    def __init__(self, output: Path, *settings: str) -> None:
        self.output = output
        self.log = output.parent / f"{output.name}.log"
        self._settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *settings: str) -> None:
        """Begins, or goes on with `resume=auto`."""
        command = [sys.executable, "-m", "agentrl_trainer.run", *SETTINGS, f"output={self.output}", *self._settings]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *settings], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the trainer."""
        assert self.process is not None
        return self.process.pid

    def steps(self) -> list[dict[str, Any]]:
        """The figures of the steps so far."""
        return [r for r in read_metrics(self.output / "metrics.jsonl") if r["kind"] == "step"]

    def wait_for_step(self, step: int) -> None:
        """Until the figures of `step` are written."""
        self.wait_for(lambda: bool(self.steps()) and self.steps()[-1]["step"] >= step, f"step {step}")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds; the run must not end before."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None or condition(), f"ended before {what}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {what} within {PATIENCE_S:g} s:\n{self.log.read_text()}"
            time.sleep(0.05)

    def kill(self, module: str, place: int = 0) -> None:
        """`kill -9` for the process below the trainer that runs `module`, once there is one."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [p for p in descendants(self.pid) if module in command_of(p)]
            return len(found) > place

        self.wait_for(there, module)
        os.kill(sorted(found)[place], signal.SIGKILL)

    def kill_trainer(self) -> None:
        """`kill -9` for the trainer; everything below it must end by itself."""
        assert self.process is not None
        family = descendants(self.pid)
        self.process.kill()
        self.process.wait(10)
        deadline = time.monotonic() + 20
        while any(map(alive, family)):
            assert time.monotonic() < deadline, f"left behind: {[command_of(p) for p in family if alive(p)]}"
            time.sleep(0.05)

    def finish(self) -> int:
        """The exit code, once it ends."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Leaves nothing behind."""
        if self.process is not None and self.process.poll() is None:
            for pid in [*descendants(self.pid), self.pid]:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)
