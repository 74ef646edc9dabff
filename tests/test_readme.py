"""The README's Python blocks run as they stand, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- test: ([\w-]+) -->\n```python\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs_as_it_stands(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[name]], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_blocks_are_found() -> None:
    assert {"gym", "sessions", "own-task"} <= set(BLOCKS)


def test_every_file_that_the_documents_name_exists() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} names {target}"
