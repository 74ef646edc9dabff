"""Hostile statements get a clear error in bounded time, and the next call works."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.tasks.db.backend import SqlError, Table
from agentbench_fc.tasks.db.sqlite import MAX_ROWS, SqliteDatabase

TEN = Table("t", (("a", "INT"), ("b", "TEXT")), tuple((i, "x" * 50) for i in range(40)))
CROSS = "FROM t AS a, t AS b, t AS c, t AS d, t AS e, t AS f"
BOMB = "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c)"
EVIL_TEXT = "a" * 40


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    made = SqliteDatabase([TEN])
    yield made
    made.close()


REFUSED = {
    "attach": "ATTACH DATABASE '/tmp/evil.db' AS evil",
    "pragma": "PRAGMA writable_schema = 1",
    "pragma function": "SELECT * FROM pragma_table_info('t')",
    "vacuum into": "VACUUM INTO '/tmp/evil.db'",
    "load_extension": "SELECT load_extension('/tmp/evil.so')",
    "sqlite functions": "SELECT randomblob(1000)",
    "sqlite tables": "SELECT * FROM sqlite_master",
    "sqlite tables, written": "UPDATE sqlite_schema SET sql = ''",
    "virtual table": "CREATE VIRTUAL TABLE v USING fts5(a)",
    "trigger": "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END",
    "view": "CREATE VIEW v AS SELECT a FROM t",
    "half a delete": "DELETE   t WHERE a > 30 LIMIT 1",
    "procedure": "CREATE PROCEDURE p() SELECT 1",
    "user": "CREATE USER 'x'@'%' IDENTIFIED BY 'y'",
    "grant": "GRANT ALL ON *.* TO 'x'@'%'",
    "drop database": "DROP DATABASE db",
    "transaction": "BEGIN",
    "rollback": "ROLLBACK",
    "savepoint": "RELEASE statement",
    "set": "SET SESSION max_statement_time = 0",
    "variable": "SELECT @@secure_file_priv",
    "read file": "SELECT LOAD_FILE('/etc/passwd')",
    "write file": "SELECT 1 INTO OUTFILE '/tmp/evil.txt'",
    "load data": "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
    "sleep": "SELECT SLEEP(1000000000)",
    "benchmark": "SELECT BENCHMARK(1000000000, MD5('a'))",
    "lock": "SELECT GET_LOCK('a', 1000)",
    "shutdown": "SHUTDOWN",
    "kill": "KILL 1",
    "other database": "SELECT * FROM mysql.user",
    "two statements": "SELECT 1; DROP TABLE t",
    "second hidden in a comment": "SELECT 1 /* ; */ ; /* x */ DELETE FROM t",
    "nul": "SELECT 'a\0b'",
    "long": "SELECT '" + "a" * 10_000_000 + "'",
    "deep": "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    "deep not": "SELECT " + "NOT " * 4_000 + "1",
    "many terms": "SELECT 1" + " + 1" * 4_000,
    "surrogate": "SELECT '\ud800'",
    "internal function": "SELECT my_number('1')",
    "internal function, bare": "SELECT STRICT_NUMBER('1')",
    "placeholder": "SELECT ?",
    "group_concat internals": "SELECT my_group_concat('a')",
}


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED.keys())
def test_refused_in_words(database: SqliteDatabase, sql: str) -> None:
    before = database.rows("t")
    started = time.process_time()
    with pytest.raises(SqlError) as caught:
        database.execute(sql)
    assert time.process_time() - started < 5
    assert 10 < len(str(caught.value)) < 300
    assert database.rows("t") == before
    assert database.execute("SELECT COUNT(*) FROM t").rows == ((40,),)


STOPPED = {
    "recursion without end": f"{BOMB} SELECT COUNT(*) FROM c",
    "cross join": f"SELECT COUNT(*) {CROSS}",
    "sorted cross join": f"SELECT a.b {CROSS} ORDER BY b.a, c.a",
    "slow update": f"UPDATE t SET a = (SELECT COUNT(*) {CROSS})",
    "filling insert": f"INSERT INTO t (b) SELECT REPEAT('x', 60000) {CROSS}",
}


@pytest.mark.parametrize("sql", STOPPED.values(), ids=STOPPED.keys())
def test_stopped_in_time(database: SqliteDatabase, sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(SqlError, match=r"took too long|is full|too large|too much text"):
        database.execute(sql)
    assert time.monotonic() - started < 30  # 3 s, and a machine that does other things
    assert database.execute("SELECT COUNT(*), MAX(a) FROM t").rows == ((40, 39),)


HARMLESS = {
    "hostile pattern": f"SELECT '{EVIL_TEXT}!' REGEXP '(a+)+$'",
    "nested repetition": f"SELECT '{EVIL_TEXT}' REGEXP '((a|a)*)*b'",
    "hostile like": f"SELECT '{EVIL_TEXT * 20}' LIKE '" + "%a" * 200 + "b'",
    "hostile date": f"SELECT STR_TO_DATE('{EVIL_TEXT}!', '" + "%M" * 50 + "')",
    "large power": "SELECT CAST('1e308' AS DECIMAL(65, 30)) * 0",
    "repeat": "SELECT LENGTH(REPEAT('a', 1000000000))",
    "pad": "SELECT LPAD('a', 2000000000, 'b')",
    "growing replace": "SELECT REPLACE(REPEAT('a', 50000), 'a', REPEAT('b', 50000))",
    "huge number": "SELECT '" + "9" * 5000 + "' + 0",
    "huge cast": "SELECT CAST('" + "9" * 5000 + "' AS SIGNED)",
    "percent in a name": "SELECT 1 AS `100%s %d {0}`",
    "backtick in a name": "SELECT 1 AS `a``b`",
}


@pytest.mark.parametrize("sql", HARMLESS.values(), ids=HARMLESS.keys())
def test_answered_at_once(database: SqliteDatabase, sql: str) -> None:
    started = time.process_time()
    assert len(database.execute(sql).rows) == 1
    assert time.process_time() - started < 2


def test_a_result_is_capped_while_it_is_read(database: SqliteDatabase) -> None:
    result = database.execute("SELECT a.a FROM t AS a, t AS b, t AS c, t AS d, t AS e")
    assert (len(result.rows), result.more) == (MAX_ROWS, True)
    wide = database.execute("SELECT REPEAT('x', 60000) FROM t")
    assert wide.more
    assert len(wide.rows) < 40


def test_an_agents_copy_of_the_data_is_bounded(database: SqliteDatabase) -> None:
    database.execute("CREATE TABLE big (b TEXT)")
    database.execute("INSERT INTO big SELECT REPEAT('x', 60000) FROM t")
    doubling = "INSERT INTO big SELECT b FROM big"
    database.execute(doubling)
    database.execute(doubling)
    with pytest.raises(SqlError, match="is full"):
        database.execute(doubling)
    assert len(database.rows("big") or []) == 160


def test_a_fork_and_its_parent_do_not_see_each_other(database: SqliteDatabase) -> None:
    copy = database.fork()
    database.execute("DELETE FROM t WHERE a < 10")
    copy.execute("UPDATE t SET b = 'y'")
    assert len(database.rows("t") or []) == 30
    assert copy.execute("SELECT COUNT(*) FROM t WHERE b = 'y'").rows == ((40,),)
    with pytest.raises(SqlError):
        copy.execute("ATTACH 'x' AS y")
    database.close()
    database.close()
    assert copy.execute("SELECT COUNT(*) FROM t").rows == ((40,),)
    copy.close()


PIECES = st.sampled_from(
    "SELECT FROM t WHERE a b = > ( ) , 'x' `b` 1 NULL AND NOT IN LIKE COUNT(*) GROUP BY ORDER LIMIT UNION INSERT INTO "
    "VALUES UPDATE SET DELETE CREATE TABLE DROP ALTER AS JOIN ON CASE WHEN THEN END * . ; -- ' WITH OVER IF( LEFT( "
    "INTERVAL CAST( SIGNED BETWEEN EXISTS HAVING DISTINCT REGEXP @ ? SHOW TABLES".split()
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=14).map(" ".join))
def test_whatever_is_sent_the_database_goes_on(sql: str) -> None:
    database = SqliteDatabase([Table("t", (("a", "INT"), ("b", "TEXT")), ((1, "x"), (2, None)))])
    for text in (sql, f"SELECT {sql}", f"SELECT a FROM t WHERE {sql}"):
        try:
            database.execute(text)
        except SqlError as error:
            assert str(error)  # noqa: PT017
    assert database.execute("SELECT 1").rows == ((1,),)
    database.close()
