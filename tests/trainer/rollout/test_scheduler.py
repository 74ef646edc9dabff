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
    defaults = {"group_size": 4, "places": 24, "batch": 8, "max_lag": 1, "straggler_s": 9, "auto_depth": False}
    return Limits(**(defaults | changes))  # type: ignore[arg-type]


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
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(), out, limits(max_lag=50, places=12))
    async with running(scheduler):
        await scheduler.published(0, 0)
        await quiet()
        admitted = scheduler.groups
        assert 4 <= admitted <= 8, "one in the outlet, the others keep their places"
        assert "groups that nobody takes" in scheduler.stats()["admission"]
        await scheduler.hold()
        for _ in range(admitted):
            await out.get()
        await quiet()
        assert scheduler.groups == admitted
        assert scheduler.stats()["admission"] == "held for an evaluation"
        await scheduler.release()
        await quiet()
        assert scheduler.groups > admitted
    assert scheduler.stats()["running_groups"] == 0


async def test_no_place_is_idle_while_a_group_waits_for_its_last_member() -> None:
    """One member of each group takes long; the others make room for further groups."""
    gates = asyncio.Event()
    open_now, most = 0, 0

    async def play(draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            if replica == 0:
                await gates.wait()
            return member(draw, replica)
        finally:
            open_now -= 1

    out: asyncio.Queue[Group] = asyncio.Queue()
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), play, out, limits(max_lag=9, places=6))
    async with running(scheduler):
        await scheduler.published(0, 0)
        await quiet()
        assert open_now == most == 6, "six slow members of six groups, and nothing else"
        assert out.empty()
        gates.set()
        await quiet()
        assert most == 6
        ids = [out.get_nowait().id for _ in range(out.qsize())]
        assert ids[:6] == sorted(ids[:6]), "the oldest comes out first"


async def test_a_task_at_its_limit_takes_no_places_and_is_made_up_for() -> None:
    samples = {"slow": (1.0, ["slow/0"]), "quick": (1.0, ["quick/0"])}
    gate = asyncio.Event()
    open_of: dict[str, int] = {"slow": 0, "quick": 0}
    most = dict(open_of)

    async def play(draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        open_of[draw.task] += 1
        most[draw.task] = max(most[draw.task], open_of[draw.task])
        if draw.task == "slow":
            await gate.wait()
        open_of[draw.task] -= 1
        return member(draw, replica)

    out: asyncio.Queue[Group] = asyncio.Queue()
    places = {"slow": asyncio.Semaphore(2)}
    scheduler = Scheduler(
        SamplePlan(samples, seed=0), play, out, limits(max_lag=9, places=8, group_size=4), task_places=places
    )
    async with running(scheduler):
        await scheduler.published(0, 0)
        await quiet()
        assert out.qsize() >= 8, "the quick task goes on"
        assert most["slow"] == 2
        gate.set()
        for version in range(1, 30):
            await out.get()
            await scheduler.published(version, 4)
        assert most["slow"] == 2, "never more than its own places"
        counts = scheduler.statuses
        assert abs(counts["slow: completed"] - counts["quick: completed"]) <= 4 * 17, "the mix is kept"


async def test_groups_that_say_nothing_are_replaced_and_counted() -> None:
    async def play(draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        await asyncio.sleep(0)
        row = member(draw, replica)
        number = int(draw.group_id[1:])
        row.reward = 0.1 + 0.2 if replica else 0.3 + (0.5 if number % 3 == 0 else 0.0)
        return row

    out: asyncio.Queue[Group] = asyncio.Queue()
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), play, out, limits(max_lag=0, refill=1e-6))
    async with running(scheduler):
        await scheduler.published(0, 0)
        await quiet()
        groups = [out.get_nowait() for _ in range(out.qsize())]
    informative = [g for g in groups if g.counted(1e-6)]
    assert len(informative) == 2, "one batch of two groups, as the lag of 0 asks"
    assert scheduler.uninformative == len(groups) - 2 >= 2, "0.1 + 0.2 and 0.3 are equal"
    assert all(g.counted(None) == 4 for g in groups)


@pytest.mark.parametrize(("auto", "most"), [(True, 136), (False, 192)])
async def test_the_depth_follows_what_the_trainer_needs(auto: bool, most: int) -> None:
    """Episodes that take no time and a trainer that takes a batch at a time: depth beyond two batches is only lag."""
    out: asyncio.Queue[Group] = asyncio.Queue()
    bounds = limits(batch=64, group_size=8, places=64, max_lag=2, auto_depth=auto)
    scheduler = Scheduler(SamplePlan(SAMPLES, seed=0), Play(), out, bounds)
    lags: list[int] = []
    async with running(scheduler):
        for version in range(30):
            await scheduler.published(version, 64 if version else 0)
            for _ in range(8):
                lags.append(version - (await out.get()).admitted_version)
            await quiet()
            await quiet()
            assert scheduler.stats()["waiting_trajectories"] <= most
    assert sum(lags[80:]) / len(lags[80:]) < (1.3 if auto else 2.1)
    assert auto or sum(lags[80:]) / len(lags[80:]) > 1.7


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
