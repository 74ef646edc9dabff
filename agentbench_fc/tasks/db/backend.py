"""The database of one session as a task sees it, and the door that makes one.

Every back end speaks MySQL: statements come in MySQL's dialect, errors read like MySQL's. A statement that the model
got wrong raises `SqlError`, whose text becomes the tool's reply; anything else that is raised is a fault of ours.

Not here: the embedded back end (sqlite.py); how a result is shown (observation.py); grading (grade.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agentbench_fc.errors import CallerError, did_you_mean

Value: TypeAlias = int | float | str | None
Row: TypeAlias = tuple[Value, ...]

BACKENDS = ("sqlite", "mariadb", "dsn")
DATABASE_NAME = "db"


class SqlError(Exception):
    """A statement that cannot be run as it stands; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table to load: MySQL column types, rows in order."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Table":
        """Reads the JSON form `{"name", "columns": [[name, type], …], "rows": [[…], …]}`."""
        return cls(
            name=data["name"],
            columns=tuple((name, kind) for name, kind in data["columns"]),
            rows=tuple(tuple(row) for row in data["rows"]),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement gave: rows with column names, or the number of rows it changed."""

    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    changed: int | None = None
    """None for a statement that returns rows."""
    more: bool = False
    """There were more rows than are kept here."""


class Database(Protocol):
    """One session's database. Calls come one at a time, from any thread."""

    def execute(self, sql: str) -> Result:
        """Runs one statement in MySQL's dialect.

        Raises:
            SqlError: refused, wrong, or past its deadline; the database is as it was before.
        """
        ...

    def rows(self, table: str) -> list[Row] | None:
        """All rows of a table, read past the session's own limits; None: it does not exist."""
        ...

    def fork(self) -> "Database":
        """An independent copy of the present state."""
        ...

    def close(self) -> None:
        """Frees everything; safe to repeat."""
        ...


def check_backend(backend: str) -> None:
    """Refuses what this version cannot serve.

    Raises:
        CallerError: unknown, or known and not available here.
    """
    if backend not in BACKENDS:
        raise CallerError(f"no backend {backend!r} [task db]. {did_you_mean(backend, BACKENDS)}")
    if backend != "sqlite":
        raise CallerError(f"backend {backend!r} is not in this version [task db]. Use backend='sqlite'.")


def open_database(backend: str, tables: Sequence[Table], *, seed: int = 0, strict: bool = True) -> Database:
    """A fresh database that holds `tables`; `seed` drives `RAND()`, `strict` is MySQL's mode of that name."""
    check_backend(backend)
    from agentbench_fc.tasks.db.sqlite import SqliteDatabase

    return SqliteDatabase(tables, seed=seed, strict=strict)
