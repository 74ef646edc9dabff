"""The bounded queue of finished groups in the trainer's process, and the dynamic batch that drains it.

One supervised reader thread takes groups from the rollout side. While the trainer computes, at most `capacity` groups
wait here; then the reader stops taking and the rollout side stops admitting: nothing is dropped, nothing polls.
Batches are made of the oldest groups, in the order of their admission.

Not here: how lags are counted (staleness.py); what a batch becomes (collate.py).
Source: "drain the queue at each step" and the dynamic batch are AgentRL's, arXiv 2510.04206.
"""

import bisect
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from agentbench_fc.errors import AgentBenchError, InfrastructureError
from agentrl_trainer.types import Group, Trajectory

logger = logging.getLogger(__name__)
READ_S = 0.5
"""How long one read of the source may block; it bounds the time that closing takes."""
LOOK_S = 1.0
"""How often whoever waits for a batch looks whether the reader still lives; groups wake him at once."""


class GroupSource(Protocol):
    """Where finished groups come from: the handle of the rollout process."""

    def get_group(self, timeout: float) -> Group | None:
        """The next finished group, or None after `timeout` seconds.

        Raises:
            InfrastructureError: the rollout side is dead; the message says of what.
        """
        ...

    def stats(self) -> Mapping[str, Any]:
        """What it does just now; a stall report shows it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What one optimizer step consumes: whole groups."""

    groups: tuple[Group, ...]
    version: int
    """Weight version of the trainer that consumes them."""
    waited_s: float
    """How long the trainer waited for them."""
    left: int
    """Groups that stayed queued."""
    refill: float | None = None
    """See `Group.counted`."""

    @property
    def counted(self) -> int:
        """Trajectories by which the batch was measured; the rollout side measures with the same."""
        return sum(group.counted(self.refill) for group in self.groups)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The usable ones, group by group."""
        return [trajectory for group in self.groups for trajectory in group.usable]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """When a batch is complete."""

    min_trajectories: int
    """A step waits for so many that count."""
    max_trajectories: int
    """And takes no more of them; whole groups only."""
    refill: float | None = None
    """Tolerance within which a group's rewards are equal and it does not count; None: all usable ones count."""
    most: int = 0
    """With `refill`: a batch of so many usable ones is complete, however few count."""


