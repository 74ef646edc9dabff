"""Keeps episodes in flight: admits whole groups while there is room, plays their members, hands each group out once.

What goes in comes out once: every admitted group reaches `out`, with every member in it, usable or not, the oldest
first. A group starts as soon as one place is free; its members take places as they come, so that places are never idle
while a group waits for its last member. Groups that nobody takes keep their places: a full `out` stops admission,
nothing polls and nothing is dropped. Known faults are data; any other exception cancels everything and surfaces whole.

Not here: the order of samples (plan.py), how much is on its way (depth.py), one episode (trajectory.py), other
processes (worker.py).
"""

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.rollout.depth import Depth, Spread
from agentrl_trainer.rollout.plan import Draw, SamplePlan
from agentrl_trainer.staleness import trained_mask
from agentrl_trainer.types import INNER, Group, Trajectory

logger = logging.getLogger(__name__)
HOPELESS_ROUNDS = 3
"""So many times all places filled in a row without one usable member: nothing will come any more."""


class PlayMember(Protocol):
    """Plays one member of a group, or one tree of it."""

    def __call__(self, draw: Draw, replica: int, deadline_s: float) -> Awaitable[Trajectory | Sequence[Trajectory]]:
        """Returns what was played, whatever happens, within some `deadline_s`; raises only what ends the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers that pace admission."""

    group_size: int
    places: int
    """Episodes that are played at once."""
    members: int = 0
    """Calls of `play` per group; 0: one per trajectory."""
    batch: int
    """Trajectories that a step takes at least."""
    max_lag: int
    straggler_s: float
    auto_depth: bool = True
    """Hold the depth just above what keeps the trainer busy; False: at the bound of the lag."""
    fresh_engines: int = 1
    """The first so many engines of the pool; only their tokens can be too old."""
    refill: float | None = None
    """Tolerance within which a group's rewards are equal and the group does not count; see `Group.counted`."""


