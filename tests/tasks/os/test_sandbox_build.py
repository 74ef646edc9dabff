"""A build of images that is killed, and a build that is told nonsense."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import missing

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.os.sandbox.docker import DockerBackend
from agentbench_fc.tasks.os.sandbox.images import _ALONE, Images, _run

STEP = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
from agentbench_fc.tasks.os.sandbox.images import _ALONE, _run
script = "mount -t tmpfs none $1 && echo > $1/../mounted && (sleep 97 & sleep 98)"
_run([*_ALONE, "sh", "-c", script, "sh", sys.argv[1]])
"""


def left(folder: Path) -> list[str]:
    """Processes that name the folder, and mounts below it."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in each.read_bytes():
                found.append(each.read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_build_leaves_no_process_and_no_mount(how: signal.Signals, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("only root can build images")
    inside = tmp_path / "root"
    inside.mkdir()
    made = subprocess.Popen([sys.executable, "-c", STEP, str(inside)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "mounted").exists() and time.monotonic() < deadline:
            assert made.poll() is None
            time.sleep(0.02)
        assert len(left(inside)) >= 2
        made.send_signal(how)
    finally:
        made.send_signal(how)
        made.wait(30)
    deadline = time.monotonic() + 30
    while left(inside) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left(inside) == []


def test_a_step_of_a_build_that_fails_is_told_by_its_own_name() -> None:
    if os.geteuid() != 0:
        missing("only root can build images")
    with pytest.raises(InfrastructureError, match="^sh failed with 3: no room"):
        _run([*_ALONE, "sh", "-c", "echo no room >&2; exit 3"])


def test_a_cache_that_is_no_folder_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cache cannot be written.*file"):
        Images(tmp_path / "file").build("ubuntu", base="docker:x")


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "ssh://nobody@nowhere.invalid", "nonsense"])
def test_an_address_that_somebody_chose_is_theirs_to_mend(host: str) -> None:
    backend = DockerBackend(host=host)
    probe = backend.probe()
    backend.close()
    assert not probe.ok
    assert "DOCKER_HOST" in probe.mend
    assert host in probe.detail
