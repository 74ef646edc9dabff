"""What workers and controllers are told when they start.

Not here: the command line that fills these in (cli.py).
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError
from agentbench_fc.serve.http import Limits

HEARTBEAT_S = 2.0
NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """A worker's settings."""

    tasks: tuple[str, ...] = ()
    """Ids of the registry, or `path/to/file.py:TASK`."""
    given: Mapping[str, Task] = field(default_factory=dict)
    """Ready-made tasks by name; for tests and embedding."""
    name: str = "worker"
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Task -> most sessions at once."""
    default_capacity: int = 512
    threads_per_task: int = 32
    """Calls that run at once; more wait."""
    idle_timeout_s: float | None = 600.0
    lifetime_s: float | None = 4 * 3600.0
    start_timeout_s: float = 300.0
    """For a start as a whole, loading of the task included."""
    step_timeout_s: float = 900.0
    """For a turn as a whole, all its calls; then the session is ended."""
    max_abandoned: int = 8
    """So many calls past their deadline that still run make the worker drain and restart."""
    max_variants: int = 16
    """Combinations of profile, prompt style and options per task: each is a task of its own in memory."""
    drain_s: float = 30.0
    """How long open sessions may go on after the order to stop."""
    transcripts: Path | None = None
    allowed_options: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Task -> options beyond its own list that may come over the wire."""
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    """Leases are measured with it."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise CallerError(f"the name is {self.name!r} [worker]. Use letters, digits, - and _; at most 50.")
        if not self.tasks and not self.given:
            raise CallerError("no task [worker]. Name at least one, e.g. db.")
        for what, value in (("default_capacity", self.default_capacity), *self.capacity.items()):
            if value < 1:
                raise CallerError(f"the capacity is {value} [{what}]. Use 1 or more.")
        for what in ("start_timeout_s", "step_timeout_s", "drain_s"):
            if not getattr(self, what) > 0:
                raise CallerError(f"{what} is {getattr(self, what)} [worker]. Use seconds > 0.")

    def capacity_of(self, task: str) -> int:
        """Most sessions of a task."""
        return self.capacity.get(task, self.default_capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """A controller's settings."""

    heartbeat_s: float = HEARTBEAT_S
    """What workers are told to keep to."""
    suspect_after_s: float | None = None
    """No sign of life for so long: no new sessions. By default 2.5 heartbeats."""
    dead_after_s: float | None = None
    """No sign of life for so long: its sessions are reported lost. By default 6 heartbeats."""
    forget_after_s: float = 600.0
    """A dead worker stays listed for so long."""
    max_waiting: int = 10_000
    """Starts that may wait for a slot."""
    list_timeout_s: float = 5.0
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.heartbeat_s > 0:
            raise CallerError(f"heartbeat_s is {self.heartbeat_s} [controller]. Use seconds > 0.")
        if not self.heartbeat_s < self.suspect_s < self.dead_s:
            raise CallerError(
                f"heartbeat {self.heartbeat_s:g} s, suspect after {self.suspect_s:g} s, dead after {self.dead_s:g} s "
                "[controller]. Each must be longer than the one before."
            )

    @property
    def suspect_s(self) -> float:
        """Seconds without a sign of life until suspicion."""
        return self.suspect_after_s if self.suspect_after_s is not None else 2.5 * self.heartbeat_s

    @property
    def dead_s(self) -> float:
        """Seconds without a sign of life until death."""
        return self.dead_after_s if self.dead_after_s is not None else 6 * self.heartbeat_s


def incarnation() -> str:
    """A word that no other process has."""
    return secrets.token_hex(3)
