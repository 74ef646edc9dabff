"""Real runs whose processes get `kill -9`: they go on or are gone on with, and lose, double and spoil nothing."""

import math
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tinychat import chat_folder, make_model, model_folder
from trainer_runs import TOY, TrainerRun

from agentrl_trainer import checkpoint
from agentrl_trainer.shards import read_index

__all__ = ["chat_folder", "make_model", "model_folder"]

ROLLOUT, ENGINE = "agentrl_trainer.rollout.process", "agentrl_trainer.engines.process"
GROUPS_PER_STEP = 2
ON_THEIR_WAY = 24
"""More groups than can be on their way at once."""

Make = Callable[..., TrainerRun]


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> Iterator[Make]:
    task = tmp_path / "toy.py"
    task.write_text(TOY)
    runs: list[TrainerRun] = []

    def make(*settings: str, name: str = "run") -> TrainerRun:
        runs.append(TrainerRun(tmp_path / name, f"model={model_folder}", f"tasks={task}:TASK", *settings))
        return runs[-1]

    yield make
    for each in runs:
        each.close()


def assert_whole(run: TrainerRun, steps: int) -> None:
    """Every step once, every group in one step, none skipped, no figure that is not a number."""
    records = run.steps()
    assert [r["step"] for r in records] == list(range(1, steps + 1)), "no step is lost or doubled"
    assert all(math.isfinite(v) for r in records for v in r.values() if isinstance(v, float))
    assert all(r["loss"] is not None and r["grad_norm"] is not None for r in records)
    last = checkpoint.newest_whole(run.output)
    assert last == run.output / f"checkpoint-{steps}"
    done = {int(group_id[1:]) for group_id in checkpoint.Cursor.load(last).done}
    assert len(done) == sum(r["batch/groups"] for r in records) == GROUPS_PER_STEP * steps, "no group in two steps"
    assert len(set(range(max(done) + 1)) - done) <= ON_THEIR_WAY, "none is skipped but those on their way"
    trained = [int(group_id[1:]) for entry in read_index(run.output) for group_id in entry["groups"]]
    assert sorted(trained) == sorted(done), "the transcripts hold each group once"


def test_engine_rollout_process_and_trainer_are_killed_in_one_run(run: Make) -> None:
    struck = run("steps=60")
    struck.start()
    struck.wait_for_step(1)
    struck.kill(ENGINE)
    struck.wait_for_step(len(struck.steps()) + 2)
    struck.kill(ROLLOUT)
    struck.wait_for_step(len(struck.steps()) + 2)
    assert "the rollout process is started again" in struck.log.read_text()
    struck.kill_trainer()
    left = checkpoint.newest_whole(struck.output)
    assert left is not None
    steps = checkpoint.step_of(left) + 2
    struck.start("resume=auto", f"steps={steps}")
    assert struck.finish() == 0, struck.log.read_text()
    assert_whole(struck, steps)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_when_the_run_is_brought_to_its_end(run: Make, seed: int) -> None:
    """Three kills each: a trainer, a rollout process and an engine, in any order and at any moment."""
    rng = random.Random(seed)
    struck = run("steps=14", "rollout.restarts=9", "engines.restarts=9")
    struck.start()
    victims = ["trainer", ROLLOUT, ENGINE]
    rng.shuffle(victims)
    for number, victim in enumerate(victims):
        struck.wait_for_step(1 + 3 * number)
        time.sleep(rng.uniform(0, 1.5))
        if victim == "trainer":
            struck.kill_trainer()
            struck.start("resume=auto")
        else:
            struck.kill(victim, rng.randrange(2) if victim == ENGINE else 0)
    assert struck.finish() == 0, struck.log.read_text()
    assert_whole(struck, 14)


@pytest.mark.full
def test_workers_of_the_environments_are_killed_and_come_back(run: Make, tmp_path: Path) -> None:
    """Three kills: each time the one worker of a controller dies with all its sessions, and another reports."""
    task = f"{tmp_path / 'toy.py'}:TASK"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    struck = run("steps=10", f"rollout.url={url}")
    cli = [sys.executable, "-m", "agentbench_fc.cli"]
    with (tmp_path / "serve.log").open("ab") as log:

        def serve(*arguments: str) -> "subprocess.Popen[bytes]":
            return subprocess.Popen([*cli, *arguments], stdout=log, stderr=log, start_new_session=True)

        controller = serve("controller", "--port", str(port), "--heartbeat", "0.5")
        worker = serve("worker", task, "--port", "0", "--controller", url, "--name", "w0")
        try:
            time.sleep(8)
            struck.start()
            for number in range(3):
                struck.wait_for_step(1 + 2 * number)
                worker.kill()
                worker.wait(10)
                time.sleep(1)
                worker = serve("worker", task, "--port", "0", "--controller", url, "--name", f"w{number + 1}")
            assert struck.finish() == 0, struck.log.read_text()
        finally:
            for process in (worker, controller):
                process.send_signal(signal.SIGKILL)
                process.wait(10)
    assert_whole(struck, 10)


@pytest.mark.full
def test_a_deterministic_run_that_is_killed_ends_as_the_one_that_is_not(run: Make) -> None:
    """One engine, lag 0, one rollout at a time; no canary, whose tokens would share batches with an episode's."""
    settings = ("steps=5", "engines.cross_policy=none", "staleness.max_lag=0", "rollout.max_episodes=1", "seed=3")
    settings += ("engines.canary=off",)
    whole = run(*settings, name="whole")
    whole.start()
    assert whole.finish() == 0, whole.log.read_text()
    struck = run(*settings, name="struck")
    struck.start()
    for step in (2, 3):
        struck.wait_for_step(step)
        struck.kill_trainer()
        struck.start("resume=auto")
    assert struck.finish() == 0, struck.log.read_text()
    assert_whole(struck, 5)
    model = "model/model.safetensors"
    assert (struck.output / model).read_bytes() == (whole.output / model).read_bytes()
    for ours, theirs in zip(struck.steps(), whole.steps(), strict=True):
        timed = ("time/", "seconds", "tokens_per_s", "queue/", "epoch")
        same = {k: v for k, v in theirs.items() if not k.startswith(timed)}
        assert {k: ours[k] for k in same} == same
