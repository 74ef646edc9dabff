"""A start may take longer than a heartbeat may be late: on a loaded machine, imports alone do."""

import time
from pathlib import Path

import pytest

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.config import Batch, Evaluation, Rollout, RunConfig
from agentrl_trainer.rollout import process
from agentrl_trainer.rollout.process import RolloutProcess
from agentrl_trainer.rollout.supervisor import Died


def test_heartbeats_are_only_missed_once_the_process_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEARTBEAT_S", 2.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("SLOW_ROLLOUT_S", "3")
    rollout = RolloutProcess(RunConfig(), logs=tmp_path, module="slow_rollout")
    try:
        rollout.start()
        deadline = time.monotonic() + 60
        while not rollout.stats() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rollout.stats() == {"alive": 1}
        rollout._child.process.send_signal(19)  # type: ignore[union-attr]  # SIGSTOP: from now on none comes
        with pytest.raises(InfrastructureError, match=r"no heartbeat for 2\.5 s"):
            rollout.get_group(60)
    finally:
        rollout.close()


def test_an_evaluation_that_takes_too_long_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    config = RunConfig(evaluation=Evaluation(timeout_s=0.3), batch=Batch(stall_report_s=0.2))
    with RolloutProcess(config, logs=tmp_path, module="slow_rollout") as rollout:
        with pytest.raises(InfrastructureError, match=r"64 episodes of db.*Raise\s+evaluation.timeout_s") as raised:
            rollout.evaluate("db", "dev", 64, 0.8, 0)
        assert not isinstance(raised.value, Died), "another process would be as slow"


def test_a_process_that_is_still_loading_is_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "READY_S", 1.8)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("SLOW_ROLLOUT_S", "60")
    config = RunConfig(rollout=Rollout(start_timeout_s=0.2), batch=Batch(stall_report_s=0.1))
    rollout = RolloutProcess(config, logs=tmp_path, module="slow_rollout")
    with pytest.raises(InfrastructureError, match=r"(?s)not ready within 0\.2 s.*start_timeout_s"):
        rollout.start()
    assert rollout._child is not None
    assert rollout._child.process.returncode == -9, "killed, not waited for"
    assert "not ready yet; its log ends" in caplog.text


def test_a_start_is_waited_for_longer_than_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    config = RunConfig(rollout=Rollout(start_timeout_s=0.5))
    with RolloutProcess(config, logs=tmp_path, module="slow_rollout") as rollout:  # is ready after 1.5 s
        assert rollout._failure is None
