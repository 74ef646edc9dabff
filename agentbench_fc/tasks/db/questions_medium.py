"""Questions with several conditions or several answers, in more than one wording; the schema is given.

Not here: what a question is (questions.py).
"""

from dataclasses import dataclass

from agentbench_fc.tasks.db.questions import Cell, Maker, Question, World, aggregate, quote


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


MEDIUM: tuple[Maker, ...] = (
    count_two, list_matching, list_matching, lookup_two, aggregate_where, aggregate_where, aggregate_where, top_three,
    second_best, difference, most_common, best_group, insert_some, update_where, update_word, delete_where,
    aggregate("AVG", "average"),
)  # fmt: skip
