"""The private server's life: shared, restarted, swept, gone; and what a thousand sessions leave behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.tasks.db import private
from agentbench_fc.tasks.db.backend import SqlError, Table, make_backend
from agentbench_fc.tasks.db.mysql import MysqlBackend
from agentbench_fc.tasks.db.private import Address, PrivateServer, find_server
from agentbench_fc.tasks.db.server import Existing

T = Table("t", (("a", "INT"), ("b", "TEXT")), tuple((i, "x" * 20) for i in range(25)))
STARTER = """
import sys, time
from pathlib import Path
from agentbench_fc.tasks.db.backend import Table
from agentbench_fc.tasks.db.mysql import MysqlBackend
from agentbench_fc.tasks.db.private import PrivateServer
backend = MysqlBackend(PrivateServer(Path(sys.argv[1])))
database = backend.open([Table("t", (("a", "INT"),), ((1,),))])
database.execute("SELECT 1")
print(database._name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder() -> Path:
    """A folder for a server of the test's own: short enough for a socket's name, and open to the server's user."""
    try:
        find_server()
    except InfrastructureError as error:
        from conftest import missing

        missing(str(error))
    place = private.shared_folder()
    return place.with_name(f"afc-test-{os.getpid()}-{time.monotonic_ns() % 10**6}")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def server_pid(address: Address) -> int:
    assert address.data is not None
    return int((address.data.parent / "pid").read_text())


def leftovers(backend: MysqlBackend) -> tuple[set[str], set[str]]:
    """Databases and users of sessions, as the server has them."""
    with backend.server.admin() as admin, admin.cursor() as cursor:
        cursor.execute("SHOW DATABASES LIKE 'afc\\_%'")
        databases = {str(name) for (name,) in cursor.fetchall()}
        cursor.execute("SELECT user FROM mysql.user WHERE user LIKE 'afc\\_%'")
        return databases, {str(name) for (name,) in cursor.fetchall()}


def sleeps(backend: MysqlBackend) -> bool:
    """Whether a session's `SLEEP` has begun."""
    with backend.server.admin() as admin, admin.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE user LIKE 'afc\\_%' AND info LIKE '%SLEEP(90)%'"
        )
        return bool(cursor.fetchone()[0])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_last_user_takes_the_server_and_its_files_along(folder: Path) -> None:
    first, second = PrivateServer(folder), PrivateServer(folder)
    address = first.address()
    assert second.address() == address
    pid = server_pid(address)
    assert (folder / "server").stat().st_mode & 0o777 == 0o700
    first.close()
    assert not gone(pid)
    second.close()
    second.close()
    assert gone(pid)
    assert not folder.exists()


def test_the_server_runs_without_rights_and_without_a_port(folder: Path) -> None:
    backend = MysqlBackend(PrivateServer(folder))
    address = backend.server.address
    pid = server_pid(address)
    assert Path(f"/proc/{pid}").stat().st_uid != 0 or os.geteuid() != 0
    with backend.server.admin() as admin, admin.cursor() as cursor:
        cursor.execute("SELECT @@skip_networking, @@port, @@group_concat_max_len, @@character_set_server")
        assert cursor.fetchone() == (1, 0, 1024, "utf8mb4")
        cursor.execute("SELECT user, host FROM mysql.user")
        assert set(cursor.fetchall()) == {("root", "localhost"), ("mariadb.sys", "localhost")}
    with pytest.raises(Exception, match="Access denied"):
        backend.server.connect(address, "root", "")
    assert not list((address.data.parent if address.data else folder).glob("init*"))
    backend.close()


def test_a_killed_server_ends_its_sessions_and_comes_back(folder: Path) -> None:
    backend = MysqlBackend(PrivateServer(folder), deadline_s=100.0)
    idle, used, running = (backend.open([T]) for _ in range(3))
    used.execute("SELECT 1")
    errors: list[BaseException] = []

    def sleep() -> None:
        try:
            running.execute("SELECT SLEEP(90)")
        except BaseException as error:  # handed to the test
            errors.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    assert until(lambda: sleeps(backend))
    os.kill(server_pid(backend.server.address), signal.SIGKILL)
    thread.join(timeout=60)
    assert [type(error) for error in errors] == [InfrastructureError]
    for database in (idle, used, running):
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="Start another session"):
                database.execute("SELECT 1")
    with pytest.raises(InfrastructureError):
        used.rows("t")
    fresh = backend.open([T])
    assert fresh.execute("SELECT COUNT(*) FROM t").rows == ((25,),)
    for database in (idle, used, running, fresh):
        database.close()
    assert leftovers(backend) == (set(), set())
    backend.close()
    assert not folder.exists()


