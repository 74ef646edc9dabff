"""Generated files: made once, verified, never half."""

import hashlib
import json
from pathlib import Path

import pytest

from agentbench_fc.cache import cache_dir, generated, manifest_hash
from agentbench_fc.errors import InfrastructureError, TaskError

CONTENT = b"hello"
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_is_built_once_and_again_when_damaged(folder: Path) -> None:
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return CONTENT

    path = generated("db/train.jsonl", build, sha256=HASH)
    assert path == folder / "db/train.jsonl"
    assert generated("db/train.jsonl", build, sha256=HASH).read_bytes() == CONTENT
    assert len(built) == 1
    path.write_bytes(b"hell")
    assert generated("db/train.jsonl", build, sha256=HASH).read_bytes() == CONTENT
    assert len(built) == 2
    assert [p.name for p in path.parent.iterdir()] == ["train.jsonl"]


def test_a_generator_out_of_step_with_its_manifest_is_refused(folder: Path) -> None:
    with pytest.raises(TaskError, match="does not match its manifest"):
        generated("x", lambda: b"other", sha256=HASH)
    assert not (folder / "x").exists()


def test_the_manifest_gives_the_hash(tmp_path: Path) -> None:
    assert manifest_hash(tmp_path, "a") is None
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"a": HASH}}))
    assert (manifest_hash(tmp_path, "a"), manifest_hash(tmp_path, "b")) == (HASH, None)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(InfrastructureError, match="AGENTBENCH_FC_CACHE"):
        cache_dir()
