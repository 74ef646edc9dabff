"""AgentBench's files by path: every sample loads, and its gold scores as it does there."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.db.backend import SqlError, Table
from agentbench_fc.tasks.db.grade import table_hash
from agentbench_fc.tasks.db.readers import known_faults
from agentbench_fc.tasks.db.sqlite import SqliteDatabase

NOT_REPRODUCED = {"db/std/225", "db/std/278", "db/std/295"}


@pytest.fixture(scope="module")
def folder(test_data: Path) -> Path:
    return test_data / "agentbench"


def everything(task: Task) -> list[Sample]:
    return [*task.samples("std"), *task.samples("dev")]


def test_all_samples_load_with_stable_ids(folder: Path) -> None:
    task = load_task("db", data=folder)
    assert [sample.id for sample in task.samples("std")] == [f"db/std/{n}" for n in range(300)]
    assert [sample.id for sample in task.samples("dev")] == [f"db/dev/{n}" for n in range(60)]
    for sample in everything(task):
        episode = task.open(sample, 0)
        assert len(episode.start()) == 2
        assert episode.call("execute_sql", {"query": "SHOW TABLES"}).content.startswith("Tables_in_db")
        episode.close()


def test_the_labelled_changes_give_the_labelled_hashes(folder: Path) -> None:
    wrong = set()
    changes = [s for s in everything(load_task("db", data=folder)) if s.data["gold"] is None]
    for sample in changes:
        database = SqliteDatabase([Table.from_data(table) for table in sample.data["tables"]])
        try:
            for statement in sample.data["plan"]:
                database.execute(statement)
            found = table_hash([database.rows(table["name"]) or [] for table in sample.data["tables"]])
        except SqlError:
            found = ""
        finally:
            database.close()
        if found != sample.data["answer_md5"]:
            wrong.add(sample.id)
    assert len(changes) == 240
    assert wrong == NOT_REPRODUCED


@pytest.mark.parametrize("profile", ["default", "agentbench"])
def test_the_labels_win(folder: Path, profile: str) -> None:
    task = load_task("db", data=folder, profile=profile)
    player = make_player("expert", task)
    lost = {sample.id for sample in everything(task) if play(task, sample, player).raw_reward != 1.0}
    assert lost == (NOT_REPRODUCED if profile == "agentbench" else NOT_REPRODUCED - {"db/std/225"})


def test_doing_nothing_earns_nothing(folder: Path) -> None:
    task = load_task("db", data=folder)
    player = make_player("noop", task)
    won = [sample.id for sample in everything(task) if play(task, sample, player).raw_reward]
    empty = [s.id for s in everything(task) if s.data["gold"] == []]
    assert won == empty  # an empty list is the right answer where nothing matches
    assert len(empty) < 10


def test_suspect_samples_can_be_left_out(folder: Path) -> None:
    clean = load_task("db", data=folder, exclude_suspect=True)
    assert (len(clean.samples("std")), len(clean.samples("dev"))) == (272, 55)
    ids = {sample.id for sample in clean.samples("std")}
    assert "db/std/23" not in ids
    assert "db/std/24" not in ids
    assert "db/std/36" in ids
    assert [sample.index for sample in clean.samples("dev")] == list(range(55))


def test_known_faults_are_of_known_kinds() -> None:
    path = tasks_root() / "db"
    reasons = json.loads((path / "known_faults.json").read_text())["reasons"]
    faults = known_faults(path)
    assert {split: sum(f["suspect"] for f in found.values()) for split, found in faults.items()} == {
        "dev": 5,
        "std": 28,
    }
    assert {r for found in faults.values() for f in found.values() for r in f["reasons"]} == set(reasons)


def raw(**changes: Any) -> dict[str, Any]:
    table = {
        "table_name": "a b",
        "table_info": {
            "columns": [{"name": "x%", "type": "INT"}, {"name": "", "type": "TEXT"}],
            "rows": [[1, None], [2.5, "y"]],
        },
    }
    sample = {
        "description": "What?",
        "label": ["y"],
        "type": ["other"],
        "table": table,
        "add_description": "About {x}.",
    }
    return sample | {"evidence": "Look.", "sql": {"query": "SELECT 1"}} | changes


def load(tmp_path: Path, *samples: dict[str, Any], **options: Any) -> Task:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(sample) for sample in samples))
    return load_task("db", data=path, **options)


def test_odd_tables_load(tmp_path: Path) -> None:
    second = {"table_name": "t", "table_info": {"columns": [{"name": "c"}], "rows": []}}
    task = load(tmp_path, raw(), raw(table=[raw()["table"], second]))
    first, both = task.samples("mine")
    episode = task.open(first, 0)
    assert episode.start()[1]["content"] == "Hint: Look.\nAbout {x}.\nWhat?"
    content = episode.call("execute_sql", {"query": "SELECT * FROM `a b` WHERE `x%` > 2"}).content
    assert content == 'x% | ""\n2.5 | y'
    assert "None" in episode.call("execute_sql", {"query": "SELECT * FROM `a b`"}).content
    episode.close()
    assert [table["name"] for table in both.data["tables"]] == ["a b", "t"]


def test_agentbenchs_message_and_result(tmp_path: Path) -> None:
    task = load(tmp_path, raw(), profile="agentbench")
    episode = task.open(task.samples("mine")[0], 0)
    assert str(episode.start()[1]["content"]).splitlines() == [
        "Evidence about the question: Look.",
        "Additional table information about the question: About {x}.",
        "Question: What?",
    ]
    assert episode.call("execute_sql", {"query": "SELECT `x%` FROM `a b`"}).content == "[('1',), ('2.5',)]"
    assert episode.call("commit_final_answer", {"answers": ["y", "y"]}).reward == 1.0
    episode.close()


def test_a_change_without_a_stored_hash_is_graded_by_its_statement(tmp_path: Path) -> None:
    gold = "DELETE FROM `a b` WHERE `x%` = '1'"
    delete = raw(type=["DELETE"], label=["DELETE FROM `a b`"], sql={"query": gold}, answer_md5="")
    for profile in ("default", "agentbench"):
        task = load(tmp_path, delete, profile=profile)
        episode = task.open(task.samples("mine")[0], 0)
        episode.call("execute_sql", {"query": "DELETE FROM `a b` LIMIT 1"})
        assert episode.call("commit_final_answer", {"answers": []}).reward == 1.0
        episode.close()


def test_a_broken_gold_statement_is_the_tasks_fault(tmp_path: Path) -> None:
    task = load(tmp_path, raw(type=["DELETE"], label=["I am sorry."], sql={}))
    episode = task.open(task.samples("mine")[0], 0)
    with pytest.raises(TaskError, match="the gold statement fails"):
        episode.call("commit_final_answer", {"answers": []})
    episode.close()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no dbbench sample: KeyError\(.type.\)"):
        load(tmp_path, {"description": "What?"}).samples("mine")
    with pytest.raises(CallerError, match="Name a .jsonl file"):
        load_task("db", data=tmp_path / "nothing")
    with pytest.raises(CallerError, match="have no levels"):
        load(tmp_path, raw(), level="easy")


def test_the_data_folder_may_come_from_its_variable(test_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTBENCH_DATA", raising=False)
    with pytest.raises(CallerError, match="AGENTBENCH_DATA is not set"):
        load_task("db", data="agentbench")
    monkeypatch.setenv("AGENTBENCH_DATA", str(test_data / "agentbench"))
    assert load_task("db", data="agentbench").samples("dev")[0].id == "db/dev/0"
