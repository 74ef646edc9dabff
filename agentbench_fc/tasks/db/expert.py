"""A policy that solves the samples: it reads what the database shows, and hands in what it read.

Where the schema is not given it looks for it (SHOW TABLES, DESCRIBE), where the stored form matters it looks at a few
rows, and a statement that needs an earlier result takes it from the reply. What it commits stands in the last reply,
never in the sample; only for AgentBench's own questions, whose stored SQL is often broken, it commits the label.

Not here: other players (players.py); the statements themselves (questions.py).
"""

import itertools
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from agentbench_fc.episode import Expert, Sample, Turn
from agentbench_fc.messages import ToolCall
from agentbench_fc.tasks.db import observation
from agentbench_fc.tasks.db.questions import CHANGES

Rows = list[list[str | None]]


def solve(sample: Sample, profile: str) -> Expert:
    """The moves for one sample."""
    data = sample.data
    plan: Sequence[str] = _as_numbers(data) if profile == "agentbench" else data["plan"]
    rows: Rows = []
    ids = (f"call_{n}" for n in itertools.count(1))
    if not data["shown"]:
        yield from _explore(plan, ids)
    if data["look"]:
        asked = next(table["name"] for table in data["tables"] if table["name"] in plan[0])
        yield from _ask(f"SELECT * FROM {asked} LIMIT 2", ids)
    for statement in plan:
        first = rows[0][0] if rows else None
        rows = yield from _ask(statement.format(first) if "{0}" in statement else statement, ids)
    if data["kind"] in CHANGES:
        answers = []
    elif "label" in data:
        answers = list(data["label"]) if profile == "agentbench" else [_text(value) for value in data["gold"]]
    else:
        answers = [_text(cell) for row in rows for cell in row]
    yield ToolCall(next(ids), "commit_final_answer", json.dumps({"answers": answers}, ensure_ascii=False))


def _as_numbers(data: Mapping[str, Any]) -> list[str]:
    """The statements for tables whose columns are all TEXT: numbers are ordered as numbers."""
    numbers = {name for table in data["tables"] for name, kind in table["columns"] if kind != "TEXT"}
    if not numbers:
        return list(data["plan"])
    column = rf"((?:a\.)?(?:{'|'.join(sorted(numbers))}))\b"
    return [re.sub(rf"(MIN\(|MAX\(|ORDER BY ){column}", r"\1\2 + 0", statement) for statement in data["plan"]]


def _text(value: str | None) -> str:
    return "NULL" if value is None else value


def _explore(plan: Sequence[str], ids: Iterator[str]) -> Generator[ToolCall, Turn, None]:
    """Finds the tables, and describes those that the statements will name."""
    for row in (yield from _ask("SHOW TABLES", ids)):
        if row[0] and any(row[0] in statement for statement in plan):
            yield from _ask(f"DESCRIBE {row[0]}", ids)


def _ask(sql: str, ids: Iterator[str]) -> Generator[ToolCall, Turn, Rows]:
    turn = yield ToolCall(next(ids), "execute_sql", json.dumps({"query": sql}, ensure_ascii=False))
    return observation.read(str(turn.messages[-1]["content"]))
