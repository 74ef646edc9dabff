"""Many episodes, many threads, many products."""

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session

ROOT = Path(__file__).parents[3]


def resident_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def transcript(task: Any, sample: Any) -> list[list[Message]]:
    session = Session(task, sample)
    turn = session.start()
    expert = task.expert(sample)
    move = next(expert)
    while True:
        assert isinstance(move, ToolCall)
        turn = session.interact([assistant(None, [move])])
        if turn.finish:
            return [played.turn.messages for played in session.log]
        move = expert.send(turn)


@pytest.mark.parametrize(
    "episodes", [1_000, pytest.param(10_000, marks=pytest.mark.full)], ids=["1,000 episodes", "10,000 episodes"]
)
def test_episodes_in_64_threads_equal_their_serial_runs_and_leave_no_memory(episodes: int) -> None:
    task = load_task("webshop", call_timeout_s=None)
    samples = list(task.samples("train")[:500])
    serial = [json.dumps(transcript(task, sample)) for sample in samples]
    wrong: list[str] = []

    def play(first: int, count: int) -> None:
        for n in range(first, first + count):
            if json.dumps(transcript(task, samples[n % 500])) != serial[n % 500]:
                wrong.append(samples[n % 500].id)

    def round_of(count: int) -> None:
        share = -(-count // 64)
        threads = [threading.Thread(target=play, args=(n * share, share)) for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()

    round_of(2_000)  # caches fill, the allocator settles
    before = resident_mb()
    round_of(episodes)
    growth = (resident_mb() - before) / (episodes / 1_000)
    print(f"{growth:.2f} MB per 1,000 episodes")
    assert wrong == []
    assert growth < (1.0 if episodes >= 10_000 else 4.0)  # of 1,000 alone, the allocator's own steps are a part


@pytest.mark.full
@pytest.mark.timeout(3 * 3600)
def test_the_full_size_keeps_its_bounds() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "webshop.py", "--large"], capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_benchmark_runs_and_its_bounds_hold_at_a_small_scale() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "webshop.py", "--large", "4000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all bounds hold" in done.stdout
