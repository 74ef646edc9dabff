"""Groups go in and come out once, paced by versions; a full outlet or a hold stops admission; bugs surface."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.rollout.plan import Draw, SamplePlan
from agentrl_trainer.rollout.scheduler import Limits, Scheduler
from agentrl_trainer.types import Group, Trajectory

SAMPLES = {"t": (1.0, [f"t/train/{i}" for i in range(50)])}


def member(draw: Draw, replica: int, *, usable: bool = True) -> Trajectory:
    return Trajectory(
        task=draw.task, sample_id=draw.sample_id, group_id=draw.group_id, replica=replica, prompt_length=0,
        ids=np.zeros(0, "i4"), mask=np.zeros(0, "?"), logprobs=np.zeros(0, "f4"), versions=np.zeros(0, "i4"),
        engines=np.zeros(0, "i1"), turns=np.zeros(0, "i2"), status="completed", reward=1.0 if usable else None,
        usable=usable, fault="" if usable else "no disk",
    )  # fmt: skip


class Play:
    """Members that wait a random number of loop turns; every `bad`-th is unusable."""

    def __init__(self, *, bad: int = 0) -> None:
        self.rng = random.Random(0)
        self.bad = bad
        self.count = 0

    async def __call__(self, draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        self.count += 1
        usable = not self.bad or self.count % self.bad != 0
        for _ in range(self.rng.randrange(30)):
            await asyncio.sleep(0)
        return member(draw, replica, usable=usable)


def limits(**changes: float) -> Limits:
    return Limits(**({"group_size": 4, "max_groups": 6, "batch": 8, "max_lag": 1, "straggler_s": 9} | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def running(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def quiet() -> None:
    for _ in range(500):
        await asyncio.sleep(0)


async def test_nothing_starts_before_the_first_version_then_only_what_the_lag_allows() -> None:
    out: asyncio.Queue[Group] = asyncio.Queue()
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(), out, limits())
    async with running(scheduler):
        await quiet()
        assert scheduler.groups == 0
        await scheduler.published(0, 0)
        await quiet()
        assert (scheduler.groups, out.qsize()) == (4, 4)  # two batches of two groups
        await scheduler.published(1, 8)
        await quiet()
        assert scheduler.groups == 6


async def test_every_admitted_group_comes_out_once_with_all_its_members() -> None:
    out: asyncio.Queue[Group] = asyncio.Queue(maxsize=2)
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(bad=7), out, limits())
    taken: list[Group] = []
    async with running(scheduler):
        for version in range(12):
            await scheduler.published(version, sum(len(g.usable) for g in taken[-3:]) if version else 0)
            taken += [await out.get() for _ in range(3)]
    assert len({g.id for g in taken}) == len(taken) == 36
    assert all([t.replica for t in g.trajectories] == [0, 1, 2, 3] for g in taken)
    assert any(len(g.usable) < 4 for g in taken)
    assert sum(scheduler.faults.values()) >= sum(4 - len(g.usable) for g in taken)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
async def test_the_lag_of_groups_is_paced_and_at_0_none_is_older_than_its_step(max_lag: int) -> None:
    """Members take between 0 and 30 loop turns, so groups overtake each other: the slow ones may come a step late."""
    out: asyncio.Queue[Group] = asyncio.Queue()
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(), out, limits(max_lag=max_lag))
    lags: list[int] = []
    async with running(scheduler):
        consumed = 0
        for version in range(200):
            await scheduler.published(version, consumed)
            groups = [await out.get(), await out.get()]
            while not out.empty() and len(groups) < 5:
                groups.append(out.get_nowait())
            lags += [version - g.admitted_version for g in groups]
            consumed = sum(len(g.usable) for g in groups)
    assert sum(lags) <= max_lag * len(lags)
    assert max(lags) <= max_lag + 2 * (max_lag > 0)
    assert (max(lags) > 0) == (max_lag > 0)


async def test_a_full_outlet_and_a_hold_stop_admission() -> None:
    out: asyncio.Queue[Group] = asyncio.Queue(maxsize=1)
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(), out, limits(max_lag=50, max_groups=3))
    async with running(scheduler):
        await scheduler.published(0, 0)
        await quiet()
        assert scheduler.groups == 4  # one in the outlet, three slots that wait to put theirs
        await scheduler.hold()
        for _ in range(4):
            await out.get()
        await quiet()
        assert scheduler.groups == 4
        await scheduler.release()
        await quiet()
        assert scheduler.groups == 8
    assert scheduler.stats()["running_groups"] == 0


async def test_a_bug_surfaces_and_a_run_without_any_usable_member_ends() -> None:
    async def bug(draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        raise ZeroDivisionError

    out: asyncio.Queue[Group] = asyncio.Queue()
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), bug, out, limits())
    await scheduler.published(0, 0)
    with pytest.raises(ExceptionGroup) as caught:
        await scheduler.run()
    assert caught.group_contains(ZeroDivisionError)

    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(bad=1), out, limits())
    await scheduler.published(0, 0)
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await scheduler.run()
    assert caught.group_contains(InfrastructureError, match=r"no usable member \[scheduler\]. The last fault: no disk")
