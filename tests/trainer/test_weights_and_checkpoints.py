"""Snapshots that engines can always read, and checkpoints that are whole or not used."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer import checkpoint, weights
from agentrl_trainer.weights import WeightPublisher, read_version, snapshot_folder


@pytest.fixture
def published() -> list[tuple[Path, int, bool]]:
    return []


@pytest.fixture
def publisher(tmp_path: Path, published: list[tuple[Path, int, bool]]) -> WeightPublisher:
    def publish(path: Path, version: int, *, stale: bool) -> None:
        assert read_version(path) == version
        published.append((path, version, stale))

    return WeightPublisher(publish, stale_lags=[3], folder=tmp_path / "w")


def test_versions_reach_stale_engines_first_and_every_third(
    publisher: WeightPublisher, published: list[tuple[Path, int, bool]]
) -> None:
    for version in range(1, 8):
        publisher.publish({"a": torch.full((2,), float(version))}, version, extra={"config.json": "{}"})
    assert [(v, stale) for _, v, stale in published] == [
        (1, True), (2, False), (3, True), (4, False), (5, False), (6, True), (7, False),
    ]  # fmt: skip
    folder = published[-1][0].parent
    assert sorted(p.name for p in folder.iterdir()) == ["v0000006", "v0000007"]
    assert (published[-1][0] / "config.json").read_text() == "{}"
    publisher.publish({"a": torch.zeros(2)}, 8)
    assert sorted(p.name for p in folder.iterdir()) == ["v0000006", "v0000007", "v0000008"], "stale engines hold 6"
    publisher.close()
    publisher.close()
    assert not folder.exists()


def test_a_resumed_run_gives_stale_engines_what_they_held(
    publisher: WeightPublisher, published: list[tuple[Path, int, bool]], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint-6").mkdir()
    (tmp_path / "checkpoint-8").mkdir()
    for version in range(3, 9):
        publisher.publish({"a": torch.full((2,), float(version))}, version)
        if version in {6, 8}:
            publisher.save_stale(tmp_path / f"checkpoint-{version}")
    publisher.close()
    assert not (tmp_path / "checkpoint-6" / weights.STALE).exists(), "they held the newest"

    again = WeightPublisher(publisher._publish, stale_lags=[3], folder=tmp_path / "w2")
    published.clear()
    again.restore_stale(tmp_path / "checkpoint-6", publisher._publish)
    assert published == []
    again.restore_stale(tmp_path / "checkpoint-8", publisher._publish)
    again.publish({"a": torch.full((2,), 8.0)}, 8)
    again.publish({"a": torch.full((2,), 9.0)}, 9)
    assert [(v, stale) for _, v, stale in published] == [(6, True), (8, False), (9, True)]
    again.publish({"a": torch.full((2,), 10.0)}, 10)
    again.publish({"a": torch.full((2,), 11.0)}, 11)
    assert sorted(p.name for p in (tmp_path / "w2").iterdir()) == ["v0000009", "v0000010", "v0000011"]


def test_tied_weights_are_written_once_and_all_values_survive(publisher: WeightPublisher) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    path = publisher.publish({"embed": base, "head": base, "view": base.t(), "other": torch.ones(1)}, 0)
    read = load_file(path / weights.FILE)
    assert sorted(read) == ["embed", "other", "view"]
    assert torch.equal(read["view"], base.t())


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    publisher = WeightPublisher(lambda *a, **k: None, stale_lags=[1], folder=tmp_path / "file" / "w")
    with pytest.raises(InfrastructureError, match="engines.weights_dir"):
        publisher.publish({"a": torch.zeros(1)}, 0)
    with pytest.raises(InfrastructureError, match="no whole snapshot"):
        read_version(tmp_path)


def test_snapshots_go_to_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(weights, "MEMORY", memory)
    own = snapshot_folder(None, tmp_path / "run", 1000)
    space = own.name.removeprefix(weights.PREFIX).partition("-")[0]
    orphan, foreign = (memory / f"{weights.PREFIX}{whose}-999999999-ab" for whose in (space, "another"))
    orphan.mkdir()
    foreign.mkdir()
    assert snapshot_folder(None, tmp_path / "run", 1000).parent == own.parent == memory
    assert not orphan.exists(), "its process is gone"
    assert foreign.exists(), "a process of another container is not seen from here"
    assert snapshot_folder(None, tmp_path / "run", 1000) != own, "processes of two containers have equal numbers"
    assert snapshot_folder(None, tmp_path / "run", 10**18) == tmp_path / "run" / "weights"
    assert snapshot_folder(tmp_path / "chosen", tmp_path / "run", 1).parent == tmp_path / "chosen"


def make_checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes([step]) * 100)
    (folder / "deep" / "state.json").write_text("{}")
    checkpoint.Cursor({f"g{step}"}).save(folder)
    checkpoint.seal(folder, {"step": step})
    return folder


def test_the_newest_whole_checkpoint_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (2, 4, 10):
        make_checkpoint(tmp_path, step)
    assert checkpoint.newest_whole(tmp_path) == tmp_path / "checkpoint-10"
    (tmp_path / "checkpoint-10" / "deep" / "state.json").unlink()
    (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"x")
    (tmp_path / "checkpoint-12").mkdir()  # the run died while writing it
    assert checkpoint.resume_from("auto", tmp_path) == tmp_path / "checkpoint-2"
    for reason in ("state.json is missing", "model.safetensors has changed", "was never completed"):
        assert reason in caplog.text
    with pytest.raises(CallerError, match="has changed"):
        checkpoint.resume_from(str(tmp_path / "checkpoint-4"), tmp_path)
    with pytest.raises(CallerError, match="another run"):
        checkpoint.resume_from("never", tmp_path)
    assert checkpoint.Cursor.load(tmp_path / "checkpoint-2").done == {"g2"}
    assert checkpoint.resume_from("auto", tmp_path / "empty") is None


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 99), place=st.integers(0, 3), flip=st.booleans())
def test_any_cut_or_flipped_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, flip: bool
) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("run"), 1)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    content = bytearray(files[place].read_bytes())
    at = cut % len(content)
    if flip:
        content[at] ^= 1
    else:
        del content[at:]
    files[place].write_bytes(bytes(content))
    assert checkpoint.damage(folder) is not None


def test_a_run_that_goes_back_takes_its_later_checkpoints_back(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-30" / "model.safetensors").write_bytes(b"damaged, with a manifest")
    (tmp_path / "checkpoint-40").mkdir()
    start = checkpoint.resume_from("auto", tmp_path)
    assert start == tmp_path / "checkpoint-20"
    assert [p.name for p in checkpoint.set_aside(tmp_path, start)] == ["taken-back-checkpoint-30-1"]
    make_checkpoint(tmp_path, 25)
    checkpoint.prune(tmp_path, keep=1)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-25"], "the newest is what is left"
    assert checkpoint.newest_whole(tmp_path) == tmp_path / "checkpoint-25"


def test_one_runs_checkpoint_does_not_go_on_in_anothers_folder(tmp_path: Path) -> None:
    start = make_checkpoint(tmp_path / "a", 3)
    checkpoint.check_place(start, tmp_path / "a")
    checkpoint.check_place(start, tmp_path / "new")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    with pytest.raises(CallerError, match="another output="):
        checkpoint.check_place(start, tmp_path / "b")
    copied = start.rename(tmp_path / "kept")
    assert checkpoint.sealed_step(copied) == 3


def test_old_and_broken_checkpoints_are_removed_but_never_the_newest_whole_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-0").mkdir()
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    checkpoint.prune(tmp_path, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    manifest = json.loads((tmp_path / "checkpoint-3" / checkpoint.MANIFEST).read_text())
    assert manifest["step"] == 3
