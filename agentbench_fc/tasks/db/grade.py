"""Whether an answer, or the state that a database was left in, is right; text is never evaluated.

>>> answers_match(["1,234", "Rome"], ["Rome", 1234.0]), answers_match(["none"], [0]), answers_match([], [None])
(True, False, False)
>>> agentbench_answers_match(["none"], ["0"]), agentbench_answers_match(["a", "a", "b"], ["a", "b"])
(True, True)

Two sets of rules stand side by side, and both verdicts are reported. The default: values as a multiset, numbers by
value, NULL equal to NULL alone, tables by the multiset of their rows. `agentbench_…`: AgentBench's own rules, whose
looseness (a blank equals 0, duplicates do not count, 20 bits of a hash for a row) is part of its published scores.

Not here: running statements (sqlite.py), what a grade ends (task.py).
Source: the second set is AgentBench's dbbench at 578c5e9, except that a list in a text is read, not run.
"""

import ast
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentbench_fc.tasks.db.backend import Row, Value

_NUMBER = re.compile(r"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?%?")
_NULLS = {"null", "none"}
_GROUP_CONCAT = 1_024
"""MySQL's group_concat_max_len: the hash of a table reads no more of its rows' hashes."""
_AGENTBENCH_NULLS = {"none", "null", "undefined", "nan", "inf", "-inf", "infinity", "-infinity", ""}


def answers_match(answers: Sequence[str], gold: Sequence[Value]) -> bool:
    """The default rule: each committed value pairs off with one gold value."""
    left = list(gold)
    for answer in answers:
        at = next((i for i, value in enumerate(left) if value_matches(answer, value)), None)
        if at is None:
            return False
        left.pop(at)
    return not left


def value_matches(answer: str, gold: Value) -> bool:
    """One value: numbers by value, NULL by its names, any other text exactly, surrounding space aside."""
    text = answer.strip()
    if gold is None or text.lower() in _NULLS:
        return text.lower() in _NULLS and (gold is None or str(gold).strip().lower() in _NULLS)
    known = str(gold).strip()
    if text == known:
        return True
    a, b = _number(text), _number(known)
    if a is None or b is None or text.endswith("%") != known.endswith("%"):
        return False
    if a.is_integer() and b.is_integer():
        return a == b
    return math.isclose(a, b, rel_tol=1e-6) or abs(a - b) <= 5e-5  # MySQL gives four decimals


def tables_differ(found: Sequence[Row] | None, gold: Sequence[Row] | None) -> str | None:
    """None where both hold the same rows in any order; else the first row that only one of them has."""
    if found is None or gold is None:
        return None if found is gold else "the table is missing" if found is None else "the table should be gone"
    there, wanted = Counter(map(_comparable, found)), Counter(map(_comparable, gold))
    if missing := next((row for row in map(_comparable, gold) if there[row] < wanted[row]), None):
        return f"missing row {missing!r}"
    extra = next((row for row in map(_comparable, found) if there[row] > wanted[row]), None)
    return None if extra is None else f"surplus row {extra!r}"


def table_hash(tables: Sequence[Sequence[Row]]) -> str:
    """AgentBench's digest of the state of one or more tables."""
    return "_".join(sorted(_rows_hash(rows) for rows in tables))


def agentbench_answers_match(answer: object, gold: object) -> bool:
    """AgentBench's rule for questions; each side is a list, or a text that may hold one."""
    left, right = _agentbench_values(answer), _agentbench_values(gold)
    numbers_left, numbers_right = [_float(v) for v in left], [_float(v) for v in right]
    if len(left) == len(right) == 1:
        a, b = numbers_left[0], numbers_right[0]
        return left == right if a is None or b is None else abs(a - b) <= 0.01
    if None not in numbers_left and None not in numbers_right:
        return _pair_off([n for n in numbers_left if n is not None], [n for n in numbers_right if n is not None])
    return set(left) == set(right)


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text.rstrip("%").replace(",", ""))
    return number if math.isfinite(number) else None


def _comparable(row: Row) -> Row:
    return tuple(float(v) if isinstance(v, int) and abs(v) < 2**53 else _rounded(v) for v in row)


def _rounded(value: Value) -> Value:
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _rows_hash(rows: Sequence[Row]) -> str:
    digests = sorted(_md5(",".join(_sql_text(v) for v in row if v is not None))[:5] for row in rows)
    return _md5(",".join(digests)[:_GROUP_CONCAT]) if rows else ""  # MySQL's hash of nothing is NULL


def _sql_text(value: Value) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _agentbench_values(answer: object) -> list[str]:
    if answer is None:
        return ["0"]
    if isinstance(answer, list | tuple):
        return [_agentbench_value(item[0] if isinstance(item, tuple) and len(item) == 1 else item) for item in answer]
    text = str(answer)
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return [_agentbench_value(text)]
    read = _read_list(text.strip())
    if read is None:
        return _split(text.strip()[1:-1])
    if text == text.strip() and all(isinstance(item, tuple) for item in read):  # a result: longer rows do not count
        read = [item for item in read if len(item) == 1]
    return _agentbench_values(read)


def _split(text: str) -> list[str]:
    """The parts of a list that is no literal: quotes only keep commas together."""
    parts = re.findall(r"""(?:[^,'"]|['"][^'"]*(?:['"]|\Z))+""", text)
    return [_agentbench_value(re.sub(r"""['"]""", "", part)) for part in parts if re.sub(r"""['"]""", "", part)]


def _read_list(text: str) -> list[Any] | None:
    if len(text) > 100_000:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _agentbench_value(item: object) -> str:
    text = str(item).strip().strip("'\"").strip()
    if text.endswith("%"):  # AgentBench stops here: commas and names of nothing stay
        return text[:-1].strip()
    if not text.startswith("[") and not text.endswith("]"):
        text = text.replace(",", "")
    return "0" if text.lower() in _AGENTBENCH_NULLS else text


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _pair_off(left: list[float], right: list[float]) -> bool:
    rest = list(right)
    for number in left:
        at = next((i for i, other in enumerate(rest) if abs(number - other) <= 0.01), None)
        if at is None:
            return False
        rest.pop(at)
    return not rest
