"""Settings that hold for every test: one thread, offline, a cache folder of its own, and the rule for skips."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# how long one example takes says nothing on a busy machine: by its deadline a sound property failed once in a while
settings.register_profile("unhurried", settings(deadline=None))
settings.load_profile("unhurried")


def missing(what: str) -> None:
    """Skips a test whose backend is absent; with AGENTBENCH_FC_REQUIRE_ALL=1 the absence is a failure."""
    if os.environ.get("AGENTBENCH_FC_REQUIRE_ALL") == "1":
        pytest.fail(f"{what}, and AGENTBENCH_FC_REQUIRE_ALL=1 demands it")
    pytest.skip(what)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of AgentBench's files and samples that tests read; never part of the repository."""
    given = os.environ.get("AGENTBENCH_FC_TEST_DATA")
    if not given:
        missing("AGENTBENCH_FC_TEST_DATA is not set")
    path = Path(given or ".")
    if not path.is_dir():
        missing(f"no such folder: {path} (AGENTBENCH_FC_TEST_DATA)")
    return path
