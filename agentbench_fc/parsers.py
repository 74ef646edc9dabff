r"""Raw model text -> text and tool calls, by the name of the format that the model was taught.

>>> parse = get_parser("hermes")
>>> parse('I look.\n<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call>')
AgentTurn(text='I look.', calls=(ToolCall(id='call_1', name='query', arguments='{"sql": "SELECT 1"}'),))

`arguments` is the substring that the model wrote, never a re-serialization. A parser never raises: what looks like a
call but is not well formed becomes a call whose arguments are the raw text, which the session answers as malformed;
what does not look like a call is text. A leading `<think>…</think>` belongs to neither. Every parser takes time linear
in the text, whatever it contains: a piece of text is given to the JSON scanner once.

Not here: ids -> text (the tokenizer's), JSON schemas and what a bad call costs (session.py).
Source: chat templates of Qwen2.5 and Qwen3 (Hermes format), GLM-4-0414 and Llama 3.1; SmolLM2's model card.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.messages import AgentTurn, ToolCall, clean_text

Parser = Callable[[str], AgentTurn]

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_GLM_ROLE = re.compile(r"<\|(?:assistant|observation|user)\|>")
_GLM_HEAD = re.compile(r"^[ \t]*([A-Za-z_][\w.-]{0,63})[ \t]*\n[ \t]*(?=\{)", re.MULTILINE)
_LLAMA_HEAD = re.compile(r'^[ \t]*(?=\{[ \t]*(?:\n[ \t]*)?"(?:name|type|function|parameters|arguments)")', re.MULTILINE)
_LLAMA_START = re.compile(re.escape(_PYTHON_TAG) + "|" + _LLAMA_HEAD.pattern, re.MULTILINE)
_HERMES_HEAD = re.compile(_OPEN)
_LLAMA_GAP = re.compile(r"[\s;,]*")


class _Member(NamedTuple):
    """One value of a JSON object, decoded and as it was written."""

    value: object
    raw: str


def parse_hermes(text: str) -> AgentTurn:
    """Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; the last closing tag may be missing."""
    first, *segments = _without_thoughts(text, _HERMES_HEAD).split(_OPEN)
    said, calls = [first], list[ToolCall]()
    for segment in segments:
        call, rest = _hermes_call(segment, len(calls) + 1)
        calls.append(call)
        said.append(rest)
    return _turn(said, calls)


def parse_smollm2(text: str) -> AgentTurn:
    """Calls as a JSON list between the Hermes tags, `<tool_call>[{…}, {…}]</tool_call>`; a bare object is one call."""
    first, *segments = _without_thoughts(text, _HERMES_HEAD).split(_OPEN)
    said, calls = [first], list[ToolCall]()
    for segment in segments:
        start = _skip(_BLANK, segment, 0)
        if segment.startswith("[", start):
            found, rest = _call_list(segment, start, len(calls) + 1)
        else:
            call, rest = _hermes_call(segment, len(calls) + 1)
            found = [call]
        calls += found
        said.append(rest)
    return _turn(said, calls)


def parse_glm4(text: str) -> AgentTurn:
    r"""Calls as `name\n{…}` with the arguments alone as JSON; several are divided by a role token or a line break."""
    said: list[str] = []
    calls: list[ToolCall] = []
    for segment in _GLM_ROLE.split(_without_thoughts(text, _GLM_HEAD)):
        heads = list(_GLM_HEAD.finditer(segment))
        starts = [*(head.start() for head in heads), len(segment)]
        said.append(segment[: starts[0]])
        for head, end in zip(heads, starts[1:], strict=True):
            body = segment[head.end() : end]
            try:
                stop = _DECODER.raw_decode(body)[1]
            except (ValueError, RecursionError):
                stop = len(body)
            calls.append(_call(len(calls) + 1, head[1], body[:stop].strip()))
            said.append(body[stop:])
    return _turn(said, calls)


def parse_llama3(text: str) -> AgentTurn:
    """Calls as bare JSON objects with `name` and `parameters`, after `<|python_tag|>` or from the start of a line."""
    visible = _without_thoughts(text, _LLAMA_START)
    said, tag, body = visible.partition(_PYTHON_TAG)
    if not tag:
        head = _LLAMA_HEAD.search(visible)
        start = head.end() if head else len(visible)
        said, body = visible[:start], visible[start:]
    calls: list[ToolCall] = []
    at = _skip(_LLAMA_GAP, body, 0)
    while at < len(body):
        if body[at] != "{" and calls:
            return _turn([said, body[at:]], calls)
        number = len(calls) + 1
        try:
            members, end = _read_object(body, at)
        except (ValueError, RecursionError):
            calls.append(_call(number, "", body[at:].strip()))
            break
        calls.append(_from_members(members, number, body[at:end]))
        at = _skip(_LLAMA_GAP, body, end)
    return _turn([said], calls)


PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "hermes": parse_hermes,
        "qwen25": parse_hermes,
        "qwen3": parse_hermes,
        "glm4": parse_glm4,
        "llama3": parse_llama3,
        "smollm2": parse_smollm2,
    }
)
"""Format name -> parser."""


def get_parser(name: str) -> Parser:
    """The parser of that name.

    Raises:
        CallerError: no such parser; the message lists those that exist.
    """
    try:
        return PARSERS[name]
    except KeyError:
        raise CallerError(f"no tool-call parser {name!r} [parsers]. {did_you_mean(name, PARSERS)}") from None


def _hermes_call(segment: str, number: int) -> tuple[ToolCall, str]:
    """The call that opens `segment`, and the text behind it. A closing tag within a JSON string closes nothing."""
    start = _skip(_BLANK, segment, 0)
    members: dict[str, _Member] = {}
    try:
        members, end = _read_object(segment, start, members)
        after = _skip(_BLANK, segment, end)
        if after == len(segment) or segment.startswith(_CLOSE, after):
            return _from_members(members, number, segment[start:end]), segment[after + len(_CLOSE) :]
    except (ValueError, RecursionError):
        pass  # malformed: what was read until then still tells the name
    raw, _, rest = segment.partition(_CLOSE)
    name = members["name"].value if "name" in members else ""
    return _call(number, name if isinstance(name, str) else "", raw.strip()), rest


def _call_list(segment: str, start: int, number: int) -> tuple[list[ToolCall], str]:
    """The calls of the list at `start`, numbered from `number`, and the text behind it."""
    calls: list[ToolCall] = []
    at = _skip(_BLANK, segment, start + 1)
    try:
        while not segment.startswith("]", at):
            members, end = _read_object(segment, at)
            calls.append(_from_members(members, number + len(calls), segment[at:end]))
            at = _skip(_BLANK, segment, end)
            if segment.startswith(",", at):
                at = _skip(_BLANK, segment, at + 1)
            elif not segment.startswith("]", at):
                raise ValueError("the list does not go on here")
        after = _skip(_BLANK, segment, at + 1)
        if calls and (after == len(segment) or segment.startswith(_CLOSE, after)):
            return calls, segment[after + len(_CLOSE) :]
    except (ValueError, RecursionError):
        pass  # malformed: the whole list is one call of nothing, and none of it is carried out
    raw, _, rest = segment.partition(_CLOSE)
    return [_call(number, "", raw.strip())], rest


def _read_object(text: str, at: int, found: dict[str, _Member] | None = None) -> tuple[dict[str, _Member], int]:
    """Reads the JSON object at `at` member by member into `found`; returns it and the position behind the object."""
    members = {} if found is None else found
    if not text.startswith("{", at):
        raise ValueError("no object here")
    at = _skip(_BLANK, text, at + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        key, end = _DECODER.raw_decode(text, at)
        at = _skip(_BLANK, text, end)
        if not isinstance(key, str) or not text.startswith(":", at):
            raise ValueError("no key here")
        at = _skip(_BLANK, text, at + 1)
        value, end = _DECODER.raw_decode(text, at)
        members[key] = _Member(value, text[at:end])
        at = _skip(_BLANK, text, end)
        if text.startswith("}", at):
            return members, at + 1
        if not text.startswith(",", at):
            raise ValueError("the object does not go on here")
        at = _skip(_BLANK, text, at + 1)


def _from_members(members: Mapping[str, _Member], number: int, raw: str) -> ToolCall:
    """The call that an object stands for; without a usable name the arguments are the whole object."""
    name = members.get("name") or members.get("function")
    if name is None or not isinstance(name.value, str):
        return _call(number, "", raw)
    given = members.get("arguments") or members.get("parameters")
    if given is None:
        return _call(number, name.value, "{}")  # a call without arguments; the schema says whether it needs some
    # OpenAI's own shape has the arguments as a string of JSON, and some models write that.
    return _call(number, name.value, given.value if isinstance(given.value, str) else given.raw)


def _call(number: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=f"call_{number}", name=clean_text(name.strip()), arguments=clean_text(arguments))


def _turn(said: list[str], calls: list[ToolCall]) -> AgentTurn:
    pieces = [piece.strip() for piece in said]
    return AgentTurn(clean_text("\n".join(piece for piece in pieces if piece)), tuple(calls))


def _without_thoughts(text: str, call: re.Pattern[str]) -> str:
    """The text behind a leading think block; the opening tag may stand in the prompt, an unclosed block is all.

    Args:
        text: What the model wrote.
        call: Where a call begins: a closing tag behind that is part of an argument.
    """
    end = text.find("</think>")
    if text.lstrip().startswith("<think>"):
        return "" if end < 0 else text[end + len("</think>") :]
    if end < 0 or call.search(text, 0, end):
        return text
    return text[end + len("</think>") :]


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
