"""AgentBench's files by path: layout, ids, scripts, what cannot be played, and which samples are volatile."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.errors import CallerError, NotFound, TaskError
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.os.readers import find_sources, known_faults, read_split
from agentbench_fc.tasks.os.volatility import IN_PLACE, volatility

INTEGER = {"language": "python", "file": "check/integer-match.py"}
QUESTION = {"description": "How many?", "evaluation": {"check": [None, INTEGER], "example": "ls | wc -l"}}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "os_interaction"
    write(folder / "data/1/stock.json", [QUESTION, QUESTION | {"create": {"init": {"file": "init/log.sh"}}}])
    write(folder / "data/4/N4.json", QUESTION)
    write(folder / "data/4/N11.json", [QUESTION])
    write(folder / "data/10/late.json", [QUESTION])
    write(folder / "data/dev.json", [QUESTION])
    write(folder / "train_0317/training.json", [QUESTION, QUESTION])
    write(folder / "scripts/1/init/log.sh", "echo log > /root/log")
    return tmp_path


def rows(path: Path, split: str, *, exclude_suspect: bool = False) -> list[dict[str, Any]]:
    return read_split(find_sources(path)[split], tasks_root() / "os", exclude_suspect, split)


def one(tmp_path: Path, problem: dict[str, Any]) -> dict[str, Any]:
    return rows(write(tmp_path / "data" / "mine.json", [{"description": "?"} | problem]), "mine")[0]


def test_ids_are_stable_and_in_numeric_order(root: Path) -> None:
    assert [row["id"] for row in rows(root, "std")] == [
        "os/std/1/stock#0",
        "os/std/1/stock#1",
        "os/std/4/N11#0",
        "os/std/4/N4#0",
        "os/std/10/late#0",
    ]
    assert [row["id"] for row in rows(root, "train")] == ["os/train/0", "os/train/1"]
    assert [row["id"] for row in rows(root, "dev")] == ["os/dev/0"]


def test_the_folder_the_folder_above_and_single_files_are_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(find_sources(root)) == set(find_sources(root / "os_interaction")) == {"std", "dev", "train"}
    monkeypatch.setenv("AGENTBENCH_DATA", str(root))
    assert set(find_sources("agentbench")) == {"std", "dev", "train"}
    assert [row["id"] for row in rows(root / "os_interaction/data/4/N4.json", "std")] == ["os/std/4/N4#0"]
    assert rows(root / "os_interaction/data/1/stock.json", "std")[1]["init"][0]["code"] == "echo log > /root/log"
    assert [row["id"] for row in rows(root / "os_interaction/train_0317/training.json", "train")][1] == "os/train/1"
    monkeypatch.delenv("AGENTBENCH_DATA")
    for data in ("agentbench", root / "nothing", root / "os_interaction/scripts"):
        with pytest.raises(CallerError):
            find_sources(data)


def test_scripts_come_as_text_as_code_and_as_files(tmp_path: Path) -> None:
    write(tmp_path / "scripts/mine/init/a.sh", "echo a")
    sample = one(
        tmp_path,
        {
            "create": {
                "local": "packages",
                "init": [{"file": "init/a.sh"}, "echo b", {"code": "c", "language": "python"}],
            },
            "start": "cd /tmp",
            "evaluation": {"check": [{"code": "exit 0"}], "example": {"code": "true"}},
        },
    )
    assert sample["unplayable"] == ""
    assert sample["image"] == "packages"
    assert [(s["language"], s["code"]) for s in sample["init"]] == [
        ("bash", "echo a"),
        ("bash", "echo b"),
        ("python", "c"),
    ]
    assert (sample["start"], sample["reference"]["code"]) == ("cd /tmp", "true")
    assert sample["checks"] == [{"kind": "script", "language": "bash", "code": "exit 0"}]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ({"create": {"init": {"file": "init/no.sh"}}}, "scripts/mine/init/no.sh is not there"),
        ({"create": {"init": {"file": "../../../etc/passwd"}}}, "leads out of the scripts folder"),
        ({"create": {"init": {"file": "/etc/passwd"}}}, "leads out of the scripts folder"),
        ({"create": {"init": {"language": "c++", "code": "int main() {}"}}}, "only bash and python are run"),
        ({"create": {"init": 7}}, "neither a text nor one of code and file"),
        ({"create": {"local": "windows"}}, "needs an image 'windows'"),
        ({"evaluation": {}}, "neither match nor check"),
        ({"evaluation": {"match": {"strip": True}}}, "neither a text nor one of answer and regex"),
        ({"evaluation": {"match": {"regex": "("}}}, "no regular expression"),
        ({"evaluation": {"check": [None, INTEGER]}}, "runs an example, and there is none"),
        ({"evaluation": {"check": {"file": "check/own.py", "language": "python"}}}, "is not there"),
    ],
)
def test_what_cannot_be_played_says_why_and_hides_nobody(tmp_path: Path, problem: dict[str, Any], reason: str) -> None:
    path = write(tmp_path / "data/mine.json", [QUESTION | problem, QUESTION])
    first, second = rows(path, "mine")
    assert reason in first["unplayable"]
    assert second["unplayable"] == ""
    assert [row["id"] for row in rows(path, "mine", exclude_suspect=True)] == ["os/mine/1"]


def test_what_cannot_be_played_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "data/mine.json", [QUESTION, QUESTION | {"create": {"init": {"file": "init/no.sh"}}}])
    with caplog.at_level(logging.WARNING):
        rows(path, "mine")
    assert "os/mine/1" in caplog.text
    task = load_task("os", data=path)
    with pytest.raises(TaskError, match=r"init/no\.sh is not there"):
        task.open(task.samples("mine")[1], 0)
    task.close()


@pytest.mark.parametrize("content", ["{", "[1]", '[{"description": 3}]', "3"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "data/mine.json", content)
    with pytest.raises(TaskError, match=r"mine\.json"):
        rows(path, "mine")


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("yes", {"answer": "yes", "strip": True}),
        ({"answer": "yes"}, {"answer": "yes", "strip": True}),
        ({"regex": "y.s", "strip": False}, {"regex": "y.s", "strip": False}),
    ],
)
def test_a_match(tmp_path: Path, match: Any, expected: dict[str, Any]) -> None:
    assert one(tmp_path, {"evaluation": {"match": match}})["match"] == expected


def test_a_create_that_is_a_list_sets_nothing_up(tmp_path: Path) -> None:
    sample = one(tmp_path, QUESTION | {"create": [None, INTEGER]})
    assert (sample["init"], sample["image"], sample["unplayable"]) == ([], "default", "")


@pytest.mark.parametrize(
    ("init", "reference", "expected"),
    [
        ("touch a", "ls | wc -l", []),
        ("(sleep 60) &", "ls", ["background"]),
        ("a && b 2>&1 | c &> d", "ls", []),
        ("", "ps aux | grep x | wc -l", ["processes"]),
        ("", "cat /proc/77/status", ["processes"]),
        ("", "free -m | awk '{print $2}'", ["host"]),
        ("", "find / -name x | wc -l", ["host"]),
        ("", "find /srv -name x | wc -l", []),
        ("", "# ps would do\nls ~/tops", []),
        ("touch -d '8 days ago' f", "find . -mtime -7", ["dated"]),
        ("", "find . -mmin -5 -mtime -1", ["dated"]),
        ("", "echo $(date +%s)", ["clock", "dated"]),
        ("", "grep $(date '+%Y-%m-%d') f", ["dated"]),
        ("", "stat -c %s f; date -d @7 +%H", ["dated"]),
        ("", "ls -lt /usr | head -n 2", ["clock"]),
        ("echo $RANDOM > f", "cat f", ["random"]),
        ("", "grep -c update f; cat a/free", []),
    ],
)
def test_what_is_volatile(init: str, reference: str, expected: list[str]) -> None:
    scripts = [{"language": "bash", "code": init}]
    sample = {"init": scripts, "start": "", "checks": [], "reference": {"language": "bash", "code": reference}}
    assert volatility(sample) == expected


def test_options_are_checked() -> None:
    with pytest.raises(CallerError, match="no level 'eazy'"):
        load_task("os", level="eazy")
    with pytest.raises(CallerError, match="no option 'backnd'"):
        load_task("os", backnd="oci")
    with pytest.raises(NotFound, match="no split 'tran'"):
        load_task("os").samples("tran")


def test_agentbenchs_own_files(test_data: Path) -> None:
    task = load_task("os", data=test_data / "agentbench")
    with pytest.raises(CallerError, match="no levels"):
        load_task("os", data=test_data / "agentbench", level="easy")
    sizes = {split: len(task.samples(split)) for split in task.spec.splits}
    assert sizes == {"std": 144, "dev": 26, "train": 1000}
    everything = [sample for split in sizes for sample in task.samples(split)]
    assert len({sample.id for sample in everything}) == 1170
    faults = known_faults(tasks_root() / "os")
    named = {f"os/{split}/{name}" for split, names in faults.items() for name in names}
    assert named == {sample.id for sample in everything if sample.data["fault"]}
    unplayable = [sample.id for sample in everything if sample.data["unplayable"]]
    assert len(unplayable) == 16
    kinds = Counter(step.get("name", step["kind"]) for sample in everything for step in sample.data["checks"])
    assert (kinds["integer-match"], kinds["string-match"], kinds["size-match"], kinds["script"]) == (1054, 53, 25, 10)
    in_place = [sample.id for sample in everything if IN_PLACE & set(sample.data["volatile"])]
    assert len(in_place) == 22
    assert "os/std/7/bootstrap#0" in in_place
