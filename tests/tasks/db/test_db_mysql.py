"""The task on a real server: experts win, forks are copies, replays agree, and every result says where it was made."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentbench_fc.episode import Task
from agentbench_fc.errors import InfrastructureError, TaskError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
from agentbench_fc.tasks import db
from agentbench_fc.tasks.db.backend import SqlError, Table
from agentbench_fc.tasks.db.mysql import MysqlBackend

T = Table("a`b %s", (("x%", "INT"), ("text", "TEXT")), ((1, 'it\'s \\ "q" %s'), (None, None), (2, "日本 é")))


@pytest.fixture(params=["mariadb", "dsn"])
def server(request: pytest.FixtureRequest) -> MysqlBackend:
    backend: MysqlBackend = request.getfixturevalue("mariadb" if request.param == "mariadb" else "existing")
    return backend


@pytest.fixture
def task(mariadb: MysqlBackend) -> Iterator[Task]:
    made = load_task("db", backend="mariadb")
    yield made
    made.close()


def call(name: str, **arguments: Any) -> list[Any]:
    return [assistant(None, [ToolCall("c1", name, json.dumps(arguments))])]


def test_the_expert_wins_on_mariadb(task: Task) -> None:
    player = make_player("expert", task)
    sessions = [play(task, sample, player) for sample in task.samples("dev")[:120]]
    assert sum(session.raw_reward == 1.0 for session in sessions) >= 119
    noop = make_player("noop", task)
    assert sum(play(task, sample, noop).raw_reward or 0 for sample in task.samples("dev")[:60]) == 0


def test_a_result_says_where_it_was_made(task: Task, dsn: str) -> None:
    assert task.backend == "mariadb"  # type: ignore[attr-defined]
    other = load_task("db", backend="dsn", dsn=dsn)
    for made, name in ((task, "mariadb"), (other, "dsn"), (load_task("db"), "sqlite")):
        session = Session(made, made.samples("dev")[0])
        session.start()
        turn = session.interact(call("commit_final_answer", answers=["?"]))
        assert turn.metrics["backend"] == name
        made.close()


def test_sqlite_says_once_that_it_is_an_approximation(caplog: pytest.LogCaptureFixture) -> None:
    db._warn_of_sqlite.cache_clear()
    with caplog.at_level("WARNING"):
        load_task("db").close()
        task = load_task("db")
        for sample in task.samples("dev")[:3]:
            task.open(sample, 0).close()
    assert [record.message for record in caplog.records if "approximation" in record.message] == [
        caplog.records[0].message
    ]


def test_odd_names_and_values_survive(server: MysqlBackend) -> None:
    database = server.open([T])
    assert database.rows(T.name) == list(T.rows)
    assert database.execute("SELECT `x%`, text FROM `a``b %s` WHERE text LIKE '%s'").rows == (T.rows[0],)
    assert database.execute("SELECT '%s', '100%' FROM db.`a``b %s` LIMIT 1").rows == (("%s", "100%"),)
    database.close()


def test_names_of_the_server_are_not_shown(server: MysqlBackend) -> None:
    database = server.open([T])
    shown = database.execute("SELECT DATABASE(), table_schema FROM information_schema.tables WHERE table_schema = 'db'")
    assert shown.rows == (("db", "db"),)
    assert database.execute("SHOW TABLES").columns == ("Tables_in_db",)
    with pytest.raises(SqlError, match=r"Table 'db\.nope' doesn't exist"):
        database.execute("SELECT * FROM nope")
    database.close()


def test_a_repeat_is_the_same_episode(task: Task) -> None:
    talks = []
    for _ in range(2):
        session = Session(task, task.samples("dev")[2], seed=5)
        session.start()
        query = "SELECT RAND(), NOW(), SYSDATE(), CURDATE(), DATABASE(), CURRENT_USER(), UNIX_TIMESTAMP()"
        talks.append(session.interact(call("execute_sql", query=query)).messages)
        session.close()
    assert talks[0] == talks[1]
    assert "2026-01-01 12:00:00" in str(talks[0])


def test_a_fork_is_a_copy(server: MysqlBackend) -> None:
    database = server.open([T])
    database.execute("CREATE TABLE n (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)")
    database.execute("INSERT INTO n (v) VALUES ('a'), ('b'), ('c')")
    database.execute("DELETE FROM n WHERE id = 3")
    copy = database.fork()
    assert copy is not None
    database.execute("DELETE FROM n")
    for each, count in ((database, 0), (copy, 2)):
        each.execute("INSERT INTO n (v) VALUES ('d')")
        assert each.execute("SELECT COUNT(*), MAX(id) FROM n").rows == ((count + 1, 4),)
    assert copy.rows(T.name) == list(T.rows)
    copy.execute("DROP TABLE n")
    assert database.rows("n") == [(4, "d")]
    database.close()
    assert copy.execute("SELECT COUNT(*) FROM `a``b %s`").rows == ((3,),)
    copy.close()


@pytest.mark.parametrize(
    "statement",
    ["SET @a = 1", "CREATE TEMPORARY TABLE x (a INT)", "SELECT RAND()", "CREATE VIEW v AS SELECT 1 AS a"],
)
def test_what_cannot_be_copied_is_left_to_replay(mariadb: MysqlBackend, statement: str) -> None:
    database = mariadb.open([Table("t", (("a", "INT"),), ((1,),))])
    database.execute(statement)
    assert database.fork() is None
    database.close()


def test_an_episode_forks_by_replay_then(task: Task) -> None:
    session = Session(task, task.samples("dev")[0])
    session.start()
    session.interact(call("execute_sql", query="SET @a = 41"))
    fork = session.fork()
    for each in (session, fork):
        turn = each.interact(call("execute_sql", query="SELECT @a + 1 AS b"))
        assert turn.messages[0]["content"] == "b\n42"
        each.close()


def test_a_connection_that_was_cut_is_made_again(mariadb: MysqlBackend) -> None:
    database = mariadb.open([Table("t", (("a", "INT"),), ((1,),))])
    database.execute("INSERT INTO t VALUES (2)")
    mariadb.server.kill(database._connection.thread_id(), connection=True)  # type: ignore[union-attr]
    with pytest.raises(SqlError, match="a new one was made"):
        database.execute("SELECT 1")
    assert database.execute("SELECT COUNT(*) FROM t").rows == ((2,),)
    database.close()


def test_a_table_that_mysql_refuses_is_the_samples_fault(server: MysqlBackend) -> None:
    with pytest.raises(TaskError, match="a table cannot be made: Incorrect column name"):
        server.open([Table("t", (("", "TEXT"),), ())])


def test_a_server_that_goes_away_ends_the_session_as_a_fault_of_the_environment(task: Task) -> None:
    session = Session(task, task.samples("dev")[0])
    session.start()
    session.interact(call("execute_sql", query="SELECT 1"))

    def broken(*_: object, **__: object) -> None:
        raise InfrastructureError("the database server went away [test]. Start another session.")

    session._episode._database.execute = broken  # type: ignore[union-attr, attr-defined, method-assign]
    turn = session.interact(call("execute_sql", query="SELECT 1"))
    assert (turn.finish, turn.status, turn.reward) == (True, "task error", None)
    assert turn.metrics["fault"] == "environment"


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "DELETE"])
def test_changes_are_graded_in_a_fresh_database(task: Task, kind: str) -> None:
    sample = next(s for s in task.samples("dev") if s.data["kind"] == kind and s.data["level"] != "hard")
    table = sample.data["tables"][0]["name"]
    for extra, reward in ((None, 1.0), (f"DELETE FROM {table} LIMIT 1", 0.0), (f"DROP TABLE {table}", 0.0)):
        session = Session(task, sample)
        session.start()
        session.interact(call("execute_sql", query=sample.data["plan"][0]))
        if extra:
            session.interact(call("execute_sql", query=extra))
        turn = session.interact(call("commit_final_answer", answers=[]))
        assert turn.reward == reward
        assert {"match": int(reward), "match_agentbench": int(reward)}.items() <= turn.metrics.items()
