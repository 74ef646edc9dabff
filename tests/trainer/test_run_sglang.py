"""`python -m agentrl_trainer.run` on SGLang servers: weights pass by disk, versions lag as set, faults are told."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl_trainer.config import Model
from agentrl_trainer.policy import policy_path
from agentrl_trainer.report import read_metrics

FAKE = Path(__file__).resolve().parents[1] / "fake_sglang.py"
SETTINGS = [
    "tasks=db", "evaluation.n=4", "evaluation.greedy=false", "group_size=4", "batch.min_trajectories=8",
    "batch.max_trajectories=8", "checkpoints.every=0", "progress=plain", "engines.kind=sglang",
    "engines.stale_sync_steps=2", "rollout.max_groups=4",
]  # fmt: skip


class Server:
    """A fake in a process of its own."""

    def __init__(self, folder: Path | str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), "--model-path", str(folder), *options],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), "the fake ended before it was ready"

    @property
    def version(self) -> str:
        with urllib.request.urlopen(f"{self.url}/model_info", timeout=10) as answer:
            return str(json.load(answer)["weight_version"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*arguments: Any) -> Server:
        servers.append(Server(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


def run(output: Path, *settings: str, seconds: float = 240) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agentrl_trainer.run", *SETTINGS, f"output={output}", *settings]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


def test_a_run_trains_on_two_servers_that_take_its_weights_from_disk(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    tiny = policy_path(Model())
    fresh, stale = serve(tiny), serve(tiny)
    done = run(
        tmp_path / "run", "steps=3", "evaluation.n=0",
        f"engines.fresh_urls={fresh.url}", f"engines.stale_urls={stale.url}",
        f"engines.weights_dir={tmp_path / 'weights'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (fresh.version, stale.version) == ("3", "2")
    steps = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "step"]
    assert [r["step"] for r in steps] == [1, 2, 3]
    assert all(r["lag/max"] <= 2 for r in steps)
    assert steps[0]["canary/max_difference"] < 1e-3, "the servers' log-probs are the trainer's"
    assert not list((tmp_path / "weights").glob("*/v*")), "snapshots are removed at the end"


@pytest.mark.full
def test_a_server_with_other_numbers_or_another_model_is_refused_at_the_start(
    serve: Callable[..., Server], tmp_path: Path, policy_dir: Path
) -> None:
    tiny = policy_path(Model())
    shifted = serve(tiny, "--shift", "0.5")
    done = run(tmp_path / "shifted", f"engines.fresh_urls={shifted.url}", "engines.cross_policy=none")
    assert done.returncode == 2
    assert "log-probs differ by 0.5 on average" in done.stderr
    assert "start it with the policy's own folder" in done.stderr
    other = serve(policy_dir)
    done = run(tmp_path / "other", f"engines.fresh_urls={other.url}", "engines.cross_policy=none")
    assert done.returncode == 2, done.stderr
    assert "the server refuses" in done.stderr or "the server holds" in done.stderr


@pytest.mark.full
def test_a_server_that_dies_and_is_started_again_gets_the_newest_weights(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    tiny = policy_path(Model())
    fresh, steady = serve(tiny), serve(tiny)
    output = tmp_path / "run"
    command = [
        sys.executable, "-m", "agentrl_trainer.run", *SETTINGS, f"output={output}", "steps=30", "evaluation.n=0",
        f"engines.fresh_urls={steady.url},{fresh.url}", "engines.restarts=20",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 120
        while not read_metrics(output / "metrics.jsonl"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        port = fresh.url.rpartition(":")[2]
        os.kill(fresh.process.pid, signal.SIGKILL)
        fresh.process.wait(10)
        serve(tiny, "--port", port)
        rest = process.communicate(timeout=240)[0]
        assert process.returncode == 0, rest
        assert "serves again" in (output / "logs" / "rollout.log").read_text()
        assert steady.version == fresh.version == "30"
    finally:
        process.kill()
        process.wait(10)
