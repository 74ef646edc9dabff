"""Chat messages, tool calls and tool specs in OpenAI's shapes: makers, and the reader of what an agent sends.

>>> message = assistant("I look first.", [ToolCall("c1", "execute_sql", '{"query": "SELECT 1"}')])
>>> read_agent_messages([message])
AgentTurn(text='I look first.', calls=(ToolCall(id='c1', name='execute_sql', arguments='{"query": "SELECT 1"}'),))

A message is a value: a plain dict, equal when its content is equal. `arguments` stays the raw string that the model
wrote; whether it is JSON is the session's business. What only a client can get wrong (roles, containers) raises
`CallerError`; what a model can get wrong never raises.

Not here: raw model text -> tool calls (parsers.py); what a bad call costs (session.py).
Source: OpenAI chat completions API, function calling.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from agentbench_fc.errors import CallerError

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(TypedDict):
    """The function part of a tool call on the wire."""

    name: str
    arguments: str


class ToolCallDict(TypedDict):
    """A tool call on the wire."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One chat message on the wire."""

    role: Role
    content: str | None
    tool_calls: NotRequired[list[ToolCallDict]]
    tool_call_id: NotRequired[str]


class FunctionSpec(TypedDict):
    """Name, description and JSON schema of a function."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, Any]


class ToolSpec(TypedDict):
    """A tool as offered to a model."""

    type: Literal["function"]
    function: FunctionSpec


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call of an agent; `arguments` is the raw JSON text."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> ToolCallDict:
        """The call in OpenAI's shape."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What an agent said in one turn: free text and tool calls, in order."""

    text: str
    calls: tuple[ToolCall, ...] = ()

    def to_messages(self) -> list[Message]:
        """The turn as one assistant message."""
        return [assistant(self.text or None, self.calls)]


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    """An assistant message; without calls the `tool_calls` key is absent, as in OpenAI's API."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [call.to_dict() for call in calls]
    return message


def tool_result(call_id: str, content: str) -> Message:
    """The reply to one tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function_tool(name: str, description: str, parameters: dict[str, Any]) -> ToolSpec:
    """A tool spec in OpenAI's shape."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def tool_name(tool: ToolSpec) -> str:
    """The function name of a tool spec."""
    return tool["function"]["name"]


def clean_text(text: str) -> str:
    r"""The text with lone surrogates replaced, so that it always encodes as UTF-8.

    >>> clean_text("a\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def read_agent_messages(messages: Iterable[Mapping[str, Any]]) -> AgentTurn:
    """Reads one or more assistant messages as one turn: texts joined by a newline, calls concatenated.

    Lenient where models and servers differ: `arguments` given as an object is serialized; a missing id, name or
    arguments becomes an empty string, or `call_<n>` for an id; text parts are joined.

    Raises:
        CallerError: no message, a role other than assistant, or a container of the wrong type.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise CallerError(f"messages is {_kind(messages)} [interact]. Send a list of assistant messages.")
    texts: list[str] = []
    calls: list[ToolCall] = []
    count = 0
    for count, message in enumerate(messages, start=1):
        where = f"[message {count}]"
        if not isinstance(message, Mapping):
            raise CallerError(f"a message is {_kind(message)} {where}. Send objects with role, content and tool_calls.")
        if message.get("role") != "assistant":
            raise CallerError(f"the role is {message.get('role')!r} {where}. Only assistant messages are the agent's.")
        if text := _text_of(message.get("content"), where):
            texts.append(text)
        raw_calls = message.get("tool_calls")
        if raw_calls is None:
            continue
        if not isinstance(raw_calls, Sequence) or isinstance(raw_calls, (str, bytes)):
            raise CallerError(f"tool_calls is {_kind(raw_calls)} {where}. Send a list, or leave it out.")
        calls += [_read_call(raw, len(calls) + offset, where) for offset, raw in enumerate(raw_calls, start=1)]
    if not count:
        raise CallerError("messages is empty [interact]. Send at least one assistant message.")
    return AgentTurn(clean_text("\n".join(texts)), tuple(calls))


def _read_call(raw: object, number: int, where: str) -> ToolCall:
    if not isinstance(raw, Mapping):
        raise CallerError(f"tool call {number} is {_kind(raw)} {where}. Send objects with id and function.")
    function = raw.get("function")
    if not isinstance(function, Mapping):
        raise CallerError(f"tool call {number} has no function object {where}. Send function.name and .arguments.")
    name = function.get("name")
    call_id = raw.get("id")
    return ToolCall(
        id=clean_text(call_id) if isinstance(call_id, str) and call_id else f"call_{number}",
        name=clean_text(name) if isinstance(name, str) else "",
        arguments=_arguments_text(function.get("arguments")),
    )


def _arguments_text(arguments: object) -> str:
    if isinstance(arguments, str):
        return clean_text(arguments)
    if arguments is None:
        return ""
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        return f"<{_kind(arguments)}>"  # not JSON: the session answers it as malformed arguments


def _text_of(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts: list[str] = []
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") not in {"text", "refusal"}:
                raise CallerError(f"a content part is not text {where}. Only text parts are supported.")
            parts.append(str(part.get("text", part.get("refusal", ""))))
        return "".join(parts)
    raise CallerError(f"content is {_kind(content)} {where}. Send a string, null, or a list of text parts.")


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
