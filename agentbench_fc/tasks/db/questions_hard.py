"""Questions about tables that have to be found first, some with a look at a stored form or through a second table.

Not here: what a question is (questions.py).
"""

from agentbench_fc.tasks.db.questions import Maker, Question, World, quote
from agentbench_fc.tasks.db.questions_medium import (
    aggregate_where,
    best_group,
    delete_where,
    difference,
    insert_some,
    list_matching,
    top_three,
    update_where,
)


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


HARD: tuple[Maker, ...] = (
    list_matching, aggregate_where, top_three, difference, best_group, insert_some, update_where, delete_where,
    above_average, through_second, through_second, joined_total, joined_total, lookup_after_ranking, in_month, in_month,
    thousands,
)  # fmt: skip
