r"""How a result is shown to the model, and read back.

>>> print(render(Result(("name", "age"), (("Rex", 7), ("Ada", None)))))
name | age
Rex | 7
Ada | NULL
>>> read("name | age\nRex | 7\nAda | NULL")
[['Rex', '7'], ['Ada', None]]

A text that could be taken for something else (empty, `NULL`, with ` | ` or a line break in it) stands in JSON quotes.
The `agentbench` profile shows Python's `str` of a list of tuples, cut at 800 characters.

Not here: the caps while rows are fetched (sqlite.py); the general cap of a tool's output (session.py).
Source: the second form is AgentBench's.
"""

import ast
import json
import re

from agentbench_fc.tasks.db.backend import Result, SqlError, Value

SHOWN_ROWS = 100
AGENTBENCH_CHARS = 800
NO_ROWS = "(no rows)"
_PLAIN = re.compile(r"[^\s\"(\[](?:[^\n\r\t\v\f\x00-\x1f\x85\u2028\u2029]*\S)?")


def render(result: Result) -> str:
    """The result as a small table: names, then one line a row; of a change, how many rows it touched."""
    if result.changed is not None:
        return f"OK, {result.changed} row{'' if result.changed == 1 else 's'} changed"
    if not result.rows:
        return NO_ROWS
    shown = result.rows[:SHOWN_ROWS]
    lines = [" | ".join(cell(name) for name in result.columns), *(" | ".join(map(cell, row)) for row in shown)]
    if len(shown) < len(result.rows) or result.more:
        lines.append(f"(only the first {len(shown)} rows are shown)")
    return "\n".join(lines)


def cell(value: Value) -> str:
    """One value; numbers without noise in their last digits."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return number(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) and "|" not in text and text.upper() != "NULL"
    return text if plain else json.dumps(text, ensure_ascii=False)


def number(value: float) -> str:
    """A float with at most twelve digits, as people write it."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"


def read(text: str) -> list[list[str | None]]:
    """The rows of a shown result, as texts; [] for a change, an error, or no rows."""
    if text.startswith("["):
        return _read_tuples(text)
    lines = text.split("\n")
    return [[_read_cell(part) for part in _split(line)] for line in lines[1:] if not line.startswith("(only ")]


def render_agentbench(result: Result) -> str:
    """The result as AgentBench shows it."""
    text = str([tuple(row) for row in result.rows])
    return text if len(text) <= AGENTBENCH_CHARS else text[:AGENTBENCH_CHARS] + "[TRUNCATED]"


def render_agentbench_error(error: SqlError) -> str:
    """The error as AgentBench shows it: the driver's own text, where the server gave one."""
    return str(error)[:AGENTBENCH_CHARS] + "[TRUNCATED]" if len(str(error)) > AGENTBENCH_CHARS else str(error)


def _split(line: str) -> list[str]:
    parts: list[str] = []
    rest = line
    while True:
        if rest.startswith('"'):
            _, end = json.JSONDecoder().raw_decode(rest)
            part, rest = rest[:end], rest[end:]
        else:
            part, bar, after = rest.partition(" | ")
            rest = bar + after
        parts.append(part)
        if not rest:
            return parts
        rest = rest.removeprefix(" | ")


def _read_cell(part: str) -> str | None:
    return None if part == "NULL" else str(json.loads(part)) if part.startswith('"') else part


def _read_tuples(text: str) -> list[list[str | None]]:
    try:
        rows = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # cut
        return []
    return [[None if value is None else str(value) for value in row] for row in rows]
