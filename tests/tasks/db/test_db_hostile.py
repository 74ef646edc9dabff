"""Hostile statements on every backend: a clear error in time; the session, its neighbour and the grader go on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbench_fc.tasks.db.backend import Backend, Database, SqlError, SqliteBackend, Table
from agentbench_fc.tasks.db.mysql import MysqlBackend

T = Table("t", (("a", "INT"), ("b", "TEXT")), tuple((i, "x" * 50) for i in range(40)))
CROSS = "FROM t AS a, t AS b, t AS c, t AS d, t AS e, t AS f"

REFUSED = {
    "read a file": "SELECT LOAD_FILE('/etc/passwd')",
    "write a file": "SELECT 1 INTO OUTFILE '/tmp/evil.txt'",
    "write a blob": "SELECT 1 INTO DUMPFILE '/tmp/evil.txt'",
    "load a file": "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
    "load a local file": "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t",
    "place a file": "CREATE TABLE x (a INT) DATA DIRECTORY = '/tmp'",
    "table in a file": "CREATE TABLE x (a INT) ENGINE = CONNECT TABLE_TYPE = CSV FILE_NAME = '/etc/passwd'",
    "table elsewhere": "CREATE TABLE x (a INT) ENGINE = FEDERATED CONNECTION = 'mysql://root@localhost/mysql/user'",
    "merge of another's table": "CREATE TABLE x (a INT) ENGINE = MERGE UNION = (mysql.user)",
    "users": "SELECT * FROM mysql.user",
    "passwords": "SELECT * FROM mysql.global_priv",
    "threads": "SELECT * FROM performance_schema.threads",
    "move to another database": "RENAME TABLE t TO mysql.t",
    "write to another database": "CREATE TABLE mysql.t (a INT)",
    "use another database": "USE mysql",
    "make a database": "CREATE DATABASE evil",
    "drop the database": "DROP DATABASE db",
    "drop the database, hidden": "DROP /* x */ SCHEMA IF EXISTS `db`",
    "change the database": "ALTER DATABASE db CHARACTER SET latin1",
    "replace the database": "CREATE OR REPLACE DATABASE db",
    "global variable": "SET GLOBAL max_connections = 1",
    "global variable, other form": "SET @@global.max_connections = 1",
    "lift the time limit": "SET SESSION max_statement_time = 0",
    "lift the time limit once": "SET STATEMENT max_statement_time = 0 FOR SELECT SLEEP(1e9)",
    "lift the memory limit": "SET sql_mode = '', max_session_mem_used = 18446744073709551615",
    "change how quotes end": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "change the encoding": "SET NAMES latin1",
    "read-only for ever": "SET SESSION TRANSACTION READ ONLY",
    "own password": "SET PASSWORD = PASSWORD('x')",
    "own account": "ALTER USER CURRENT_USER() IDENTIFIED BY 'x'",
    "user": "CREATE USER 'x'@'%' IDENTIFIED BY 'y'",
    "grant": "GRANT ALL ON *.* TO 'x'@'%'",
    "role": "SET ROLE root",
    "event": "CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO DELETE FROM t",
    "procedure": "CREATE PROCEDURE p() SELECT 1",
    "function": "CREATE FUNCTION f() RETURNS INT RETURN 1",
    "library": "CREATE FUNCTION f RETURNS STRING SONAME 'x.so'",
    "plugin": "INSTALL PLUGIN x SONAME 'x.so'",
    "trigger": "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW DELETE FROM t",
    "shutdown": "SHUTDOWN",
    "flush": "FLUSH TABLES WITH READ LOCK",
    "backup lock": "BACKUP LOCK t",
    "replication": "CHANGE MASTER TO MASTER_HOST = 'x'",
    "kill": "KILL 1",
    "kill a query": "KILL QUERY 1",
    "shared lock": "SELECT GET_LOCK('a', 1000)",
    "shared lock, quoted": "DO `get_lock` ('a', 1000)",
    "prepared transaction": "XA START 'a'",
    "transaction": "BEGIN",
    "no commit": "SET @@session.autocommit = 0",
    "handler": "HANDLER t OPEN",
    "prepared": "PREPARE s FROM 'DROP DATABASE db'",
    "from a text": "EXECUTE IMMEDIATE 'DROP DATABASE db'",
    "two statements": "SELECT 1; DROP TABLE t",
    "two, hidden in comments": "SELECT 1 /* ; */ ; -- x\n DELETE FROM t",
    "comment that is run": "SELECT 1 /*!50000 INTO OUTFILE '/tmp/evil.txt' */",
    "comment that MariaDB runs": "/*M! DROP DATABASE db */",
    "compound": "BEGIN NOT ATOMIC DROP TABLE t; END",
    "nul": "SELECT 'a\0b'",
    "surrogate": "SELECT '\ud800'",
    "open quote": "SELECT 'a FROM t",
    "open comment": "SELECT 1 /* FROM t",
    "ten megabytes": "SELECT '" + "a" * 10_000_000 + "'",
    "nothing": " ; -- nothing",
}
INERT_IN_SQLITE = {"table in a file", "table elsewhere", "comment that is run"}
"""There an engine's name and such comments are read over: nothing of them can happen."""
LATE = {
    "sleep": "SELECT SLEEP(1e9)",
    "do sleep": "DO SLEEP(1000)",
    "benchmark": "SELECT BENCHMARK(1000000000, MD5('a'))",
    "cross join": f"SELECT COUNT(*) {CROSS}",
    "sorted cross join": f"SELECT a.b {CROSS} ORDER BY b.a, c.a",
    "slow update": f"UPDATE t SET a = (SELECT COUNT(*) FROM (SELECT 1 {CROSS}) AS x)",
    "filling insert": f"INSERT INTO t (b) SELECT REPEAT('x', 60000) {CROSS}",
}


