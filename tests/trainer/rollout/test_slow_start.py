"""A start may take longer than a heartbeat may be late: on a loaded machine, imports alone do."""

import time
from pathlib import Path

import pytest

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.config import RunConfig
from agentrl_trainer.rollout import process
from agentrl_trainer.rollout.process import RolloutProcess


def test_heartbeats_are_only_missed_once_the_process_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEARTBEAT_S", 0.75)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    rollout = RolloutProcess(RunConfig(), logs=tmp_path, module="slow_rollout")
    try:
        rollout.start()
        deadline = time.monotonic() + 5
        while not rollout.stats() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rollout.stats() == {"alive": 1}
        rollout._child.process.send_signal(19)  # type: ignore[union-attr]  # SIGSTOP: from now on none comes
        with pytest.raises(InfrastructureError, match=r"no heartbeat for 0\.75 s"):
            rollout.get_group(10)
    finally:
        rollout.close()
