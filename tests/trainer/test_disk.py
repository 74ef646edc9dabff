"""A run's folder: held by one run, and a disk that is full or closed is told as what it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError, Conflict, InfrastructureError
from agentrl_trainer.disk import RunFolder, writing


def test_one_run_at_a_time_is_in_a_folder_whoever_asks(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from agentrl_trainer.disk import RunFolder; RunFolder(Path({str(tmp_path)!r}))"
    with RunFolder(tmp_path) as held:
        with pytest.raises(Conflict, match="Wait for its end"):
            RunFolder(tmp_path)
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert "Conflict: another run is at work" in other.stderr
        held.close()
    assert not list(tmp_path.iterdir())
    RunFolder(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(CallerError, match="output="):
            RunFolder(place)


def test_faults_of_the_disk_are_faults_of_machines_and_bugs_stay_bugs(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    full = Path("/dev/full")
    with pytest.raises(InfrastructureError, match="figures cannot be written.*No space left.*resume=auto"):
        with writing("figures", tmp_path), full.open("w") as file:
            file.write("x")
    with pytest.raises(InfrastructureError, match="cannot be written"), writing("weights", tmp_path):
        save_file({"a": torch.zeros(9)}, tmp_path / "absent" / "x.safetensors")
    with pytest.raises(InfrastructureError, match="cannot be written"), writing("weights", tmp_path):
        torch.save(torch.zeros(1 << 16), full)
    for bug in (ValueError("a bug"), RuntimeError("CUDA out of memory")):
        with pytest.raises(type(bug)), writing("figures", tmp_path):
            raise bug
