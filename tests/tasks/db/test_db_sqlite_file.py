"""AgentBench's samples on SQLite files: read in place, changed in a copy, and nothing else in reach."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.episode import Task
from agentbench_fc.errors import TaskError
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.tasks.db.backend import SqlError
from agentbench_fc.tasks.db.sqlite_file import FileDatabase


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "databases" / "zoo" / "zoo.sqlite"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE animals (name TEXT, legs INTEGER)")
        connection.executemany("INSERT INTO animals VALUES (?, ?)", [("cat", 4), ("hen", 2), ("eel", 0)])
    connection.close()
    return path


def sample(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "description": "How many have legs?",
        "label": ["2"],
        "type": ["counting"],
        "create": {"database": "databases/zoo", "init": "zoo.sqlite"},
        "user_sqlite": True,
        "add_description": "animals(name, legs)",
        "evidence": "",
        "sql": {"query": "SELECT COUNT(*) FROM animals WHERE legs > 0"},
    }
    return made | changes


def load(folder: Path, *samples: dict[str, Any], **options: Any) -> Task:
    (folder / "bird.jsonl").write_text("\n".join(json.dumps(each) for each in samples))
    return load_task("db", data=folder / "bird.jsonl", **options)


@pytest.mark.parametrize("profile", ["default", "agentbench"])
def test_a_question_is_played_on_the_file(tmp_path: Path, file: Path, profile: str) -> None:
    before = file.read_bytes()
    task = load(tmp_path, sample(), profile=profile)
    session = play(task, task.samples("bird")[0], make_player("expert", task))
    assert session.raw_reward == 1.0
    episode = task.open(task.samples("bird")[0], 0)
    shown = episode.call("execute_sql", {"query": "SELECT name FROM animals WHERE legs = 4"}).content
    assert shown == ("name\ncat" if profile == "default" else "[('cat',)]")
    wrong = episode.call("execute_sql", {"query": "SELECT nope FROM animals"}).content
    assert wrong == ("Error: " if profile == "default" else "SQLite execution error: ") + "no such column: nope"
    reply = episode.call("commit_final_answer", {"answers": ["2"]})
    assert (reply.reward, reply.metrics["backend"]) == (1.0, "sqlite file")
    episode.close()
    assert file.read_bytes() == before


def test_a_change_is_graded_in_a_copy(tmp_path: Path, file: Path) -> None:
    before = file.read_bytes()
    gold = "UPDATE animals SET legs = 8 WHERE name = 'eel'"
    change = sample(type=["UPDATE"], sql={"query": gold}, label=[""])
    for profile, reward in (("default", 1.0), ("agentbench", 0.0)):  # AgentBench takes all of these as wrong
        task = load(tmp_path, change, profile=profile)
        episode = task.open(task.samples("bird")[0], 0)
        fork = episode.fork()
        assert fork is not None
        episode.call("execute_sql", {"query": gold})
        reply = episode.call("commit_final_answer", {"answers": []})
        assert (reply.reward, reply.metrics["match"]) == (reply.metrics[f"match{'_agentbench' * (reward == 0)}"], 1)
        assert reply.reward == reward
        untouched = fork.call("commit_final_answer", {"answers": []})
        assert (untouched.reward, untouched.metrics["difference"]) == (0.0, "missing row ('eel', 8.0)")
        episode.close()
        fork.close()
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE animals SET legs = 1",
        "CREATE TABLE x (a)",
        "ATTACH DATABASE '/tmp/evil.db' AS evil",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO '/tmp/evil.db'",
        "SELECT load_extension('/tmp/evil.so')",
        "SELECT 1; SELECT 2",
        "SELECT zeroblob(1000000000)",
        "SELECT 'a\0b'",
        "SELECT '\ud800'",
        "BEGIN",
        "",
        "no SQL",
    ],
)
def test_what_is_refused(file: Path, sql: str) -> None:
    database = FileDatabase(file, changes=False)
    if sql:
        with pytest.raises(SqlError):
            database.execute(sql)
    assert database.execute("SELECT COUNT(*) FROM animals").rows == ((3,),)
    assert len(database.execute("PRAGMA table_info(animals)").rows) == 2
    database.close()
    database.close()


def test_an_endless_statement_is_ended(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_fc.tasks.db.sqlite_file.MAX_SECONDS", 0.3)
    database = FileDatabase(file, changes=False)
    started = time.monotonic()
    with pytest.raises(SqlError, match="was stopped"):
        database.execute("WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c")
    assert time.monotonic() - started < 5
    monkeypatch.undo()
    many = database.execute(
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c LIMIT 5000) SELECT n FROM c"
    )
    assert (len(many.rows), many.more) == (1_000, True)
    database.close()


def test_a_missing_file_is_the_samples_fault(tmp_path: Path) -> None:
    task = load(tmp_path, sample())
    with pytest.raises(TaskError, match=r"no SQLite database.*Put the sample's file there"):
        task.open(task.samples("bird")[0], 0)
    task = load(tmp_path, sample(create={"database": "../..", "init": "etc/passwd"}))
    with pytest.raises(TaskError, match="leads out of the data folder"):
        task.samples("bird")
