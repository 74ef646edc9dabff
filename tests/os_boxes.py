"""Sandboxes for tests: each kind that this machine must offer, and the engine that Docker's kind needs."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import missing

from agentbench_fc.tasks.os.sandbox.base import SandboxBackend
from agentbench_fc.tasks.os.sandbox.choose import make
from agentbench_fc.tasks.os.sandbox.docker import DockerBackend

ENGINE_SCRIPT = Path(__file__).parent.parent / "scripts" / "os_engine.sh"


def until(seconds: float, done: Callable[[], bool]) -> bool:
    """Whether it is so, now or within that time: what runs in the background comes and goes when it is its turn."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def engine_answers(host: str | None = None) -> bool:
    backend = DockerBackend(host=host)
    try:
        with backend.engine() as client:
            client.ping()
        return True
    except Exception:  # whatever it is: there is none to use
        return False
    finally:
        backend.close()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a container engine: the one that is there, or one of our own for as long as the tests run."""
    if engine_answers():
        yield os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        return
    if os.geteuid() != 0 or not shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin"):
        missing("no container engine answers, and none can be started (root and docker.io)")
    home = tmp_path_factory.mktemp("engine")
    started = subprocess.run([ENGINE_SCRIPT, "start", home], capture_output=True, text=True, timeout=60, check=False)
    if started.returncode:
        missing(f"no engine starts here: {started.stderr}")
    try:
        yield f"unix://{home}/docker.sock"
    finally:
        subprocess.run([ENGINE_SCRIPT, "stop", home], capture_output=True, timeout=120, check=False)


def open_backend(name: str, request: pytest.FixtureRequest) -> SandboxBackend:
    """A backend that works, or the skip (or failure) that says why it does not."""
    backend = make(name) if name == "oci" else DockerBackend(host=request.getfixturevalue("engine"))
    probe = backend.probe()
    if not probe.ok:
        backend.close()
        missing(f"sandboxes of the kind {name} do not work here: {probe.detail}. {probe.mend}")
    return backend


@pytest.fixture(scope="session", params=["oci", "docker"])
def backend(request: pytest.FixtureRequest) -> Iterator[SandboxBackend]:
    """Each kind of sandbox."""
    made = open_backend(request.param, request)
    yield made
    made.close()
