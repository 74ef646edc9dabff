"""Arguments that a JSON schema admits: drawn at random, or the emptiest ones.

>>> schema = {
...     "type": "object",
...     "properties": {"unit": {"enum": ["m", "km"]}, "answers": {"type": "array", "items": {"type": "string"}}},
...     "required": ["answers"],
... }
>>> emptiest_arguments(schema)
{'answers': []}
>>> sample_arguments(schema, random.Random(1), words=["Oslo"])
{'unit': 'm', 'answers': ['Oslo', 'Oslo']}

Built for the schemas of tools: types, enums, bounds, nested objects and arrays, `$ref`, `anyOf`, `oneOf`, `allOf`. What
a draw cannot aim at (`pattern`, `not`, `if`) is left to luck: each draw is validated, and repeated up to `TRIES` times.

Not here: validation of what a model sends (arguments.py); Gymnasium's spaces, which draw through this (envs/).
"""

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agentbench_fc.errors import TaskError

T = TypeVar("T")

TRIES = 100
MAX_DEPTH = 4
"""Below this depth a recursive schema is filled as emptily as it allows."""
LETTERS = string.ascii_letters + string.digits + " _-."


def sample_arguments(schema: Mapping[str, Any], rng: random.Random, *, words: Sequence[str] = ()) -> dict[str, Any]:
    """A random JSON object that validates against the schema.

    Args:
        schema: The `parameters` of a tool.
        rng: Equal state gives equal arguments.
        words: Texts to prefer where a string is free, such as values seen in observations.

    Raises:
        TaskError: no valid draw in `TRIES`.
    """
    return _valid(schema, _Drawn(rng, words))


