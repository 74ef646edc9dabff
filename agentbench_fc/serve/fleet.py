"""What a controller knows of its workers, and where the next session goes. Decisions only: no clock, no I/O of its own.

A worker is alive, then suspect (silent for a while, or a call to it failed: no new sessions), then dead (its sessions
are reported lost). Any sign of life makes it alive again at once; its sessions are where they were, except those that
were reported lost meanwhile: those it is ordered to end.

Not here: heartbeats and calls themselves (controller.py); who may start next (waiting.py).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from agentbench_fc.errors import NotFound
from agentbench_fc.serve.config import ControllerConfig
from agentbench_fc.serve.faults import SessionLost, WorkerSuspect
from agentbench_fc.serve.schema import Heartbeat, TaskLoad, TaskReply, WorkerReply

SESSION_ID = re.compile(r"([A-Za-z0-9_-]{1,50})-[0-9a-f]{6}\.[A-Za-z0-9_]{1,40}-[0-9a-f]{16}")
MAX_ORDERS = 10_000
"""Kept for a worker that does not acknowledge them; what is dropped ends by its lease."""
SETTLE_HEARTBEATS = 2.5
"""A controller younger than this may not have heard of all workers yet."""


class State(StrEnum):
    """Whether a worker can be trusted with a session."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(slots=True)
