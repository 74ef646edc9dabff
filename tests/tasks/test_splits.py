"""Splits that are read once, generated rows against their manifest, and levels."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.errors import CallerError, NotFound, TaskError
from agentbench_fc.tasks.splits import Splits, check_level, generated_rows, numbered

ROWS: list[dict[str, Any]] = [{"level": "easy"}, {"level": "hard", "id": "own/1"}, {}, {"level": "hard"}]


def test_a_level_keeps_numbers_and_own_ids_and_counts_indices_anew() -> None:
    everything = Splits("toy", {"dev": 4}, lambda split: numbered(ROWS)).samples("dev")
    assert [(s.id, s.index, s.split) for s in everything] == [
        ("toy/dev/0", 0, "dev"),
        ("own/1", 1, "dev"),
        ("toy/dev/2", 2, "dev"),
        ("toy/dev/3", 3, "dev"),
    ]
    hard = Splits("toy", ["dev"], lambda split: numbered(ROWS), level="hard").samples("dev")
    assert [(s.id, s.index) for s in hard] == [("own/1", 0), ("toy/dev/3", 1)]


def test_many_threads_read_a_split_once_and_a_failure_is_tried_again() -> None:
    reads: list[str] = []
    everybody = threading.Barrier(8)

    def read(split: str) -> Any:
        reads.append(split)
        if len(reads) == 1:
            raise OSError("not now")
        return numbered(ROWS)

    splits = Splits("toy", ["dev"], read)
    with pytest.raises(OSError, match="not now"):
        splits.samples("dev")

    def ask(_: int) -> Any:
        everybody.wait(10)
        return splits.samples("dev")

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(ask, range(8)))
    assert reads == ["dev", "dev"]
    assert all(each is seen[0] for each in seen)
    with pytest.raises(NotFound, match=r"no split 'dve' \[task toy\]. Did you mean 'dev'"):
        splits.samples("dve")


def test_generated_rows_are_built_once_and_held_against_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    content, built = b'{"n": 1}\n{"n": 2}\n', []

    def build(split: str) -> bytes:
        built.append(split)
        return content

    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"files": {"dev.jsonl": hashlib.sha256(content).hexdigest()}}))
    for _ in range(2):
        assert generated_rows("toy/1", tmp_path, build, "dev") == [{"n": 1}, {"n": 2}]
    assert built == ["dev"]
    with pytest.raises(TaskError, match="does not match its manifest"):
        generated_rows("toy/2", tmp_path, lambda split: b"{}", "dev")


def test_levels_that_no_sample_has_are_refused() -> None:
    check_level("toy", None, ("easy",), generated_data=False)
    check_level("toy", "easy", ("easy",), generated_data=True)
    with pytest.raises(CallerError, match=r"no level 'eazy' \[task toy\]. Did you mean 'easy'"):
        check_level("toy", "eazy", ("easy",), generated_data=True)
    with pytest.raises(CallerError, match="have no levels"):
        check_level("toy", "easy", ("easy",), generated_data=False)
