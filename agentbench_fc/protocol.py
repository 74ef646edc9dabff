"""What a client is, in process or over HTTP: the methods and the records that they give.

Not here: LocalClient (client.py), HttpClient (serve/client.py), the façade without `await` (sync_client.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, runtime_checkable

from agentbench_fc.episode import Turn

SampleRef = str | SupportsIndex
"""A sample's id, or its number within the split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """An open session."""

    session_id: str
    task: str
    sample: str
    split: str
    seed: int
    profile: str
    turn: int
    """Number of its last turn."""
    busy: bool
    """Whether a call is under way."""
    age_s: float
    expires_in_s: float | None
    """Seconds until it expires if nobody uses it; None: never."""
    parent: str | None
    """The session that it was forked from."""
    worker: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A process that runs sessions."""

    worker_id: str
    status: str
    """`alive`, or `closed`."""
    tasks: tuple[str, ...]
    sessions: int
    """Open sessions."""
    capacity: int | None
    """Most sessions at once; None: no bound."""
    started: int
    finished: int
    """Sessions that ended, for whatever reason; those that expired are among them."""
    expired: int

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"tasks": list(self.tasks)}


@runtime_checkable
class Client(Protocol):
    """Starts and drives sessions. Every method may raise `InfrastructureError`; repeat it while your deadline lasts."""

    async def start_sample(
        self,
        task: str,
        sample: SampleRef | None = None,
        *,
        split: str | None = None,
        seed: int | None = None,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Opens a session and returns its turn 0: the prompt and the tools.

        Args:
            task: A task id, or `path/to/file.py:TASK`.
            sample: An id, a number within the split, or None: a random sample of the split, chosen by the seed.
            split: By default the one that the id names, else `train`.
            seed: Equal sample, seed and messages give an equal session. None: a fresh one.
            profile: `default` or `agentbench`.
            prompt: `default` or `compact`.
            options: What else the task takes, e.g. `{"max_turns": 5}`.

        Raises:
            NotFound: no such task, split or sample.
            CallerError: an unknown profile, prompt style or option.
            Unavailable: all slots are taken.
        """
        ...

    async def interact(self, session_id: str, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """Plays one agent turn: assistant messages in, the increment of messages out.

        Args:
            session_id: From `start_sample`.
            messages: Assistant messages; usually one.
            turn: Number of this turn; makes the call safe to repeat.

        Raises:
            NotFound: no such session.
            Conflict: a call of it is under way, or the turn is out of order.
            Gone: it has finished or expired.
            CallerError: the messages are not assistant messages.
        """
        ...

    async def cancel(self, session_id: str, status: str = "cancelled") -> Turn:
        """Ends a session, as `cancelled` or `agent context limit`. Safe to repeat: a finished one stays as it is.

        Raises:
            NotFound: no such session.
            CallerError: another status.
        """
        ...

    async def renew(self, session_id: str) -> SessionInfo:
        """Begins the idle time of an open session anew; its lifetime stays.

        Raises:
            NotFound: no such session.
            Gone: it has finished or expired.
        """
        ...

    async def fork(self, session_id: str, turn: int | None = None) -> Turn:
        """A new session that stands where this one stood after `turn`; by default, where it stands now.

        Returns:
            The new session's last turn, with its session id.

        Raises:
            NotFound: no such session.
            CallerError: no such turn, or the session had ended by then.
            Conflict: a call of it is under way.
            Gone: it has finished, and its record was dropped.
            TaskError: the sample is volatile and could not be brought to that state.
        """
        ...

    async def list_sessions(self) -> list[SessionInfo]:
        """The open sessions, oldest first."""
        ...

    async def list_workers(self) -> list[WorkerInfo]:
        """The processes behind this client."""
        ...

    async def samples(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The sample ids of a split, in order; profile and options can decide which data a task reads.

        Raises:
            NotFound: no such task or split.
        """
        ...

    async def get_indices(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The numbers of a split's samples.

        Raises:
            NotFound: no such task or split.
        """
        ...

    async def aclose(self) -> None:
        """Ends what this client holds; in process, its open sessions too. Safe to repeat."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
