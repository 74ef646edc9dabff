"""How a statement is split before a server sees it: strings and comments hide nothing, and hold nothing up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.tasks.db.backend import SqlError
from agentbench_fc.tasks.db.statements import check, database_used, read


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT 1;",
        " SELECT 1 ; ; -- end",
        "SELECT ';' , \"a;b\", `c;d` /* ; */ -- ;\n # ;\n",
        "SELECT 'it''s; \\'; ok'",
        "SELECT 1 -- a; b",
        "SELECT 5--1",
        "(SELECT 1) UNION (SELECT 2)",
        "SELECT 'é', `日本`",
    ],
)
def test_one_statement(sql: str) -> None:
    statement = read(sql)
    check(statement, transactions=False)
    kept = statement.named("x")
    assert "".join(token.text for token in read(kept).tokens) == "".join(token.text for token in statement.tokens)
    assert sql.startswith(kept.rstrip()[:8])


@pytest.mark.parametrize("sql", ["SELECT 1; SELECT 2", "SELECT 1;--x\nSELECT 2", "SELECT '\\\\'; SELECT 2", ";a;b"])
def test_several_statements(sql: str) -> None:
    with pytest.raises(SqlError, match="2 statements in one call. Send one statement per call"):
        read(sql)


@pytest.mark.parametrize(
    ("sql", "real"),
    [
        ("SELECT * FROM db.t", "SELECT * FROM `x_1`.t"),
        ("SELECT * FROM `db` . `t`", "SELECT * FROM `x_1` . `t`"),
        ("SHOW TABLES FROM db", "SHOW TABLES FROM `x_1`"),
        ("SHOW COLUMNS FROM t IN `db`", "SHOW COLUMNS FROM t IN `x_1`"),
        ("SELECT db.a FROM t AS db", "SELECT db.a FROM t AS db"),
        ("SELECT 'db', \"db.t\"", "SELECT 'db', \"db.t\""),
        (
            "SELECT 1 FROM information_schema.tables WHERE table_schema = 'db' /* db */",
            "SELECT 1 FROM information_schema.tables WHERE table_schema = 'x_1' /* db */",
        ),
        ("SELECT mydb.a, db2.b FROM mydb, db2", "SELECT mydb.a, db2.b FROM mydb, db2"),
    ],
)
def test_the_database_has_another_name_on_the_server(sql: str, real: str) -> None:
    assert read(sql).named("x_1") == real


@pytest.mark.parametrize(
    "sql",
    [
        "SET @a = 1",
        "SET @a := 1, @b = @a + 1",
        "SET sql_mode = ''",
        "SET SESSION group_concat_max_len = 5000",
        "SET @@session.time_zone = '+01:00'",
        "SET NAMES utf8mb4",
        "SELECT get_lock FROM t",
        "SELECT 'GET_LOCK(1)'",
        "CREATE TABLE `schema` (`database` TEXT)",
        "DROP TABLE database_copy",
        "SELECT @@version",
    ],
)
def test_harmless_statements_pass(sql: str) -> None:
    check(read(sql), transactions=False)


def test_transactions_pass_where_agentbench_has_them() -> None:
    for sql in ("BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK"):
        check(read(sql), transactions=True)
        with pytest.raises(SqlError, match="committed at once"):
            check(read(sql), transactions=False)


def test_use_is_recognized() -> None:
    assert [database_used(read(sql)) for sql in ("USE `a``b`", "use db;", "SELECT 1")] == ["a`b", "db", None]


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT a FROM t", False),
        ("UPDATE t SET a = 1", False),
        ("SET @a = 1", True),
        ("SELECT @a := 1", True),
        ("CREATE TEMPORARY TABLE x (a INT)", True),
        ("SELECT RAND()", True),
        ("LOCK TABLES t READ", True),
        ("SELECT 'RAND'", False),
    ],
)
def test_what_a_connection_remembers(sql: str, state: bool) -> None:
    assert read(sql).leaves_state is state


@given(st.text(alphabet="abS'\"`;-#/*\\ \n@.(),1é", max_size=40))
def test_any_text_is_split_or_refused(sql: str) -> None:
    try:
        statement = read(sql)
    except SqlError as error:
        assert str(error)  # noqa: PT017
        return
    assert statement.tokens
    again = read(statement.named("x"))
    assert again.tokens == statement.tokens
