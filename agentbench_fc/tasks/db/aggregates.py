"""Aggregates of MySQL's for the embedded back end: GROUP_CONCAT, and the measures of spread.

Not here: functions of one row (mysql_functions.py).
"""

import math

from agentbench_fc.tasks.db.backend import Value
from agentbench_fc.tasks.db.collation import fold
from agentbench_fc.tasks.db.mysql_functions import GROUP_CONCAT_MAX, to_number, to_text


class Spread:
    """STDDEV and VARIANCE as aggregates: `(value, measure)` per row."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._measure = "v"

    def step(self, value: Value, measure: str) -> None:
        """Takes one row; NULL values are left out."""
        self._measure = measure
        if value is not None:
            self._values.append(float(to_number(value) or 0))

    def finalize(self) -> float | None:
        """Of all rows, or (in capitals) of a sample of them; of nothing there is none."""
        degrees = len(self._values) - self._measure.isupper()
        if degrees < 1:
            return None
        mean = math.fsum(self._values) / len(self._values)
        variance = math.fsum((value - mean) ** 2 for value in self._values) / degrees
        return math.sqrt(variance) if self._measure in "sS" else variance


class GroupConcat:
    """GROUP_CONCAT as an aggregate: `(value, separator, distinct, key, descending, key, descending, …)` per row."""

    def __init__(self) -> None:
        self._items: list[tuple[str, tuple[Value, ...]]] = []
        self._separator = ","
        self._distinct = False
        self._descending: tuple[bool, ...] = ()

    def step(self, *arguments: Value) -> None:
        """Takes one row; NULL values are left out."""
        value, separator, distinct, *keys = arguments
        self._separator, self._distinct = to_text(separator), bool(distinct)
        self._descending = tuple(bool(flag) for flag in keys[1::2])
        if value is not None:
            self._items.append((to_text(value), tuple(keys[0::2])))

    def finalize(self) -> str | None:
        """The joined text, cut where MySQL cuts it."""
        items = self._items
        if self._distinct:
            items = list({fold(item[0]): item for item in reversed(items)}.values())[::-1]
        for at, descending in reversed(list(enumerate(self._descending))):
            items = sorted(items, key=lambda item: _sort_key(item[1][at]), reverse=descending)
        text = self._separator.join(value for value, _ in items)
        return text.encode()[:GROUP_CONCAT_MAX].decode("utf-8", "ignore") if items else None


def _sort_key(value: Value) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, fold(value))
