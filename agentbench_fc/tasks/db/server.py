"""A MySQL or MariaDB server as all sessions of a process share it: administrators' connections, names, and a watchdog.

Sessions get a database and a user of their own; their names tell which process made them, so that what a killed process
left behind is swept at the next start. Statements are watched from here, because a session can lift the server's own
limits: at its deadline, or when its tables outgrow their quota, a statement is ended by `KILL QUERY`, and by
`KILL CONNECTION` when that does not help within a second.

Not here: one session (mysql.py); the private server's process (private.py).
"""

import contextlib
import hashlib
import itertools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.tasks.db.private import Address
from agentbench_fc.tasks.db.watchdog import Watch, Watchdog

logger = logging.getLogger(__name__)

Connection: TypeAlias = Any
"""A PyMySQL connection; the package has no types."""

PREFIX = "afc"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
GRANTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE TEMPORARY TABLES, CREATE VIEW, SHOW VIEW, "
    "LOCK TABLES"
)
CONNECT_TIMEOUT_S = 10
ADMIN_TIMEOUT_S = 30
BATCH = 500_000
"""Characters that are sent in one go."""
KEPT = 16
"""Idle administrators' connections that are kept."""
LOST = {0, 2003, 2006, 2013, 2014, 1053, 1927, 4031}
"""Error codes that mean: this connection is no more."""


