"""The arguments of a tool call: raw JSON text -> a dict that matches the tool's schema, or a sentence for the model.

>>> from agentbench_fc.messages import function_tool
>>> from agentbench_fc.spec import TaskSpec
>>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
>>> spec = TaskSpec(name="demo", tools=(function_tool("pick", "Picks.", schema),))
>>> read_arguments(spec.validators, ToolCall("c1", "pick", '{"n": 3}'))
{'n': 3}
>>> read_arguments(spec.validators, ToolCall("c2", "pick", '{}'))
Traceback (most recent call last):
ValueError: the arguments of pick do not match its schema: 'n' is a required property.

Whatever a model writes gives one of the two: NaN, huge numbers, lone surrogates, a depth of 1,000 and 10 MB included.
"""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentbench_fc.messages import AgentTurn, ToolCall, clean_text

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_CHARS = 1_000_000
"""Longer arguments are refused unparsed: no task needs them, and parsing would stall every other session."""


def read_arguments(validators: "Mapping[str, Validator]", call: ToolCall) -> dict[str, Any]:
    """The arguments of a call, parsed and validated.

    Raises:
        ValueError: unknown tool, not JSON, too deep, too long, or against the schema; the text is for the model.
    """
    validator = validators.get(call.name)
    if validator is None:
        raise ValueError(f"there is no tool {call.name[:80]!r}. The tools are: {', '.join(validators)}.")
    if len(call.arguments) > MAX_CHARS:
        raise ValueError(f"the arguments of {call.name} are longer than {MAX_CHARS:,} characters.")
    try:
        arguments = _clean(json.loads(call.arguments, parse_constant=_refuse, parse_float=_finite))
        error = next(validator.iter_errors(arguments), None)
    except RecursionError:
        raise ValueError(f"the arguments of {call.name} are nested too deeply.") from None
    except ValueError as fault:
        raise ValueError(f"the arguments of {call.name} are not valid JSON: {str(fault)[:200]}.") from None
    if error is not None:
        where = f" at {error.json_path[:80]}" if error.path else ""
        raise ValueError(f"the arguments of {call.name} do not match its schema{where}: {error.message[:300]}.")
    if not isinstance(arguments, dict):  # a schema without "type": "object"
        raise ValueError(f"the arguments of {call.name} are not a JSON object.")
    return arguments


def bounded(turn: AgentTurn) -> AgentTurn:
    """The turn with text and arguments cut just past `MAX_CHARS`: what is refused anyway need not be remembered."""
    if len(turn.text) <= MAX_CHARS and all(len(c.arguments) <= MAX_CHARS and len(c.name) <= 1000 for c in turn.calls):
        return turn
    calls = tuple(ToolCall(c.id, c.name[:1000], c.arguments[: MAX_CHARS + 1]) for c in turn.calls)
    return AgentTurn(turn.text[: MAX_CHARS + 1], calls)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _clean(value: Any) -> Any:
    """The value with lone surrogates replaced in every string: an escaped one is valid JSON but no text."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
