"""Free values of a configuration (a task's options, TRL's fields) as plain data: the same here, on the wire, in files.

>>> plain_values({"level": "hard", "sizes": (1, 2)}, "tasks.db.options")
{'level': 'hard', 'sizes': [1, 2]}

Not here: fields with a type of their own (config.py, configfile.py).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentbench_fc.errors import CallerError


def plain_values(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values as JSON has them.

    Args:
        values: By key.
        name: Of the field, for messages.

    Raises:
        CallerError: JSON has no such value (a date, bytes, a set, NaN), or a key is no text.
    """
    if not isinstance(values, Mapping):
        raise CallerError(f"{name.rpartition('.')[2]} is {values!r} [{name}]. Give keys and values.")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(values)), parse_constant=_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallerError(
            f"{error} [{name}]. Use texts, numbers, true, false, null, and lists and mappings of them."
        ) from error
    if odd := [key for key in _keys(values) if not isinstance(key, str)]:
        raise CallerError(f"the key {odd[0]!r} is no text [{name}]. Quote it.")
    return plain


def _number(constant: str) -> float:
    """What JSON calls Infinity is a number; NaN is not even equal to itself."""
    if constant == "NaN":
        raise ValueError("NaN is no number")
    return float(constant)


def _keys(value: object) -> Iterator[object]:
    """The keys of all mappings within."""
    inner: Any = ()
    if isinstance(value, Mapping):
        yield from value
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    for one in inner:
        yield from _keys(one)
