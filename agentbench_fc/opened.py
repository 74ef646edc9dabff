"""What a client remembers of its sessions: the open ones, the ended ones, and the slots of those that start.

Not here: what is done with them (client.py).
"""

import threading

from agentbench_fc.episode import Turn
from agentbench_fc.leases import Leases
from agentbench_fc.protocol import SessionInfo
from agentbench_fc.session import Session


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
