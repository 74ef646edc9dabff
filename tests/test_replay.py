"""Fork and replay: the same final reward, whatever the policy, the turn, the process and the hash seed."""

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import Counter, ForkingCounter, counter_task

from agentbench_fc.episode import Reply, Task, ToolEpisode, ToolTask, Turn, make_task, tool
from agentbench_fc.errors import InfrastructureError
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.replay import replay_file
from agentbench_fc.session import Session
from agentbench_fc.transcript import append, read


class Garden(ToolEpisode):
    """State in nested containers, a random generator, rewards on the way, and an end by chance."""

    max_turns = 9
    max_invalid_calls = 4

    def start(self) -> str:
        self.beds: dict[str, list[int]] = {"a": [], "b": []}
        return f"Plant. Luck: {self.rng.random():.6f}"

    @tool
    def plant(self, bed: str, count: int = 1) -> Reply:
        """Plants in a bed.

        Args:
            bed: Which one.
            count: How many.
        """
        self.beds.setdefault(bed, []).extend(self.rng.randrange(100) for _ in range(min(count, 5)))
        paid = 0.05 if self.rng.random() < 0.5 else None
        return Reply(json.dumps(self.beds), reward=paid)

    @tool
    def harvest(self) -> Reply:
        """Ends the year, perhaps."""
        if self.rng.random() < 0.4:
            total = sum(map(sum, self.beds.values()))
            return Reply(f"Harvest: {total}", reward=total % 10 / 20, success=total > 100, done=True)
        return Reply("Not yet.")

    @tool
    def fail(self) -> str:
        """Raises."""
        raise ValueError(f"a stone, {self.rng.random():.4f}")

    def say(self, text: str) -> Reply | None:
        return Reply(f"{len(text)} words to plants, {self.rng.random():.4f}") if text.startswith("talk") else None


class ForkingGarden(Garden):
    def fork(self) -> "ForkingGarden":
        return copy.deepcopy(self)


def garden_task(episode: type[ToolEpisode] = Garden) -> ToolTask:
    return make_task(episode, samples={"train": [{"n": n} for n in range(20)]}, name="garden")


TASK = garden_task()