def emptiest_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The emptiest JSON object that validates: required keys only, each as short, as false, as near 0 as it may be.

    Raises:
        TaskError: none is found.
    """
    return _valid(schema, _Emptiest())


class _Choice(Protocol):
    """How a free decision is taken."""

    def of(self, options: Sequence[T]) -> T: ...
    def kind(self, kinds: Sequence[str]) -> str: ...
    def integer(self, low: int, high: int) -> int: ...
    def number(self, low: float, high: float) -> float: ...
    def text(self, low: int, high: int) -> str: ...
    def wanted(self) -> bool: ...


class _Drawn:
    """At random; a quarter of the free texts are made of letters, the rest are the given words."""

    def __init__(self, rng: random.Random, words: Sequence[str]) -> None:
        self._rng = rng
        self._words = words

    def of(self, options: Sequence[T]) -> T:
        return self._rng.choice(options)

    def kind(self, kinds: Sequence[str]) -> str:
        return self._rng.choice(kinds)

    def integer(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def number(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)

    def text(self, low: int, high: int) -> str:
        if self._words and self._rng.random() < 0.75:
            word = self._rng.choice(self._words)
            if low <= len(word) <= high:
                return word
        length = self._rng.randint(low, min(high, low + 12))
        return "".join(self._rng.choice(LETTERS) for _ in range(length))

    def wanted(self) -> bool:
        return self._rng.random() < 0.5


class _Emptiest:
    """Always the least."""

    def of(self, options: Sequence[T]) -> T:
        return options[0]

    def kind(self, kinds: Sequence[str]) -> str:
        order = ("null", "string", "array", "object", "boolean", "integer", "number")
        return min(kinds, key=lambda kind: order.index(kind) if kind in order else len(order))

    def integer(self, low: int, high: int) -> int:
        return min(max(0, low), high)

    def number(self, low: float, high: float) -> float:
        return min(max(0.0, low), high)

    def text(self, low: int, high: int) -> str:
        return "a" * low

    def wanted(self) -> bool:
        return False


def _valid(schema: Mapping[str, Any], choice: _Choice) -> dict[str, Any]:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(schema)
    for _ in range(TRIES):
        value = _value(schema, schema, choice, 0)
        if not isinstance(value, dict):  # a schema of any type: arguments are always an object
            value = {}
        if validator.is_valid(value):
            return value
        if isinstance(choice, _Emptiest):  # it decides the same each time; luck may still help
            choice = _Drawn(random.Random(0), ())
    raise TaskError(
        f"no arguments that fit the schema were found in {TRIES} draws [{str(dict(schema))[:200]}]. Mend it."
    )


def _value(schema: Any, root: Mapping[str, Any], choice: _Choice, depth: int) -> Any:
    if not isinstance(schema, Mapping):  # true and false are schemas too
        return choice.text(0, 12)
    if depth > MAX_DEPTH:
        choice = _Emptiest()
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _value(_merged([_resolved(schema["$ref"], root), rest]), root, choice, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return choice.of(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {k: v for k, v in schema.items() if k != key}
            return _value(_merged([rest, _alternative(schema[key], choice)]), root, choice, depth + 1)
    if "allOf" in schema:
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        return _value(_merged([rest, *schema["allOf"]]), root, choice, depth + 1)
    return _of_kind(_kind(schema, choice), schema, root, choice, depth)


def _of_kind(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], choice: _Choice, depth: int) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return choice.of([False, True])
        case "integer":
            return _integer(schema, choice)
        case "number":
            low, high = _bounds(schema, 1e-6)
            step = schema.get("multipleOf")
            return _integer(schema, choice) if step else choice.number(low, high)
        case "string":
            low_length = schema.get("minLength", 0)
            return choice.text(low_length, max(schema.get("maxLength", low_length + 24), low_length))
        case "array":
            return _array(schema, root, choice, depth)
        case _:
            return _object(schema, root, choice, depth)


def _kind(schema: Mapping[str, Any], choice: _Choice) -> str:
    kinds = schema.get("type")
    if kinds is None:
        if {"properties", "required", "additionalProperties", "minProperties"} & set(schema):
            return "object"
        return "array" if {"items", "prefixItems", "minItems"} & set(schema) else choice.kind(["string", "integer"])
    return kinds if isinstance(kinds, str) else choice.kind(kinds)


def _alternative(options: Sequence[Any], choice: _Choice) -> Any:
    """One of the options; the emptiest choice takes null where it is offered."""
    if isinstance(choice, _Emptiest):
        return next((o for o in options if isinstance(o, Mapping) and o.get("type") == "null"), options[0])
    return choice.of(options)


def _bounds(schema: Mapping[str, Any], margin: float) -> tuple[float, float]:
    low: float | None = schema.get("minimum")
    high: float | None = schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        low = above + margin if low is None else max(low, above + margin)
    if (below := schema.get("exclusiveMaximum")) is not None:
        high = below - margin if high is None else min(high, below - margin)
    if low is None:
        low = min(high - 100, 0) if high is not None else -100
    return low, max(low, high) if high is not None else max(low + 100, 100)


def _integer(schema: Mapping[str, Any], choice: _Choice) -> Any:
    step = schema.get("multipleOf", 1)
    low, high = _bounds(schema, 1 if isinstance(step, int) else 1e-6)
    first, last = -int(-low // step), int(high // step)
    return choice.integer(first, max(first, last)) * step


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], choice: _Choice, depth: int) -> list[Any]:
    low = schema.get("minItems", 0)
    length = choice.integer(low, max(low, min(schema.get("maxItems", low + 3), low + 3)))
    heads = schema.get("prefixItems", [])
    rest = schema.get("items", {"type": "string"})
    items: list[Any] = []
    for position in range(length if rest is not False else min(length, len(heads))):
        item = _value(heads[position] if position < len(heads) else rest, root, choice, depth + 1)
        if not (schema.get("uniqueItems") and item in items and len(items) >= low):
            items.append(item)
    return items


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], choice: _Choice, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    names = [name for name in properties if name in required or choice.wanted()]
    names += [name for name in required if name not in properties]
    other = schema.get("additionalProperties", True)
    return {name: _value(properties.get(name, other), root, choice, depth + 1) for name in names}


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else []:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            raise TaskError(f"a $ref points nowhere: {reference!r} [schema]. Only references inside the schema work.")
        node = node[key]
    return node


def _merged(schemas: Sequence[Any]) -> dict[str, Any]:
    """One schema for all of them, as far as keys can be joined; validation judges the rest."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        if not isinstance(schema, Mapping):
            continue
        for key, value in schema.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, []), *value]
            else:
                merged[key] = value
    return merged
