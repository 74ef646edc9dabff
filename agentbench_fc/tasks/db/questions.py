"""What is asked about a generated table, and the statements that answer it.

Each maker draws one question of its kind about a table, or gives None where the draw has no single answer (a tie, an
empty result); the caller draws again. Easy makers have one wording each and one short statement; medium ones combine
conditions; hard ones are about what a model has to look up first: how a value is stored, or a second table.

Not here: the tables (generate.py); who plays the statements (expert.py).
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


Maker = Callable[[World], Question | None]
CHANGES = ("INSERT", "UPDATE", "DELETE")


def quote(value: Cell) -> str:
    """A literal of SQL."""
    return "NULL" if value is None else str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


# Easy: one wording, one short statement.


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


def _aggregate(function: str, word: str) -> Maker:
    def make(w: World) -> Question | None:
        column = w.rng.choice(w.numbers)
        return Question(
            f"What is the {word} {column}?", f"aggregation-{function}", (f"SELECT {function}({column}) FROM {w.table}",)
        )

    return make


def insert(w: World) -> Question | None:
    """A whole new row."""
    key = w.rng.choice(w.unused)
    row: dict[str, Cell] = {
        c: w.rng.choice(w.vocabulary[c]) if c in w.words else w.new_number(c) for c in w.columns[1:]
    }
    row = {w.key: key} | row
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


# Medium: several conditions, several answers.


@dataclass(frozen=True, slots=True)
class _Condition:
    spoken: str
    sql: str
    rows: list[dict[str, Cell]]


def _condition(w: World, rows: list[dict[str, Cell]] | None = None) -> _Condition | None:
    rows = w.rows if rows is None else rows
    if w.rng.random() < 0.5:
        column = w.rng.choice(w.words)
        value = w.rng.choice(sorted({str(row[column]) for row in rows}) or [""])
        kept = [row for row in rows if row[column] == value]
        return _Condition(f"{column} {value}", f"{column} = {quote(value)}", kept)
    column, over = w.rng.choice(w.numbers), w.rng.random() < 0.5
    bound = w.threshold(rows, column, over)
    if bound is None:
        return None
    kept = [r for r in rows if isinstance(v := r[column], int) and (v > bound if over else v < bound)]
    word = w.rng.choice(("more than", "over", "above")) if over else w.rng.choice(("less than", "under", "below"))
    return _Condition(f"{column} {word} {bound}", f"{column} {'>' if over else '<'} {bound}", kept)


def _two_conditions(w: World) -> _Condition | None:
    first = _condition(w)
    second = _condition(w, first.rows) if first and len(first.rows) > 2 else None
    if first is None or second is None or first.spoken.split()[0] == second.spoken.split()[0]:
        return None
    return _Condition(f"{first.spoken} and {second.spoken}", f"{first.sql} AND {second.sql}", second.rows)


def count_two(w: World) -> Question | None:
    """How many rows meet two conditions."""
    condition = _two_conditions(w)
    if condition is None or not condition.rows:
        return None
    text = w.rng.choice(
        (
            f"How many {w.noun} have {condition.spoken}?",
            f"Count the {w.noun} with {condition.spoken}.",
            f"What is the number of {w.noun} with {condition.spoken}?",
        )
    )
    return Question(text, "counting", (f"SELECT COUNT(*) FROM {w.table} WHERE {condition.sql}",))


def list_matching(w: World) -> Question | None:
    """All rows that meet a condition, by name."""
    condition = _two_conditions(w)
    if condition is None or not 1 <= len(condition.rows) <= 5:
        return None
    text = w.rng.choice(
        (
            f"Give the {w.key} of each of the {w.noun} with {condition.spoken}.",
            f"Which {w.noun} have {condition.spoken}? Give each {w.key}.",
        )
    )
    return Question(text, "lookup", (f"SELECT {w.key} FROM {w.table} WHERE {condition.sql}",))


def lookup_two(w: World) -> Question | None:
    """Two cells of one row."""
    if len(w.columns) < 4:
        return None
    row = w.pick()
    first, second = w.rng.sample(w.columns[1:], 2)
    return Question(
        f"Give the {first} and the {second} of {row[w.key]}.",
        "lookup",
        (f"SELECT {first}, {second} FROM {w.table} WHERE {w.key} = {quote(row[w.key])}",),
    )


def aggregate_where(w: World) -> Question | None:
    """An aggregate over the rows that meet a condition."""
    function, word = w.rng.choice((("SUM", "total"), ("AVG", "average"), ("MIN", "lowest"), ("MAX", "highest")))
    condition, column = _condition(w), w.rng.choice(w.numbers)
    if condition is None or len(condition.rows) < 2 or condition.spoken.split()[0] == column:
        return None
    text = w.rng.choice(
        (
            f"What is the {word} {column} of the {w.noun} with {condition.spoken}?",
            f"Among the {w.noun} with {condition.spoken}, what is the {word} {column}?",
        )
    )
    sql = f"SELECT {function}({column}) FROM {w.table} WHERE {condition.sql}"
    return Question(text, f"aggregation-{function}", (sql,))


def top_three(w: World) -> Question | None:
    """The first few of an order."""
    column, top = w.rng.choice(w.numbers), w.rng.random() < 0.5
    size = w.rng.choice((2, 3))
    values = sorted(w.values(column), reverse=top)
    if len(values) <= size or values[size - 1] == values[size]:
        return None
    return Question(
        f"Name the {size} {w.noun} with the {'highest' if top else 'lowest'} {column}: give each {w.key}.",
        "ranking",
        (f"SELECT {w.key} FROM {w.table} ORDER BY {column}{' DESC' if top else ''} LIMIT {size}",),
    )


def second_best(w: World) -> Question | None:
    """The second row of an order."""
    column = w.rng.choice(w.numbers)
    values = sorted(w.values(column), reverse=True)
    if len(values) < 3 or len(set(values[:3])) < 3:
        return None
    return Question(
        f"Which {w.key} has the second highest {column}?",
        "ranking",
        (f"SELECT {w.key} FROM {w.table} ORDER BY {column} DESC LIMIT 1 OFFSET 1",),
    )


def difference(w: World) -> Question | None:
    """How far apart two rows are."""
    first, second = w.rng.sample(w.rows, 2)
    column = w.rng.choice(w.numbers)
    a, b = first[column], second[column]
    if not isinstance(a, int) or not isinstance(b, int) or a <= b:
        return None
    names = [quote(first[w.key]), quote(second[w.key])]
    return Question(
        f"By how much is the {column} of {first[w.key]} higher than that of {second[w.key]}?",
        "comparison",
        (f"SELECT MAX({column}) - MIN({column}) FROM {w.table} WHERE {w.key} IN ({', '.join(names)})",),
    )


def most_common(w: World) -> Question | None:
    """The most frequent value of a column."""
    column = w.rng.choice(w.words)
    values = [row[column] for row in w.rows]
    counts = sorted((values.count(value) for value in set(values)), reverse=True)
    if len(counts) < 2 or counts[0] == counts[1]:
        return None
    return Question(
        f"Which {column} do most {w.noun} have?",
        "ranking",
        (f"SELECT {column} FROM {w.table} GROUP BY {column} ORDER BY COUNT(*) DESC LIMIT 1",),
    )


def best_group(w: World) -> Question | None:
    """The value whose rows have the highest sum."""
    column, number = w.rng.choice(w.words), w.rng.choice(w.numbers)
    sums: dict[Cell, int] = {}
    for row in w.rows:
        value = row[number]
        sums[row[column]] = sums.get(row[column], 0) + (value if isinstance(value, int) else 0)
    ranked = sorted(sums.values(), reverse=True)
    if len(ranked) < 2 or ranked[0] == ranked[1]:
        return None
    return Question(
        f"Which {column} has the highest total {number}?",
        "ranking",
        (f"SELECT {column} FROM {w.table} GROUP BY {column} ORDER BY SUM({number}) DESC LIMIT 1",),
    )


def insert_some(w: World) -> Question | None:
    """A new row with some columns left empty, named in another order."""
    key, column = w.rng.choice(w.unused), w.rng.choice(w.numbers)
    value = w.new_number(column)
    return Question(
        f"Add a row with {column} {value} and {w.key} {key}; leave the rest NULL.",
        "INSERT",
        (f"INSERT INTO {w.table} ({column}, {w.key}) VALUES ({value}, {quote(key)})",),
    )


def update_where(w: World) -> Question | None:
    """A change of all rows that meet a condition."""
    condition, column = _condition(w), w.rng.choice(w.numbers)
    if condition is None or not condition.rows or condition.spoken.split()[0] == column:
        return None
    step = w.rng.randint(2, 9)
    return Question(
        f"Raise the {column} by {step} for all {w.noun} with {condition.spoken}.",
        "UPDATE",
        (f"UPDATE {w.table} SET {column} = {column} + {step} WHERE {condition.sql}",),
    )


def update_word(w: World) -> Question | None:
    """A new word for all rows that meet a condition."""
    condition, column = _condition(w), w.rng.choice(w.words)
    value = w.rng.choice(w.vocabulary[column])
    if condition is None or condition.spoken.split()[0] == column or all(r[column] == value for r in condition.rows):
        return None
    return Question(
        f"Change the {column} to {value} for all {w.noun} with {condition.spoken}.",
        "UPDATE",
        (f"UPDATE {w.table} SET {column} = {quote(value)} WHERE {condition.sql}",),
    )


def delete_where(w: World) -> Question | None:
    """Removes all rows that meet a condition."""
    condition = _condition(w)
    if condition is None or not 0 < len(condition.rows) < len(w.rows):
        return None
    return Question(
        f"Delete all {w.noun} with {condition.spoken}.", "DELETE", (f"DELETE FROM {w.table} WHERE {condition.sql}",)
    )


# Hard: something has to be looked up first.


def above_average(w: World) -> Question | None:
    """How many rows lie over the mean."""
    column = w.rng.choice(w.numbers)
    return Question(
        f"How many {w.noun} have {column} above the average {column}?",
        "comparison",
        (
            f"SELECT AVG({column}) FROM {w.table}",
            f"SELECT COUNT(*) FROM {w.table} WHERE {column} > {{0}}",
        ),
    )


def through_second(w: World) -> Question | None:
    """A cell of the second table, reached through the first."""
    if w.second is None:
        return None
    row, column = w.pick(), w.rng.choice(w.second.columns[1:])
    link = w.second.key
    return Question(
        f"What is the {column} of the {link} of {row[w.key]}?",
        "lookup",
        (
            f"SELECT {link} FROM {w.table} WHERE {w.key} = {quote(row[w.key])}",
            f"SELECT {column} FROM {w.second.table} WHERE {link} = '{{0}}'",
        ),
    )


def joined_total(w: World) -> Question | None:
    """An aggregate over the first table, for the rows that the second one singles out."""
    if w.second is None:
        return None
    link, column, number = w.second.key, w.rng.choice(w.second.columns[1:]), w.rng.choice(w.numbers)
    used = {row[link] for row in w.rows}
    row = w.rng.choice([r for r in w.second.rows if r[link] in used])
    value = row[column]
    function, word = w.rng.choice((("SUM", "total"), ("MAX", "highest"), ("MIN", "lowest"), ("AVG", "average")))
    return Question(
        f"What is the {word} {number} of the {w.noun} whose {link} has {column} {value}?",
        f"aggregation-{function}",
        (
            f"SELECT {function}(a.{number}) FROM {w.table} AS a JOIN {w.second.table} AS b ON a.{link} = b.{link} "
            f"WHERE b.{column} = {quote(value)}",
        ),
    )


def lookup_after_ranking(w: World) -> Question | None:
    """A cell of the row at one end of an order."""
    column, other = w.rng.choice(w.numbers), w.rng.choice(w.words)
    values = w.values(column)
    if values.count(max(values)) > 1:
        return None
    return Question(
        f"What is the {other} of the one among the {w.noun} with the highest {column}?",
        "ranking",
        (
            f"SELECT {w.key} FROM {w.table} ORDER BY {column} DESC LIMIT 1",
            f"SELECT {other} FROM {w.table} WHERE {w.key} = '{{0}}'",
        ),
    )


_MONTHS = "January February March April May June July August September October November December".split()
DATE_FORMS = {
    "iso": ("{y}-{m:02}-{d:02}", "{y}-{m:02}-%"),
    "dots": ("{d:02}.{m:02}.{y}", "%.{m:02}.{y}"),
    "words": ("{d} {b} {y}", "% {b} {y}"),
    "slashes": ("{m:02}/{d:02}/{y}", "{m:02}/%/{y}"),
}


def show_date(form: str, year: int, month: int, day: int) -> str:
    """A date as a table of that form stores it."""
    return DATE_FORMS[form][0].format(y=year, m=month, d=day, b=_MONTHS[month - 1][:3])


def _month_pattern(form: str, year: int, month: int) -> str:
    return DATE_FORMS[form][1].format(y=year, m=month, b=_MONTHS[month - 1][:3])


def in_month(w: World) -> Question | None:
    """Which rows have a date in a month, whatever the stored form."""
    form = w.formats.get("since", "")
    if form not in DATE_FORMS:
        return None
    year, month = 2020 + w.rng.randrange(4), 1 + w.rng.randrange(12)
    pattern = _month_pattern(form, year, month)
    sql = f"FROM {w.table} WHERE since LIKE {quote(pattern)}"
    when = f"in {_MONTHS[month - 1]} {year}"
    if w.rng.random() < 0.7:
        text = f"Give the {w.key} of each of the {w.noun} whose date in since is {when}."
        return Question(text, "lookup", (f"SELECT {w.key} {sql}",), look=True)
    column = w.rng.choice(w.numbers)
    text = f"What is the total {column} of the {w.noun} whose date in since is {when}?"
    return Question(text, "aggregation-SUM", (f"SELECT SUM({column}) {sql}",), look=True)


def thousands(w: World) -> Question | None:
    """Totals and extremes of a column whose numbers are stored as texts such as 1,250."""
    if w.formats.get("budget") != "amount":
        return None
    value = "CAST(REPLACE(budget, ',', '') AS SIGNED)"
    values = [int(str(row["budget"]).replace(",", "")) for row in w.rows]
    if w.rng.random() < 0.5:
        function, word = w.rng.choice((("SUM", "total"), ("MAX", "highest"), ("MIN", "lowest")))
        sql = f"SELECT {function}({value}) FROM {w.table}"
        return Question(f"What is the {word} budget of the {w.noun}?", f"aggregation-{function}", (sql,), look=True)
    if values.count(max(values)) > 1:
        return None
    sql = f"SELECT {w.key} FROM {w.table} ORDER BY {value} DESC LIMIT 1"
    return Question(f"Which {w.key} has the highest budget?", "ranking", (sql,), look=True)


EASY: tuple[Maker, ...] = (
    lookup, lookup, counting, comparison, ranking, _aggregate("SUM", "total"), _aggregate("MIN", "lowest"),
    _aggregate("MAX", "highest"), insert, update, delete,
)  # fmt: skip
MEDIUM: tuple[Maker, ...] = (
    count_two, list_matching, list_matching, lookup_two, aggregate_where, aggregate_where, aggregate_where, top_three,
    second_best, difference, most_common, best_group, insert_some, update_where, update_word, delete_where,
    _aggregate("AVG", "average"),
)  # fmt: skip
HARD: tuple[Maker, ...] = (
    list_matching, aggregate_where, top_three, difference, best_group, insert_some, update_where, delete_where,
    above_average, through_second, through_second, joined_total, joined_total, lookup_after_ranking, in_month, in_month,
    thousands,
)  # fmt: skip
