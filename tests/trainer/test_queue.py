"""The draining queue: whole groups in order, bounds, back-pressure, and a diagnosis instead of a hang."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError
from agentrl_trainer import queue as queue_module
from agentrl_trainer.queue import BatchBuffer, BatchRule, TrajectoryQueue
from agentrl_trainer.types import Group

Make = Callable[..., Any]


class Source:
    """Gives prepared groups as soon as they are asked for, then nothing, or a failure."""

    def __init__(self, groups: list[Group], failure: Exception | None = None) -> None:
        self.groups = groups
        self.failure = failure
        self.taken = 0
        self.more = threading.Event()

    def get_group(self, timeout: float) -> Group | None:
        if self.taken < len(self.groups):
            self.taken += 1
            return self.groups[self.taken - 1]
        if self.failure:
            raise self.failure
        self.more.wait(min(timeout, 0.02))
        return None

    def stats(self) -> Mapping[str, Any]:
        return {"in_flight": 3, "slowest_s": 41}


@pytest.fixture
def groups(make_trajectory: Make, make_group: Make) -> list[Group]:
    rng = np.random.default_rng(0)
    return [make_group([make_trajectory(rng=rng) for _ in range(4)], n) for n in range(12)]


def readers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "group-reader"}


def settle(queue: TrajectoryQueue, size: int) -> None:
    wait_for(lambda: len(queue) == size)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_a_batch_drains_whole_groups_in_order_up_to_the_maximum(groups: list[Group]) -> None:
    queue = TrajectoryQueue(Source(groups), capacity=6).start()
    settle(queue, 6)
    batch = queue.get_batch(8, 18, version=3, deadline_s=30)
    assert [g.id for g in batch.groups] == ["g0", "g1", "g2", "g3"]  # 16; a fifth would make 20
    assert (batch.version, len(batch.trajectories)) == (3, 16)
    settle(queue, 6)
    assert [g.id for g in queue.get_batch(8, 1000, version=4, deadline_s=30).groups][:2] == ["g4", "g5"]
    queue.close()


def test_a_full_queue_stops_taking_from_the_source(groups: list[Group]) -> None:
    source = Source(groups)
    queue = TrajectoryQueue(source, capacity=2).start()
    settle(queue, 2)
    wait_for(lambda: source.taken == 3)  # one more is in the reader's hand
    time.sleep(0.05)
    assert source.taken == 3
    assert len(queue.get_batch(40, 48, version=0, deadline_s=30).trajectories) >= 40  # and a batch may still exceed it
    queue.close()


def test_unusable_members_do_not_count_as_trajectories(groups: list[Group]) -> None:
    for t in groups[0].trajectories:
        t.usable = False
    groups[1].trajectories[0].usable = False
    queue = TrajectoryQueue(Source(groups[:3]), capacity=6).start()
    batch = queue.get_batch(7, 8, version=0, deadline_s=30)
    assert [g.id for g in batch.groups] == ["g0", "g1", "g2"]
    assert len(batch.trajectories) == 7
    queue.close()


def test_waiting_in_vain_is_reported_and_ends_as_a_diagnosis(
    groups: list[Group], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(queue_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    queue = TrajectoryQueue(Source(groups[:1]), capacity=2, stall_report_s=0.05).start()
    settle(queue, 1)

    def wait(seconds: float | None = None) -> bool:
        assert seconds is not None
        clock[0] += seconds
        return False

    monkeypatch.setattr(queue._changed, "wait", wait)  # the reader has room: only the trainer waits
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(InfrastructureError, match=r"4 of 8 trajectories.*in_flight 3, slowest_s 41"),
    ):
        queue.get_batch(8, 8, version=0, deadline_s=0.28)
    assert clock[0] == pytest.approx(0.28)
    assert caplog.text.count("the trainer waits for rollouts: 4 of 8") == 5
    queue.close()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (InfrastructureError("the rollout process died with code -9 [rollout]. Read its log."), "died with code -9"),
        (CallerError("task kg cannot be used [kg]. Mend it."), "Mend it"),
        (KeyError("ids"), r"KeyError\('ids'\)"),
    ],
)
def test_a_dead_source_ends_the_wait_after_what_it_gave(groups: list[Group], failure: Exception, message: str) -> None:
    queue = TrajectoryQueue(Source(groups[:2], failure), capacity=4).start()
    settle(queue, 2)
    assert len(queue.get_batch(8, 8, version=0, deadline_s=30).groups) == 2
    started = time.monotonic()
    with pytest.raises(AgentBenchError, match=message) as raised:
        queue.get_batch(8, 8, version=0, deadline_s=300)
    assert raised.value.__cause__ is failure
    assert isinstance(raised.value, type(failure) if isinstance(failure, AgentBenchError) else InfrastructureError)
    assert time.monotonic() - started < 2, "not what the deadline allows"
    queue.close()


def test_closing_ends_the_reader_and_the_wait(groups: list[Group]) -> None:
    others = readers()  # of simulated dead processes, when their tests ran here before
    queue = TrajectoryQueue(Source(groups), capacity=1).start()
    settle(queue, 1)
    assert len(readers() - others) == 1
    queue.close()
    queue.close()
    assert readers() <= others
    queue.get_batch(4, 4, version=0, deadline_s=30)
    with pytest.raises(InfrastructureError, match="closed"):
        queue.get_batch(400, 400, version=0, deadline_s=30)


def test_a_reader_that_is_gone_without_a_word_is_told_at_once(groups: list[Group]) -> None:
    queue = TrajectoryQueue(Source(groups), capacity=1)  # never started: as good as dead
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match="the reader ended without a word"):
        queue.get_batch(4, 4, version=0, deadline_s=300)
    assert time.monotonic() - started < 5


def test_the_oldest_groups_come_first_and_equal_rewards_are_refilled(groups: list[Group]) -> None:
    for number, group in enumerate(groups):
        group.admitted_version = 5 - number // 2
        for replica, row in enumerate(group.trajectories):
            row.reward = float(replica % 2) if number % 3 == 0 else 0.3
    buffer = BatchBuffer()
    for group in groups[:8]:
        buffer.put(group)
    rule = BatchRule(min_trajectories=8, max_trajectories=8, refill=1e-6, most=24)
    batch = buffer.take(rule)
    assert batch is not None
    assert [g.id for g in batch] == ["g6", "g7", "g4", "g5", "g2", "g3"], "two of six say something"
    assert sum(g.counted(1e-6) for g in batch) == 8
    assert buffer.take(rule) is None
    for group in groups[8:]:
        buffer.put(group)
    last = buffer.take(rule)
    assert last is not None
    assert {"g9"} <= {g.id for g in last}
    strict = BatchRule(min_trajectories=8, max_trajectories=8, refill=1e-6, most=12)
    flat = BatchBuffer()
    for number in (1, 2, 4, 5):
        flat.put(groups[number])
    found = flat.take(strict)
    assert found is not None
    assert len(found) == 3, "not for ever: 12 usable ones are enough"
