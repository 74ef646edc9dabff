"""Every built-in task can be forked at every turn and played again, in this process and in others."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.episode import Task
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import available_built_ins, load_task
from agentbench_fc.schema_sampling import sample_arguments
from agentbench_fc.session import Session
from agentbench_fc.transcript import append

EMBEDDED = [name for name in ("db", "kg", "webshop") if name in available_built_ins()]


def games(task: Task, player: str, count: int) -> list[Session]:
    """Games over samples drawn from all of the split; random ones with a seed each."""
    samples = task.samples("train")
    policy = make_player(player, task)
    drawn = random.Random(f"{task.spec.name} {player}").sample(range(len(samples)), count)
    return [play(task, samples[index], policy, seed=index) for index in drawn]


def seen(session: Session) -> list[tuple[Any, ...]]:
    turns = [played.turn for played in session.log]
    return [(t.turn, t.messages, t.status, t.finish, t.reward, t.success) for t in turns]


def other_move(task: Task, rng: random.Random) -> list[Any]:
    spec = rng.choice(task.spec.tools)["function"]
    arguments = json.dumps(sample_arguments(spec["parameters"], rng))
    return [assistant(None, [ToolCall("other", spec["name"], arguments)])]


def check_forks(session: Session) -> None:
    """Forks of the finished session (by replay) and of a second, open play of it (natively where the task can)."""
    task, whole = session.task, seen(session)
    rng = random.Random(session.id)
    live = Session(task, session.sample, seed=session.seed)
    live.start()
    moves = [played.sent for played in session.log[1:]]
    for at, move in enumerate(moves):
        for parent in (session, live):
            child, sibling = parent.fork(at), parent.fork(at)
            sibling.interact(other_move(task, rng))
            for later in moves[at:]:
                child.interact(later)
            assert seen(child) == whole
            assert (child.raw_reward, child.status) == (session.raw_reward, session.status)
            sibling.close()
        live.interact(move)
    assert seen(live) == whole
    assert seen(session) == whole


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.parametrize("player", ["expert", "random"])
@pytest.mark.parametrize("name", EMBEDDED)
def test_a_fork_at_any_turn_ends_as_its_parent_did(name: str, player: str, count: int) -> None:
    task = load_task(name)
    try:
        for session in games(task, player, count):
            check_forks(session)
    finally:
        task.close()


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.full)])
def test_another_process_with_another_hash_seed_sees_the_same(tmp_path: Path, count: int) -> None:
    path, total = tmp_path / "t.jsonl", 0
    for name in EMBEDDED:
        task = load_task(name)
        for player in ("expert", "random"):
            for session in games(task, player, count):
                append(path, session)
                total += 1
        task.close()
    code = "import sys; from agentbench_fc.cli import main; sys.argv = ['agentbench-fc', 'replay', sys.argv[1]]; main()"
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert out.returncode == 0, out.stderr + out.stdout[-2000:]
    assert all("sqlite, an approximation" in line for line in out.stderr.splitlines()), out.stderr
    assert f"{total} sessions" in out.stdout
    assert "no divergence" in out.stdout
