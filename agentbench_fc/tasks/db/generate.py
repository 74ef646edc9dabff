"""The generated samples: seeded tables, a question about each, and gold that is computed by running the statements.

>>> sample = make_sample("dev", 0)
>>> sample["level"], len(sample["tables"])
('easy', 1)

Sample n of a split depends on the split and n alone, so a split can grow without changing what it has. Train, dev and
test have no theme of table in common. Nobody wrote the gold down: it is the result of the sample's own statements on
the embedded back end, so it cannot be stale.

Not here: words and schemas (themes.py), wordings (questions.py).
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.db.backend import Database, SqlError, Table
from agentbench_fc.tasks.db.grade import tables_differ
from agentbench_fc.tasks.db.questions import (
    CHANGES,
    EASY,
    Cell,
    Maker,
    Question,
    World,
)
from agentbench_fc.tasks.db.questions_hard import DATE_FORMS, HARD, show_date
from agentbench_fc.tasks.db.questions_medium import MEDIUM
from agentbench_fc.tasks.db.sqlite import SqliteDatabase
from agentbench_fc.tasks.db.themes import NUMBERS, WORDS, Theme, themes

VERSION = "1"
SIZES = {"train": 4_000, "dev": 500, "test": 500}
LEVELS = ("easy", "medium", "hard")
_PATTERN = {
    "train": "easy medium easy hard easy medium easy hard easy medium".split(),
    "dev": "easy medium hard easy medium hard easy medium hard hard".split(),
    "test": "easy medium hard easy medium hard easy medium hard hard".split(),
}
_SHAPES = {"easy": (1, 2, 1, 2, 8, 12), "medium": (1, 3, 2, 3, 10, 25), "hard": (2, 3, 2, 3, 15, 40)}
"""Least and most columns of words, of numbers, and rows."""
_MAKERS: dict[str, tuple[Maker, ...]] = {"easy": EASY, "medium": MEDIUM, "hard": HARD}
_SUFFIXES = "list data info log main north south old new one two base book sheet".split()


def make_split(split: str) -> bytes:
    """All samples of a split as JSON lines."""
    lines = (json.dumps(make_sample(split, n), ensure_ascii=False) for n in range(SIZES[split]))
    return ("\n".join(lines) + "\n").encode()


def make_sample(split: str, number: int) -> dict[str, Any]:
    """Sample `number` of a split, as the JSON object that `Sample.data` holds."""
    pattern = _PATTERN[split]
    level = pattern[number % len(pattern)]
    rng = random.Random(f"db/{VERSION}/{split}/{number}")
    makers = list(_MAKERS[level])
    rng.shuffle(makers)  # the kind is drawn once: a kind that is hard to draw is not displaced by an easy one
    for sample in _attempts(split, level, makers, rng):
        return sample
    raise TaskError(f"no sample could be drawn [db/{split}/{number}]. Report it.")


def _attempts(split: str, level: str, makers: list[Maker], rng: random.Random) -> Iterator[dict[str, Any]]:
    for maker in makers:
        for _ in range(40):
            theme = rng.choice(themes(split))
            world = _world(theme, split, level, rng)
            question = maker(world)
            sample = question and _settled(world, question, level, split)
            if sample:
                yield sample


def _world(theme: Theme, split: str, level: str, rng: random.Random) -> World:
    low_words, high_words, low_numbers, high_numbers, low_rows, high_rows = _SHAPES[level]
    words = rng.sample(theme.words, rng.randint(low_words, high_words))
    numbers = rng.sample(theme.numbers, rng.randint(low_numbers, high_numbers))
    columns = [*words, *numbers]
    rng.shuffle(columns)
    pool = rng.sample(theme.pool, len(theme.pool))
    count = rng.randint(low_rows, high_rows)
    vocabulary = {column: rng.sample(WORDS[column], rng.randint(3, 5)) for column in words}
    rows: list[dict[str, Cell]] = []
    for key in pool[:count]:
        row: dict[str, Cell] = {theme.key: key}
        for column in columns:
            row[column] = rng.choice(vocabulary[column]) if column in words else rng.randint(*NUMBERS[column])
        rows.append(row)
    table = theme.noun if level != "hard" else f"{theme.noun}_{rng.choice(_SUFFIXES)}"
    world = World(
        rng, theme.noun, table, theme.key, words, numbers, [theme.key, *columns], rows, pool[count:], vocabulary
    )
    if level == "hard":
        _add_special_column(world)
        _add_second_table(world)
    return world


def _add_special_column(world: World) -> None:
    rng = world.rng
    if rng.random() < 0.5:
        form = rng.choice(sorted(DATE_FORMS))
        world.formats["since"] = form
        months = [(2020 + rng.randrange(4), 1 + rng.randrange(12)) for _ in range(12)]
        for row in world.rows:
            row["since"] = show_date(form, *rng.choice(months), 1 + rng.randrange(28))
        world.columns.append("since")
    else:
        world.formats["budget"] = "amount"
        for row in world.rows:
            row["budget"] = f"{rng.randint(300, 9999):,}"
        world.columns.append("budget")


def _add_second_table(world: World) -> None:
    rng, link = world.rng, world.rng.choice(list(world.words))
    facts = rng.sample([c for c in ("people", "area", "staff", "visits", "fee") if c not in world.columns], 2)
    rows: list[dict[str, Cell]] = [
        {link: value} | {fact: rng.randint(*NUMBERS[fact]) for fact in facts} for value in world.vocabulary[link]
    ]
    table = f"{link}_{rng.choice(_SUFFIXES)}"
    world.second = World(rng, link, table, link, (), facts, [link, *facts], rows, [], {})


def _settled(world: World, question: Question, level: str, split: str) -> dict[str, Any] | None:
    """The sample, with its gold; None where it has no answer or a change changes nothing."""
    worlds = [world, world.second] if world.second else [world]
    tables = [_table(part) for part in worlds]
    if level == "hard":
        world.rng.shuffle(tables)
    database = SqliteDatabase([Table.from_data(table) for table in tables])
    try:
        gold = run_plan(database, question.plan)
        if question.kind in CHANGES:
            before = [tuple(row) for row in next(t["rows"] for t in tables if t["name"] == world.table)]
            if tables_differ(database.rows(world.table), before) is None:
                return None
        elif not gold or any(value is None for value in gold):
            return None
    except SqlError as error:
        raise TaskError(f"a generated statement fails: {error} [db {split}: {question.plan}]. Report it.") from error
    finally:
        database.close()
    hidden = level == "hard"
    return {
        "question": question.text,
        "kind": question.kind,
        "level": level,
        "shown": not hidden,
        "min_statements": 2 if hidden or question.look or question.apart else 1,
        "look": question.look,
        "tables": tables,
        "plan": list(question.plan),
        "gold": None if question.kind in CHANGES else gold,
    }


def run_plan(database: Database, plan: tuple[str, ...]) -> list[Any]:
    """Runs the statements, each given the first cell of the result before; the cells of the last."""
    cells: list[Any] = []
    for statement in plan:
        result = database.execute(statement.format(*cells[:1]) if "{0}" in statement else statement)
        cells = [cell for row in result.rows for cell in row]
    return cells


def _table(world: World) -> dict[str, Any]:
    columns = [[c, "INT" if c in world.numbers else "TEXT"] for c in world.columns]
    return {"name": world.table, "columns": columns, "rows": [[row[c] for c in world.columns] for row in world.rows]}
