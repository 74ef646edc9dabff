"""Errors by who acts next: the caller, the owner of a task, or whoever runs the machines.

A message says what happened [where]. What to do. A model's mistake is never an exception: it becomes a tool message.

>>> raise Conflict("turn 3 was answered already [session 7f3a]. Send turn 4, or fork at turn 3.")
Traceback (most recent call last):
agentbench_fc.errors.Conflict: turn 3 was answered already [session 7f3a]. Send turn 4, or fork at turn 3.

Not here: how a fault ends a session (session.py) and what it means for training (rewards.py).
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

Fault = Literal["client", "task", "environment", "worker"]


class AgentBenchError(Exception):
    """Base; one string, so that it survives pickling out of a child process."""

    fault: ClassVar[Fault] = "task"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class CallerError(AgentBenchError):
    """Bad id, argument, order or configuration: repeating cannot help. HTTP 422, exit code 2."""

    fault = "client"
    exit_code = 2


class NotFound(CallerError):
    """No such task, split, sample or session. HTTP 404."""


class Conflict(CallerError):
    """The session is busy, or the turn is out of order. HTTP 409."""


class Gone(CallerError):
    """The session has finished, was cancelled, or its lease expired. HTTP 410."""


class TaskError(AgentBenchError):
    """A task's code or data broke: end this episode, mask it, go on. Exit code 3."""

    fault = "task"
    exit_code = 3


class InfrastructureError(AgentBenchError):
    """A backend, child process, disk or network failed: repeat elsewhere in time. HTTP 503, exit code 4."""

    fault: ClassVar[Fault] = "environment"
    exit_code = 4
    retryable = True


class Unavailable(InfrastructureError):
    """No capacity just now: all slots are taken or a queue is full. HTTP 429; try again later."""

    fault = "worker"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A sentence that names the closest known word, and all of them where they are few.

    >>> did_you_mean("trian", ["train", "dev"])
    "Did you mean 'train'? Known: dev, train."
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1) if isinstance(word, str) else []
    hint = f"Did you mean {close[0]!r}? " if close else ""
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"{hint}Known: {shown or 'none'}."
