"""Groups of a succession of processes: none lost, none doubled, whatever dies when; and an end that is told."""

import random
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.rollout.plan import SamplePlan
from agentrl_trainer.rollout.supervisor import Died, SupervisedRollouts
from agentrl_trainer.types import Group, Trajectory

TASKS = {"t": (1.0, [f"t/{i}" for i in range(9)])}


def group(number_of: str) -> Group:
    row = Trajectory(
        task="t", sample_id="t/0", group_id=number_of, replica=0, prompt_length=0,
        ids=np.zeros(0, "i4"), mask=np.zeros(0, "?"), logprobs=np.zeros(0, "f4"), versions=np.zeros(0, "i4"),
        engines=np.zeros(0, "i1"), turns=np.zeros(0, "i2"), status="completed", reward=1.0,
    )  # fmt: skip
    return Group(id=number_of, task="t", sample_id="t/0", trajectories=[row] * 4, admitted_version=0)


class Process:
    """Plays the plan from its start, a few groups in flight, out of order; dies at a given number of calls."""

    def __init__(self, done: Collection[str], life: int, seed: int) -> None:
        self.plan = SamplePlan(TASKS, seed=0, done=done)
        self.rng = random.Random(seed)
        self.life = life
        self.flight: list[str] = []
        self.published: list[tuple[int, bool]] = []
        self.waiting = 0
        self._consumed = 0
        self.closed = False

    def _live(self) -> None:
        self.life -= 1
        if self.life < 0:
            raise Died("process 7 was ended by signal SIGKILL [rollout process].")

    def get_group(self, timeout: float) -> Group | None:
        self._live()
        assert self.published, "nothing is played before there are weights"
        while len(self.flight) < 3:
            draw = self.plan.next()
            assert draw is not None
            self.flight.append(draw.group_id)
        self.waiting += 4
        return group(self.flight.pop(self.rng.randrange(3)))

    def consumed(self, trajectories: int) -> None:
        self._consumed += trajectories

    def publish(self, path: Path, version: int, stale: bool) -> None:
        self._live()
        self.published.append((version, stale))
        self.waiting -= self._consumed
        self._consumed = 0

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        self._live()
        return [{"n": n}]

    def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        self._live()
        return []

    def stats(self) -> Mapping[str, Any]:
        self._live()
        return {"waiting": self.waiting}

    def close(self) -> None:
        self.closed = True


def supervised(lives: list[int], *, restarts: int) -> tuple[SupervisedRollouts, list[Process]]:
    processes: list[Process] = []

    def start(done: Collection[str]) -> Process:
        processes.append(Process(set(done), lives[min(len(processes), len(lives) - 1)], len(processes)))
        return processes[-1]

    counted = len
    return (
        SupervisedRollouts(start, done=["g000002"], restarts=restarts, counted=lambda g: counted(g.usable)),
        processes,
    )


@settings(max_examples=150, deadline=None)
@given(lives=st.lists(st.integers(2, 25), min_size=1, max_size=5), per_step=st.integers(1, 4))
def test_every_group_comes_once_and_the_account_of_what_waits_is_right(lives: list[int], per_step: int) -> None:
    rollouts, processes = supervised([*lives, 10_000], restarts=len(lives))
    rollouts.publish(Path("v0"), 0, stale=True)
    got: list[str] = []
    for version in range(1, 16):
        batch: list[Group] = []
        while len(batch) < per_step:
            if found := rollouts.get_group(0.1):
                batch.append(found)
        got += [g.id for g in batch]
        rollouts.consumed(4 * len(batch))
        rollouts.publish(Path(f"v{version}"), version, stale=version % 4 == 0)
        assert rollouts.evaluate("t", "dev", version, 0.0, 0) == [{"n": version}]
        assert processes[-1].waiting == 0, "all that was handed out has been consumed"
        assert processes[-1].published[-1][0] == version
    assert len(got) == len(set(got)) == 15 * per_step
    numbers = sorted(int(g[1:]) for g in got)
    missing = set(range(numbers[-1] + 1)) - set(numbers) - {2}
    assert len(missing) <= 2, "only what is in flight"
    assert "g000002" not in got
    for process in processes[1:]:
        assert process.published[0][1], "stale engines have weights before they sample"
        assert process.published[0][0] % 4 == 0, "and those that they had before"
    assert all(process.closed for process in processes[:-1])


def test_deaths_beyond_the_restarts_and_told_reasons_end_the_run() -> None:
    rollouts, processes = supervised([2], restarts=2)
    with pytest.raises(Died, match="SIGKILL"):
        list(map(rollouts.publish, [Path("v")] * 9, range(9), [True] * 9))
    assert len(processes) == 3
    rollouts.close()

    class Tells(Process):
        def get_group(self, timeout: float) -> Group | None:
            raise InfrastructureError("the last 24 groups had no usable member [scheduler].")

    once = SupervisedRollouts(lambda done: Tells(done, 9, 0), done=[], restarts=3, counted=lambda g: 4)
    once.publish(Path("v"), 0, stale=True)
    with pytest.raises(InfrastructureError, match="no usable member"):
        once.get_group(0.1)


def test_two_threads_that_meet_the_same_death_start_one_process() -> None:
    rollouts, processes = supervised([40, 40, 40, 40, 40, 10_000], restarts=5)
    rollouts.publish(Path("v0"), 0, stale=True)
    got: list[str] = []

    def read() -> None:
        while len(got) < 150:
            if found := rollouts.get_group(0.1):
                got.append(found.id)

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 60):
        rollouts.publish(Path("v"), version, stale=False)
        rollouts.stats()
    reader.join(20)
    assert not reader.is_alive()
    assert len(set(got)) == len(got) == 150
    assert len(processes) <= 6
