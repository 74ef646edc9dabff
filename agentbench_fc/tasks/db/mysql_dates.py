"""MySQL's date functions over ISO texts; nothing reads a clock.

>>> FUNCTIONS["DATE_FORMAT"].run(None, "2024-03-05", "%d %b %Y"), FUNCTIONS["YEAR"].run(None, "2024-03-05")
('05 Mar 2024', 2024)

Source: MySQL 8.0 reference manual, date and time functions.
"""

import calendar
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from agentbench_fc.tasks.db.backend import Value
from agentbench_fc.tasks.db.mysql_functions import Function, to_number, to_text

NOW = datetime(2026, 1, 1, 12, 0, 0)  # noqa: DTZ001  a fixed moment, the same in every session and process
_DATE = re.compile(r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2}))?)?\s*$")
_FORMATS: dict[str, Callable[[datetime], str]] = {
    "Y": lambda d: f"{d.year:04}",
    "y": lambda d: f"{d.year % 100:02}",
    "m": lambda d: f"{d.month:02}",
    "c": lambda d: str(d.month),
    "d": lambda d: f"{d.day:02}",
    "e": lambda d: str(d.day),
    "H": lambda d: f"{d.hour:02}",
    "k": lambda d: str(d.hour),
    "h": lambda d: f"{d.hour % 12 or 12:02}",
    "i": lambda d: f"{d.minute:02}",
    "s": lambda d: f"{d.second:02}",
    "S": lambda d: f"{d.second:02}",
    "p": lambda d: "AM" if d.hour < 12 else "PM",
    "M": lambda d: calendar.month_name[d.month],
    "b": lambda d: calendar.month_abbr[d.month],
    "W": lambda d: calendar.day_name[d.weekday()],
    "a": lambda d: calendar.day_abbr[d.weekday()],
    "j": lambda d: f"{d.timetuple().tm_yday:03}",
    "T": lambda d: f"{d:%H:%M:%S}",
}
_READ = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "m": r"(?P<m>\d{1,2})",
    "c": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "e": r"(?P<d>\d{1,2})",
    "H": r"(?P<H>\d{1,2})",
    "i": r"(?P<i>\d{1,2})",
    "s": r"(?P<s>\d{1,2})",
    "M": r"(?P<M>[A-Za-z]{3,9})",
    "b": r"(?P<M>[A-Za-z]{3})",
    "W": r"(?P<W>[A-Za-z]{3,9})",
    "a": r"(?P<W>[A-Za-z]{3})",
}
_MONTHS = {name.lower()[:3]: number for number, name in enumerate(calendar.month_name) if name}


def parse_date(value: Value) -> datetime | None:
    """The moment that a text names in ISO order, else None."""
    match = _DATE.match(to_text(value)) if value is not None else None
    return _moment(*(int(part or 0) for part in match.groups())) if match else None


