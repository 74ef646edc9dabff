"""The task through sessions: players, profiles, options, forks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import CallerError, NotFound, TaskError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
from agentbench_fc.tasks.db.generate import make_sample

LEVELS = ("easy", "medium", "hard")


def call(name: str, **arguments: Any) -> list[Any]:
    return [assistant(None, [ToolCall("c1", name, json.dumps(arguments))])]


def session_of(task: Task, sample: Sample) -> Session:
    session = Session(task, sample)
    session.start()
    return session


def first_of_train(level: str) -> list[Sample]:
    """The first samples of a level, without making the 4,000 of the split."""
    made = [make_sample("train", n) for n in range(100)]
    return [Sample(f"db/train/{n}", n, "train", data) for n, data in enumerate(made) if data["level"] == level]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_wins(split: str, level: str) -> None:
    task = load_task("db", level=level)
    samples = first_of_train(level) if split == "train" else task.samples(split)[:60]
    player = make_player("expert", task)
    sessions = [play(task, sample, player) for sample in samples]
    assert sum(session.raw_reward == 1.0 for session in sessions) >= 0.99 * len(samples)
    assert max(session.turn for session in sessions) <= 7


@pytest.mark.parametrize("split", ["dev", "test"])
def test_doing_nothing_earns_nothing(split: str) -> None:
    task = load_task("db")
    player = make_player("noop", task)
    assert sum(play(task, sample, player).raw_reward or 0 for sample in task.samples(split)[::4]) == 0


def test_the_expert_wins_in_agentbenchs_profile() -> None:
    task = load_task("db", profile="agentbench")
    player = make_player("expert", task)
    assert all(play(task, sample, player).raw_reward == 1.0 for sample in task.samples("test")[:100])


def test_a_repeat_is_the_same_episode() -> None:
    task = load_task("db", prompt="compact")
    sample = task.samples("dev")[2]
    talks = []
    for _ in range(2):
        session = Session(task, sample, seed=5)
        turns = [session.start(), session.interact(call("execute_sql", query="SELECT RAND(), NOW()"))]
        talks.append([turn.messages for turn in turns])
    assert talks[0] == talks[1]


def find(task: Task, wanted: Callable[[Sample], bool]) -> Sample:
    return next(sample for sample in task.samples("dev") if wanted(sample))


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "DELETE"])
def test_a_change_is_graded_by_the_rows_it_leaves(kind: str) -> None:
    task = load_task("db")
    sample = find(task, lambda s: s.data["kind"] == kind and s.data["level"] != "hard")
    table = sample.data["tables"][0]["name"]
    session = session_of(task, sample)
    session.interact(call("execute_sql", query=sample.data["plan"][0]))
    session.interact(call("execute_sql", query="CREATE TABLE scratch (a INT)"))
    right = session.interact(call("commit_final_answer", answers=["anything"]))
    assert (right.reward, right.success, right.metrics["match"], right.metrics["match_agentbench"]) == (1.0, True, 1, 1)
    session = session_of(task, sample)
    session.interact(call("execute_sql", query=sample.data["plan"][0]))
    session.interact(call("execute_sql", query=f"DELETE FROM {table} LIMIT 1"))
    wrong = session.interact(call("commit_final_answer", answers=[]))
    assert (wrong.reward, wrong.metrics["match"], wrong.metrics["match_agentbench"]) == (0.0, 0, 0)
    assert wrong.metrics["difference"].startswith("missing row")
    assert wrong.metrics["difference"] not in str(wrong.messages)
    session = session_of(task, sample)
    session.interact(call("execute_sql", query=f"DROP TABLE {table}"))
    gone = session.interact(call("commit_final_answer", answers=[]))
    assert (gone.reward, gone.metrics["difference"]) == (0.0, "the table is missing")


def test_an_answer_is_graded_and_counted() -> None:
    task = load_task("db", level="easy")
    sample = find(task, lambda s: s.data["kind"] == "counting")
    session = session_of(task, sample)
    session.interact(call("execute_sql", query="SELECT nope"))
    turn = session.interact(call("commit_final_answer", answers=[str(sample.data["gold"][0])]))
    assert (turn.finish, turn.reward) == (True, 1.0)
    expected = {"kind": "counting", "level": "easy", "backend": "sqlite", "statements": 1, "sql_errors": 1, "match": 1}
    assert expected.items() <= turn.metrics.items()
    turn = session_of(task, sample).interact(call("commit_final_answer", answers=["no", "idea"]))
    assert (turn.finish, turn.reward, turn.success) == (True, 0.0, False)


def test_errors_are_tool_messages_and_the_session_lives() -> None:
    task = load_task("db", prompt="compact")
    session = session_of(task, task.samples("dev")[0])
    for query in ("SELECT 1; SELECT 2", "a\0b", "ATTACH 'x' AS y", "SELECT ((", ""):
        turn = session.interact(call("execute_sql", query=query))
        assert str(turn.messages[0]["content"]).startswith("Error: ")
        assert not turn.finish
    assert session.interact(call("execute_sql", query="SELECT 1 AS a")).messages[0]["content"] == "a\n1"


def test_a_fork_is_independent() -> None:
    task = load_task("db", level="easy")
    sample = find(task, lambda s: s.data["kind"] == "DELETE")
    episode = task.open(sample, 0)
    episode.start()
    episode.call("execute_sql", {"query": "CREATE TABLE seen (a INT)"})
    fork = episode.fork()
    assert fork is not None
    episode.call("execute_sql", {"query": sample.data["plan"][0]})
    assert "seen" in fork.call("execute_sql", {"query": "SHOW TABLES"}).content
    assert fork.call("commit_final_answer", {"answers": []}).reward == 0.0
    assert episode.call("commit_final_answer", {"answers": []}).reward == 1.0
    assert fork.call("commit_final_answer", {"answers": []}).metrics["statements"] == 2
    for opened in (episode, fork):
        opened.close()
        opened.close()


def test_the_prompts_of_the_profiles() -> None:
    def user_text(**options: Any) -> str:
        task = load_task("db", **options)
        episode = task.open(task.samples("dev")[0], 0)
        message = episode.start()[1]
        episode.close()
        return str(message["content"])

    question = load_task("db").samples("dev")[0].data["question"]
    assert user_text().startswith("Table rivers: place (text), weather (text), ")
    assert user_text(prompt="compact").startswith("Table rivers: place, weather, ")
    assert user_text().endswith(question)
    lines = user_text(profile="agentbench").splitlines()
    assert lines[0].startswith("Additional table information about the question: ")
    assert lines[1] == f"Question: {question}"


def test_a_level_keeps_ids_and_renumbers() -> None:
    everything, easy = load_task("db").samples("dev"), load_task("db", level="easy").samples("dev")
    assert 0 < len(easy) < len(everything)
    assert [sample.index for sample in easy] == list(range(len(easy)))
    by_id = {sample.id: sample for sample in everything}
    assert all(by_id[sample.id].data == sample.data for sample in easy)
    assert everything[7].id == "db/dev/7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "sqlite", "dsn": "mysql://u@h"}, "a dsn is given with backend 'sqlite'"),
        ({"backend": "dsn", "dsn": "u:secret@host"}, "the dsn is no address of a server"),
        ({"backend": "sqlit"}, "Did you mean 'sqlite'"),
        ({"level": "esay"}, "Did you mean 'easy'"),
        ({"levl": "easy"}, "has no option 'levl'"),
        ({"data": "/nowhere/at/all"}, "no dbbench data"),
        ({"profile": "agentbenc"}, "Did you mean 'agentbench'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        load_task("db", **options)


def test_an_unknown_split_is_not_found() -> None:
    with pytest.raises(NotFound, match="no split 'std'"):
        load_task("db").samples("std")


def test_a_manifest_out_of_step_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = load_task("db").spec
    from agentbench_fc.tasks.db import make

    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "manifest.json").write_text('{"files": {"dev.jsonl": "0"}}')
    with pytest.raises(TaskError, match="does not match its manifest"):
        make(source, tmp_path).samples("dev")
