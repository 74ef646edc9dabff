"""A session on a MySQL or MariaDB server: a database and a user of its own, granted on that database alone.

The model's statements run on the user's connection, which is opened with the first of them. Tables are loaded, copied,
read for grading and dropped by an administrator. The database's real name is unique on the server; the model sees and
may write `db`, so that an episode reads the same whenever it is played.

Not here: the shared server (server.py); which statements are refused (statements.py).
"""

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from agentbench_fc.errors import InfrastructureError, TaskError
from agentbench_fc.tasks.db import statements
from agentbench_fc.tasks.db.backend import DATABASE_NAME, Result, Row, SqlError, Table, Value
from agentbench_fc.tasks.db.keeper import MODE
from agentbench_fc.tasks.db.mysql_dates import NOW
from agentbench_fc.tasks.db.mysql_tables import copied, loading, quoted
from agentbench_fc.tasks.db.mysql_values import MAX_CELL, cut, decoders, plain
from agentbench_fc.tasks.db.server import GRANTS, LOST, Connection, Server, Source, run
from agentbench_fc.tasks.db.watchdog import Watch

logger = logging.getLogger(__name__)

MAX_ROWS = 1_000
MAX_RESULT = 1_000_000
MAX_GRADED = 100_000
"""No sample's table has so many rows: a longer one is wrong, and need not be read to its end."""
QUOTA = 128 * 2**20
"""Bytes of a session's tables on the private server."""
_LAX_MODE = "ONLY_FULL_GROUP_BY,NO_ENGINE_SUBSTITUTION"
_INTERRUPTED = {1317, 1969, 3024}
_NO_DATABASE = {1046, 1049}
_IN_TRANSACTION = 1
_ROW_VERBS = {"SELECT", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for a session's statements."""

    seed: int = 0
    strict: bool = True
    """MySQL's mode of that name."""
    driver_values: bool = False
    """Rows as AgentBench's driver gives them (Decimal, dates …), its error texts, BEGIN and its like let through."""
    deadline_s: float = 10.0


class MysqlBackend:
    """A server and the sessions on it; see `backend.Backend`."""

    def __init__(self, source: Source, deadline_s: float = 10.0) -> None:
        """`deadline_s` is what one statement may take."""
        self.name = source.kind
        self.server = Server(source)
        self._deadline_s = deadline_s

    def open(
        self, tables: Sequence[Table], *, seed: int = 0, strict: bool = True, driver_values: bool = False
    ) -> "MysqlDatabase":
        """A fresh database on the server."""
        terms = Terms(seed=seed, strict=strict, driver_values=driver_values, deadline_s=self._deadline_s)
        return MysqlDatabase(self.server, tables, terms)

    def close(self) -> None:
        """Leaves the server."""
        self.server.close()


class MysqlDatabase:
    """One session's database; see `backend.Database`."""

    def __init__(self, server: Server, tables: Sequence[Table], terms: Terms) -> None:
        self._server = server
        self._terms = terms
        self._address = server.address
        self._name = server.name()
        self._loaded = {table.name for table in tables}
        self._account = f"'{self._name}'@'{server.host_of()}'"
        self._created = f"`{self._name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
        self._connection: Connection | None = None
        self._running = False
        self._closed = False
        self._leaves_state = False
        self._reshaped = False
        """Whether a statement may have made, dropped or replaced a table."""
        self._lock = threading.Lock()
        """Held for moments: to hand the connection over between `execute` and a `close` from another thread."""
        self._password = secrets.token_hex(12)
        with self._admin() as admin:
            try:
                run(admin, [f"CREATE DATABASE {self._created}", *self._user(), *loading(admin, self._name, tables)])
            except _driver_error() as error:
                if error.args and error.args[0] in LOST:
                    raise
                with contextlib.suppress(_driver_error()):
                    run(admin, self._dropping())
                raise TaskError(
                    f"a table cannot be made: {self._masked(str(error.args[-1]))} [db]. The sample's data are wrong."
                ) from error

    def execute(self, sql: str) -> Result:
        """Runs one statement."""
        statement = statements.read(sql)
        statements.check(statement, transactions=self._terms.driver_values)
        used = statements.database_used(statement)
        if used is not None:
            if used.lower() not in {DATABASE_NAME, self._name}:
                raise SqlError(f"Unknown database. There is only `{DATABASE_NAME}`.")
            return Result(changed=0)
        connection = self._connect()
        self._leaves_state |= statement.leaves_state
        self._reshaped |= statement.first not in _ROW_VERBS
        quota = None if self._address.data is None else (self._address.data / self._name, QUOTA)
        watch = self._server.watch(connection.thread_id(), self._terms.deadline_s, quota)
        with self._lock:
            self._running = True
        try:
            with watch:
                result = self._run(connection, statement.named(self._name))
            if watch.killed:
                self._absorb(connection)
                if result.changed is None or statement.first == "DO":  # BENCHMARK() hides its own interruption
                    raise SqlError(_ENDED[watch.killed].format(self._terms.deadline_s))
            return result
        except UnicodeError:
            raise SqlError("The statement is not valid Unicode text. Remove the character that is none.") from None
        except (_driver_error(), OSError) as error:
            raise self._answer(connection, error, watch) from error
        finally:
            with self._lock:
                self._running = False

    def rows(self, table: str) -> list[Row] | None:
        """All rows of a table (`MAX_GRADED` at most), read by an administrator; None: there is no such table."""
        self._release()
        with self._admin() as admin:
            if not self._is_table(admin, table):
                return None
            admin.decoders = decoders(admin, driver_values=False)
            statement = f"SELECT * FROM {quoted(self._name)}.{quoted(table)} LIMIT {MAX_GRADED}"
            with self._server.watch(admin.thread_id(), self._terms.deadline_s), admin.cursor() as cursor:
                cursor.execute(statement)
                return [tuple(plain(value) for value in row) for row in cursor.fetchall()]

    def digest(self, tables: Sequence[Table]) -> str | None:
        """AgentBench's hash of the state of tables, computed by the server; None: a table or a column is missing."""
        self._release()
        digests: list[str] = []
        with self._admin() as admin:
            for table in tables:
                if not self._is_table(admin, table.name):
                    return None
                columns = ", ".join(quoted(name) for name, _ in table.columns)
                with self._server.watch(admin.thread_id(), self._terms.deadline_s), admin.cursor() as cursor:
                    try:
                        cursor.execute(
                            "SELECT MD5(GROUP_CONCAT(h ORDER BY h)) FROM (SELECT LEFT(MD5(CONCAT_WS(',', "
                            f"{columns})), 5) AS h FROM {quoted(self._name)}.{quoted(table.name)}) AS r"
                        )
                    except _driver_error() as error:
                        if error.args and error.args[0] == 1054:  # a column was dropped or renamed
                            return None
                        raise
                    found = cursor.fetchone()[0]
                    digests.append("" if found is None else str(found))
        return "_".join(sorted(digests))

    def fork(self) -> "MysqlDatabase | None":
        """A copy of the tables and views; None where the connection holds state that cannot be copied."""
        if self._leaves_state:
            return None
        copy = MysqlDatabase(self._server, (), self._terms)
        copy._reshaped = True
        try:
            with self._admin() as admin:
                if not copied(admin, self._name, copy._name):
                    copy.close()
                    return None
        except BaseException:
            copy.close()
            raise
        return copy

    def close(self) -> None:
        """Drops the database and its user, and what they still do."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connection, self._connection = self._connection, None
            running = self._running
        if connection is not None and running:  # its thread still waits there: the connection is cut from outside
            self._server.kill(connection.thread_id(), connection=True)
        elif connection is not None:
            with contextlib.suppress(_driver_error(), OSError):
                connection.close()
        try:
            with self._admin() as admin:
                self._drop(admin)
        except InfrastructureError as error:
            logger.info("a session's database went with its server: %s", error)

    def _user(self) -> Iterator[str]:
        escaped = self._name.replace("_", r"\_")  # in a grant the name is a pattern
        yield f"CREATE USER {self._account} IDENTIFIED BY '{self._password}' WITH MAX_USER_CONNECTIONS 2"
        yield f"GRANT {GRANTS} ON `{escaped}`.* TO {self._account}"

    def _dropping(self) -> list[str]:
        return [f"DROP USER IF EXISTS {self._account}", f"DROP DATABASE IF EXISTS `{self._name}`"]

    def _drop(self, admin: Connection) -> None:
        try:
            run(admin, self._dropping())
        except _driver_error() as error:
            if not error.args or error.args[0] != 1205:
                raise
            # A lock of the session's is left, so its connection is: end whatever its user still has.
            with admin.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (self._name,))
                for (thread,) in cursor.fetchall():
                    self._server.kill(int(thread), connection=True)
            run(admin, self._dropping())

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Connection]:
        """An administrator's connection to the server that this session began on."""
        with self._server.admin() as admin:
            if self._server.address.generation != self._address.generation:
                raise InfrastructureError(self._restarted())
            usual = admin.decoders
            try:
                yield admin
            finally:
                admin.decoders = usual

    def _restarted(self) -> str:
        return f"the database server was restarted [backend {self._server.kind}]. Start another session."

    def _connect(self) -> Connection:
        with self._lock:
            if self._closed:
                raise InfrastructureError(_CLOSED)
            if self._connection is not None:
                return self._connection
        try:
            connection = self._server.connect(
                self._address,
                self._name,
                self._password,
                database=self._name,
                read_timeout=int(self._terms.deadline_s) + 10,
                write_timeout=int(self._terms.deadline_s) + 10,
                settings=self._settings(),
            )
        except _driver_error() as error:
            raise InfrastructureError(
                f"the session cannot enter its database: {self._masked(str(error))} [backend {self._server.kind}]. "
                "Start another session."
            ) from error
        connection.decoders = decoders(connection, driver_values=self._terms.driver_values)
        with self._lock:
            late = self._is_closed()
            if not late:
                self._connection = connection
        if late:
            connection.close()
            raise InfrastructureError(_CLOSED)
        return connection

    def _is_closed(self) -> bool:
        return self._closed

    def _settings(self) -> str:
        moment = int(NOW.replace(tzinfo=UTC).timestamp())
        mode = MODE if self._terms.strict else _LAX_MODE
        # The two seeds are mixed as the server itself does it for RAND(n), so that near seeds give far numbers.
        first, second = (self._terms.seed * 0x10001 + 55_555_555) % 2**30, (self._terms.seed * 0x10000001) % 2**30
        return (
            f"sql_mode = '{mode}', group_concat_max_len = 1024, time_zone = '+00:00', timestamp = {moment}, "
            f"rand_seed1 = {first}, rand_seed2 = {second}, lock_wait_timeout = 5, innodb_lock_wait_timeout = 5"
        )

    def _run(self, connection: Connection, sql: str) -> Result:
        from pymysql.cursors import SSCursor

        cursor = SSCursor(connection)
        cursor.execute(sql)
        try:
            if cursor.description is None:
                changed = max(0, int(cursor.rowcount))
                return Result(changed=changed)
            names = tuple(self._masked(str(column[0])) for column in cursor.description)
            rows, more = self._fetch(cursor)
            if more:
                self._server.kill(connection.thread_id())  # nobody reads the rest
                with contextlib.suppress(_driver_error()):
                    cursor.close()
                self._absorb(connection)
            return Result(names, tuple(rows), more=more)
        finally:
            with contextlib.suppress(_driver_error()):
                cursor.close()
            if connection.server_status & _IN_TRANSACTION:  # only BEGIN can have begun one
                connection.commit()

    def _fetch(self, cursor: Any) -> tuple[list[Row], bool]:
        shape: Callable[[Any], Value] = cut if self._terms.driver_values else plain
        rows: list[Row] = []
        size = 0
        while (row := cursor.fetchone()) is not None:
            if len(rows) == MAX_ROWS or size > MAX_RESULT:
                return rows, True
            cells = tuple(self._masked(cell) if isinstance(cell, str) else cell for cell in map(shape, row))
            rows.append(cells)
            size += sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
        return rows, False

    def _absorb(self, connection: Connection) -> None:
        """Lets a late KILL QUERY fall on a statement of ours rather than on the model's next one."""
        with contextlib.suppress(_driver_error()):
            connection.query("DO 0")

    def _answer(self, connection: Connection, error: Exception, watch: Watch) -> Exception:
        """What to raise for an error of the driver: the model's fault, or the server's."""
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if isinstance(error, OSError) or code in LOST or not connection.open:
            return self._cut_off(connection, watch)
        if watch.killed:
            self._absorb(connection)
            return SqlError(_ENDED[watch.killed].format(self._terms.deadline_s))
        if code in _INTERRUPTED:
            return SqlError("The statement was interrupted. Write one that does less.")
        if code in _NO_DATABASE:
            self._restore(connection)
        text = self._masked(str(error.args[-1]))[:MAX_CELL]
        if not self._terms.driver_values:
            return SqlError(text if text.endswith(".") else f"{text}.")
        return SqlError(f"{code} ({getattr(error, 'sqlstate', None) or self._state(connection)}): {text}")

    def _cut_off(self, connection: Connection, watch: Watch) -> Exception:
        """The connection is gone: the session goes on with a new one if the server and the database are there."""
        with self._lock:
            self._connection = None
            closed = self._closed
        with contextlib.suppress(Exception):
            connection.close()
        if closed:
            return InfrastructureError(_CLOSED)
        self._leaves_state = True  # whatever the connection knew is lost: a fork has to replay the loss
        try:
            with self._admin() as admin:  # the session may have set a password of its own
                admin.query(f"ALTER USER {self._account} IDENTIFIED BY '{self._password}'")
            self._connect()
        except InfrastructureError as failed:
            return failed
        if watch.killed:
            return SqlError(_ENDED[watch.killed].format(self._terms.deadline_s))
        return SqlError("The statement broke the connection, and a new one was made. Write it in another way.")

    def _restore(self, connection: Connection) -> None:
        """The session lost its current database, by a way that was not foreseen: it gets an empty one again."""
        with contextlib.suppress(_driver_error()), self._admin() as admin:
            admin.query(f"CREATE DATABASE IF NOT EXISTS {self._created}")
            connection.select_db(self._name)

    def _state(self, connection: Connection) -> str:
        """The SQLSTATE of the last error, which PyMySQL 1.1 drops."""
        with contextlib.suppress(_driver_error()):
            connection.query("GET DIAGNOSTICS CONDITION 1 @agentbench_state = RETURNED_SQLSTATE")
            with connection.cursor() as cursor:
                cursor.execute("SELECT @agentbench_state")
                return str(cursor.fetchone()[0] or "HY000")
        return "HY000"

    def _release(self) -> None:
        """Gives up locks of the session's that would keep an administrator from reading."""
        if self._connection is not None and self._leaves_state:
            with contextlib.suppress(_driver_error(), OSError):
                self._connection.query("UNLOCK TABLES")

    def _is_table(self, admin: Connection, table: str) -> bool:
        """A view in a table's place is none: it would be computed, with an administrator's rights."""
        if not self._reshaped and table in self._loaded:
            return True
        with admin.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s "
                "AND table_type = 'BASE TABLE'",
                (self._name, table),
            )
            return cursor.fetchone() is not None

    def _masked(self, text: str) -> str:
        return text.replace(self._name, DATABASE_NAME) if self._name in text else text


_CLOSED = "the session's database was closed meanwhile [db]. Start another session."
_ENDED = {
    "late": "The statement took over {:g} s and was stopped. Write one that reads less.",
    "full": "The database is full. Store less.",
}


def _driver_error() -> type[Exception]:
    import pymysql.err

    error: type[Exception] = pymysql.err.Error
    return error
