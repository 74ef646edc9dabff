"""MySQL's functions in Python, registered under names of our own on a session's SQLite connection.

>>> shim = Shim(seed=0)
>>> FUNCTIONS["SUBSTRING_INDEX"].run(shim, "a.b.c", ".", 2), to_number("12 kg"), FUNCTIONS["CONCAT"].run(shim, "a", 1)
('a.b', 12.0, 'a1')

Only what stands in `FUNCTIONS` can be called by a statement, so no function of SQLite's own is reachable. None of them
reads a clock or the process: `NOW()` is a fixed moment and `RAND()` is seeded, so that a session can be replayed.

Not here: dates (mysql_dates.py); which function replaces which (translate.py).
Source: MySQL 8.0 reference manual, chapters on functions and on type conversion.
"""

import hashlib
import math
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Literal

from agentbench_fc.tasks.db.backend import DATABASE_NAME, SqlError, Value
from agentbench_fc.tasks.db.collation import compare, fold, matches
from agentbench_fc.tasks.db.pattern import PatternError, Regexp, like

MAX_TEXT = 65_535
MAX_MADE = 30_000_000
"""Characters that the functions of one statement may make together."""
GROUP_CONCAT_MAX = 1_024
Kind = Literal["number", "text"]
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)")


class Shim:
    """What the functions of one session share: its random numbers, and the error that one of them raised."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.error: SqlError | None = None
        self.made = 0
        self._compiled: dict[str, Regexp] = {}

    def fork(self) -> "Shim":
        """An independent copy."""
        copy = Shim(0)
        copy.random.setstate(self.random.getstate())
        return copy

    def regexp(self, pattern: str) -> Regexp:
        """The compiled pattern; the last few are kept, since a scan asks for the same one at each row."""
        if pattern not in self._compiled:
            if len(self._compiled) > 8:
                self._compiled.clear()
            self._compiled[pattern] = Regexp(pattern)
        return self._compiled[pattern]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: `run(shim, *arguments)`; NULL in gives NULL out unless `nulls`."""

    run: Callable[..., Value]
    kind: Kind
    least: int
    most: int
    nulls: bool = False


def to_number(value: Value) -> int | float | None:
    """MySQL's number of a value: of a text, the number that it begins with as a DOUBLE, else 0."""
    if value is None or isinstance(value, (int, float)):
        return value
    match = _NUMBER.match(to_text(value))
    return (_finite(float(match[1])) or 0.0) if match else 0.0


def is_number(text: str) -> bool:
    """Whether a text is a number as a whole."""
    match = _NUMBER.match(text)
    return match is not None and not text[match.end() :].strip()


def to_text(value: Value | bytes) -> str:
    """The text of a value as MySQL prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def strict_number(shim: Shim, value: Value) -> Value:
    """As `to_number`, but a text that is no number is an error, as in MySQL's strict UPDATE."""
    if isinstance(value, str) and not is_number(value):
        raise SqlError(f"Truncated incorrect DOUBLE value: '{value[:60]}'. The column holds texts: quote the number.")
    return to_number(value)


def divide(shim: Shim, left: Value, right: Value) -> Value:
    """`/`: NULL for a zero divisor; four decimals more than the operands where these are exact."""
    a, b = to_number(left), to_number(right)
    if a is None or b is None or not b:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return float((Decimal(a) / Decimal(b)).quantize(Decimal("0.0001"), ROUND_HALF_UP))
    return _finite(a / b)


def _int_divide(shim: Shim, left: Value, right: Value) -> Value:
    a, b = to_number(left), to_number(right)
    if a is None or b is None or not b:
        return None
    return _int64(math.trunc(Decimal(str(a)) / Decimal(str(b))))


