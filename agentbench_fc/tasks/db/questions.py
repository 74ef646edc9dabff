"""What is asked about a generated table, and the statements that answer it.

Each maker draws one question of its kind about a table, or gives None where the draw has no single answer (a tie, an
empty result); the caller draws again. The makers here are the easy ones: one wording each, and one short statement.

Not here: questions_medium.py, questions_hard.py; the tables (generate.py); who plays the statements (expert.py).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentbench_fc.tasks.db.themes import NUMBERS

Cell = str | int | None


@dataclass(slots=True)
class World:
    """One table to ask about, under its spoken noun and its stored name."""

    rng: random.Random
    noun: str
    table: str
    key: str
    words: Sequence[str]
    numbers: Sequence[str]
    columns: list[str]
    rows: list[dict[str, Cell]]
    unused: list[str]
    """Keys that no row has."""
    vocabulary: dict[str, list[str]]
    """The values that a column of words draws from in this table."""
    second: "World | None" = None
    """A table whose key is one of this table's columns of words."""
    formats: dict[str, str] = field(default_factory=dict)
    """How columns of a special form are stored: `date`, `amount`."""

    def pick(self) -> dict[str, Cell]:
        """One row."""
        return self.rng.choice(self.rows)

    def new_number(self, column: str) -> int:
        """A fresh value for a column of numbers."""
        low, high = NUMBERS[column]
        return self.rng.randint(low, high)

    def values(self, column: str) -> list[int]:
        """The numbers of a column, in row order."""
        return [value for row in self.rows if isinstance(value := row[column], int)]

    def threshold(self, rows: list[dict[str, Cell]], column: str, over: bool) -> int | None:
        """A bound that a uniformly drawn number of `rows` lies over (or under), so that no count is common."""
        values = sorted({value for row in rows if isinstance(value := row[column], int)})
        if len(values) < 3:
            return None
        at = self.rng.randint(1, len(values) - 1)
        bound = (
            self.rng.randint(values[at - 1], values[at] - 1)
            if over
            else self.rng.randint(values[at - 1] + 1, values[at])
        )
        return bound


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its statements in order (`{0}` is the first cell of the result before), and its kind."""

    text: str
    kind: str
    plan: tuple[str, ...]
    evidence: str = ""
    look: bool = False
    """The stored form has to be seen before the question can be put into SQL."""
    apart: bool = False
    """No single statement can do what the plan's statements do."""


Maker = Callable[[World], Question | None]
CHANGES = ("INSERT", "UPDATE", "DELETE")


def quote(value: Cell) -> str:
    """A literal of SQL."""
    return "NULL" if value is None else str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def lookup(w: World) -> Question | None:
    """One cell of one row."""
    row, column = w.pick(), w.rng.choice(w.columns[1:])
    return Question(
        f"What is the {column} of {row[w.key]}?",
        "lookup",
        (f"SELECT {column} FROM {w.table} WHERE {w.key} = {quote(row[w.key])}",),
    )


def counting(w: World) -> Question | None:
    """How many rows have a value."""
    column = w.rng.choice(w.words)
    value = w.rng.choice(sorted({str(row[column]) for row in w.rows}))
    return Question(
        f"How many {w.noun} have {column} {value}?",
        "counting",
        (f"SELECT COUNT(*) FROM {w.table} WHERE {column} = {quote(value)}",),
    )


def comparison(w: World) -> Question | None:
    """How many rows lie over or under a bound."""
    column, over = w.rng.choice(w.numbers), w.rng.random() < 0.5
    bound = w.threshold(w.rows, column, over)
    if bound is None:
        return None
    return Question(
        f"How many {w.noun} have {column} {'over' if over else 'under'} {bound}?",
        "comparison",
        (f"SELECT COUNT(*) FROM {w.table} WHERE {column} {'>' if over else '<'} {bound}",),
    )


def ranking(w: World) -> Question | None:
    """The row at one end of an order."""
    column, top = w.rng.choice(w.numbers), w.rng.random() < 0.5
    values = w.values(column)
    if values.count(max(values) if top else min(values)) > 1:
        return None
    return Question(
        f"Which {w.key} has the {'highest' if top else 'lowest'} {column}?",
        "ranking",
        (f"SELECT {w.key} FROM {w.table} ORDER BY {column}{' DESC' if top else ''} LIMIT 1",),
    )


def aggregate(function: str, word: str) -> Maker:
    """The maker of an aggregate over a whole column."""

    def make(w: World) -> Question | None:
        column = w.rng.choice(w.numbers)
        return Question(
            f"What is the {word} {column}?", f"aggregation-{function}", (f"SELECT {function}({column}) FROM {w.table}",)
        )

    return make


def insert(w: World) -> Question | None:
    """A whole new row."""
    key = w.rng.choice(w.unused)
    row: dict[str, Cell] = {w.key: key}
    for column in w.columns[1:]:
        row[column] = w.rng.choice(w.vocabulary[column]) if column in w.words else w.new_number(column)
    parts = ", ".join(f"{column} {row[column]}" for column in w.columns)
    values = ", ".join(quote(row[column]) for column in w.columns)
    return Question(f"Add a row: {parts}.", "INSERT", (f"INSERT INTO {w.table} VALUES ({values})",))


def update(w: World) -> Question | None:
    """One cell of one row."""
    row, column = w.pick(), w.rng.choice(w.columns[1:])
    value: Cell = w.rng.choice(w.vocabulary[column]) if column in w.words else w.new_number(column)
    if value == row[column]:
        return None
    return Question(
        f"Set the {column} of {row[w.key]} to {value}.",
        "UPDATE",
        (f"UPDATE {w.table} SET {column} = {quote(value)} WHERE {w.key} = {quote(row[w.key])}",),
    )


def delete(w: World) -> Question | None:
    """One row."""
    row = w.pick()
    return Question(
        f"Delete the row with {w.key} {row[w.key]}.",
        "DELETE",
        (f"DELETE FROM {w.table} WHERE {w.key} = {quote(row[w.key])}",),
    )


AGGREGATES = {"SUM": "total", "MIN": "lowest", "MAX": "highest"}


def change_then_aggregate(w: World) -> Question | None:
    """A change, then an aggregate that it has changed: two statements, and no answer without the first."""
    column, function = w.rng.choice(w.numbers), w.rng.choice(sorted(AGGREGATES))
    computes: dict[str, Callable[[list[int]], int]] = {"SUM": sum, "MIN": min, "MAX": max}
    compute = computes[function]
    before = compute(w.values(column))
    row = w.pick() if function == "SUM" else next(row for row in w.rows if row[column] == before)
    others = [value for other in w.rows if other is not row and isinstance(value := other[column], int)]
    if w.rng.random() < 0.5:
        value = w.new_number(column)
        text = f"Set the {column} of {row[w.key]} to {value}."
        change = f"UPDATE {w.table} SET {column} = {value} WHERE {w.key} = {quote(row[w.key])}"
        after = [*others, value]
    else:
        text = f"Delete the row with {w.key} {row[w.key]}."
        change, after = f"DELETE FROM {w.table} WHERE {w.key} = {quote(row[w.key])}", others
    if compute(after) == before:
        return None
    return Question(
        f"{text} Then, what is the {AGGREGATES[function]} {column}?",
        f"aggregation-{function}",
        (change, f"SELECT {function}({column}) FROM {w.table}"),
        apart=True,
    )


EASY: tuple[Maker, ...] = (
    lookup, lookup, counting, comparison, ranking, *(aggregate(*pair) for pair in AGGREGATES.items()),
    update, delete, *[change_then_aggregate] * 6,
)  # fmt: skip
