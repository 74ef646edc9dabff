"""The database of one session as a task sees it, and the door that makes one.

Every back end speaks MySQL: statements come in MySQL's dialect, errors read like MySQL's. A statement that the model
got wrong raises `SqlError`, whose text becomes the tool's reply; anything else that is raised is a fault of ours.

- `sqlite`: embedded (sqlite.py), the default; an approximation of MySQL that is the same everywhere.
- `mariadb`: a private server that is started for this user on this host (private.py, keeper.py).
- `dsn`: an existing MySQL or MariaDB server.

Not here: one session on a server (mysql.py); how a result is shown (observation.py); grading (grade.py).
"""

import os
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

    def digest(self, tables: Sequence[Table]) -> str | None:
        """AgentBench's hash of the state of `tables`, by their names and columns; None: one of these is missing."""
        ...

    def fork(self) -> "Database | None":
        """An independent copy of the present state; None: it cannot be copied, replay it."""
        ...

    def close(self) -> None:
        """Frees everything; safe to repeat."""
        ...


class Backend(Protocol):
    """Makes databases; one object serves many sessions and threads."""

    name: str
    """As it is chosen and recorded: one of `BACKENDS`."""

    def open(
        self, tables: Sequence[Table], *, seed: int = 0, strict: bool = True, driver_values: bool = False
    ) -> Database:
        """A fresh database that holds `tables`.

        Args:
            tables: What to load.
            seed: Drives `RAND()`.
            strict: MySQL's mode of that name.
            driver_values: Rows and errors as AgentBench's driver gives them, where the backend can.

        Raises:
            TaskError: a table cannot be made.
            InfrastructureError: the server is not there.
        """
        ...

    def close(self) -> None:
        """Frees what all sessions share; safe to repeat."""
        ...


class SqliteBackend:
    """The embedded back end; nothing is shared between sessions."""

    name = "sqlite"

    def open(
        self, tables: Sequence[Table], *, seed: int = 0, strict: bool = True, driver_values: bool = False
    ) -> Database:
        """A fresh database in memory."""
        from agentbench_fc.tasks.db.sqlite import SqliteDatabase

        return SqliteDatabase(tables, seed=seed, strict=strict)

    def close(self) -> None:
        """Nothing is shared."""


def make_backend(name: str, dsn: str | None = None) -> Backend:
    """The backend of that name; a server is started or reached with the first session, not here.

    Args:
        name: One of `BACKENDS`.
        dsn: For `dsn`: the server's address; None: from `AGENTBENCH_FC_DSN`, which keeps it out of transcripts.

    Raises:
        CallerError: unknown, without its driver, or without an address.
        InfrastructureError: no server is installed.
    """
    if name not in BACKENDS:
        raise CallerError(f"no backend {name!r} [task db]. {did_you_mean(name, BACKENDS)}")
    if dsn is not None and name != "dsn":
        raise CallerError(f"a dsn is given with backend {name!r} [task db]. Use backend='dsn', or leave it out.")
    if name == "sqlite":
        return SqliteBackend()
    import importlib.util

    if importlib.util.find_spec("pymysql") is None:
        raise CallerError(f"backend {name!r} needs PyMySQL [task db]. Run `pip install 'agentbench-fc[db]'`.")
    from agentbench_fc.tasks.db.mysql import MysqlBackend
    from agentbench_fc.tasks.db.private import PrivateServer
    from agentbench_fc.tasks.db.server import Existing

    if name == "mariadb":
        return MysqlBackend(PrivateServer())
    address = dsn or os.environ.get("AGENTBENCH_FC_DSN")
    if not address:
        raise CallerError(
            "backend 'dsn' has no address [task db]. "
            "Set AGENTBENCH_FC_DSN=mysql://user:password@host:3306, or pass dsn=."
        )
    return MysqlBackend(Existing(address))