class Scheduler:
    """Supervises the groups; one event loop, no locks.

    Args:
        plan: What is played, in order.
        play: Plays one member.
        out: Where finished groups go.
        limits: Of everything.
        task_places: Places of tasks that have a limit of their own, by name; others may take some too.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        plan: SamplePlan,
        play: PlayMember,
        out: "asyncio.Queue[Group]",
        limits: Limits,
        *,
        task_places: Mapping[str, asyncio.Semaphore] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._play = play
        self._out = out
        self._limits = limits
        self._task_places = task_places or {}
        self._clock = clock
        self._depth = Depth(
            batch=limits.batch, max_lag=limits.max_lag, group_size=limits.group_size, auto=limits.auto_depth
        )
        self._spread = Spread(groups=-(-limits.places // limits.group_size), auto=limits.auto_depth)
        self._tokens = self._late = 0  # of groups that finished since the last publication
        self._places = asyncio.Semaphore(limits.places)
        self._plays = limits.members or limits.group_size
        self._moved = asyncio.Event()  # something happened that admission may have waited for
        self._ready = asyncio.Event()
        self._finished: list[tuple[int, Group]] = []  # a heap, oldest group on top
        self._handing = 0
        self._held = 0
        self._version: int | None = None
        self._members = 0
        self._outside: Counter[str] = Counter()
        self._running = 0
        self._waiting = 0
        self._hopeless = 0
        self.groups = 0
        """Groups admitted so far."""
        self.uninformative = 0
        """Groups so far whose rewards were all equal; counted only where they are refilled."""
        self.episodes = 0
        """Episodes that ended so far."""
        self.statuses: Counter[str] = Counter()
        """Ends of episodes: `task: status`."""
        self.faults: Counter[str] = Counter()
        """Unusable members: `task: fault`."""

    async def run(self) -> None:
        """Plays groups until cancelled.

        Raises:
            InfrastructureError: no member of many groups in a row could be used.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hand_out(), name="hand out")
            while True:
                draw, version, number = await self._admit()
                tasks.create_task(self._play_group(draw, version, number), name=draw.group_id)

    async def published(self, version: int, consumed: int) -> None:
        """A new version is in the engines, made from `consumed` counted trajectories; the first call opens admission.

        A negative number takes trajectories over that another scheduler has handed out and no step has consumed.
        """
        self._waiting -= consumed
        if self._version is not None:
            self._depth.published(ready=self._waiting)
            self._spread.published(tokens=self._tokens, late=self._late)
            self._tokens = self._late = 0
        self._version = version
        self._moved.set()

    async def hold(self) -> None:
        """Stops admission, e.g. for an evaluation; groups in flight go on."""
        self._held += 1

    async def release(self) -> None:
        """Undoes one `hold`."""
        self._held -= 1
        self._moved.set()

    def stats(self) -> dict[str, Any]:
        """Where the groups are, and what admission waits for."""
        return {
            "admitted_groups": self.groups,
            "running_groups": self._running,
            "playing_episodes": self._members - self._outside.total(),
            "waiting_trajectories": self._waiting,
            "uninformative_groups": self.uninformative,
            "depth": self._depth.target,
            "groups_in_flight_limit": self._spread.limit,
            "version": -1 if self._version is None else self._version,
            "admission": self._obstacle() or "open",
        }

    async def _admit(self) -> tuple[Draw, int, int]:
        while True:
            if not self._obstacle() and (draw := self._plan.next(self._full_tasks())):
                assert self._version is not None
                self._running += 1
                self._members += self._plays
                self.groups += 1
                return draw, self._version, self.groups
            self._moved.clear()
            await self._moved.wait()

    def _obstacle(self) -> str:
        """Why no group may start now; empty: one may."""
        limits = self._limits
        if self._version is None:
            return "waits for the first weights"
        if self._held:
            return "held for an evaluation"
        on_their_way = self._waiting + self._running * limits.group_size
        if on_their_way >= self._depth.target:
            return f"waits for a step: {on_their_way} trajectories on their way, depth {self._depth.target}"
        if self._running >= self._spread.limit:
            return f"waits for last members: {self._running} groups are in flight, limit {self._spread.limit}"
        untaken = len(self._finished) + self._handing
        if self._members - self._outside.total() + untaken * self._plays >= limits.places:
            return f"waits for places: {limits.places} are taken, {untaken} groups of them by groups that nobody takes"
        return ""

    def _full_tasks(self) -> set[str]:
        return {name for name, places in self._task_places.items() if places.locked() or self._outside[name]}

    async def _play_group(self, draw: Draw, version: int, number: int) -> None:
        started = self._clock()
        members: list[asyncio.Task[list[Trajectory]]] = []
        async with asyncio.TaskGroup() as tasks:
            for replica in range(self._plays):
                name = f"{draw.group_id}/{replica}"
                members.append(tasks.create_task(self._member(draw, replica), name=name))
        group = Group(
            id=draw.group_id,
            task=draw.task,
            sample_id=draw.sample_id,
            trajectories=[row for member in members for row in member.result()],
            admitted_version=version,
            seconds=self._clock() - started,
        )
        assert self._version is not None
        consumed_at = self._version + self._waiting // self._limits.batch  # by a step to come
        bound = {"max_lag": self._limits.max_lag, "fresh_engines": self._limits.fresh_engines}
        for row in group.usable:
            self._tokens += row.trained_tokens
            self._late += row.trained_tokens - int(trained_mask(row, consumed_at, **bound).sum())
        counted = group.counted(self._limits.refill)
        self.uninformative += bool(group.usable) and not counted
        self._running -= 1
        self._waiting += counted
        heapq.heappush(self._finished, (number, group))
        self._ready.set()
        self._moved.set()

    async def _member(self, draw: Draw, replica: int) -> list[Trajectory]:
        own = self._task_places.get(draw.task)
        if own is not None:  # whoever waits for its task's place takes no other
            self._outside[draw.task] += 1
            self._moved.set()
            try:
                await own.acquire()
            finally:
                self._outside[draw.task] -= 1
        try:
            async with self._places:
                played = await self._play(draw, replica, self._limits.straggler_s)
        finally:
            if own is not None:
                own.release()
            self._members -= 1
            self._moved.set()
        rows = [played] if isinstance(played, Trajectory) else list(played)
        for row in rows:
            if INNER in row.metrics:
                continue
            self.episodes += 1
            self.statuses[f"{draw.task}: {row.status}"] += 1
            if not row.usable:
                self.faults[f"{draw.task}: {row.fault[:200]}"] += 1
                logger.warning("a member is masked, sample=%s: %s", draw.sample_id, row.fault)
        return rows

    async def _hand_out(self) -> None:
        while True:
            while not self._finished:
                self._ready.clear()
                await self._ready.wait()
            _, group = heapq.heappop(self._finished)
            self._handing = 1
            await self._out.put(group)
            self._handing = 0
            self._moved.set()
            self._judge(group)

    def _judge(self, group: Group) -> None:
        """A run in which nothing succeeds must not go on for ever."""
        self._hopeless = 0 if group.usable else self._hopeless + 1
        if self._hopeless >= HOPELESS_ROUNDS * -(-self._limits.places // self._plays):
            raise InfrastructureError(
                f"the last {self._hopeless} groups had no usable member [scheduler]. "
                f"The last fault: {group.trajectories[-1].fault}"
            )
