"""The whole rollout side in its own processes: groups arrive, are exact, follow versions, and every end is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import load_config
from agentrl_trainer.rollout.process import RolloutProcess
from agentrl_trainer.types import Group, Trajectory

TOY = '''
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool


class Toy(ToolEpisode):
    max_turns = 4

    def start(self):
        return f"Say {self.sample.data['word']}."

    @tool
    def say_word(self, word: str):
        """Says a word."""
        return self.finish("Thanks.", reward=1.0)

    def say(self, text):
        if self.rng.random() < 0.5:
            return None
        odd = len(text) % 2
        return Reply("Noted.", reward=float(odd), done=bool(odd))


TASK = make_task(Toy, samples={"train": [{"word": w} for w in ("yes", "no", "well")], "dev": [{"word": "so"}]})
'''
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def config(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("run")
    (folder / "toy.py").write_text(TOY)
    return load_config(
        overrides=[
            f"model={model_folder}", f"tasks={folder / 'toy.py'}:TASK", f"output={folder}", "group_size=4",
            "sampling.max_context=400", "sampling.max_new_tokens=12", "rollout.max_groups=3",
            "batch.min_trajectories=8", "batch.max_trajectories=16", "staleness.max_lag=1",
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def rollouts(config: RunConfig) -> Iterator[RolloutProcess]:
    with RolloutProcess(config, done=["g000001"]) as rollouts:
        yield rollouts


def groups(rollouts: RolloutProcess, count: int) -> list[Group]:
    deadline = time.monotonic() + DEADLINE_S
    found: list[Group] = []
    while len(found) < count and time.monotonic() < deadline:
        if group := rollouts.get_group(0.2):
            found.append(group)
    assert len(found) == count
    return found


def assert_exact(folders: dict[int, Path], row: Trajectory) -> None:
    """Every sampled token has the log-prob that its version's plain model gives it."""
    for version in set(row.versions[row.mask].tolist()):
        model = AutoModelForCausalLM.from_pretrained(folders[version])
        with torch.no_grad():
            table = torch.log_softmax(model(torch.from_numpy(row.ids[None].astype(np.int64))).logits[0] / 0.8, -1)
        at = np.flatnonzero(row.mask & (row.versions == version))
        expected = table[at - 1, row.ids[at]].numpy()
        np.testing.assert_allclose(row.logprobs[at], expected, atol=1e-4)


def test_from_the_first_group_to_the_last_breath(
    rollouts: RolloutProcess, config: RunConfig, make_model: Callable[..., Path], model_folder: Path
) -> None:
    assert rollouts.get_group(0.05) is None  # nothing starts before the first version
    folders = {0: model_folder, 1: make_model(1), 2: make_model(2)}
    rollouts.publish(folders[0], 0, stale=True)
    first = groups(rollouts, 4)
    assert rollouts.get_group(0.3) is None  # two batches of two groups are all that a lag of 1 allows
    assert {g.id for g in first} == {"g000000", "g000002", "g000003", "g000004"}
    assert all(g.admitted_version == 0 and len(g.trajectories) == 4 and g.seconds > 0 for g in first)

    rollouts.consumed(8)
    rollouts.publish(folders[1], 1, stale=False)
    rollouts.consumed(8)
    rollouts.publish(folders[2], 2, stale=False)
    rows = [row for group in [*first, *groups(rollouts, 4)] for row in group.trajectories]
    assert all(row.usable for row in rows)
    assert {row.task for row in rows} == {config.tasks[0].name}
    assert {int(e) for row in rows for e in row.engines[row.mask]} == {0, 1}
    for row in rows[:3] + rows[-5:]:
        assert_exact(folders, row)
    late = np.concatenate([row.versions[row.mask & (row.engines == 0)] for row in rows[16:]])
    stale = np.concatenate([row.versions[row.mask & (row.engines == 1)] for row in rows])
    assert set(late.tolist()) <= {1, 2}
    assert set(stale.tolist()) == {0}

    task = config.tasks[0].name
    records = rollouts.evaluate(task, "dev", 6, 0.0, 5)
    assert [r["sample_id"] for r in records] == ["toy/dev/0"] * 6
    assert records == rollouts.evaluate(task, "dev", 6, 0.0, 5)
    assert set(records[0]) >= {"success", "reward", "raw_reward", "status", "turns", "invalid_calls", "usable"}
    with pytest.raises(CallerError, match="no split 'dve'"):
        rollouts.evaluate(task, "dve", 1, 0.0, 5)
    with pytest.raises(InfrastructureError, match="no fresh engine is left"):
        rollouts.publish(model_folder / "nothing", 3, stale=False)
    _wait_for_the_end(rollouts)


def _wait_for_the_end(rollouts: RolloutProcess) -> None:
    """A killed process is told at once, and its engines end with it."""
    assert rollouts._child is not None
    pids = _children(rollouts._child.process.pid)
    os.kill(rollouts._child.process.pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"SIGKILL \[rollout process\]. Its log"):
        _drain(rollouts)
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        rollouts.stats()
    while any(_runs(pid) for pid in pids) and time.monotonic() < started + 60:
        time.sleep(0.02)
    assert len(pids) == 2
    assert not any(_runs(pid) for pid in pids)


def _drain(rollouts: RolloutProcess) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rollouts.get_group(0.05)


def _children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (stat := _stat(pid)) and int(stat[1]) == parent]


def _runs(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def _stat(pid: int) -> list[str]:
    """State, parent and so on of a process; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_a_start_that_cannot_succeed_is_told_by_its_cause(config: RunConfig) -> None:
    import dataclasses

    task = dataclasses.replace(config.tasks[0], split="tarin")
    rollouts = RolloutProcess(dataclasses.replace(config, tasks=(task,)))
    with pytest.raises(CallerError, match="no split 'tarin'"):
        rollouts.start()
    assert rollouts._child is not None
    assert not rollouts._child.alive
    with pytest.raises(CallerError, match="no split"):
        rollouts.get_group(0.1)


PARENT = """
import sys, time
from agentrl_trainer.configfile import load_config
from agentrl_trainer.rollout.process import RolloutProcess

if __name__ == "__main__":
    rollouts = RolloutProcess(load_config(overrides=sys.argv[1:])).start()
    print(rollouts._child.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.full
@pytest.mark.parametrize("victim", ["trainer", "rollout process"])
def test_when_either_side_is_ended_nothing_is_left_within_seconds(
    victim: str, config: RunConfig, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    settings = [f"model={config.model.path}", f"tasks={config.tasks[0].name}", f"output={tmp_path}"]
    command = [sys.executable, str(script), *settings, "sampling.max_context=400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        rollout = int(trainer.stdout.readline())
        tree = [rollout, *_children(rollout)]
        assert len(tree) == 3
        if victim == "trainer":
            trainer.kill()
        else:
            os.kill(rollout, signal.SIGTERM)
        deadline = time.monotonic() + 8
        while any(_runs(pid) for pid in tree) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [pid for pid in tree if _runs(pid)]
        trainer.kill()
    assert left == []
