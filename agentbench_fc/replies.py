"""Checks what a task's own code gives: a wrong value is a `TaskError` at once, never an odd failure later.

Not here: checks of what a model or a client sends (arguments.py, messages.py).
"""

from collections.abc import Mapping
from typing import Any, cast

from agentbench_fc.episode import Reply
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import Message, clean_text
from agentbench_fc.rewards import Status

_ENDS = frozenset(Status) - {Status.RUNNING}


def checked_reply(given: Any, where: str) -> Reply:
    """The reply of a call.

    Raises:
        TaskError: it is not a `Reply`, or a field of it has a wrong type.
    """
    if not isinstance(given, Reply):
        problem = f"it is a {type(given).__name__}, not a Reply"
    elif problem := _problem(given.content, given.reward, given.metrics):
        pass
    elif given.done and given.status not in _ENDS:
        problem = f"it ends the episode as {given.status!r}"
    else:
        return given
    raise TaskError(f"the task's reply is wrong: {problem} {where}. Mend the task.")


def _problem(content: Any, reward: Any, metrics: Any) -> str:
    if not isinstance(content, str):
        return f"its content is a {type(content).__name__}, not a text"
    if reward is not None and not isinstance(reward, (int, float)):
        return f"its reward is a {type(reward).__name__}, not a float"
    return "" if isinstance(metrics, Mapping) else f"its metrics are a {type(metrics).__name__}, not a mapping"


def checked_opening(given: Any, where: str) -> list[Message]:
    """The opening messages, their texts cleaned.

    Raises:
        TaskError: they are not a list of messages.
    """
    if not isinstance(given, list) or not given:
        raise TaskError(f"the start gave {given!r:.80} {where}. Return a list of messages.")
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str) or "role" not in message:
            raise TaskError(f"the start gave {message!r:.80} as a message {where}. Make it by system() or user().")
    return [cast(Message, {**message, "content": clean_text(message["content"])}) for message in given]
