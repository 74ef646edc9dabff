"""`scripts/gpu_check.py`: its CPU variant passes, also against a server, and it fails where something is wrong."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


def check(*arguments: str, seconds: float = 280) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", *arguments], capture_output=True, text=True, timeout=seconds
    )


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """A right server of the tiny policy, and one whose log-probs are wrong."""
    from agentrl_trainer.tiny_asset import FOLDER

    command = [sys.executable, str(ROOT / "tests" / "fake_sglang.py"), "--model-path", str(FOLDER)]
    processes = [
        subprocess.Popen([*command, "--shift", shift], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for shift in ("0", "0.5")
    ]
    urls = []
    for process in processes:
        assert process.stdout is not None
        urls.append(process.stdout.readline().strip())
    yield urls
    for process in processes:
        process.kill()
        process.communicate()


def test_devices_engine_and_server_agree_and_a_server_that_lies_is_found(servers: list[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = check("--only", "environment,logprobs,engine,sglang", "--sglang", servers[0], "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert {row["state"] for row in rows.values()} == {"passed"}
    assert rows["engine"]["figures"]["turns_of_two_versions"] > 0
    assert rows["sglang"]["figures"]["largest"] < 1e-3
    lied = check("--only", "sglang", "--sglang", servers[1])
    assert lied.returncode == 1
    assert "FAILED" in lied.stdout
    assert "differ from a full pass by 0.5 on average" in lied.stdout


def test_what_cannot_be_checked_is_said_and_time_is_bounded() -> None:
    assert "known are environment" in check("--only", "nope").stderr
    skipped = check("--only", "sglang")
    assert (skipped.returncode, "no --sglang URL" in skipped.stdout) == (0, True)
    late = check("--only", "logprobs", "--minutes", "0.01")
    assert late.returncode == 1
    assert "time is used up: 0 checks are done" in late.stdout


@pytest.mark.full
def test_a_short_training_passes_too(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = check("--only", "training,throughput", "--out", str(out), "--minutes", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    training = json.loads(out.read_text())[0]
    assert training["figures"]["steps"] == 3
    assert training["figures"]["canary_largest_mean"] < 0.01