class BatchBuffer:
    """Groups that wait, the oldest first, and the batch that is being made of them; no thread, no clock."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._taken: list[Group] = []

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Group) -> None:
        """Adds a finished group."""
        bisect.insort(self._groups, group, key=_age)

    def take(self, rule: BatchRule) -> list[Group] | None:
        """Moves what waits into the batch, as much as the rule allows, and gives the batch once it is complete.

        It is complete with enough trajectories that count, or when the next group would pass the maximum.
        """
        while self._groups and (
            not self._taken or self._count(rule) + self._groups[0].counted(rule.refill) <= rule.max_trajectories
        ):
            self._taken.append(self._groups.pop(0))
            if rule.refill is not None and self.usable >= rule.most:
                break
        full = self._count(rule) >= rule.min_trajectories or (rule.refill is not None and self.usable >= rule.most)
        if not self._taken or not (full or self._groups):
            return None
        batch, self._taken = self._taken, []
        return batch

    @property
    def usable(self) -> int:
        """Usable trajectories of the batch that is being made."""
        return sum(len(group.usable) for group in self._taken)

    def _count(self, rule: BatchRule) -> int:
        return sum(group.counted(rule.refill) for group in self._taken)


def _age(group: Group) -> tuple[int, str]:
    return group.admitted_version, group.id


class TrajectoryQueue:
    """Feeds the trainer; `start` it before the first batch, `close` it at the end.

    Args:
        source: Where groups come from.
        capacity: Groups that may wait here.
        stall_report_s: After so long the log says who waits on what, and again each time it has passed.
    """

    def __init__(self, source: GroupSource, *, capacity: int, stall_report_s: float = 30.0) -> None:
        self._source = source
        self._capacity = capacity
        self._stall_report_s = stall_report_s
        self._buffer = BatchBuffer()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._received = 0
        self._reader = threading.Thread(target=self._read, name="group-reader", daemon=True)

    def start(self) -> Self:
        """Begins to take groups from the source."""
        self._reader.start()
        return self

    def close(self) -> None:
        """Stops the reader; what is queued is lost. Safe to repeat."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._reader.is_alive():
            self._reader.join(timeout=10 * READ_S)

    def __len__(self) -> int:
        """Groups that wait."""
        return len(self._buffer)

    def get_batch(
        self,
        min_trajectories: int,
        max_trajectories: int,
        *,
        version: int,
        deadline_s: float,
        refill: float | None = None,
        most: int = 0,
    ) -> StepBatch:
        """Waits for `min_trajectories` that count, then takes everything queued up to `max_trajectories`.

        Groups stay whole; the batch is complete too when the next group would pass the maximum. `refill` and `most` as
        in `BatchRule`.

        Raises:
            InfrastructureError: nothing came for too long, or a bug ended the reading; the message is the diagnosis.
            AgentBenchError: what the source failed with.
        """
        rule = BatchRule(min_trajectories=min_trajectories, max_trajectories=max_trajectories, refill=refill, most=most)
        started = time.monotonic()
        report_at = started + self._stall_report_s
        while True:
            with self._changed:
                groups = self._buffer.take(rule)
                self._changed.notify_all()  # there is room again
                if groups is not None:
                    return StepBatch(
                        groups=tuple(groups),
                        version=version,
                        waited_s=time.monotonic() - started,
                        left=len(self._buffer),
                        refill=refill,
                    )
                if self._failure is not None:
                    raise self._diagnosis() from self._failure
                if self._closed:
                    raise InfrastructureError("the queue was closed [trajectory queue]. Start a new run.")
                if not self._reader.is_alive():
                    raise InfrastructureError("the reader ended without a word [group reader]. See the log above.")
                now = time.monotonic()
                self._changed.wait(max(0.0, min(report_at, started + deadline_s, now + LOOK_S) - now))
                usable, empty = self._buffer.usable, not self._buffer
            now = time.monotonic()
            if now >= started + deadline_s and empty:
                raise InfrastructureError(
                    f"{usable} of {min_trajectories} trajectories after {deadline_s:g} s "
                    f"[trajectory queue; rollout: {self._describe()}]. See the rollout log; raise batch.wait_s if "
                    "episodes are that slow, or lower batch.min_trajectories."
                )
            if now >= report_at:
                report_at = now + self._stall_report_s
                logger.warning(
                    "the trainer waits for rollouts: %d of %d trajectories after %.0f s; rollout: %s",
                    usable, min_trajectories, now - started, self._describe(),
                )  # fmt: skip

    def stats(self) -> dict[str, int]:
        """Groups waiting and groups received so far."""
        return {"queued_groups": len(self._buffer), "received_groups": self._received}

    def _diagnosis(self) -> BaseException:
        failure = self._failure
        if isinstance(failure, AgentBenchError):
            return type(failure)(str(failure))  # whose fault it is decides the exit code
        return InfrastructureError(f"reading groups failed: {failure!r} [group reader]. See the log above.")

    def _describe(self) -> str:
        try:
            return ", ".join(f"{key} {value}" for key, value in self._source.stats().items()) or "no figures"
        except AgentBenchError as error:
            return str(error)

    def _read(self) -> None:
        try:
            while not self._closed:
                group = self._source.get_group(READ_S)
                if group is None:
                    continue
                with self._changed:
                    while len(self._buffer) >= self._capacity and not self._closed:
                        self._changed.wait(READ_S)
                    self._buffer.put(group)
                    self._received += 1
                    self._changed.notify_all()
        except BaseException as error:  # the edge of this thread: whatever it is, the trainer must hear of it
            with self._changed:
                self._failure = error
                self._changed.notify_all()