def random_move(rng: random.Random) -> list[Message]:
    def one(n: int) -> ToolCall:
        name = rng.choice(["plant", "plant", "plant", "harvest", "fail", "nothing"])
        arguments = {"plant": {"bed": rng.choice("abc"), "count": rng.randrange(4)}}.get(name, {})
        return ToolCall(f"c{n}", name, rng.choice([json.dumps(arguments)] * 6 + ["{"]))

    calls = [one(n) for n in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    return [assistant(rng.choice(["talk to them", "hm", "é\u2028"]), calls)]


def play(task: Task, seed: int) -> tuple[Session, list[list[Message]]]:
    rng = random.Random(seed)
    session = Session(task, task.samples("train")[rng.randrange(20)], seed=seed)
    session.start()
    moves = []
    while not session.finished:
        moves.append(random_move(rng))
        session.interact(moves[-1])
    return session, moves


def seen(session: Session, since: int = 0) -> list[tuple[Any, ...]]:
    """What an agent could observe."""
    turns = [played.turn for played in session.log[since:]]
    return [(t.turn, t.messages, t.status, t.finish, t.reward, t.success, t.metrics) for t in turns]


@pytest.mark.parametrize("episode", [Garden, ForkingGarden])
@pytest.mark.parametrize("seed", range(12))
def test_a_fork_at_any_turn_ends_like_its_parent_and_touches_nobody(episode: type[ToolEpisode], seed: int) -> None:
    session, moves = play(garden_task(episode), seed)
    live = Session(session.task, session.sample, seed=seed)  # the same once more, forked while it is open
    live.start()
    for at in range(len(moves)):
        whole = copy.deepcopy(seen(session))
        for parent in (session, live):
            child, sibling = parent.fork(at), parent.fork(at)
            sibling.interact([assistant(None, [ToolCall("x", "plant", '{"bed": "z", "count": 3}')])])
            for move in moves[at:]:
                child.interact(move)
            assert seen(child) == whole
            assert child.parent == (parent.id, at)
        assert seen(session) == whole
        live.interact(moves[at])
    assert seen(live) == seen(session)
    assert live.raw_reward == session.raw_reward


def write(path: Path, seeds: range, task: ToolTask = TASK) -> list[Session]:
    sessions = []
    for seed in seeds:
        session, moves = play(task, seed)
        sessions.append(session)
        append(path, session, "garden")
        child = session.fork(len(moves) // 2)
        child.interact(random_move(random.Random(seed)))
        if not child.finished:
            child.cancel(reason="enough")
        append(path, child, "garden")
    return sessions


def load_garden(name: str, **_: Any) -> Task:
    assert name == "garden"
    return garden_task()


def test_a_file_plays_again_as_recorded_forks_and_cancels_included(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, range(20))
    report = replay_file(path, load_garden)
    assert (report.ok, report.sessions, report.divergences, report.warnings) == (True, 40, [], [])
    assert report.turns > 100
    assert "40 sessions" in report.to_text()
    json.dumps(report.to_dict())


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_with_another_hash_seed_sees_the_same(tmp_path: Path, hash_seed: str) -> None:
    path = tmp_path / "t.jsonl"
    session, _ = play(TASK, 5)
    append(path, session, f"{Path(__file__)}:TASK")
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "import sys; from agentbench_fc.replay import replay_file; print(replay_file(sys.argv[1]).to_text())"
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.strip() == f"{path}: 1 sessions, {len(session.log)} turns, no divergence"


def edited(path: Path, edit: Any) -> None:
    lines = [json.loads(line) for line in path.read_text().split("\n") if line]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("edit", "turn", "text"),
    [
        (lambda ls: ls[1]["messages"][0].update(content="Plant!"), 0, "messages was"),
        (lambda ls: ls[2].update(reward=0.9), 1, "reward was 0.9"),
        (lambda ls: ls[2].update(status="task error"), 1, "status was"),
        (lambda ls: ls[2].update(status="splendid"), 1, "status was 'splendid'"),
        (lambda ls: ls[-2].update(success=None), None, "success was None"),
        (lambda ls: ls[0].update(seed=77), 0, "messages was"),
        (lambda ls: ls[2].update(sent=[{"role": "user"}]), 1, "cannot be played"),
        (lambda ls: ls[0].update(sample="garden/train/99"), None, "no sample"),
        (lambda ls: ls[0].update(task="gardne"), None, "no task 'gardne'"),
    ],
)
def test_every_change_is_a_divergence(tmp_path: Path, edit: Any, turn: int | None, text: str) -> None:
    def load(name: str, **options: Any) -> Task:
        from agentbench_fc.registry import load_task

        return garden_task() if name == "garden" else load_task(name, **options)

    path = tmp_path / "t.jsonl"
    (session,) = [play(TASK, seed)[0] for seed in range(40) if play(TASK, seed)[0].last.status == "completed"][:1]
    append(path, session, "garden")
    assert replay_file(path, load).ok
    edited(path, edit)
    report = replay_file(path, load)
    assert not report.ok
    assert text in report.to_text()
    if turn is not None:
        assert report.divergences[0].turn == turn
    assert report.divergences[0].line == 1


def test_a_task_that_changed_diverges_and_a_spec_that_changed_warns(tmp_path: Path) -> None:
    class Richer(Garden):
        max_turns = 8

        @tool
        def fail(self) -> str:
            """Raises."""
            raise ValueError("another stone")

    path = tmp_path / "t.jsonl"
    write(path, range(20))
    report = replay_file(path, lambda name, **_: garden_task(Richer))
    assert not report.ok
    assert any("the spec of garden has changed" in text for text in report.warnings)
    assert any("another stone" in divergence.what for divergence in report.divergences)
    kinds = {divergence.what.split(" was")[0] for divergence in report.divergences}
    assert "the session had ended as task limit reached before" in kinds or "status" in kinds


class Flaky(Counter):
    broken = True

    @tool
    def roll(self) -> str:
        """Needs a backend."""
        if type(self).broken:
            raise InfrastructureError("the backend is away [x]. Wait.")
        return "rolled"


def test_a_fault_of_the_environment_is_no_divergence_when_it_does_not_come_again(tmp_path: Path) -> None:
    path, task = tmp_path / "t.jsonl", counter_task(Flaky)
    session = Session(task, task.samples("train")[0])
    session.start()
    session.interact([assistant(None, [ToolCall("c", "roll", "{}")])])
    append(path, session)
    assert replay_file(path, lambda name, **_: counter_task(Flaky)).ok
    Flaky.broken = False
    try:
        report = replay_file(path, lambda name, **_: counter_task(Flaky))
    finally:
        Flaky.broken = True
    assert report.ok
    assert "failed by a fault of the environment" in report.warnings[0]


def test_an_open_and_a_truncated_session_are_played_as_far_as_they_go(tmp_path: Path) -> None:
    path, task = tmp_path / "t.jsonl", counter_task(ForkingCounter)
    session = Session(task, task.samples("train")[3])
    session.start()
    session.interact([assistant(None, [ToolCall("c", "roll", "{}")])])
    append(path, session)
    append(path, session)
    path.write_bytes(path.read_bytes()[:-20])
    report = replay_file(path, lambda name, **_: counter_task(ForkingCounter))
    assert (report.ok, report.sessions, report.turns) == (True, 2, 3)
    assert len([text for text in report.warnings if "no end" in text]) == 2
    assert "breaks off" in report.warnings[0]
    assert len(read(path).sessions) == 2


def test_turns_are_not_shared_with_the_child() -> None:
    task = counter_task(ForkingCounter)
    session = Session(task, task.samples("train")[3])
    session.start()
    child = session.fork()
    assert isinstance(child.last, Turn)
    assert child.last.session_id == child.id != session.id
    assert session.last.session_id == session.id
