"""Errors on the wire: our exceptions -> HTTP status and body, and back.

>>> status, body, headers = to_wire(Conflict("turn 3 was answered already [session 7f3a]. Send turn 4."))
>>> status, body["type"], body["fault"], body["retryable"]
(409, 'Conflict', 'client', False)
>>> from_wire(status, {"error": body})
Conflict('turn 3 was answered already [session 7f3a]. Send turn 4.')

Not here: who sends what (http.py, client.py).
"""

from collections.abc import Mapping
from typing import Any

from agentbench_fc.errors import (
    AgentBenchError,
    CallerError,
    Conflict,
    Gone,
    InfrastructureError,
    NotFound,
    TaskError,
    Unavailable,
)

RETRY_AFTER_S = 1


class SessionLost(InfrastructureError):
    """The worker that ran the session is gone, and the session with it: start another one."""

    fault = "worker"
    retryable = False


class WorkerSuspect(InfrastructureError):
    """The session's worker does not answer just now; whether it is dead will be known in seconds. Try again."""

    fault = "worker"


class Unauthorized(CallerError):
    """The token is missing or wrong. HTTP 401."""


class TooLarge(CallerError):
    """The body or the headers are larger than the server takes. HTTP 413 or 431."""


class TooSlow(InfrastructureError):
    """The body did not come in time: the network, or a caller that stopped. Send it again. HTTP 408."""

    fault = "client"


class Defect(AgentBenchError):
    """The server has a bug: HTTP 500, with nothing of its inner life in the text."""

    fault = "worker"


STATUSES: Mapping[type[AgentBenchError], int] = {
    NotFound: 404,
    Conflict: 409,
    Gone: 410,
    Unauthorized: 401,
    TooLarge: 413,
    TooSlow: 408,
    CallerError: 422,
    TaskError: 424,  # not 500: the server is sound, what it depends on is not, and repeating does not help
    Unavailable: 429,
    InfrastructureError: 503,
    Defect: 500,
}
_KINDS: Mapping[str, type[AgentBenchError]] = {kind.__name__: kind for kind in (*STATUSES, SessionLost, WorkerSuspect)}
_BY_STATUS: Mapping[int, type[AgentBenchError]] = {
    400: CallerError,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    405: CallerError,
    408: TooSlow,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: CallerError,
    424: TaskError,
    429: Unavailable,
    431: TooLarge,
}


def to_wire(error: AgentBenchError) -> tuple[int, dict[str, Any], list[tuple[bytes, bytes]]]:
    """HTTP status, the error's object and its headers."""
    kind = type(error)
    status = next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)
    body = {"type": kind.__name__, "message": str(error), "retryable": error.retryable, "fault": error.fault}
    headers = [(b"retry-after", str(RETRY_AFTER_S).encode())] if error.retryable else []
    return status, body, headers


def from_wire(status: int, body: Any) -> AgentBenchError:
    """The exception that a reply tells of; a reply that is not ours is judged by its status."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        kind = _KINDS.get(str(error.get("type"))) or _by_status(status)
        return kind(error["message"])
    kind = _by_status(status)
    return kind(f"the server answered {status} without an explanation [http]. Is it an agentbench-fc server?")


def _by_status(status: int) -> type[AgentBenchError]:
    return _BY_STATUS.get(status) or (InfrastructureError if status >= 500 else CallerError)
