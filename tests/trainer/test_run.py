"""Whole runs of the trainer with a scripted rollout side: what they leave, how they go on, how they end."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer import checkpoint
from agentrl_trainer.config import (
    Batch,
    Checkpoints,
    Engines,
    Evaluation,
    Model,
    OffPolicy,
    Optimization,
    RunConfig,
    SamplingOptions,
    TaskMix,
)
from agentrl_trainer.disk import RunFolder
from agentrl_trainer.interrupts import Interrupted, Interrupts
from agentrl_trainer.run import main, train
from agentrl_trainer.shards import read_transcripts
from agentrl_trainer.trainer import AgentGRPOTrainer
from agentrl_trainer.types import Group

Make = Callable[[int, int], Group]


@pytest.fixture
def make(make_trajectory: Callable[..., Any], make_group: Callable[..., Group]) -> Make:
    """The n-th group, the same whoever asks; even ones are of db, odd ones of kg; two make a step."""

    def group(number: int, newest: int) -> Group:
        version = number // 2
        rng = np.random.default_rng(number)
        task = ("db", "kg")[number % 2]
        members = [
            make_trajectory(
                rng=rng, reward=float(i % 2), version=version, task=task, sample_id=f"{task}/train/{number}"
            )
            for i in range(4)
        ]
        return make_group(members, number)

    return group


def options(policy_dir: Path, output: Path, **changes: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "model": Model(path=str(policy_dir), device="cpu"),
        "tasks": (TaskMix(name="db"), TaskMix(name="kg")),
        "steps": 4,
        "group_size": 4,
        "sampling": SamplingOptions(max_new_tokens=16, max_context=64),
        "batch": Batch(min_trajectories=8, max_trajectories=8, micro_batch_tokens=64, wait_s=30),
        "engines": Engines(stale_sync_steps=2, weights_dir=output.parent / "weights"),
        "evaluation": Evaluation(n=4, every=2),
        "checkpoints": Checkpoints(every=2, keep=2),
        "output": output,
        "progress": "plain",
    }
    return RunConfig(**(defaults | changes))


def test_a_run_leaves_model_metrics_curve_summary_and_sealed_checkpoints(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = scripted(make)
    summary = train(options(policy_dir, tmp_path / "run"), rollouts=rollouts)
    out = tmp_path / "run"

    assert rollouts.closed
    assert rollouts.published == [(0, True), (1, False), (2, True), (3, False), (4, True)]
    assert rollouts.trained == [8, 8, 8, 8]
    assert not list((tmp_path / "weights").iterdir())
    assert [p.name for p in checkpoint.checkpoints(out)] == ["checkpoint-2", "checkpoint-4"]
    assert checkpoint.damage(out / "checkpoint-4") is None
    assert checkpoint.Cursor.load(out / "checkpoint-2").done == {"g0", "g1", "g2", "g3"}

    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if r["kind"] == "step"]
    assert [r["step"] for r in steps] == [1, 2, 3, 4]
    assert all(r["batch/trained_trajectories"] == 8 and r["success/db"] == r["success/kg"] == 0.5 for r in steps)
    assert sorted({r["step"] for r in records if r["kind"] == "eval"}) == [0, 2, 4]
    assert {call[3] for call in rollouts.evaluations} == {0.0, 0.8}
    assert len({call[4] for call in rollouts.evaluations}) == 1, "before and after play the same episodes"

    trained, start = load_file(out / "model" / "model.safetensors"), load_file(policy_dir / "model.safetensors")
    assert any(not torch.equal(trained[name], start[name]) for name in start)
    assert (out / "curve.png").stat().st_size > 5000
    rows = list(read_transcripts(out))
    assert [r["step"] for r in rows] == [1] * 8 + [2] * 8 + [3] * 8 + [4] * 8
    assert all(r["prompt"] and r["turns"][0]["sampled"] for r in rows)
    assert "32 trajectories" in summary
    assert "step 4/4" in capsys.readouterr().out


def test_a_resumed_run_equals_an_uninterrupted_one(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    quiet = {"progress": "none", "evaluation": Evaluation(n=0)}
    train(options(policy_dir, tmp_path / "whole", **quiet), rollouts=scripted(make))

    broken = scripted(lambda n, v: make(n, v) if n < 5 else _die())
    quiet["checkpoints"] = Checkpoints(every=0)  # the failure itself leaves one
    with pytest.raises(InfrastructureError, match="engine 0 is dead"):
        train(options(policy_dir, tmp_path / "halves", **quiet), rollouts=broken)
    with pytest.raises(CallerError, match="resume=auto"):
        train(options(policy_dir, tmp_path / "halves", **quiet), rollouts=scripted(make))

    assert checkpoint.Cursor.load(tmp_path / "halves" / "checkpoint-2").done == {"g0", "g1", "g2", "g3"}

    again = scripted(make)
    again.number = 4  # what the cursor of checkpoint-2 leaves to do
    train(options(policy_dir, tmp_path / "halves", resume="auto", **quiet), rollouts=again)
    assert again.published[0] == (2, True)
    whole = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    halves = load_file(tmp_path / "halves" / "model" / "model.safetensors")
    assert whole.keys() == halves.keys()
    for name in whole:
        assert torch.equal(whole[name], halves[name]), name
    lines = (tmp_path / "halves" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_a_run_that_has_all_its_steps_is_not_trained_further(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = {"evaluation": Evaluation(n=0), "steps": 2}
    train(options(policy_dir, tmp_path / "run", **quiet), rollouts=scripted(make))
    model = tmp_path / "run" / "model" / "model.safetensors"
    done, lines = load_file(model), (tmp_path / "run" / "metrics.jsonl").read_text()
    model.unlink()  # it died before this was written
    again = scripted(make)
    text = train(options(policy_dir, tmp_path / "run", resume="auto", **quiet), rollouts=again)
    assert again.trained == []
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines
    assert all(torch.equal(weight, done[name]) for name, weight in load_file(model).items())
    assert "2 steps" in text

    capsys.readouterr()
    more = options(policy_dir, tmp_path / "run", resume="auto", **quiet | {"steps": 3, "seed": 1})
    train(more, rollouts=again)
    assert "warning: the run goes on with steps=3 (before: 2), seed=1 (before: 0)" in capsys.readouterr().out
    assert again.trained == [8]


def test_a_policy_that_diverged_is_neither_published_nor_kept(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    def overflowing(number: int, newest: int) -> Group:
        group = make(number, newest)
        if number >= 4:  # the third step
            for member in group.trajectories:
                member.logprobs[member.mask] = np.nan
        return group

    ends = {
        "a gradient or the loss": (overflowing, {"checkpoints": Checkpoints(every=0)}, 2),
        "the weights": (make, {"optimization": Optimization(learning_rate=1e39, warmup_steps=0)}, None),
    }
    for what, (groups, changes, kept) in ends.items():
        rollouts, output = scripted(groups), tmp_path / what.replace(" ", "-")
        with pytest.raises(CallerError, match=r"Lower optimization.learning_rate and go on from the last"):
            train(options(policy_dir, output, evaluation=Evaluation(n=0), **changes), rollouts=rollouts)
        saved = checkpoint.newest_whole(output)
        assert (checkpoint.step_of(saved) if saved else None) == kept, what
        for folder in checkpoint.checkpoints(output):
            assert all(w.isfinite().all() for w in load_file(folder / "model.safetensors").values())
        assert [version for version, _ in rollouts.published] == [0, 1, 2] if kept else [0], what


def test_a_folder_in_use_or_of_another_run_or_model_is_refused(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    quiet = {"evaluation": Evaluation(n=0), "steps": 1, "progress": "none"}
    for name in ("a", "b"):
        train(options(policy_dir, tmp_path / name, **quiet), rollouts=scripted(make))
    saved = str(tmp_path / "a" / "checkpoint-1")
    before = (tmp_path / "b" / "metrics.jsonl").read_text()
    with pytest.raises(CallerError, match="holds another run than the one of the checkpoint"):
        train(options(policy_dir, tmp_path / "b", resume=saved, **quiet), rollouts=scripted(make))
    with RunFolder(tmp_path / "b"), pytest.raises(CallerError, match="another run is at work"):
        train(options(policy_dir, tmp_path / "b", resume="auto", **quiet), rollouts=scripted(make))
    assert (tmp_path / "b" / "metrics.jsonl").read_text() == before

    other = shutil.copytree(policy_dir, tmp_path / "other")
    shape = json.loads((other / "config.json").read_text()) | {"num_hidden_layers": 1, "layer_types": None}
    (other / "config.json").write_text(json.dumps(shape))
    train(options(policy_dir, tmp_path / "a", resume="auto", **quiet | {"steps": 2}), rollouts=scripted(make))
    held = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    with pytest.raises(CallerError, match=r"of another model.*layers\.1.*Give the model that the run began with"):
        train(options(other, tmp_path / "a", resume=saved, **quiet | {"steps": 3}), rollouts=scripted(make))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")} == held, "all is as it was"


def test_a_resumed_mixture_knows_the_weights_that_stale_engines_hold(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    changes = {
        "off_policy": OffPolicy(ratio="mixture"),
        "engines": Engines(kind="transformers", fresh=1, stale=2, stale_lags=(2, 3)),
        "evaluation": Evaluation(n=0), "progress": "none", "checkpoints": Checkpoints(every=1, keep=9),
    }  # fmt: skip
    known = []
    for folder, resume in (("a", "never"), ("b", str(tmp_path / "a" / "checkpoint-5"))):
        config = options(policy_dir, tmp_path / folder, resume=resume, **changes | {"steps": 6})
        trainer = AgentGRPOTrainer(None, config)
        rollouts = scripted(make)
        rollouts.number = 10 if folder == "b" else 0
        train(config, trainer=trainer, rollouts=rollouts)
        known.append(trainer.history._states)
    assert set(known[1]) == {3, 4, 5, 6}
    for version in (3, 4, 5):  # the sixth step's batch depends on what had come
        assert all(torch.equal(tensor, known[0][version][name]) for name, tensor in known[1][version].items())


def test_a_signal_while_a_checkpoint_is_loaded_leaves_no_other_one(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"evaluation": Evaluation(n=0), "progress": "none"}
    train(options(policy_dir, tmp_path / "a", **quiet | {"steps": 2}), rollouts=scripted(make))

    def halfway(*args: object, **kwargs: object) -> None:  # the step is known, the optimizer is not there yet
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(AgentGRPOTrainer, "_load_optimizer_and_scheduler", halfway)
    further = options(policy_dir, tmp_path / "b", resume=str(tmp_path / "a" / "checkpoint-2"), **quiet)
    with pytest.raises(Interrupted):
        train(further, rollouts=scripted(make))
    assert checkpoint.checkpoints(tmp_path / "b") == []


def test_a_checkpoint_that_cannot_be_written_is_a_fault_of_the_machine(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts, output = scripted(make), tmp_path / "run"
    output.mkdir()
    (output / "checkpoint-2").write_text("in the way")
    with pytest.raises(InfrastructureError, match=r"the checkpoint cannot be written: .*checkpoint-2.*resume=auto"):
        train(options(policy_dir, output, evaluation=Evaluation(n=0)), rollouts=rollouts)
    assert rollouts.closed
    assert [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert "stopped after step 2\n" in capsys.readouterr().out, "there is nothing to go on from"


def _die() -> Group:
    raise InfrastructureError("engine 0 is dead [rollout process]. Read its log.")


def test_a_signal_leaves_a_checkpoint_of_the_last_step_and_the_shells_exit_code(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    sent = threading.Event()

    def slow(number: int, newest: int) -> Group | None:
        if number < 7:
            return make(number, newest)
        if newest == 3 and not sent.is_set():  # three steps are published; the trainer waits for more, or will
            sent.set()
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    with Interrupts() as interrupts, pytest.raises(Interrupted) as raised:
        train(
            options(policy_dir, tmp_path / "run", evaluation=Evaluation(n=0), checkpoints=Checkpoints(every=0)),
            rollouts=scripted(slow),
            interrupts=interrupts,
        )
    assert raised.value.exit_code == 143
    saved = checkpoint.newest_whole(tmp_path / "run")
    assert saved is not None
    assert checkpoint.step_of(saved) == 3
    assert len(checkpoint.Cursor.load(saved).done) == 6


def test_a_step_whose_publication_fails_is_complete_in_checkpoint_and_metrics(
    policy_dir: Path, tmp_path: Path, scripted: type[Any], make: Make
) -> None:
    rollouts = scripted(make)
    publish = rollouts.publish

    def failing(path: Path, version: int, stale: bool) -> None:
        publish(path, version, stale)
        if version == 3:
            _die()

    rollouts.publish = failing
    with pytest.raises(InfrastructureError, match="engine 0 is dead"):
        train(options(policy_dir, tmp_path / "run", evaluation=Evaluation(n=0)), rollouts=rollouts)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [1, 2, 3]
    assert records[2]["batch/trajectories"] == 8
    saved = checkpoint.newest_whole(tmp_path / "run")
    assert saved == tmp_path / "run" / "checkpoint-3"
    assert len(checkpoint.Cursor.load(saved).done) == 6


def test_faults_become_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["steps=3", "tasks=kg", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(printed)
    assert main(["--config", "again.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["stepz=3"]) == 2
    assert "Did you mean 'steps'" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for settings, message in (
        (["model=./absent"], "no such folder"),
        (["model=./empty"], "no config.json"),
        (["model=word"], "Give a model folder"),
        (["model=owner/name", "tasks.kg.eval_split=deev"], "Did you mean 'dev'"),
        (["model=owner/name", "tasks=kgg"], "Did you mean 'kg'"),
        (["model=owner/name", "tasks.kg.options.levle=easy"], "Did you mean 'level'"),
        (["model=owner/name", "tasks.kg.prompt=compcat"], "Did you mean 'compact'"),
    ):
        assert main(settings) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists(), "nothing is made before the configuration holds"
