"""Transcripts of a run: every step can be read alone or in a row, and a crash costs at most what was not indexed."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl_trainer import shards
from agentrl_trainer.shards import TranscriptShards, main, read_index, read_transcripts
from agentrl_trainer.types import Group

Make = Callable[..., Any]


def decode(ids: list[int]) -> str:
    return " ".join(map(str, ids))


@pytest.fixture
def groups(make_trajectory: Make, make_group: Make) -> list[Group]:
    rng = np.random.default_rng(0)
    made = [make_group([make_trajectory(rng=rng, version=n, engine=n % 2) for _ in range(3)], n) for n in range(8)]
    made[0].trajectories[1].usable = False
    made[0].trajectories[1].metrics = {"odd": Path("x")}
    return made


def test_a_step_holds_its_trajectories_turn_by_turn(groups: list[Group], tmp_path: Path) -> None:
    written = TranscriptShards(tmp_path, decode)
    written.append(1, groups[:2])
    written.append(2, groups[2:4])
    rows = list(read_transcripts(tmp_path, 1))
    assert [(r["group_id"], r["replica"]) for r in rows] == [(f"g{n}", k) for n in (0, 1) for k in range(3)]
    source = groups[1].trajectories[2]
    row = rows[5]
    assert row["prompt"] == decode(source.ids[:5].tolist())
    assert [t["turn"] for t in row["turns"]] == [1, 2]
    first = row["turns"][0]
    assert (first["engine"], first["versions"], first["tokens"]) == (1, [1], 4)
    assert first["sampled"] == decode(source.ids[5:9].tolist())
    assert first["observed"] == decode(source.ids[9:12].tolist())
    assert rows[1]["usable"] is False
    assert rows[1]["metrics"] == {"odd": "x"}
    assert len(list(read_transcripts(tmp_path))) == 12
    plain = gzip.decompress((tmp_path / "transcripts" / "0000.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in plain] == list(read_transcripts(tmp_path)), "zcat reads it too"


def test_what_a_crash_left_is_cut_off_and_later_steps_are_taken_back(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 600)
    written = TranscriptShards(tmp_path, decode)
    for step in range(1, 5):
        written.append(step, groups[2 * step - 2 : 2 * step])
    assert len({entry["shard"] for entry in read_index(tmp_path)}) > 1
    last = tmp_path / "transcripts" / read_index(tmp_path)[-1]["shard"]
    last.write_bytes(last.read_bytes() + b"torn")
    with (tmp_path / "transcripts" / "index.jsonl").open("a") as index:
        index.write('{"step": 5, "sha')
    assert [r["step"] for r in read_transcripts(tmp_path)] == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6

    again = TranscriptShards(tmp_path, decode, resumed_at=2)
    again.append(3, groups[6:8])
    rows = list(read_transcripts(tmp_path))
    assert [r["step"] for r in rows] == [1] * 6 + [2] * 6 + [3] * 6
    assert rows[-1]["group_id"] == "g7"
    TranscriptShards(tmp_path, decode)
    assert read_index(tmp_path) == [], "a new run begins anew"


def test_the_command_prints_what_is_asked_for(
    groups: list[Group], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no transcripts here" in capsys.readouterr().err
    TranscriptShards(tmp_path, decode).append(7, groups[:1])
    assert main([str(tmp_path), "--step", "7", "--task", "db"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main([str(tmp_path), "--task", "kg"]) == 0
    assert capsys.readouterr().out == ""