class Source(Protocol):
    """Where a server is: the private one, or an existing one."""

    kind: str

    def address(self, *, after: int = 0, timeout_s: float = 60.0) -> Address:
        """The running server, of a later start than `after`."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...

    def forget(self) -> None:
        """Drops what was inherited from a parent process."""
        ...


class Existing:
    """A server that others run, by its address: `mysql://user:password@host:port` or `mysql://user@localhost/?socket=…`."""

    kind = "dsn"

    def __init__(self, dsn: str) -> None:
        """A password that the address lacks is taken from `MYSQL_PWD`.

        Raises:
            CallerError: it is no such address; the message does not repeat it, for it may hold a password.
        """
        try:
            parts = urlsplit(dsn)
            port = parts.port or 3306
            door = parse_qs(parts.query).get("socket", [None])[0]
        except ValueError:
            parts, port, door = urlsplit(""), 0, None
        if parts.scheme not in {"mysql", "mariadb"} or not parts.username or not (parts.hostname or door):
            raise CallerError(
                "the dsn is no address of a server [task db, dsn]. "
                "Write mysql://user:password@host:3306, or mysql://user:password@localhost/?socket=/path."
            )
        host = parts.hostname or "localhost"
        near = door is not None or host in {"localhost", "127.0.0.1", "::1"}
        self._address = Address(
            user=unquote(parts.username),
            password=unquote(parts.password or os.environ.get("MYSQL_PWD", "")),
            socket=door,
            host=host,
            port=port,
            tls=not near,
            generation=1,
        )

    def address(self, *, after: int = 0, timeout_s: float = 60.0) -> Address:
        """Always the same."""
        return self._address

    def close(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """Nothing is held."""


class Server:
    """What all sessions of a process share; serves any number of threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.kind = source.kind
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Connection]] = []
        self._address: Address | None = None
        self._swept = 0
        self._numbers = itertools.count()
        self._stem = (
            f"{PREFIX}_{_host()}_{_base36(os.getpid())}_{_born(os.getpid())}_{_base36(secrets.randbelow(36**3))}"
        )
        self._watchdog = Watchdog(self.kill)

    @property
    def address(self) -> Address:
        """The running server; the first call may start it."""
        self._own()
        with self._lock:
            if self._address is None:
                self._address = self._source.address()
            return self._address

    def name(self) -> str:
        """A name that no other session has or had, for a database and its user."""
        return f"{self._stem}_{_base36(next(self._numbers))}"

    @contextlib.contextmanager
    def admin(self) -> Iterator[Connection]:
        """An administrator's connection.

        Raises:
            InfrastructureError: the server does not answer, or went away meanwhile.
        """
        from pymysql.err import Error

        generation, connection = self._take()
        try:
            yield connection
        except Error as error:
            if error.args and error.args[0] in LOST:
                _drop(connection)
                self._lost(generation)
                raise InfrastructureError(
                    f"the database server went away: {error} [backend {self.kind}]. Start another session."
                ) from error
            self._put(generation, connection)
            raise
        except BaseException:
            _drop(connection)
            raise
        self._put(generation, connection)

    def connect(self, address: Address, user: str, password: str, *, settings: str = "", **options: Any) -> Connection:
        """A new connection.

        Args:
            address: Where to.
            user: Who enters.
            password: With what.
            settings: Assignments of session variables, sent along with the character set.
            options: Further ones of `pymysql.connect`.
        """
        from agentbench_fc.tasks.db.connection import SettledConnection

        # Without this PyMySQL builds a TLS context for each connection, which takes longer than a whole session.
        plain = {} if address.tls else {"ssl_disabled": True}
        connection = SettledConnection(
            settings,
            host=address.host,
            port=address.port,
            unix_socket=address.socket,
            user=user,
            password=password,
            charset="utf8mb4",
            collation="utf8mb4_general_ci",
            connect_timeout=CONNECT_TIMEOUT_S,
            **plain,
            **options,
        )
        connection.enter(address.socket, CONNECT_TIMEOUT_S)
        return connection

    def host_of(self) -> str:
        """The host part of the users that sessions get."""
        return "localhost" if self.address.socket else "%"

    def watch(self, thread: int, seconds: float, quota: tuple[Path, int] | None = None) -> Watch:
        """Ends the statement of the server's thread when its time is up; a context manager."""
        return self._watchdog.watch(thread, seconds, quota)

    def kill(self, thread: int, *, connection: bool = False) -> None:
        """Ends what a thread of the server does, or the thread itself; one that is gone is fine."""
        from pymysql.err import Error

        with contextlib.suppress(Error, InfrastructureError), self.admin() as admin:
            admin.query(f"KILL {'CONNECTION' if connection else 'QUERY'} {int(thread)}")

    def close(self) -> None:
        """Closes all; the private server goes with its last user. Safe to repeat."""
        if self._pid != os.getpid():
            return
        self._watchdog.close()
        with self._lock:
            idle, self._idle = self._idle, []
            self._address = None
        for _, connection in idle:
            _drop(connection)
        self._source.close()

    def _own(self) -> None:
        """After a fork nothing of the parent's may be used."""
        if self._pid != os.getpid():
            idle = self._idle
            self._source.forget()
            self._reset()
            for _, connection in idle:
                connection._force_close()

    def _take(self) -> tuple[int, Connection]:
        address = self.address
        with self._lock:
            while self._idle:
                generation, connection = self._idle.pop()
                if generation == address.generation and _alive(connection):
                    return generation, connection
                _drop(connection)
        return self._enter(address)

    def _enter(self, address: Address) -> tuple[int, Connection]:
        from pymysql.constants import CLIENT
        from pymysql.err import Error

        error: Error | None = None
        for _ in range(2):
            try:
                connection = self.connect(
                    address,
                    address.user,
                    address.password,
                    client_flag=CLIENT.MULTI_STATEMENTS,  # see `run`; sessions' connections never have it
                    read_timeout=ADMIN_TIMEOUT_S,
                    write_timeout=ADMIN_TIMEOUT_S,
                    settings="lock_wait_timeout = 5, innodb_lock_wait_timeout = 5, group_concat_max_len = 1024, "
                    "time_zone = '+00:00'",
                )
            except Error as failed:
                error = failed
                if failed.args and failed.args[0] in LOST:  # a private server may be on its way back
                    address = self._source.address(after=address.generation)
                    with self._lock:
                        self._address = address
                    continue
                break
            if self._swept < address.generation:
                self._swept = address.generation
                self._sweep(connection)
            return address.generation, connection
        raise InfrastructureError(
            f"the database server does not let us in: {error} [backend {self.kind}]. Look whether it runs."
        ) from error

    def _put(self, generation: int, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < KEPT and self._pid == os.getpid():
                self._idle.append((generation, connection))
                return
        _drop(connection)

    def _lost(self, generation: int) -> None:
        with self._lock:
            if self._address is not None and self._address.generation == generation and self.kind == "mariadb":
                self._address = None
            gone, self._idle = self._idle, []
        for _, connection in gone:
            _drop(connection)

    def _sweep(self, connection: Connection) -> None:
        """Drops databases and users of processes of this host that are no more."""
        from pymysql.err import Error

        try:
            with connection.cursor() as cursor:
                cursor.execute("SHOW DATABASES")
                databases = [str(name) for (name,) in cursor.fetchall() if _is_orphan(str(name))]
                cursor.execute("SELECT User, Host FROM mysql.user")
                users = [(str(user), str(host)) for user, host in cursor.fetchall() if _is_orphan(str(user))]
            run(connection, [f"DROP DATABASE IF EXISTS `{name}`" for name in databases])
            run(connection, [f"DROP USER IF EXISTS '{user}'@'{host}'" for user, host in users])
        except Error as error:  # another process may be sweeping, or this user may not look
            logger.warning("leftovers of killed processes cannot be swept: %s [backend %s]", error, self.kind)


def run(admin: Connection, statements: Iterable[str]) -> None:
    """Runs statements of our own in as few round trips as the server takes; the first error ends it."""
    batch: list[str] = []
    size = 0
    for statement in itertools.chain(statements, [""]):
        if batch and (not statement or size + len(statement) > BATCH):
            with admin.cursor() as cursor:
                cursor.execute(";\n".join(batch))
                while cursor.nextset():
                    pass
            batch, size = [], 0
        batch.append(statement)
        size += len(statement)


def _drop(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # whatever the state of a broken connection, it is let go
        connection.close()


def _alive(connection: Connection) -> bool:
    """Whether the other side has neither hung up nor said something unasked."""
    import select

    try:
        return connection.open and not select.select([connection._sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def _is_orphan(name: str) -> bool:
    parts = name.split("_")
    if len(parts) != 6 or parts[0] != PREFIX or parts[1] != _host():
        return False
    try:
        pid = int(parts[2], 36)
    except ValueError:
        return False
    return _born(pid) != parts[3]


def _host() -> str:
    """This host and the space of its process ids: elsewhere the same id is another process."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("|".join(facts).encode()).hexdigest()[:6]


def _born(pid: int) -> str:
    """When a process began, as digits; empty where there is none. A later process with the same id has others."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else _base36(int(fields[19]) % 36**5)


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
        if number == 0:
            return digits
