"""Wire v1: the bodies of requests and replies. Unknown keys are refused, types are strict.

>>> StartRequest.model_validate_json('{"task": "db", "sample": 3, "split": "dev"}').sample
3

A reply to `interact` holds the increment, never the history, and no tools: those came with the start and do not change.

Not here: paths and statuses (routes.py), errors (faults.py).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agentbench_fc.episode import Turn
from agentbench_fc.protocol import SessionInfo, WorkerInfo
from agentbench_fc.rewards import Status

MAX_TIMEOUT_S = 3600.0

Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Style = Annotated[str, StringConstraints(min_length=1, max_length=100)]
RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
SessionId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TurnNumber = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Wait = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
Option = bool | int | float | Annotated[str, StringConstraints(max_length=200)] | None
Options = Annotated[dict[Style, Option], Field(max_length=32)]


class Wire(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StartRequest(Wire):
    """Opens a session."""

    task: Name
    sample: Annotated[str, StringConstraints(max_length=500)] | Seed | None = None
    """An id, a number within the split, or none: a random one, chosen by the seed."""
    split: Style | None = None
    seed: Seed | None = None
    profile: Style = "default"
    prompt: Style = "default"
    options: Options = {}
    request_id: RequestId | None = None
    """Makes the start safe to repeat: the same id gives the same session."""
    retry: bool = False
    """This start was sent before and got no answer."""
    wait_s: Wait = 60.0
    """How long it may wait for a free slot."""


class InteractRequest(Wire):
    """Plays one agent turn."""

    session_id: SessionId
    messages: list[dict[str, Any]]
    """Assistant messages in OpenAI's shape; usually one."""
    turn: TurnNumber | None = None
    """Number of this turn; makes the call safe to repeat."""
    request_id: RequestId | None = None
    """A repeated request with the same id waits for the answer of the one that is under way."""
    with_tools: bool = False


class CancelRequest(Wire):
    """Ends a session, or the start that was sent with a request id."""

    session_id: SessionId | None = None
    request_id: RequestId | None = None
    status: Style = "cancelled"


class RenewRequest(Wire):
    """Begins a session's idle time anew."""

    session_id: SessionId


class ForkRequest(Wire):
    """Branches a session."""

    session_id: SessionId
    turn: TurnNumber | None = None
    request_id: RequestId | None = None


class SamplesRequest(Wire):
    """Asks for a split's samples; on the wire these are query parameters, `options` as JSON."""

    task: Name
    split: Style | None = None
    profile: Style = "default"
    prompt: Style = "default"
    options: Options = {}


class ResultRow(Wire):
    """One finished episode, as far as scores need it."""

    sample: Name
    repeat: Annotated[int, Field(ge=0, lt=1000)] = 0
    status: Literal[
        "completed",
        "agent context limit",
        "agent validation failed",
        "agent invalid action",
        "task limit reached",
        "cancelled",
        "task error",
        "unknown",
        "env init failed",
    ]
    reward: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    success: bool | None = None
    turns: Annotated[int, Field(ge=0, lt=2**31)] = 0
    calls: Annotated[int, Field(ge=0, lt=2**31)] = 0
    invalid_calls: Annotated[int, Field(ge=0, lt=2**31)] = 0
    no_call_turns: Annotated[int, Field(ge=0, lt=2**31)] = 0
    metrics: dict[Style, Annotated[float, Field(allow_inf_nan=False)]] = {}


class OverallRequest(Wire):
    """Sums up results of one task."""

    task: Name
    results: Annotated[list[ResultRow], Field(max_length=100_000)]


class TurnReply(Wire):
    """One step of a session."""

    session_id: str
    turn: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    """None: as in the session's start."""
    status: str
    finish: bool
    reward: float | None
    success: bool | None
    metrics: dict[str, Any]
    address: str | None = None
    """With a start or fork: where the session's worker can be reached directly."""
    token: str | None = None
    """With a start or fork: authorizes direct calls for this session, and nothing else."""


class SessionReply(Wire):
    """An open session."""

    session_id: str
    task: str
    sample: str
    split: str
    seed: int
    profile: str
    turn: int
    busy: bool
    age_s: float
    expires_in_s: float | None
    parent: str | None
    worker: str
    client: str
    """Who started it."""


