"""AgentBench's `user_sqlite` samples: the database is an SQLite file, and the statements are SQLite's own.

The file is never written. A question reads it in place; for a change the session gets a copy in memory, which can be
graded and forked. Nothing but the file's tables is in reach, and a statement is bounded in time, rows and bytes.

Not here: the embedded back end, which speaks MySQL (sqlite.py); where the file is sought (readers.py).
Source: AgentBench's dbbench at 578c5e9, which runs each statement in a new Python process on the shared file.
"""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.db.backend import Result, Row, SqlError, Table

MAX_ROWS = 1_000
MAX_RESULT = 1_000_000
MAX_SECONDS = 10.0
MAX_COPY = 256 * 2**20
"""Bytes of a file that is copied for a change."""
_TICK = 50_000
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_CHANGING = _READING | {
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_DROP_INDEX,
}  # fmt: skip
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}


class FileDatabase:
    """One session's view, or copy, of a file; see `backend.Database`."""

    def __init__(self, path: Path, *, changes: bool, driver_values: bool = False) -> None:
        """`changes` gives a copy that may be written; `driver_values` words errors as AgentBench does.

        Raises:
            TaskError: the file is not there, no database, or too large to copy.
        """
        self._path = path
        self._changes = changes
        self._prefix = "SQLite execution error: " if driver_values else ""
        self._connection = _opened(path, changes=changes)
        self._guard()

    def execute(self, sql: str) -> Result:
        """Runs one statement in SQLite's dialect."""
        deadline = time.monotonic() + MAX_SECONDS
        self._connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _TICK)
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            if cursor.description is None:
                return Result(changed=max(0, cursor.rowcount))
            names = tuple(str(column[0]) for column in cursor.description)
            rows: list[Row] = []
            size = 0
            for row in cursor:
                if len(rows) == MAX_ROWS or size > MAX_RESULT:
                    return Result(names, tuple(rows), more=True)
                rows.append(tuple(row))
                size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            return Result(names, tuple(rows))
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise SqlError(self._prefix + _worded(error)) from None
        except (OverflowError, UnicodeError, ValueError):
            raise SqlError(f"{self._prefix}A value in the statement is out of range or not valid text.") from None
        finally:
            self._connection.set_progress_handler(None, 0)
            cursor.close()

    def rows(self, table: str) -> list[Row] | None:
        """All rows of a table; None: it does not exist."""
        if table not in self.tables():
            return None
        name = table.replace('"', '""')
        return [tuple(row) for row in self._connection.execute(f'SELECT * FROM "{name}"')]

    def tables(self) -> list[str]:
        """The names of the tables, in order."""
        found = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY name"
        )
        return [str(name) for (name,) in found]

    def digest(self, tables: Sequence[Table]) -> str | None:
        """None: AgentBench computes no hash of such a file, and takes every change as wrong."""
        return None

    def fork(self) -> "FileDatabase":
        """Another view of the file, or a copy of the copy."""
        other = FileDatabase(self._path, changes=False, driver_values=bool(self._prefix))
        if self._changes:
            other.close()
            other._changes = True
            other._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection.backup(other._connection)
            other._guard()
        return other

    def close(self) -> None:
        """Closes the connection; safe to repeat."""
        self._connection.close()

    def _guard(self) -> None:
        allowed = _CHANGING if self._changes else _READING

        def authorize(action: int, first: str | None, *_: Any) -> int:
            inner = action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS
            return sqlite3.SQLITE_OK if inner or action in allowed else sqlite3.SQLITE_DENY

        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000_000)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
        self._connection.set_authorizer(authorize)


def _opened(path: Path, *, changes: bool) -> sqlite3.Connection:
    try:
        file = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
        file.execute("SELECT COUNT(*) FROM sqlite_master")
    except (sqlite3.Error, OSError) as error:
        raise TaskError(f"no SQLite database: {error} [{path}]. Put the sample's file there.") from error
    if not changes:
        return file
    with contextlib.closing(file):
        if path.stat().st_size > MAX_COPY:
            raise TaskError(f"the database is too large to copy for a change [{path}]. Exclude this sample.")
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        file.backup(copy)
        copy.execute(f"PRAGMA max_page_count = {2 * MAX_COPY // 4096}")
        return copy


def _worded(error: Exception) -> str:
    text = str(error)
    if "interrupted" in text:
        return f"The statement took over {MAX_SECONDS:g} s and was stopped. Write one that reads less."
    if "not authorized" in text or "prohibited" in text:
        return "This is not allowed here."
    return text[:500]
