"""What a finished session means for Gymnasium and for training: one table for all tasks.

>>> settle("task limit reached", reward=0.7)
Outcome(terminated=False, truncated=True, reward=-0.2, trained=True)
>>> settle("task error", reward=None)
Outcome(terminated=False, truncated=True, reward=None, trained=False)

Not here: how a task earns its raw reward (tasks/), how a masked token leaves the loss (agentrl_trainer).
Source: the -0.2 is AgentRL's, arXiv 2510.04206; `abnormal_penalty=0` gives AgentBench's own scores.
"""

from enum import StrEnum
from typing import NamedTuple

ABNORMAL_PENALTY = -0.2


class Status(StrEnum):
    """Where a session stands. The words are AgentBench's wire values, except the last."""

    RUNNING = "running"
    COMPLETED = "completed"
    CONTEXT_LIMIT = "agent context limit"
    VALIDATION_FAILED = "agent validation failed"
    INVALID_ACTION = "agent invalid action"
    LIMIT_REACHED = "task limit reached"
    CANCELLED = "cancelled"
    TASK_ERROR = "task error"
    UNKNOWN = "unknown"
    INIT_FAILED = "env init failed"


class Outcome(NamedTuple):
    """What Gymnasium and a trainer see of a finished session."""

    terminated: bool
    truncated: bool
    reward: float | None
    """Shaped; None where there is nothing to score."""
    trained: bool
    """False: no token of the trajectory may enter the loss or any statistics."""


_TERMINATED = {Status.COMPLETED, Status.VALIDATION_FAILED, Status.INVALID_ACTION}
_ABNORMAL = {Status.LIMIT_REACHED, Status.CONTEXT_LIMIT, Status.VALIDATION_FAILED, Status.INVALID_ACTION}
_MASKED = {Status.CANCELLED, Status.TASK_ERROR, Status.UNKNOWN, Status.INIT_FAILED}


def settle(status: Status | str, reward: float | None, *, abnormal_penalty: float = ABNORMAL_PENALTY) -> Outcome:
    """The outcome of a session that ended as `status` with the raw `reward`, in [0, 1].

    With `abnormal_penalty=0` an abnormal end keeps its raw reward, which is how AgentBench scores.

    Raises:
        ValueError: the status is not one of `Status`, or it is `running`.
    """
    status = Status(status)
    if status is Status.RUNNING:
        raise ValueError("a running session has no outcome yet [settle]. Wait for `finish`.")
    terminated = status in _TERMINATED
    if status in _MASKED:
        return Outcome(terminated, not terminated, None, trained=False)
    raw = reward or 0.0
    shaped = abnormal_penalty if status in _ABNORMAL and abnormal_penalty else raw
    return Outcome(terminated, not terminated, shaped, trained=True)
