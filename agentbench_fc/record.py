"""What a session remembers: its turns, its counters, and how two plays of a turn are compared.

Not here: the file format (transcript.py).
"""

from dataclasses import dataclass, replace

from agentbench_fc.episode import Turn
from agentbench_fc.messages import Message


@dataclass(slots=True)
class Counters:
    """What happened in a session, for its metrics."""

    calls: int = 0
    invalid_calls: int = 0
    no_call_turns: int = 0
    surplus_calls: int = 0
    tool_errors: int = 0
    timeouts: int = 0

    @property
    def invalid(self) -> int:
        """What counts against `max_invalid_calls`."""
        return self.invalid_calls + self.no_call_turns


@dataclass(frozen=True, slots=True)
class Played:
    """One turn of the log: what the agent sent (empty for turn 0, and for an end it did not cause) and the reply."""

    sent: tuple[Message, ...]
    turn: Turn


def compare(recorded: Turn, replayed: Turn) -> str:
    """What differs between two plays of a turn, in words; empty where nothing does."""
    for name in ("messages", "status", "reward", "success"):
        before, after = getattr(recorded, name), getattr(replayed, name)
        if before != after:
            return f"{name} was {_short(before)}, now {_short(after)}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def handed_out(turn: Turn) -> Turn:
    """A copy for a caller: who grows a history in its list of messages, as is usual, must not change the record."""
    messages: list[Message] = [{**message} for message in turn.messages]
    return replace(turn, messages=messages, tools=list(turn.tools), metrics=dict(turn.metrics))