class Member:
    """One worker; a process that restarts is another one."""

    beat: Heartbeat
    since: float
    seen: float
    state: State = State.ALIVE
    reason: str = ""
    suspected: float = 0.0
    """When it last became suspect."""
    left: bool = False
    """It said goodbye."""
    beats: int = 0
    used: int = 0
    """When it was last chosen: a running number."""
    taken: Counter[str] = field(default_factory=Counter)
    reserved: Counter[str] = field(default_factory=Counter)
    clients: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(task, client) -> open sessions."""
    starting: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(task, client) -> reserved slots."""
    conflicts: dict[str, str] = field(default_factory=dict)
    """Task -> why it is not given any of it."""
    orders: list[tuple[int, str, str]] = field(default_factory=list)
    """(number, session | start, id), until they are acknowledged."""
    ordered: int = 0

    @property
    def id(self) -> str:
        """Its id."""
        return self.beat.worker_id

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.beat.address

    def load(self, task: str) -> TaskLoad | None:
        """What it told about a task."""
        return next((load for load in self.beat.tasks if task == load.task or task in load.aliases), None)

    def free(self, load: TaskLoad) -> int:
        """Slots that are believed to be free."""
        return load.capacity - self.taken[load.task] - self.reserved[load.task]

    def order(self, kind: str, what: str) -> None:
        """Adds an order."""
        if (kind, what) in {order[1:] for order in self.orders[-100:]}:
            return  # it was asked for again and again
        self.ordered += 1
        self.orders.append((self.ordered, kind, what))
        del self.orders[:-MAX_ORDERS]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A slot that is kept for one start."""

    member: Member
    task: str
    client: str
    beats: int
    """Of the member, when it was made."""


class Fleet:
    """All workers.

    Args:
        config: Periods.
        clock: Seconds, monotonic.
    """

    def __init__(self, config: ControllerConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._born = clock()
        self._chosen = 0
        self.members: dict[str, Member] = {}

    @property
    def settling(self) -> bool:
        """Whether workers may be there that have not been heard of yet."""
        return self._clock() - self._born < SETTLE_HEARTBEATS * self._config.heartbeat_s

    # signs of life, and their absence

    def heard(self, beat: Heartbeat) -> Member:
        """Takes in a heartbeat."""
        now = self._clock()
        member = self.members.get(beat.worker_id)
        if member is None:
            member = self.members[beat.worker_id] = Member(beat, now, now)
            for other in self.members.values():
                if other.beat.name == beat.name and other is not member and other.state is State.ALIVE:
                    self.doubt(other, "another worker of its name has come: it may have been restarted")
        member.beat = beat
        member.beats += 1
        member.left = beat.leaving
        self._alive(member, now)
        if beat.leaving:
            member.state, member.reason = State.DEAD, "it was stopped"
        member.taken = Counter({load.task: load.taken for load in beat.tasks})
        member.clients = Counter({(load.task, c): n for load in beat.tasks for c, n in load.clients.items()})
        member.orders = [order for order in member.orders if order[0] > beat.orders_done]
        self._compare(member)
        return member

    def answered(self, member: Member) -> None:
        """It answered a call or a probe."""
        if not member.left:
            self._alive(member, self._clock())

    def doubt(self, member: Member, reason: str) -> None:
        """A call to it failed."""
        if member.state is State.ALIVE:
            member.state, member.reason, member.suspected = State.SUSPECT, reason, self._clock()

    def bury(self, member: Member, reason: str) -> None:
        """It is known to be gone."""
        member.state, member.reason = State.DEAD, reason

    def replaced(self, member: Member) -> bool:
        """Whether another incarnation of the same name is alive."""
        return any(
            other.beat.name == member.beat.name and other is not member and other.state is State.ALIVE
            for other in self.members.values()
        )

    def tick(self) -> list[Member]:
        """Lets time pass: suspects the silent, and gives those that died by it. Old dead ones are forgotten."""
        now = self._clock()
        grace = (self._config.dead_s - self._config.suspect_s) / 2
        died = []
        for member in list(self.members.values()):
            silent = now - member.seen
            if member.state is State.ALIVE and silent >= self._config.suspect_s:
                self.doubt(member, f"no heartbeat for {silent:.1f} s")
            # Not at once: where this process itself stood still, all were silent to it, and a probe will show it.
            if member.state is State.SUSPECT and silent >= self._config.dead_s and now - member.suspected >= grace:
                member.state = State.DEAD
                member.reason = f"no sign of life for {silent:.1f} s ({member.reason})"
                died.append(member)
            if member.state is State.DEAD and silent >= self._config.dead_s + self._config.forget_after_s:
                del self.members[member.id]
        return died

    def suspects(self) -> list[Member]:
        """Those to be probed."""
        return [member for member in self.members.values() if member.state is State.SUSPECT]

    def _alive(self, member: Member, now: float) -> None:
        member.seen = now
        member.state, member.reason = State.ALIVE, ""

    def _compare(self, member: Member) -> None:
        """Workers that serve a task must agree on it; the one that was there first is right."""
        member.conflicts = {}
        for load in member.beat.tasks:
            for other in self.members.values():
                theirs = other.load(load.task)
                if other is member or theirs is None or other.state is State.DEAD or other.since >= member.since:
                    continue
                if theirs.digest != load.digest:
                    member.conflicts[load.task] = f"its spec {load.digest} is not {theirs.digest} of {other.id}"
                for split in set(theirs.splits) & set(load.splits):
                    if theirs.splits[split] != load.splits[split]:
                        member.conflicts[load.task] = f"its split {split!r} holds other data than that of {other.id}"

    # where a session goes

    def canonical(self, task: str) -> str:
        """The task's name, where an alias was given.

        Raises:
            NotFound: no worker has it, and all have been heard.
        """
        for member in self.members.values():
            if (load := member.load(task)) is not None:
                return load.task
        return task

    def known(self, task: str) -> bool:
        """Whether some worker, alive or not, serves the task."""
        return any(member.load(task) is not None for member in self.members.values())

    def task_names(self) -> list[str]:
        """All tasks of all workers."""
        return sorted({load.task for member in self.members.values() for load in member.beat.tasks})

    def choose(self, task: str) -> Member | None:
        """The worker with the largest free share of its slots for a task; None: all are full."""
        best: tuple[tuple[float, int, int], Member] | None = None
        for member in self.members.values():
            if member.state is not State.ALIVE or member.beat.draining:
                continue
            load = member.load(task)
            if load is None or task in member.conflicts or (free := member.free(load)) <= 0:
                continue
            rank = (-free / load.capacity, sum(member.taken.values()), member.used)
            if best is None or rank < best[0]:
                best = rank, member
        return None if best is None else best[1]

    def reserve(self, member: Member, task: str, client: str) -> Reservation:
        """Keeps a slot for a start that is about to be sent."""
        self._chosen += 1
        member.used = self._chosen
        member.reserved[task] += 1
        member.starting[task, client] += 1
        return Reservation(member, task, client, member.beats)

    def release(self, kept: Reservation, *, started: bool) -> None:
        """The start was answered; what it took is counted until the next heartbeat does."""
        member = kept.member
        member.reserved[kept.task] -= 1
        member.starting[kept.task, kept.client] -= 1
        if started and member.beats == kept.beats:  # else a heartbeat has counted it
            member.taken[kept.task] += 1
            member.clients[kept.task, kept.client] += 1

    def full(self, member: Member, task: str) -> None:
        """It refused a start: nothing more of this task until the next heartbeat."""
        if (load := member.load(task)) is not None:
            member.taken[task] = max(member.taken[task], load.capacity - member.reserved[task])

    def held(self, task: str) -> Counter[str]:
        """Client -> its sessions of a task, those that just start included."""
        out: Counter[str] = Counter()
        for member in self.members.values():
            if member.state is not State.DEAD:
                for counts in (member.clients, member.starting):
                    for (name, client), count in counts.items():
                        if name == task:
                            out[client] += count
        return out

    # where a session is

    def home(self, session_id: str) -> Member:
        """The worker that has a session, alive or suspect.

        Raises:
            NotFound: the id is none of ours.
            SessionLost: its worker is dead.
            WorkerSuspect: its worker may yet turn up.
        """
        worker_id, dot, _ = session_id.partition(".")
        member = self.members.get(worker_id)
        shown = session_id[:100]
        if member is None:
            found = SESSION_ID.fullmatch(session_id)
            if not dot or found is None:
                raise NotFound(f"no session {shown!r} [controller]. It never was; start one.")
            if self.settling:
                raise WorkerSuspect(f"its worker has not reported yet [session {shown}]. Try again.")
            raise SessionLost(
                f"its worker {worker_id} is not known here any more [session {shown}]. Start another one."
            )
        if member.state is State.DEAD:
            raise self.lost(member, session_id)
        return member

    def lost(self, member: Member, session_id: str) -> SessionLost:
        """The error for a session on a dead worker; should it return, it has to end that session."""
        if not member.left:
            member.order("session", session_id)
        words = f" Its log: {' | '.join(member.beat.log)}" if member.beat.log else ""
        return SessionLost(
            f"the worker {member.id} is dead: {member.reason} [session {session_id[:100]}]. Start another one.{words}"
        )

    # what is told about them

    def workers(self) -> list[WorkerReply]:
        """All workers, for the list."""
        now = self._clock()
        return [_row(member, now) for member in sorted(self.members.values(), key=lambda m: (m.beat.name, m.since))]

    def tasks(self, waiting: Callable[[str], int]) -> list[TaskReply]:
        """All tasks, for the list."""
        rows = []
        for name in self.task_names():
            loads = [
                (member, load)
                for member in self.members.values()
                if member.state is State.ALIVE and (load := member.load(name)) is not None
            ]
            if not loads:
                continue
            rows.append(
                TaskReply(
                    task=name,
                    digest=loads[0][1].digest,
                    splits=_merged(load.splits for _, load in loads),
                    capacity=sum(load.capacity for _, load in loads),
                    taken=sum(member.taken[name] + member.reserved[name] for member, _ in loads),
                    waiting=waiting(name),
                    workers=len(loads),
                )
            )
        return rows


def _merged(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    out: dict[str, str] = {}
    for part in parts:
        out = part | out
    return out


def _row(member: Member, now: float) -> WorkerReply:
    loads = member.beat.tasks
    status = "draining" if member.beat.draining and member.state is State.ALIVE else str(member.state)
    return WorkerReply(
        worker_id=member.id,
        name=member.beat.name,
        address=member.address,
        status=status,
        tasks=loads,
        sessions=sum(load.taken for load in loads),
        capacity=sum(load.capacity for load in loads),
        started=sum(load.started for load in loads),
        finished=sum(load.finished for load in loads),
        expired=sum(load.expired for load in loads),
        last_seen_s=now - member.seen,
        reason="; ".join([member.reason] * bool(member.reason) + list(member.conflicts.values())),
        log=member.beat.log,
    )
