"""The embedded back end: a session's database is one SQLite database in memory that speaks MySQL.

>>> database = SqliteDatabase([Table("pets", (("name", "TEXT"), ("age", "INT")), (("Rex", 7), ("Ada", 2)))])
>>> database.execute("SELECT name FROM pets WHERE name = 'REX'").rows, database.execute("SHOW TABLES").rows
((('Rex',),), (('pets',),))

A statement is bounded in steps of SQLite's machine (the same on every machine), in seconds, in rows and in bytes;
files, other databases, pragmas and extensions are out of reach by an authorizer. A refused or cut statement leaves the
database as it was.

Not here: the translation (translate.py), what MySQL's functions do (mysql_functions.py).
"""

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.db import collation, translate
from agentbench_fc.tasks.db.aggregates import GroupConcat, Spread
from agentbench_fc.tasks.db.backend import DATABASE_NAME, Result, Row, SqlError, Table, Value
from agentbench_fc.tasks.db.dialect import MAX_SQL
from agentbench_fc.tasks.db.grade import table_hash
from agentbench_fc.tasks.db.information_schema import COLLATION
from agentbench_fc.tasks.db.mysql_functions import MAX_MADE, Function, Shim

MAX_ROWS = 1_000
MAX_CELL = 65_535
MAX_RESULT = 1_000_000
MAX_STEPS = 10_000_000
MAX_SECONDS = 3.0
_TICK = 20_000
_MAX_PAGES = 4_096
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 200_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 400,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_ALLOWED = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_REINDEX,
}  # fmt: skip
_TYPES = {"TEXT": f"TEXT COLLATE {COLLATION}", "INT": "INTEGER", "DECIMAL": "REAL"}
_SHOW_TABLES = re.compile(
    r"SHOW\s+(?P<full>FULL\s+)?TABLES(?:\s+(?:FROM|IN)\s+`?\w+`?)?(?:\s+LIKE\s+['\"](?P<like>[^'\"]*)['\"])?", re.I
)
_SHOW_DATABASES = re.compile(r"SHOW\s+(?:DATABASES|SCHEMAS)", re.I)
_NAME = r"(?:`?db`?\.)?(?:`(?P<quoted>[^`]+)`|(?P<plain>[\w$]+))"
_DESCRIBE = re.compile(
    rf"(?:DESCRIBE|DESC|EXPLAIN|SHOW\s+(?:FULL\s+)?(?:COLUMNS|FIELDS)\s+(?:FROM|IN))\s+{_NAME}", re.I
)
_SHOW_CREATE = re.compile(rf"SHOW\s+CREATE\s+TABLE\s+{_NAME}", re.I)
_USE = re.compile(rf"USE\s+{_NAME}", re.I)
_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"no such column: (?:\w+\.)?(.+)", r"Unknown column '\1'. DESCRIBE lists the columns of a table."),
    (r"table `?(.+?)`? has no column named (.+)", r"Unknown column '\2' in table '\1'. DESCRIBE lists its columns."),
    (
        r"table `?(.+?)`? has (\d+) columns but (\d+) values were supplied",
        r"Column count doesn't match value count: table '\1' has \2 columns, \3 values were given.",
    ),
    (r"(\d+) values for (\d+) columns", r"Column count doesn't match value count: \2 columns, \1 values."),
    (
        r"cannot store (\w+) value in (\w+) column (?:.+\.)?(.+)",
        r"Incorrect value for column '\3': it holds \2, the value is \1.",
    ),
    (r"ambiguous column name: (.+)", r"Column '\1' is ambiguous. Write table.column."),
    (r"UNIQUE constraint failed: (.+)", r"Duplicate entry for key '\1'."),
    (r"NOT NULL constraint failed: (.+)", r"Column '\1' cannot be null."),
    (r"near \"(.+)\": syntax error", r"You have an error in your SQL syntax near '\1'."),
    (r"incomplete input", r"You have an error in your SQL syntax: it ends too early."),
    (r"misuse of (?:aggregate|window).*", r"Invalid use of a group function. Aggregates belong in SELECT or HAVING."),
    (r"database or disk is full", r"The database is full. Store less."),
    (r"string or blob too big|out of memory", r"A value or result is too large."),
    (r"not authorized.*|authorization denied.*", r"This is not allowed here."),
    (r"table `?(.+?)`? already exists", r"Table '\1' already exists."),
)  # fmt: skip