class SessionsReply(Wire):
    """The open sessions, oldest first."""

    sessions: list[SessionReply]
    unheard: list[str] = []
    """Workers that did not answer: their sessions are missing here."""


class TaskLoad(Wire):
    """One task on one worker."""

    task: Name
    aliases: list[Name] = []
    capacity: Annotated[int, Field(ge=0)]
    taken: Annotated[int, Field(ge=0)]
    """Open and starting sessions."""
    started: int = 0
    finished: int = 0
    expired: int = 0
    digest: str
    """Hash of the task's spec."""
    splits: dict[str, str] = {}
    """Split -> hash of its samples, for those that were looked at."""
    clients: dict[str, int] = {}
    """Client -> its open sessions."""


class WorkerReply(Wire):
    """A worker as the controller sees it."""

    worker_id: str
    name: str
    address: str
    status: str
    """alive, suspect, dead, draining, or closed."""
    tasks: list[TaskLoad]
    sessions: int
    capacity: int | None
    started: int
    finished: int
    expired: int
    last_seen_s: float
    reason: str = ""
    log: list[str] = []
    """The last warnings of its log."""


class WorkersReply(Wire):
    """All workers."""

    workers: list[WorkerReply]


class TaskReply(Wire):
    """A task that can be started."""

    task: str
    digest: str
    splits: dict[str, str]
    capacity: int
    taken: int
    waiting: int
    workers: int


class TasksReply(Wire):
    """All tasks."""

    tasks: list[TaskReply]


class SamplesReply(Wire):
    """The samples of a split, in order: sample n has the index n."""

    task: str
    split: str | None
    samples: list[str]


class CancelStartReply(Wire):
    """What became of a start that was taken back."""

    session_id: str | None


class Heartbeat(Wire):
    """Worker to controller: that it lives, and how full it is."""

    worker_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,60}$")]
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,50}$")]
    address: Annotated[str, StringConstraints(pattern=r"^https?://[^/\s?#@]+$", max_length=300)]
    version: str
    draining: bool = False
    leaving: bool = False
    """The last one: the worker ends now."""
    tasks: list[TaskLoad]
    log: list[str] = []
    knows: str | None = None
    """The controller that it has told of its starts."""
    starts: list[tuple[str, str]] | None = None
    """Request id and session id of each session that is open; for a controller that it has not told yet."""
    orders_done: int = 0


class HeartbeatReply(Wire):
    """Controller to worker: what it should know and do."""

    controller: str
    heartbeat_s: float
    order: int = 0
    """Number of the newest order; to be acknowledged by the next heartbeat."""
    cancel_sessions: list[str] = []
    cancel_starts: list[str] = []


class Health(Wire):
    """Liveness and readiness."""

    status: str
    role: str
    id: str
    version: str


def version() -> str:
    """Of this package."""
    from agentbench_fc import __version__

    return __version__


def turn_fields(turn: Turn, *, tools: bool) -> dict[str, Any]:
    """A turn as the fields of `TurnReply`."""
    return {
        "session_id": turn.session_id,
        "turn": turn.turn,
        "messages": turn.messages,
        "tools": turn.tools if tools else None,
        "status": turn.status,
        "finish": turn.finish,
        "reward": turn.reward,
        "success": turn.success,
        "metrics": turn.metrics,
    }


def read_turn(body: dict[str, Any], tools: list[Any]) -> Turn:
    """A `TurnReply` as a turn; `tools` stand in where it has none."""
    return Turn(
        body["session_id"],
        body["turn"],
        body["messages"],
        tools if body["tools"] is None else body["tools"],
        Status(body["status"]),
        body["finish"],
        body["reward"],
        body["success"],
        body["metrics"],
    )


def read_session(body: dict[str, Any]) -> SessionInfo:
    """A `SessionReply` as the client's record."""
    return SessionInfo(**{name: body[name] for name in SessionInfo.__dataclass_fields__})


def read_worker(body: dict[str, Any]) -> WorkerInfo:
    """A `WorkerReply` as the client's record."""
    return WorkerInfo(
        worker_id=body["worker_id"],
        status=body["status"],
        tasks=tuple(load["task"] for load in body["tasks"]),
        sessions=body["sessions"],
        capacity=body["capacity"],
        started=body["started"],
        finished=body["finished"],
        expired=body["expired"],
    )
