"""The README's Python blocks run as they stand, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- test: ([\w-]+) -->\n```python\n(.*?)```", re.DOTALL)
BLOCKS = dict(BLOCK.findall(README))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs_as_it_stands(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[name]], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_blocks_are_found() -> None:
    assert {"gym", "sessions", "own-task"} <= set(BLOCKS)


def test_the_task_in_contributing_plays_like_the_example(tmp_path: Path) -> None:
    (tmp_path / "guess_number.py").write_text(dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))["task"])
    example = load_task(f"{ROOT / 'examples' / 'guess_number.py'}:TASK")
    shown = load_task(f"{tmp_path / 'guess_number.py'}:TASK")
    assert shown.spec.tools == example.spec.tools
    assert [len(shown.samples(split)) for split in ("train", "dev")] == [100, 1]
    expert = make_player("expert", example)
    for sample in example.samples("train"):
        one, other = (play(task, sample, expert, seed=0).last for task in (shown, example))
        assert (one.turn, one.reward, one.messages[-1]["content"]) == (other.turn, 1.0, "Right!")


def test_every_file_that_the_documents_name_exists() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} names {target}"