class SqliteDatabase:
    """One session's database; see `backend.Database`."""

    def __init__(
        self, tables: Sequence[Table] = (), *, seed: int = 0, strict: bool = True, shim: Shim | None = None
    ) -> None:
        self._shim = shim or Shim(seed)
        self._connection = _connect(self._shim)
        self._strict = strict
        self._closed = False
        try:
            for table in tables:
                self._load(table)
        except sqlite3.Error as error:
            self.close()
            raise TaskError(f"a table cannot be made: {error} [db]. The sample's data are wrong.") from error
        self._guard()

    def execute(self, sql: str) -> Result:
        """Runs one statement in MySQL's dialect."""
        listed = self._listing(sql)
        if listed is not None:
            return listed
        statement = translate.translate(sql, self.schema(), strict=self._strict)
        self._shim.error, self._shim.made = None, 0
        cursor = self._connection.cursor()
        self._start_clock()
        try:
            cursor.execute(statement.sql)  # outside a transaction: SQLite undoes a statement that fails
            return self._read(cursor, statement)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._shim.error or SqlError(_message(error)) from None
        except (OverflowError, UnicodeError):
            raise SqlError("A value in the statement is out of range or not valid text.") from None
        finally:
            self._connection.set_progress_handler(None, 0)
            cursor.close()

    def rows(self, table: str) -> list[Row] | None:
        """All rows of a table in storage order; None: it does not exist."""
        if table not in self.schema():
            return None
        return list(self._connection.execute(f"SELECT * FROM {_quoted(table)}"))

    def digest(self, tables: Sequence[Table]) -> str | None:
        """AgentBench's hash of the state of `tables`; None: a table or a column is missing."""
        schema = self.schema()
        read: list[list[Row]] = []
        for table in tables:
            columns = [name for name, _ in table.columns]
            if not set(columns) <= set(schema.get(table.name, ())):
                return None
            names = ", ".join(map(_quoted, columns))
            read.append(list(self._connection.execute(f"SELECT {names} FROM {_quoted(table.name)}")))
        return table_hash(read)

    def schema(self) -> dict[str, dict[str, str]]:
        """Table -> column -> MySQL type, in order of creation."""
        tables: dict[str, dict[str, str]] = {}
        query = (
            "SELECT m.name, c.name, c.type FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c "
            "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY m.rowid, c.cid"
        )
        self._trusted = True
        try:
            for table, column, kind in self._connection.execute(query):
                tables.setdefault(table, {})[column] = _mysql_type(kind)
        finally:
            self._trusted = False
        return tables

    def fork(self) -> "SqliteDatabase":
        """A copy of the present state on a connection of its own."""
        copy = SqliteDatabase(shim=self._shim.fork(), strict=self._strict)
        self._connection.backup(copy._connection)
        return copy

    def close(self) -> None:
        """Closes the connection, and with it the memory."""
        if not self._closed:
            self._closed = True
            self._connection.set_authorizer(None)  # it refers to this object: no cycle may keep the memory alive
            self._connection.close()

    def _load(self, table: Table) -> None:
        columns = ", ".join(f"{_quoted(name)} {_TYPES[kind]}" for name, kind in table.columns)
        self._connection.execute(f"CREATE TABLE {_quoted(table.name)} ({columns}) STRICT")
        marks = ", ".join("?" * len(table.columns))
        self._connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({marks})", table.rows)

    def _guard(self) -> None:
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
        self._trusted = False
        self._connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, *details: Any) -> int:
        return sqlite3.SQLITE_OK if self._trusted or action in _ALLOWED else sqlite3.SQLITE_DENY

    def _start_clock(self) -> None:
        deadline, ticks = time.monotonic() + MAX_SECONDS, 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return int(ticks * _TICK > MAX_STEPS or time.monotonic() > deadline)

        self._connection.set_progress_handler(tick, _TICK)

    def _read(self, cursor: sqlite3.Cursor, statement: translate.Translation) -> Result:
        if statement.verb == "schema":
            return Result(changed=0)
        if statement.verb == "change":
            return Result(changed=max(0, cursor.rowcount))
        names = [column[0] for column in cursor.description or ()]
        if len(statement.columns) == len(names):
            names = [own or name for own, name in zip(statement.columns, names, strict=True)]
        rows: list[Row] = []
        size = 0
        for row in cursor:
            if len(rows) == MAX_ROWS or size > MAX_RESULT:
                return Result(tuple(names), tuple(rows), more=True)
            rows.append(tuple(_value(cell) for cell in row))
            size += sum(len(cell) for cell in row if isinstance(cell, str))
        return Result(tuple(names), tuple(rows))

    def _listing(self, sql: str) -> Result | None:
        """SHOW, DESCRIBE and USE, which SQLite does not have."""
        text = sql.strip().rstrip(";").rstrip() if len(sql) <= MAX_SQL else ""
        if match := _SHOW_TABLES.fullmatch(text):
            pattern = match["like"]
            names = [n for n in self.schema() if pattern is None or collation.matches(pattern, n)]
            if match["full"]:
                titles = (f"Tables_in_{DATABASE_NAME}", "Table_type")
                return Result(titles, tuple((name, "BASE TABLE") for name in names))
            return Result((f"Tables_in_{DATABASE_NAME}",), tuple((name,) for name in names))
        if _SHOW_DATABASES.fullmatch(text):
            return Result(("Database",), ((DATABASE_NAME,),))
        if match := _DESCRIBE.fullmatch(text):
            columns = self._columns(match["quoted"] or match["plain"])
            return Result(("Field", "Type"), tuple((name, kind.lower()) for name, kind in columns.items()))
        if match := _SHOW_CREATE.fullmatch(text):
            name = match["quoted"] or match["plain"]
            inner = ", ".join(f"{_quoted(column)} {kind.lower()}" for column, kind in self._columns(name).items())
            return Result(("Table", "Create Table"), ((name, f"CREATE TABLE {_quoted(name)} ({inner})"),))
        if match := _USE.fullmatch(text):
            if (match["quoted"] or match["plain"]) != DATABASE_NAME:
                raise SqlError(f"Unknown database. There is only `{DATABASE_NAME}`.")
            return Result(changed=0)
        if re.match(r"SHOW\b", text, re.I):
            raise SqlError("This SHOW statement is not available here. Use SHOW TABLES or DESCRIBE.")
        return None

    def _columns(self, table: str) -> dict[str, str]:
        columns = self.schema().get(table)
        if columns is None:
            raise SqlError(f"Table '{table[:60]}' doesn't exist. SHOW TABLES lists those that do.")
        return columns


