"""Public packages that our wire is held against, each in a virtual environment of its own, made once and kept."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import missing

ATTEMPTS = 2
INSTALL_TIMEOUT_S = 130.0
"""Of one step; all attempts together stay below the limit of a test."""


def environment(requirement: str) -> Path:
    """The interpreter of an environment in which a package is installed."""
    cache = Path(os.environ.get("AGENTBENCH_FC_CI_CACHE") or Path.home() / ".cache/agentbench-fc-ci")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "contract" / f"{requirement.replace('==', '-')}-py{version}"
    python, stamp = folder / "bin/python", folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may share the cache
        if stamp.exists() and python.exists():
            return python
        said = ""
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                # Our own pip fills it: an environment without pip is made in a fraction of the time.
                _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
                _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", requirement)
            except (subprocess.SubprocessError, OSError) as error:
                said = f"{error} {getattr(error, 'stderr', '') or ''}"[-500:]
            else:
                stamp.touch()
                return python
    missing(f"{requirement} cannot be installed: {said}")
    raise AssertionError("missing() does not return")


def _run(*command: str) -> None:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, env=env)


@pytest.fixture(scope="session")
def agentrl_eval() -> Path:
    """The interpreter that has AgentRL's evaluation client."""
    return environment("agentrl-eval==0.1.2")


@pytest.fixture(scope="session")
def agentrl_worker() -> Path:
    """The interpreter that has AgentRL's worker."""
    return environment("agentrl-worker==0.4.0")


@pytest.fixture(scope="session")
def schemathesis() -> Path:
    """The interpreter that has Schemathesis."""
    return environment("schemathesis==4.32.5")