@pytest.fixture
def pair(backend: Backend) -> Iterator[tuple[Database, Database]]:
    attacked, neighbour = backend.open([T]), backend.open([T])
    yield attacked, neighbour
    attacked.close()
    neighbour.close()


def all_goes_on(attacked: Database, neighbour: Database) -> None:
    for database in (attacked, neighbour):
        assert database.execute("SELECT COUNT(*), MAX(a), MIN(b) FROM t").rows == ((40, 39, "x" * 50),)
        assert database.rows("t") == list(T.rows)
        assert [row[0] for row in database.execute("SHOW TABLES").rows] == ["t"]


def test_each_refused_statement_has_a_clear_error(pair: tuple[Database, Database], backend: Backend) -> None:
    attacked, neighbour = pair
    for name, sql in REFUSED.items():
        if backend.name == "sqlite" and name in INERT_IN_SQLITE:
            continue
        started = time.monotonic()
        with pytest.raises(SqlError) as caught:
            attacked.execute(sql)
        assert time.monotonic() - started < 5, name
        assert 10 < len(str(caught.value)) < 400, name
        assert "afc_" not in str(caught.value), name
        all_goes_on(attacked, neighbour)


def test_each_endless_statement_is_ended_in_time(pair: tuple[Database, Database]) -> None:
    attacked, neighbour = pair
    for name, sql in LATE.items():
        started = time.monotonic()
        with pytest.raises(
            SqlError, match=r"stopped|full|too large|too much|too long|available|cannot be run|not exist here"
        ):
            attacked.execute(sql)
        assert time.monotonic() - started < 10, name
        all_goes_on(attacked, neighbour)


def test_what_sqlite_reads_over_does_nothing() -> None:
    database = SqliteBackend().open([T])
    for name in sorted(INERT_IN_SQLITE):
        database.execute(REFUSED[name])
        assert database.rows("x") in (None, [])
        database.execute("DROP TABLE IF EXISTS x")
    assert not Path("/tmp/evil.txt").exists()
    database.close()


def test_a_large_result_is_cut_while_it_is_fetched(mariadb: MysqlBackend) -> None:
    database = mariadb.open([T])
    started = time.monotonic()
    result = database.execute("SELECT a.a FROM t AS a, t AS b, t AS c, t AS d, t AS e")
    assert (len(result.rows), result.more) == (1_000, True)
    wide = database.execute("SELECT REPEAT('x', 60000) FROM t")
    assert wide.more
    assert len(wide.rows) < 40
    assert time.monotonic() - started < 5
    assert database.execute("SELECT 1 + 1").rows == ((2,),)
    database.close()


def test_a_session_cannot_fill_the_disk(mariadb: MysqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_fc.tasks.db.mysql.QUOTA", 4 * 2**20)
    database = mariadb.open([T])
    database.execute("CREATE TABLE big (b TEXT)")
    with pytest.raises(SqlError, match="is full"):  # noqa: PT012  how many fit is not the point
        for _ in range(20):
            database.execute("INSERT INTO big SELECT REPEAT('x', 20000) FROM t")
    assert database.execute("SELECT COUNT(*) FROM t").rows == ((40,),)
    database.execute("DROP TABLE big")
    database.execute("CREATE TABLE small (a INT)")
    database.close()


def test_a_view_in_a_tables_place_is_no_table(mariadb: MysqlBackend) -> None:
    database = mariadb.open([T])
    database.execute("DROP TABLE t")
    with pytest.raises(SqlError, match="denied"):
        database.execute("CREATE SQL SECURITY INVOKER VIEW t AS SELECT user AS a, host AS b FROM mysql.global_priv")
    database.execute("CREATE SQL SECURITY INVOKER VIEW t AS SELECT SLEEP(1000) AS a, USER() AS b")
    assert database.rows("t") is None
    assert database.digest([T]) is None
    database.close()


def test_locks_of_a_session_do_not_stop_the_grader(mariadb: MysqlBackend) -> None:
    database = mariadb.open([T])
    database.execute("LOCK TABLES t WRITE")
    started = time.monotonic()
    assert database.rows("t") == list(T.rows)
    database.execute("LOCK TABLES t WRITE")
    database.close()
    assert time.monotonic() - started < 4


def test_sessions_cannot_see_each_other(pair: tuple[Database, Database], backend: Backend) -> None:
    first, second = pair
    names = {str(row[0]) for row in first.execute("SHOW DATABASES").rows}
    assert names <= {"db", "information_schema"}
    name = getattr(second, "_name", "db2")
    for sql in (f"SELECT * FROM {name}.t", f"DROP TABLE {name}.t", f"INSERT INTO {name}.t VALUES (1, 'x')"):
        with pytest.raises(SqlError):
            first.execute(sql)
    assert second.rows("t") == list(T.rows)