def _connect(shim: Shim) -> sqlite3.Connection:
    # A session's calls come one at a time, but from any thread of a worker's pool. Cached statements would outlive
    # the authorizer's answer.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
    connection.create_collation(COLLATION, collation.compare)
    for name, function in translate.FUNCTIONS.items():
        # A constant text is made anew for each row, so that MAX_MADE counts what a statement copies.
        constant = function.kind == "number" and name != "RAND"
        connection.create_function(f"my_{name.lower()}", -1, _bound(function, shim), deterministic=constant)
    connection.create_aggregate("my_group_concat", -1, GroupConcat)  # type: ignore[arg-type]
    connection.create_aggregate("my_spread", 2, Spread)  # type: ignore[arg-type]
    return connection


def _bound(function: Function, shim: Shim) -> Callable[..., Value]:
    run, nulls = function.run, function.nulls

    def call(*arguments: Value) -> Value:
        if not nulls and None in arguments:
            return None
        try:
            value = run(shim, *arguments)
            if isinstance(value, str):
                shim.made += len(value)
                if shim.made > MAX_MADE:
                    raise SqlError("The statement makes too much text and was stopped. Write one that makes less.")
            return value
        except SqlError as error:
            shim.error = error  # SQLite keeps only the fact that there was one
            raise

    return call


def _value(cell: Any) -> Value:
    if isinstance(cell, bytes):
        return cell[:MAX_CELL].decode("utf-8", "replace")
    return cell[:MAX_CELL] if isinstance(cell, str) else cell


def _mysql_type(kind: str) -> str:
    return {"INTEGER": "INT", "REAL": "DECIMAL"}.get(kind.split("(")[0].upper(), kind.upper() or "TEXT")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _message(error: Exception) -> str:
    if "interrupted" in str(error):
        return "The statement took too long and was stopped. Write one that reads less."
    for pattern, text in _MESSAGES:
        if match := re.fullmatch(pattern, str(error)):
            return match.expand(text)
    return f"{str(error)[:200]}."