def test_a_killed_owner_leaves_nothing(folder: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    name = starter.stdout.readline().strip()
    other = MysqlBackend(PrivateServer(folder))
    assert name in leftovers(other)[0]
    pid = server_pid(other.server.address)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert not gone(pid)
    third = MysqlBackend(PrivateServer(folder))  # whoever comes next sweeps
    assert leftovers(third) == (set(), set())
    third.close()
    other.close()
    assert gone(pid)
    assert not folder.exists()


def test_the_last_owner_killed_leaves_nothing(folder: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    starter.stdout.readline()
    pid = int((folder / "server" / "pid").read_text())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert until(lambda: gone(pid) and not folder.exists())


def test_a_killed_keeper_takes_the_server_along_and_the_next_start_sweeps(folder: Path) -> None:
    backend = MysqlBackend(PrivateServer(folder))
    database = backend.open([T])
    pid = server_pid(backend.server.address)
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert until(lambda: gone(pid))
    with pytest.raises(InfrastructureError):
        database.execute("SELECT 1")
    fresh = backend.open([T])
    assert fresh.execute("SELECT COUNT(*) FROM t").rows == ((25,),)
    database.close()
    fresh.close()
    backend.close()
    assert not folder.exists()


def test_a_forked_process_begins_anew(mariadb: MysqlBackend) -> None:
    database = mariadb.open([T])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = b"failed"
        try:
            own = mariadb.open([T])
            told = str(own.execute("SELECT COUNT(*) FROM t").rows).encode()
            own.close()
        finally:
            os.write(write, told)
            os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"((25,),)"
    os.close(read)
    os.waitpid(child, 0)
    assert database.execute("SELECT COUNT(*) FROM t").rows == ((25,),)
    database.close()


def one_session(backend: MysqlBackend) -> None:
    database = backend.open([T])
    database.execute("SELECT COUNT(*) FROM t")
    database.execute("UPDATE t SET b = 'y' WHERE a < 5")
    with pytest.raises(SqlError):
        database.execute("SELECT nope")
    assert database.digest([T]) is not None
    database.close()
    database.close()


def check_nothing_is_left(backend: MysqlBackend, sessions: int) -> None:
    """The server is the test's own: on a shared one are the sessions of other processes too."""
    for _ in range(10):
        one_session(backend)
    address = backend.server.address
    pid = server_pid(address)
    assert address.data is not None

    def state() -> tuple[int, int, int, int]:
        files = sum(len(names) for _, _, names in os.walk(address.data or "."))
        with backend.server.admin() as admin, admin.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE user LIKE 'afc\\_%'")
            theirs = int(cursor.fetchone()[0])
        return len(os.listdir("/proc/self/fd")), threading.active_count(), files, theirs

    before = state()
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: one_session(backend), range(sessions)):
            pass
    assert leftovers(backend) == (set(), set())
    assert until(lambda: state()[1:] == (*before[1:3], 0)), (before, state())
    assert state()[0] <= before[0] + 16  # administrators' connections that are kept
    assert not gone(pid)


def test_a_hundred_sessions_leave_nothing(folder: Path) -> None:
    with contextlib.closing(MysqlBackend(PrivateServer(folder))) as backend:
        check_nothing_is_left(backend, 100)


@pytest.mark.full
def test_a_thousand_sessions_leave_nothing(folder: Path) -> None:
    def memory() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    with contextlib.closing(MysqlBackend(PrivateServer(folder))) as backend:
        check_nothing_is_left(backend, 200)  # what grows once has grown
        before = memory()
        check_nothing_is_left(backend, 1_000)
        assert memory() - before < 5


def test_a_session_can_be_closed_while_its_statement_runs(
    mariadb: MysqlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb, "_deadline_s", 100.0)  # the close ends the statement, not its time
    database = mariadb.open([T])
    errors: list[BaseException] = []

    def sleep() -> None:
        try:
            database.execute("SELECT SLEEP(90)")
        except BaseException as error:  # handed to the test
            errors.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    assert until(lambda: sleeps(mariadb))
    database.close()
    thread.join(timeout=60)
    assert not thread.is_alive(), "of the 90 s that it would sleep"
    assert [type(error) for error in errors] == [InfrastructureError]
    with pytest.raises(InfrastructureError, match="closed"):
        database.execute("SELECT 1")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(InfrastructureError, match="apt-get install -y mariadb-server-core"):
        make_backend("mariadb")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CallerError, match=r"pip install 'agentbench-fc\[db\]'"):
        make_backend("mariadb")


def test_a_server_that_cannot_start_says_why(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "mariadbd"
    broken.write_text("#!/bin/sh\necho this one is broken\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(private, "find_server", lambda: (str(broken), find_server()[1]))
    with pytest.raises(InfrastructureError, match="cannot be started"):
        PrivateServer(folder).address()
    assert not folder.exists()


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.symlink_to("/etc")
    try:
        with pytest.raises(InfrastructureError, match="another user"):
            PrivateServer(folder).address(timeout_s=2)
    finally:
        folder.unlink()


@pytest.mark.parametrize(
    "dsn",
    ["", "u:secret@host", "http://u:secret@host", "mysql://host", "mysql://u:secret@host:port", "mysql://u:secret@"],
)
def test_a_wrong_address_is_refused_without_being_repeated(dsn: str) -> None:
    with pytest.raises(CallerError, match="Write mysql://") as caught:
        Existing(dsn)
    assert "secret" not in str(caught.value)


def test_an_address_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", "from outside")
    assert Existing("mysql://a%40b:p%3Aq@far.example:3307").address() == Address(
        user="a@b", password="p:q", host="far.example", port=3307, tls=True, generation=1
    )
    near = Existing("mysql://root@localhost/?socket=/run/x.sock").address()
    assert (near.socket, near.password, near.tls) == ("/run/x.sock", "from outside", False)


def test_a_dead_address_is_an_infrastructure_error(tmp_path: Path) -> None:
    pytest.importorskip("pymysql")
    backend = MysqlBackend(Existing(f"mysql://root@localhost/?socket={tmp_path}/none"))
    with pytest.raises(InfrastructureError, match="does not let us in"):
        backend.open([T])
    backend.close()


def test_an_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTBENCH_FC_DSN", raising=False)
    with pytest.raises(CallerError, match="AGENTBENCH_FC_DSN"):
        make_backend("dsn")
    monkeypatch.setenv("AGENTBENCH_FC_DSN", "mysql://root@127.0.0.1")
    backend = make_backend("dsn")
    assert backend.name == "dsn"
    backend.close()
