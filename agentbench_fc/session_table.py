"""What a client remembers of its sessions: the open ones, the ended ones, and the slots of those that start.

A session leaves the table at its end, whoever caused it: its last turn stays for a while, its record is written once,
and its lease is closed.

Not here: on which threads sessions run, and who waits for them (client.py); one session's turns (session.py).
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, Conflict, NotFound, Unavailable
from agentbench_fc.leases import Leases
from agentbench_fc.protocol import SessionInfo
from agentbench_fc.record import handed_out
from agentbench_fc.session import Session
from agentbench_fc.transcript import append

logger = logging.getLogger(__name__)

KEPT_LOGS = 100
"""Of so many sessions that finished last the whole record stays, so that they can still be forked."""


class Opened:
    """An open session and what the client knows about it."""

    __slots__ = ("busy", "session", "task", "written")

    def __init__(self, session: Session, task: str) -> None:
        self.session = session
        self.task = task
        self.busy = threading.Lock()
        self.written = False

    def info(self, leases: Leases, worker: str) -> SessionInfo:
        """What a client tells of it."""
        session = self.session
        return SessionInfo(
            session_id=session.id,
            task=self.task,
            sample=session.sample.id,
            split=session.sample.split,
            seed=session.seed,
            profile=session.task.spec.profile,
            turn=session.turn,
            busy=self.busy.locked(),
            age_s=leases.age(session.id),
            expires_in_s=leases.seconds_left(session.id),
            parent=session.parent[0] if session.parent else None,
            worker=worker,
        )


class Ended:
    """What is left of a finished session: its last turn, and for a while its record."""

    __slots__ = ("cancelled", "last", "opened")

    def __init__(self, last: Turn, opened: Opened, *, cancelled: bool) -> None:
        self.last = last
        self.cancelled = cancelled
        """The last turn was not played by the agent."""
        self.opened: Opened | None = opened

    def gone_text(self) -> str:
        """Why it takes no further turn."""
        reason = self.last.metrics.get("reason")
        why = f"{self.last.status!s}: {reason}" if reason else str(self.last.status)
        return f"the session has finished as {why} [session {self.last.session_id}]. Start another one."


class Slot:
    """A place that a start holds; it becomes the session's, or is given back, exactly once."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = True


