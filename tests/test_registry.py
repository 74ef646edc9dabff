"""Task ids, options, and files of one's own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, NotFound, TaskError
from agentbench_fc.registry import available_built_ins, known_tasks, load_task, tasks_root

SOURCE = """
from agentbench_fc.episode import ToolEpisode, make_task, tool

class Echo(ToolEpisode):
    def start(self): return "Say it."
    @tool
    def say(self, word: str):
        '''Says a word.'''
        return self.finish(word, reward=1.0)

TASK = make_task(Echo, samples={"train": [{}]})
def build(*, size: int = 1):
    return make_task(Echo, samples={"train": [{}] * size})
NUMBER = 3
def wrong(): return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "echo.py"
    path.write_text(SOURCE)
    return path


def test_a_task_of_ones_own_is_a_file_and_an_attribute(file: Path) -> None:
    task = load_task(f"{file}:TASK")
    assert isinstance(task, Task)
    assert task.spec.name == "echo"
    assert load_task(f"{file}:TASK") is task
    assert len(load_task(f"{file}:build", size=3).samples("train")) == 3


def test_threads_that_load_one_file_at_once_see_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(0.2)\n" + SOURCE)
    with ThreadPoolExecutor(8) as pool:
        tasks = list(pool.map(lambda _: load_task(f"{path}:TASK"), range(8)))
    assert len({id(task) for task in tasks}) == 1


def test_what_cannot_be_loaded_says_why(file: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no task 'kgg'.*Did you mean 'kg'"):
        load_task("kgg")
    with pytest.raises(NotFound, match="no such file"):
        load_task("absent.py:TASK")
    with pytest.raises(NotFound, match="has no 'TSK'.*Did you mean 'TASK'") as caught:
        load_task(f"{file}:TSK")
    assert "__" not in str(caught.value).rpartition("Known")[2]
    with pytest.raises(TaskError, match="is a int"):
        load_task(f"{file}:NUMBER")
    with pytest.raises(TaskError, match="made a int"):
        load_task(f"{file}:wrong")
    with pytest.raises(CallerError, match="has no option 'siz'.*Did you mean 'size'"):
        load_task(f"{file}:build", siz=3)
    with pytest.raises(CallerError, match="takes no profile"):
        load_task(f"{file}:TASK", profile="agentbench")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    with pytest.raises(TaskError, match="cannot be imported"):
        load_task(f"{tmp_path / 'broken.py'}:TASK")


def test_the_five_tasks_are_known_and_absent_ones_say_so() -> None:
    assert set(known_tasks()) >= {"os", "db", "kg", "alfworld", "webshop"}
    for name in {"os", "db", "kg", "alfworld", "webshop"} - set(available_built_ins()):
        with pytest.raises(NotFound, match="not in this version yet"):
            load_task(name)


def test_the_data_folder_can_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_TASKS", str(tmp_path))
    assert tasks_root() == tmp_path
    monkeypatch.setenv("AGENTBENCH_FC_TASKS", str(tmp_path / "absent"))
    with pytest.raises(CallerError, match="no such folder"):
        tasks_root()


@pytest.mark.parametrize("code", ["def x(:", "import sys; sys.exit(3)", "1 / 0", "raise SystemExit"], ids=repr)
def test_a_file_that_cannot_be_imported_is_the_tasks_fault(tmp_path: Path, code: str) -> None:
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(TaskError, match=r"bad\.py cannot be imported"):
        load_task(f"{tmp_path / 'bad.py'}:TASK")


def test_a_slip_in_the_name_of_a_limit_is_told() -> None:
    with pytest.raises(CallerError, match="Did you mean 'max_turns'"):
        load_task("kg", max_turn=3)
