"""Two processes train like one: same batches, same weights, one checkpoint; and none waits for ever for another."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from agentrl_trainer import checkpoint
from agentrl_trainer.collate import FILLER, micro_batches
from agentrl_trainer.queue import StepBatch
from agentrl_trainer.ranks import _batch_of, _packed, _parts_of, _unpacked
from agentrl_trainer.rows import Rows
from agentrl_trainer.types import Group, Trajectory

SCRIPT = Path(__file__).parent / "rank_run.py"
ROOT = Path(__file__).parents[2]
Make = Callable[..., Trajectory]


def run(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, timeout=280, check=False, env=environment,
    )  # fmt: skip


def apart(one: Path, other: Path, start: Path) -> float:
    """The distance of two trained policies, relative to the way that they went."""
    states = [load_file(folder / "model.safetensors") for folder in (one, other, start)]
    way = sum(float(((states[0][n] - p).double() ** 2).sum()) for n, p in states[2].items()) ** 0.5
    assert way > 1e-3
    gap = sum(float(((states[0][n] - states[1][n]).double() ** 2).sum()) for n in states[0]) ** 0.5
    return gap / way


@pytest.mark.timeout(600)
def test_two_ranks_are_one(policy_dir: Path, tmp_path: Path) -> None:
    for ranks in (1, 2):
        done = run(ranks, policy_dir, tmp_path / f"run{ranks}", 12, "normalization.task=stream")
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = tmp_path / "run1", tmp_path / "run2"
    assert apart(two / "model", one / "model", policy_dir) < 1e-5
    assert [p.name for p in checkpoint.checkpoints(two)] == ["checkpoint-2", "checkpoint-4"]
    whole = two / "checkpoint-2"
    assert checkpoint.damage(whole) is None
    assert sorted(p.name for p in whole.glob("rng_state*")) == ["rng_state_0.pth", "rng_state_1.pth"]
    assert (whole / "normalization.json").read_text() == (one / "checkpoint-2" / "normalization.json").read_text()

    figures = [(run / "metrics.jsonl").read_text().splitlines() for run in (one, two)]
    assert len(figures[0]) == len(figures[1]) == 4, "one process reports"
    for first, second in zip(*([json.loads(line) for line in lines] for lines in figures), strict=True):
        for name in ("loss", "grad_norm", "entropy", "ratio/ess", "ratio/p99", "batch/trained_tokens"):
            assert second[name] == pytest.approx(first[name], rel=1e-4, abs=1e-6), name


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_ranks_correct_and_resume_as_one(policy_dir: Path, tmp_path: Path) -> None:
    options = ("off_policy.mode=decoupled", "off_policy.correction=truncate", "normalization.task=stream")
    for ranks in (1, 2):
        done = run(ranks, policy_dir, tmp_path / f"run{ranks}", 12, *options)
        assert done.returncode == 0, done.stderr[-3000:]
    assert apart(tmp_path / "run2" / "model", tmp_path / "run1" / "model", policy_dir) < 1e-5
    shutil.copytree(tmp_path / "run2", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoint-4")
    done = run(2, policy_dir, tmp_path / "again", 12, *options, "resume=auto")
    assert done.returncode == 0, done.stderr[-3000:]
    assert apart(tmp_path / "again" / "model", tmp_path / "run2" / "model", policy_dir) < 1e-6


@pytest.mark.full
def test_a_failure_of_the_first_process_ends_the_others(policy_dir: Path, tmp_path: Path) -> None:
    done = run(2, policy_dir, tmp_path / "run", 4, "batch.wait_s=2")
    assert done.returncode != 0
    assert "5 of 15 trajectories after 2 s" in done.stderr
    assert checkpoint.damage(tmp_path / "run" / "checkpoint-1") is None


@pytest.mark.full
def test_a_run_that_diverges_in_all_processes_is_ended_by_the_first(policy_dir: Path, tmp_path: Path) -> None:
    done = run(2, policy_dir, tmp_path / "run", 12, "optimization.learning_rate=1e30", "checkpoints.every=0")
    assert done.returncode != 0
    assert done.stderr.count("Lower optimization.learning_rate") == 2, "told by one, and handed to the other"
    assert "could not be told" not in done.stderr
    assert checkpoint.damage(tmp_path / "run" / "checkpoint-1") is None


def test_a_batch_crosses_to_the_other_processes_unchanged(
    make_trajectory: Make, make_group: Callable[..., Group]
) -> None:
    rng = np.random.default_rng(0)
    groups = tuple(make_group([make_trajectory(rng=rng, reward=r) for r in (0.0, 1.0)], n) for n in range(3))
    batch = StepBatch(groups=groups, version=7, waited_s=0.5, left=2, refill=1e-6)
    again = _batch_of(*_unpacked(_packed(*_parts_of(batch))))
    assert (again.version, again.waited_s, again.left, again.refill) == (7, 0.5, 2, 1e-6)
    for one, other in zip(batch.trajectories, again.trajectories, strict=True):
        for name in Trajectory.__slots__:
            a, b = getattr(one, name), getattr(other, name)
            assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20), ranks=st.integers(1, 4), budget=st.integers(20, 300)
)
def test_every_rank_has_as_many_micro_batches_and_rows_and_all_rows_are_somewhere(
    make_trajectory: Make, lengths: list[int], ranks: int, budget: int
) -> None:
    rng = np.random.default_rng(1)
    trajectories = [make_trajectory(rng=rng, prompt=3, turns=[(n, 1)]) for n in lengths]
    rows = Rows(trajectories=trajectories, masks=[t.mask for t in trajectories], advantages=np.ones(len(lengths)))
    parts = [micro_batches(rows, budget, pad_id=0, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(own) for own in parts}) == 1
    seen: list[int] = []
    for together in zip(*parts, strict=True):
        assert len({len(part["rows"]) for part in together}) == 1
        assert len({float(part["tokens"]) for part in together}) == 1
        assert sum(int(part["tool_mask"].sum()) for part in together) == int(together[0]["tokens"])
        for part in together:
            size = part["prompt_ids"].numel() + part["completion_ids"].numel()
            assert size <= budget or len(part["rows"]) == 1
            filler = part["rows"] == FILLER
            assert not part["tool_mask"][filler].any()
            assert part["prompt_mask"][filler].any() or not filler.any()
            assert torch.isfinite(part["old_per_token_logps"]).all()
            seen += [i for i in part["rows"].tolist() if i != FILLER]
    assert sorted(seen) == list(range(len(lengths)))
