"""Keeps groups in flight: admits whole groups while there is room, plays their members, hands each group out once.

What goes in comes out once: every admitted group reaches `out`, with every member in it, usable or not. A full `out`
stops admission; nothing polls and nothing is dropped. Known faults are data; any other exception cancels all slots and
surfaces whole.

Not here: the order of samples and the pacing rule (plan.py), one episode (trajectory.py), other processes (worker.py).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.rollout.plan import Draw, SamplePlan, room
from agentrl_trainer.types import Group, Trajectory

logger = logging.getLogger(__name__)
HOPELESS_ROUNDS = 3
"""So many times `max_groups` groups in a row without one usable member: nothing will come any more."""


class PlayMember(Protocol):
    """Plays one member of a group."""

    def __call__(self, draw: Draw, replica: int, deadline_s: float) -> Awaitable[Trajectory]:
        """Returns a trajectory whatever happens, within `deadline_s` seconds; raises only what ends the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers that pace admission."""

    group_size: int
    max_groups: int
    batch: int
    """Trajectories that a step takes at least."""
    max_lag: int
    straggler_s: float


class Scheduler:
    """Supervises the slots; one event loop, no locks."""

    def __init__(
        self,
        plan: SamplePlan,
        play: PlayMember,
        out: "asyncio.Queue[Group]",
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._play = play
        self._out = out
        self._limits = limits
        self._clock = clock
        self._changed = asyncio.Condition()
        self._held = 0
        self._version: int | None = None
        self._running = 0
        self._waiting = 0
        self._hopeless = 0
        self.groups = 0
        """Groups admitted so far."""
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
            for number in range(self._limits.max_groups):
                tasks.create_task(self._slot(), name=f"slot-{number}")

    async def published(self, version: int, consumed: int) -> None:
        """A new version is in the engines, made from `consumed` trajectories; the first call opens admission."""
        async with self._changed:
            self._version = version
            self._waiting -= consumed
            self._changed.notify_all()

    async def hold(self) -> None:
        """Stops admission, e.g. for an evaluation; groups in flight go on."""
        self._held += 1

    async def release(self) -> None:
        """Undoes one `hold`."""
        async with self._changed:
            self._held -= 1
            self._changed.notify_all()

    def stats(self) -> dict[str, int]:
        """Where the groups are."""
        return {
            "admitted_groups": self.groups,
            "running_groups": self._running,
            "waiting_trajectories": self._waiting,
            "held": self._held,
            "version": -1 if self._version is None else self._version,
        }

    async def _slot(self) -> None:
        while True:
            draw, version = await self._admit()
            group = await self._play_group(draw, version)
            await self._out.put(group)
            self._judge(group)

    async def _admit(self) -> tuple[Draw, int]:
        async with self._changed:
            while self._held or self._version is None or not self._room():
                await self._changed.wait()
            self._running += 1
            self.groups += 1
            return self._plan.next(), self._version

    def _room(self) -> int:
        limits = self._limits
        return room(
            running=self._running,
            max_running=limits.max_groups,
            waiting=self._waiting,
            group_size=limits.group_size,
            batch=limits.batch,
            max_lag=limits.max_lag,
        )

    async def _play_group(self, draw: Draw, version: int) -> Group:
        started = self._clock()
        members: list[asyncio.Task[Trajectory]] = []
        async with asyncio.TaskGroup() as tasks:
            for replica in range(self._limits.group_size):
                name = f"{draw.group_id}/{replica}"
                members.append(tasks.create_task(self._member(draw, replica), name=name))
        group = Group(
            id=draw.group_id,
            task=draw.task,
            sample_id=draw.sample_id,
            trajectories=[member.result() for member in members],
            admitted_version=version,
            seconds=self._clock() - started,
        )
        async with self._changed:
            self._running -= 1
            self._waiting += len(group.usable)
            self._changed.notify_all()
        return group

    async def _member(self, draw: Draw, replica: int) -> Trajectory:
        trajectory = await self._play(draw, replica, self._limits.straggler_s)
        self.episodes += 1
        self.statuses[f"{draw.task}: {trajectory.status}"] += 1
        if not trajectory.usable:
            self.faults[f"{draw.task}: {trajectory.fault[:200]}"] += 1
            logger.warning("a member is masked, sample=%s: %s", draw.sample_id, trajectory.fault)
        return trajectory

    def _judge(self, group: Group) -> None:
        """A run in which nothing succeeds must not go on for ever."""
        self._hopeless = 0 if group.usable else self._hopeless + 1
        if self._hopeless >= HOPELESS_ROUNDS * self._limits.max_groups:
            raise InfrastructureError(
                f"the last {self._hopeless} groups had no usable member [scheduler]. "
                f"The last fault: {group.trajectories[-1].fault}"
            )