def _moment(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime | None:
    try:
        return datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  MySQL's DATETIME has no zone
    except ValueError:
        return None


def _of(part: Callable[[datetime], Value]) -> Callable[..., Value]:
    def run(shim: Any, value: Value) -> Value:
        moment = parse_date(value)
        return None if moment is None else part(moment)

    return run


def _show(moment: datetime, *, with_time: bool) -> str:
    return f"{moment.date().isoformat()} {moment:%H:%M:%S}" if with_time else moment.date().isoformat()


def _date_format(shim: Any, value: Value, pattern: Value) -> Value:
    moment = parse_date(value)
    if moment is None:
        return None
    return re.sub("%(.)", lambda m: _FORMATS[m[1]](moment) if m[1] in _FORMATS else m[1], to_text(pattern))


def _str_to_date(shim: Any, value: Value, pattern: Value) -> Value:
    expression = ""
    for token in re.findall("%.|[^%]+|%", to_text(pattern)[:100]):
        code = token[1:] if token[0] == "%" else ""
        if code and code not in _READ:
            return None
        expression += _READ[code] if code else re.escape(token)
    try:
        match = re.fullmatch(expression, to_text(value)[:100].strip())
    except re.error:  # the same part twice; so no two parts can share a run of letters and backtrack
        return None
    if match is None:
        return None
    got = match.groupdict()
    month = _MONTHS.get(got["M"].lower()[:3]) if "M" in got else int(got.get("m", 0))
    year = int(got["Y"]) if "Y" in got else _century(int(got["y"])) if "y" in got else 0
    moment = _moment(year, month or 0, int(got.get("d", 0)), *(int(got.get(k, 0)) for k in "His"))
    return None if moment is None else _show(moment, with_time="H" in got)


def _century(year: int) -> int:
    return year + (2000 if year < 70 else 1900)


def _shift(sign: int) -> Callable[..., Value]:
    def run(shim: Any, value: Value, amount: Value, unit: Value) -> Value:
        moment, count, name = parse_date(value), sign * int(to_number(amount) or 0), to_text(unit).upper()
        if moment is None or abs(count) > 10**7:
            return None
        months = {"MONTH": count, "QUARTER": 3 * count, "YEAR": 12 * count}.get(name)
        with_time = ":" in to_text(value) or name in {"HOUR", "MINUTE", "SECOND"}
        try:
            if months is not None:
                at = moment.year * 12 + moment.month - 1 + months
                last = calendar.monthrange(at // 12, at % 12 + 1)[1]
                return _show(
                    moment.replace(year=at // 12, month=at % 12 + 1, day=min(moment.day, last)), with_time=with_time
                )
            if f"{name.lower()}s" not in {"days", "weeks", "hours", "minutes", "seconds"}:
                return None
            return _show(moment + timedelta(**{f"{name.lower()}s": count}), with_time=with_time)
        except (ValueError, OverflowError, calendar.IllegalMonthError):
            return None

    return run


def _datediff(shim: Any, left: Value, right: Value) -> Value:
    a, b = parse_date(left), parse_date(right)
    return None if a is None or b is None else (a.date() - b.date()).days


def _timestampdiff(shim: Any, unit: Value, left: Value, right: Value) -> Value:
    a, b, name = parse_date(left), parse_date(right), to_text(unit).upper()
    if a is None or b is None:
        return None
    seconds = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800}.get(name)
    if seconds:
        return int((b - a).total_seconds() / seconds)
    months = (b.year - a.year) * 12 + b.month - a.month
    if months > 0 and (b.day, b.time()) < (a.day, a.time()):
        months -= 1
    elif months < 0 and (b.day, b.time()) > (a.day, a.time()):
        months += 1
    per = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}.get(name)
    return None if per is None else int(months / per)


FUNCTIONS: dict[str, Function] = {
    "CURDATE": Function(lambda shim: _show(NOW, with_time=False), "text", 0, 0),
    "CURTIME": Function(lambda shim: f"{NOW:%H:%M:%S}", "text", 0, 0),
    "DATE": Function(_of(lambda d: _show(d, with_time=False)), "text", 1, 1),
    "DATEDIFF": Function(_datediff, "number", 2, 2),
    "DATE_ADD": Function(_shift(1), "text", 3, 3),
    "DATE_FORMAT": Function(_date_format, "text", 2, 2),
    "DATE_SUB": Function(_shift(-1), "text", 3, 3),
    "DAY": Function(_of(lambda d: d.day), "number", 1, 1),
    "DAYNAME": Function(_of(lambda d: calendar.day_name[d.weekday()]), "text", 1, 1),
    "DAYOFWEEK": Function(_of(lambda d: d.isoweekday() % 7 + 1), "number", 1, 1),
    "DAYOFYEAR": Function(_of(lambda d: d.timetuple().tm_yday), "number", 1, 1),
    "HOUR": Function(_of(lambda d: d.hour), "number", 1, 1),
    "LAST_DAY": Function(
        _of(lambda d: _show(d.replace(day=calendar.monthrange(d.year, d.month)[1]), with_time=False)), "text", 1, 1
    ),
    "MINUTE": Function(_of(lambda d: d.minute), "number", 1, 1),
    "MONTH": Function(_of(lambda d: d.month), "number", 1, 1),
    "MONTHNAME": Function(_of(lambda d: calendar.month_name[d.month]), "text", 1, 1),
    "NOW": Function(lambda shim: _show(NOW, with_time=True), "text", 0, 1),
    "QUARTER": Function(_of(lambda d: (d.month + 2) // 3), "number", 1, 1),
    "SECOND": Function(_of(lambda d: d.second), "number", 1, 1),
    "STR_TO_DATE": Function(_str_to_date, "text", 2, 2),
    "TIMESTAMPDIFF": Function(_timestampdiff, "number", 3, 3),
    "WEEKDAY": Function(_of(lambda d: d.weekday()), "number", 1, 1),
    "YEAR": Function(_of(lambda d: d.year), "number", 1, 1),
}
ALIASES = {
    "ADDDATE": "DATE_ADD",
    "CURRENT_TIMESTAMP": "NOW",
    "DAYOFMONTH": "DAY",
    "SUBDATE": "DATE_SUB",
    "SYSDATE": "NOW",
}
