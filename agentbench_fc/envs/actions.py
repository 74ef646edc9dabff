"""An action of a Gymnasium user -> the assistant messages that a session plays.

>>> from agentbench_fc.parsers import get_parser
>>> read_action({"name": "pick", "arguments": {"n": 3}}, get_parser("hermes"))[0]["tool_calls"][0]["function"]
{'name': 'pick', 'arguments': '{"n": 3}'}

Not here: whether the calls fit their schemas (spaces.py asks, the session decides).
"""

from collections.abc import Mapping
from typing import Any

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import AgentTurn, Message, ToolCall, assistant, read_agent_messages
from agentbench_fc.parsers import Parser

Action = str | ToolCall | AgentTurn | Mapping[str, Any] | list[Message] | tuple[Message, ...]
"""Raw model text, a call, an assistant message, or several messages as one turn."""

_SHAPES = (
    "Give an assistant message {'role': 'assistant', …}, a call {'name': …, 'arguments': {…}}, a ToolCall, or raw text"
)


def read_action(action: Action, parse: Parser) -> list[Message]:
    """The assistant messages of an action; raw text goes through `parse`.

    Raises:
        CallerError: it has none of the known shapes.
    """
    return read_turn(action, parse).to_messages()


def read_turn(action: Action, parse: Parser) -> AgentTurn:
    """The same as text and calls.

    Raises:
        CallerError: it has none of the known shapes.
    """
    match action:
        case str():
            return parse(action)
        case AgentTurn():
            return action
        case ToolCall():
            return AgentTurn("", (action,))
        case Mapping() if "role" in action:
            return read_agent_messages([action])
        case Mapping() if "function" in action:
            return read_agent_messages([{"role": "assistant", "content": None, "tool_calls": [action]}])
        case Mapping() if "name" in action:
            call = {"id": action.get("id"), "function": {"name": action["name"], "arguments": _arguments(action)}}
            return read_agent_messages([assistant() | {"tool_calls": [call]}])
        case Mapping():
            raise CallerError(f"the action has the keys {sorted(map(str, action))} [step]. {_SHAPES}.")
        case list() | tuple():
            return read_agent_messages(action)
    raise CallerError(f"the action is of type {type(action).__name__} [step]. {_SHAPES}.")


def _arguments(action: Mapping[str, Any]) -> Any:
    arguments = action.get("arguments")
    return {} if arguments is None else arguments