def _modulo(shim: Shim, left: Value, right: Value) -> Value:
    a, b = to_number(left), to_number(right)
    if a is None or b is None or not b:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a - b * (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    return math.fmod(a, b)


def _round(shim: Shim, value: Value, digits: Value = 0) -> Value:
    return _quantize(value, digits, ROUND_HALF_UP)


def _truncate(shim: Shim, value: Value, digits: Value) -> Value:
    return _quantize(value, digits, ROUND_DOWN)


def _quantize(value: Value, digits: Value, rounding: str) -> Value:
    number, places = to_number(value), int(to_number(digits) or 0)
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        return number
    if isinstance(number, int) and places >= 0:
        return number
    try:
        rounded = Decimal(repr(number)).quantize(Decimal(1).scaleb(-max(-20, min(places, 20))), rounding)
    except InvalidOperation:
        return number
    return _int64(int(rounded)) if places <= 0 else float(rounded)


def _signed(shim: Shim, value: Value) -> Value:
    number = to_number(value)
    if number is None or isinstance(number, int):
        return number
    if isinstance(value, str):  # a text is read up to the point, a number is rounded
        match = re.match(r"\s*([+-]?\d{1,400})", value)
        return max(-(2**63), min(2**63 - 1, int(match[1]))) if match else 0
    return _quantize(number, 0, ROUND_HALF_UP)


def _float(shim: Shim, value: Value) -> Value:
    number = to_number(value)
    return None if number is None else float(number)


def _char_cut(shim: Shim, value: Value, length: Value) -> Value:
    return to_text(value)[: max(0, _int(length))]


def _substring(shim: Shim, value: Value, start: Value, length: Value = None) -> Value:
    text, begin = to_text(value), _int(start)
    if begin == 0 or abs(begin) > len(text):
        return ""
    begin = begin - 1 if begin > 0 else len(text) + begin
    return text[begin:] if length is None else text[begin : begin + max(0, _int(length))]


def _substring_index(shim: Shim, value: Value, separator: Value, count: Value) -> Value:
    text, mark, n = to_text(value), to_text(separator), _int(count)
    if not mark or not n:
        return ""
    parts = text.split(mark)
    return mark.join(parts[:n] if n > 0 else parts[n:])


def _concat(shim: Shim, *values: Value) -> Value:
    return _bounded("".join(to_text(v) for v in values))


def _concat_ws(shim: Shim, separator: Value, *values: Value) -> Value:
    return None if separator is None else _bounded(to_text(separator).join(to_text(v) for v in values if v is not None))


def _locate(shim: Shim, part: Value, text: Value, start: Value = 1) -> Value:
    begin = _int(start)
    return to_text(text).lower().find(to_text(part).lower(), begin - 1) + 1 if begin > 0 else 0


def _instr(shim: Shim, text: Value, part: Value) -> Value:
    return _locate(shim, part, text)


def _pad(value: Value, length: Value, fill: Value, *, left: bool) -> Value:
    text, size, filler = to_text(value), _int(length), to_text(fill)
    if size < 0 or size > MAX_TEXT:
        return None
    if size <= len(text):
        return text[:size]
    if not filler:
        return ""
    padding = (filler * ((size - len(text)) // len(filler) + 1))[: size - len(text)]
    return padding + text if left else text + padding


def _repeat(shim: Shim, value: Value, count: Value) -> Value:
    text, times = to_text(value), max(0, _int(count))
    return None if len(text) * times > MAX_TEXT else text * times


def _trim(shim: Shim, value: Value, mark: Value = " ", where: Value = "BOTH") -> Value:
    text, part, side = to_text(value), to_text(mark), to_text(where)
    while part and side in {"BOTH", "LEADING"} and text.startswith(part):
        text = text[len(part) :]
    while part and side in {"BOTH", "TRAILING"} and text.endswith(part):
        text = text[: -len(part)]
    return text


def _format(shim: Shim, value: Value, digits: Value) -> Value:
    number, places = to_number(value), max(0, min(_int(digits), 20))
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        return None
    return f"{Decimal(repr(number)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,}"


def _like(shim: Shim, value: Value, pattern: Value, escape: Value = "\\") -> Value:
    return int(matches(to_text(pattern), to_text(value), to_text(escape)))


def _regexp(shim: Shim, value: Value, pattern: Value) -> Value:
    try:
        return int(shim.regexp(to_text(pattern)).search(to_text(value)[:MAX_TEXT]))
    except PatternError as error:
        raise SqlError(f"Got error '{error}' from regexp.") from error


def _strcmp(shim: Shim, left: Value, right: Value) -> Value:
    return compare(to_text(left), to_text(right))


def _extreme(pick: Callable[..., Any]) -> Callable[..., Value]:
    def run(shim: Shim, *values: Value) -> Value:
        if any(isinstance(v, str) for v in values) and not any(isinstance(v, (int, float)) for v in values):
            return pick((to_text(v) for v in values), key=fold)  # type: ignore[no-any-return]
        return pick(to_number(v) for v in values)  # type: ignore[no-any-return]

    return run


def _field(shim: Shim, value: Value, *values: Value) -> Value:
    if value is None:
        return 0
    return next((i for i, v in enumerate(values, 1) if v is not None and not compare(to_text(v), to_text(value))), 0)


def _elt(shim: Shim, number: Value, *values: Value) -> Value:
    at = _int(number) if number is not None else 0
    return values[at - 1] if 1 <= at <= len(values) else None


def _find_in_set(shim: Shim, value: Value, items: Value) -> Value:
    return next((i for i, v in enumerate(to_text(items).split(","), 1) if not compare(v, to_text(value))), 0)


def _logarithm(shim: Shim, first: Value, second: Value = None) -> Value:
    base, number = (math.e, to_number(first)) if second is None else (to_number(first), to_number(second))
    if number is None or base is None or number <= 0 or base <= 0 or base == 1:
        return None
    return math.log(number) / math.log(base)


def _power(shim: Shim, base: Value, exponent: Value) -> Value:
    a, b = to_number(base), to_number(exponent)
    try:
        result = float(a or 0) ** float(b or 0)
    except (OverflowError, ZeroDivisionError):
        raise SqlError("DOUBLE value is out of range in POW.") from None
    return None if isinstance(result, complex) else _whole(result)


def _maths(run: Callable[[float], float]) -> Callable[..., Value]:
    def safe(shim: Shim, value: Value) -> Value:
        try:
            return _whole(run(to_number(value) or 0))
        except (ValueError, OverflowError):
            return None

    return safe


def _rand(shim: Shim, seed: Value = None) -> Value:
    return shim.random.random() if seed is None else random.Random(_int(seed)).random()


def _text(run: Callable[[str], Value]) -> Callable[..., Value]:
    return lambda shim, value: run(to_text(value))


def _conv(shim: Shim, value: Value, source: Value, target: Value) -> Value:
    """CONV: a number from one base to another; what does not belong to it ends it."""
    old, new = _int(source), _int(target)
    if not (2 <= abs(old) <= 36 and 2 <= abs(new) <= 36):
        return None
    number, text = 0, to_text(value).strip().upper()
    sign = -1 if text.startswith("-") else 1
    for mark in text.lstrip("+-"):
        digit = _DIGITS.find(mark)
        if not 0 <= digit < abs(old):
            break
        number = number * abs(old) + digit
    number = sign * number if new < 0 else sign * number % 2**64
    shown, rest = "", abs(number)
    while rest or not shown:
        rest, digit = divmod(rest, abs(new))
        shown = _DIGITS[digit] + shown
    return f"-{shown}" if number < 0 else shown


def _insert(shim: Shim, text: Value, start: Value, length: Value, new: Value) -> Value:
    old, at, count = to_text(text), _int(start), _int(length)
    if not 1 <= at <= len(old):
        return old
    end = len(old) if count < 0 else at - 1 + count
    return _bounded(old[: at - 1] + to_text(new) + old[end:])


def _round_double(shim: Shim, value: Value, digits: Value = 0) -> Value:
    """ROUND of a text: MySQL takes it as a double, and a half goes to the even neighbour."""
    number, places = to_number(value) or 0, max(-30, min(30, _int(digits)))
    scaled = float(number) * 10.0**places
    return _whole(round(scaled) / 10.0**places) if abs(scaled) < 2**52 else number


_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FUNCTIONS: dict[str, Function] = {
    "ABS": Function(_maths(abs), "number", 1, 1),
    "ASCII": Function(_text(lambda t: t.encode()[0] if t else 0), "number", 1, 1),
    "BIN": Function(lambda shim, v: f"{_int(v) % 2**64:b}", "text", 1, 1),
    "BIT_XOR_OF": Function(lambda shim, a, b: _int(a) ^ _int(b), "number", 2, 2),
    "CEIL": Function(_maths(lambda x: math.ceil(Decimal(repr(x)))), "number", 1, 1),
    "CHAR_CUT": Function(_char_cut, "text", 2, 2),
    "CHAR_LENGTH": Function(_text(len), "number", 1, 1),
    "CONCAT": Function(_concat, "text", 1, 100),
    "CONCAT_WS": Function(_concat_ws, "text", 2, 100, nulls=True),
    "CONV": Function(_conv, "text", 3, 3),
    "CRC32": Function(_text(lambda t: zlib.crc32(t.encode("utf-8", "replace"))), "number", 1, 1),
    "DATABASE": Function(lambda shim: DATABASE_NAME, "text", 0, 0),
    "DIV": Function(_int_divide, "number", 2, 2),
    "DIVIDE": Function(divide, "number", 2, 2),
    "ELT": Function(_elt, "text", 2, 100, nulls=True),
    "EXP": Function(_maths(math.exp), "number", 1, 1),
    "FIELD": Function(_field, "number", 2, 100, nulls=True),
    "FIND_IN_SET": Function(_find_in_set, "number", 2, 2),
    "FLOAT": Function(_float, "number", 1, 1),
    "FLOOR": Function(_maths(lambda x: math.floor(Decimal(repr(x)))), "number", 1, 1),
    "FORMAT": Function(_format, "text", 2, 2),
    "GREATEST": Function(_extreme(max), "text", 2, 100),
    "HEX": Function(lambda s, v: f"{v:X}" if isinstance(v, int) else to_text(v).encode().hex().upper(), "text", 1, 1),
    "INSERT": Function(_insert, "text", 4, 4),
    "INSTR": Function(_instr, "number", 2, 2),
    "ISNULL": Function(lambda shim, v: int(v is None), "number", 1, 1, nulls=True),
    "LEAST": Function(_extreme(min), "text", 2, 100),
    "LEFT": Function(lambda s, v, n: to_text(v)[: max(0, _int(n))], "text", 2, 2),
    "LENGTH": Function(_text(lambda t: len(t.encode("utf-8", "replace"))), "number", 1, 1),
    "LIKE_EXACTLY": Function(lambda s, v, p: int(like(to_text(p), to_text(v), exact=True)), "number", 2, 2),
    "LIKE": Function(_like, "number", 2, 3),
    "LN": Function(_logarithm, "number", 1, 1),
    "LOCATE": Function(_locate, "number", 2, 3),
    "LOG": Function(_logarithm, "number", 1, 2),
    "LOG10": Function(lambda shim, v: _logarithm(shim, 10, v), "number", 1, 1),
    "LOG2": Function(lambda shim, v: _logarithm(shim, 2, v), "number", 1, 1),
    "LOWER": Function(_text(str.lower), "text", 1, 1),
    "LPAD": Function(lambda s, v, n, f: _pad(v, n, f, left=True), "text", 3, 3),
    "LTRIM": Function(_text(lambda t: t.lstrip(" ")), "text", 1, 1),
    "MD5": Function(_text(lambda t: hashlib.md5(t.encode("utf-8", "replace")).hexdigest()), "text", 1, 1),
    "MOD": Function(_modulo, "number", 2, 2),
    "NUMBER": Function(lambda shim, v: to_number(v), "number", 1, 1),
    "OCT": Function(lambda shim, v: f"{_int(v) % 2**64:o}", "text", 1, 1),
    "PI": Function(lambda shim: math.pi, "number", 0, 0),
    "POW": Function(_power, "number", 2, 2),
    "RAND": Function(_rand, "number", 0, 1),
    "REGEXP_LIKE": Function(_regexp, "number", 2, 2),
    "REPEAT": Function(_repeat, "text", 2, 2),
    "REPLACE": Function(lambda s, v, a, b: _replace(to_text(v), to_text(a), to_text(b)), "text", 3, 3),
    "REVERSE": Function(_text(lambda t: t[::-1]), "text", 1, 1),
    "RIGHT": Function(lambda s, v, n: to_text(v)[-_int(n) :] if _int(n) > 0 else "", "text", 2, 2),
    "ROUND": Function(_round, "number", 1, 2),
    "ROUND_DOUBLE": Function(_round_double, "number", 1, 2),
    "RPAD": Function(lambda s, v, n, f: _pad(v, n, f, left=False), "text", 3, 3),
    "RTRIM": Function(_text(lambda t: t.rstrip(" ")), "text", 1, 1),
    "SHA1": Function(_text(lambda t: hashlib.sha1(t.encode("utf-8", "replace")).hexdigest()), "text", 1, 1),
    "SIGN": Function(_maths(lambda x: (x > 0) - (x < 0)), "number", 1, 1),
    "SIGNED": Function(_signed, "number", 1, 1),
    "SPACE": Function(lambda shim, n: _repeat(shim, " ", n), "text", 1, 1),
    "SQRT": Function(_maths(math.sqrt), "number", 1, 1),
    "STRCMP": Function(_strcmp, "number", 2, 2),
    "STRICT_NUMBER": Function(strict_number, "number", 1, 1),
    "SUBSTRING": Function(_substring, "text", 2, 3),
    "SUBSTRING_INDEX": Function(_substring_index, "text", 3, 3),
    "TEXT": Function(lambda shim, v: to_text(v), "text", 1, 1),
    "TRIM": Function(_trim, "text", 1, 3),
    "TRUNCATE": Function(_truncate, "number", 2, 2),
    "UPPER": Function(_text(str.upper), "text", 1, 1),
    "VERSION": Function(lambda shim: "8.0-sqlite", "text", 0, 0),
}
ALIASES = {
    "CEILING": "CEIL",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "LCASE": "LOWER",
    "MID": "SUBSTRING",
    "OCTET_LENGTH": "LENGTH",
    "POWER": "POW",
    "SCHEMA": "DATABASE",
    "SHA": "SHA1",
    "SUBSTR": "SUBSTRING",
    "UCASE": "UPPER",
}
INTERNAL = {
    "BIT_XOR_OF", "CHAR_CUT", "DIV", "DIVIDE", "FLOAT", "LIKE", "LIKE_EXACTLY", "NUMBER", "ROUND_DOUBLE", "SIGNED",
    "STRICT_NUMBER", "TEXT",
}  # fmt: skip
"""What the translation puts in itself; a statement cannot name them."""


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _whole(number: float) -> int | float:
    if isinstance(number, int):
        return _int64(number)
    return int(number) if math.isfinite(number) and number.is_integer() and abs(number) < 2**53 else number


def _int64(number: int) -> int | float:
    return number if -(2**63) <= number < 2**63 else float(number)


def _int(value: Value) -> int:
    number = to_number(value) or 0
    return int(max(-(2**62), min(2**62, number))) if math.isfinite(number) else 0


def _replace(text: str, old: str, new: str) -> Value:
    return text if not old else _bounded(text.replace(old, new)) if len(new) * (text.count(old) + 1) < 10**7 else None


def _bounded(text: str) -> str | None:
    return text if len(text) <= MAX_TEXT else None