class SessionTable:
    """All sessions of a client. Safe to use from several threads.

    Args:
        leases: Of the open sessions.
        max_sessions: Most open sessions, those that start included. None: no bound.
        tombstones: Ended sessions whose last turn is remembered.
        transcripts: Where each session's record is written when it ends.
        on_end: Told of each session that ends, with its last turn; on any thread, and it must not block.
    """

    def __init__(
        self,
        *,
        leases: Leases,
        max_sessions: int | None,
        tombstones: int,
        transcripts: Path | None,
        on_end: Callable[[Session, Turn], None] | None,
    ) -> None:
        self.leases = leases
        self.closed = threading.Event()
        """Set by `close`: no further session comes in."""
        self.counts = {"started": 0, "finished": 0, "expired": 0}
        self._max_sessions = max_sessions
        self._tombstones = tombstones
        self._transcripts = transcripts
        self._on_end = on_end
        self._lock = threading.Lock()
        self._open: dict[str, Opened] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._kept: deque[Ended] = deque()
        self._starting = 0

    # what there is

    def __len__(self) -> int:
        return len(self._open)

    @property
    def taken(self) -> int:
        """Slots in use: open sessions, and those that start just now."""
        return len(self._open) + self._starting

    def entries(self) -> list[Opened]:
        """The open sessions, oldest first."""
        with self._lock:
            return list(self._open.values())

    def get(self, session_id: str) -> Opened | None:
        """The session, if it is open."""
        return self._open.get(session_id)

    def find(self, session_id: str) -> Opened | Ended:
        """The session, open or ended.

        Raises:
            NotFound: it never was, or ended too long ago.
        """
        with self._lock:
            found = self._open.get(session_id) or self._ended.get(session_id)
        if found is None:
            raise NotFound(f"no session {session_id!r} [client]. It never was, or ended long ago; start another one.")
        return found

    # a session comes

    def reserve(self) -> Slot:
        """Keeps a slot for a start.

        Raises:
            CallerError: the client was closed.
            Unavailable: there is none.
        """
        with self._lock:
            if self.closed.is_set():
                raise CallerError("the client was closed [client]. Make another one.")
            if self._max_sessions is not None and len(self._open) + self._starting >= self._max_sessions:
                raise Unavailable(f"all {self._max_sessions} sessions are taken [client]. End one, or try again later.")
            self._starting += 1
            return Slot()

    def release(self, slot: Slot) -> None:
        """Gives a slot back that did not become a session's; safe to repeat."""
        with self._lock:
            self._starting -= slot.held
            slot.held = False

    def admit(self, entry: Opened, slot: Slot) -> None:
        """Takes in a session that has started.

        Raises:
            CallerError: it comes too late; then it is closed.
        """
        session = entry.session
        with self._lock:
            closed, late = self.closed.is_set(), not slot.held
            if not closed and not late:
                self._starting -= 1
                slot.held = False
                self.counts["started"] += 1
                self._open[session.id] = entry
                self.leases.open(session.id)
        if closed or late:
            session.close()
            why = "the client was closed" if closed else "nobody waited for the start any more"
            raise CallerError(f"{why} [client]. Make another one.")
        self.settle(entry)

    # one call of it at a time

    def hold(self, entry: Opened) -> None:
        """A call begins.

        Raises:
            Conflict: another one is under way.
        """
        if not entry.busy.acquire(blocking=False):
            raise Conflict(f"another call is under way [session {entry.session.id}]. Wait for its answer.")
        self.leases.hold(entry.session.id)

    def let_go(self, entry: Opened) -> None:
        """The call has ended."""
        self.leases.renew(entry.session.id)
        entry.busy.release()

    # it ends

    def end(self, entry: Opened, status: str, reason: str) -> Turn:
        """Ends a session; blocks until it has, or a call of it that runs is known to do it."""
        last = entry.session.cancel(status, reason)
        if not entry.session.finished:  # a call of it still runs, and ends it when it returns
            self.bury(entry, handed_out(last), cancelled=True)
        self.settle(entry)
        return last

    def settle(self, entry: Opened) -> None:
        """After a call: a session that finished by it leaves the table, and its record is written."""
        session = entry.session
        if not session.finished:
            return
        self.bury(entry, session.last, cancelled=not session.log[-1].sent and session.last.turn > 0)
        with self._lock:
            written, entry.written = entry.written, True
        if self._transcripts is not None and not written:
            try:
                append(self._transcripts, session, entry.task)
            except OSError:
                logger.exception("the transcript was not written, session=%s", session.id)

    def bury(self, entry: Opened, last: Turn, *, cancelled: bool) -> None:
        """Takes a session out, or learns a better last turn of one that is out; its slot is free from now on."""
        session_id = entry.session.id
        with self._lock:
            ends = self._open.pop(session_id, None) is not None
            if ends:
                self.counts["finished"] += 1
                self._ended[session_id] = Ended(last, entry, cancelled=cancelled)
                self._kept.append(self._ended[session_id])
                if len(self._kept) > KEPT_LOGS:
                    self._kept.popleft().opened = None
                while len(self._ended) > self._tombstones:
                    self._ended.popitem(last=False)[1].opened = None
            elif (ended := self._ended.get(session_id)) is not None:
                ended.last, ended.cancelled = last, cancelled
        self.leases.close(session_id)
        if ends and self._on_end is not None:
            self._on_end(entry.session, last)

    def count_expired(self, number: int) -> None:
        """So many sessions have expired."""
        with self._lock:
            self.counts["expired"] += number

    def close(self) -> list[Opened] | None:
        """Takes no further session; those that are still open. None: it was closed before."""
        with self._lock:
            if self.closed.is_set():
                return None
            self.closed.set()
            return list(self._open.values())
