"""Many sessions at once: the same as Gymnasium's own vector env, and what that one cannot do."""

import itertools
import os
import signal
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from toys import Counter, counter_task
from vector_toys import ADD, SUBMIT, Gates, said, vector_env

from agentbench_fc.client import LocalClient, SyncClient
from agentbench_fc.envs.env import AgentEnv
from agentbench_fc.envs.vector import AgentVectorEnv
from agentbench_fc.episode import ToolTask, make_task
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolCall, assistant

MODES = list(AutoresetMode)


class Short(Counter):
    """Ends soon, by success, failure or the limit."""

    max_turns = 4


def short_task() -> ToolTask:
    return make_task(Short, samples={"train": [{"target": n} for n in (1, 2, 3)]})


# the same as Gymnasium's own


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("reward", ["raw", "success"])
def test_it_is_step_for_step_what_sync_vector_env_is(mode: AutoresetMode, reward: Any) -> None:
    native = AgentVectorEnv(short_task(), 4, autoreset_mode=mode, reward=reward)
    reference = SyncVectorEnv([lambda: AgentEnv(short_task(), reward=reward)] * 4, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    choices: list[Any] = [ADD, {"name": "roll"}, SUBMIT, "no call"]
    ours, theirs = native.reset(seed=3), reference.reset(seed=3)
    ended = 0
    for _ in range(40):
        assert said(ours[0]) == said(theirs[0])
        _same_infos(ours[-1], theirs[-1])
        actions = [choices[i] for i in rng.integers(4, size=4)]
        ours, theirs = native.step(actions), reference.step(tuple(actions))
        for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
            np.testing.assert_array_equal(mine, other)
            assert mine.dtype == other.dtype
        ended += int((ours[2] | ours[3]).sum())
    assert ended > 20
    native.close()
    reference.close()


def _same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for key in ("sample", "turn", "status", "raw_reward", "masked", "_sample", "_turn"):
        assert list(ours[key]) == list(theirs[key]), key
    if "final_info" in ours:
        assert said(filter(None, ours["final_obs"])) == said(filter(None, theirs["final_obs"]))
        assert list(ours["final_info"]["_status"]) == list(theirs["final_info"]["_status"])
        assert list(ours["final_info"]["status"]) == list(theirs["final_info"]["status"])


def test_disabled_autoreset_waits_for_a_masked_reset() -> None:
    envs = vector_env(short_task(), autoreset_mode="DISABLED")
    envs.reset(seed=1, options={"sample": 0})
    _, rewards, terminated, _, _ = envs.step([ADD, ADD, SUBMIT])
    assert (terminated.tolist(), rewards.tolist()) == ([False, False, True], [0.0, 0.0, 0.0])
    with pytest.raises(gym.error.ResetNeeded, match="env 2 has ended"):
        envs.step([SUBMIT] * 3)
    options = {"reset_mask": np.array([False, False, True]), "sample": [1, 1, 2]}
    observations, infos = envs.reset(options=options)
    assert set(options) == {"reset_mask", "sample"}  # the caller's options are left alone
    assert said(observations) == ["The total is 1.", "The total is 1.", "Reach 3."]
    assert infos["_sample"].tolist() == [False, False, True]
    _, rewards, terminated, _, _ = envs.step([SUBMIT, SUBMIT, ADD])
    assert (terminated.tolist(), rewards.tolist()) == ([True, True, False], [1.0, 1.0, 0.0])
    envs.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_episode_statistics_wrap_it(mode: AutoresetMode) -> None:
    envs = DictInfoToList(RecordEpisodeStatistics(vector_env(short_task(), autoreset_mode=mode)))
    assert envs.unwrapped.metadata["autoreset_mode"] is mode
    envs.reset(seed=1, options={"sample": 1})
    for _ in range(2):
        envs.step([ADD] * 3)
    infos = envs.step([SUBMIT, ADD, SUBMIT])[4]
    assert [info.get("episode", {}).get("r") for info in infos] == [1.0, None, 1.0]
    assert [info.get("episode", {}).get("l") for info in infos] == [3, None, 3]
    envs.close()


def test_make_vec_makes_it_and_its_spaces_fit() -> None:
    envs = gym.make_vec("agentbench-fc/KG-v0", num_envs=2, prompt="compact", max_turns=3)
    assert isinstance(envs, AgentVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.action_space.seed(1)
    observations, infos = envs.reset(seed=1)
    assert observations in envs.observation_space
    assert len(infos["tools"][0]) == len(envs.single_action_space.tools)
    for _ in range(4):
        observations, *_ = envs.step(envs.action_space.sample())
        assert observations in envs.observation_space
    envs.close()


# send and recv


def test_a_slow_env_holds_up_nobody(gates: Gates) -> None:
    envs = vector_env(gates.task)
    envs.reset(options={"sample": 0})
    envs.send([gates.wait(i, f"word {i}") for i in range(3)])
    for expected in (2, 0):
        gates.gates[expected].set()
        ids, observations, rewards, terminated, _, infos = envs.recv(timeout=10)
        assert (ids.tolist(), said(observations)) == ([expected], [f"word {expected}"])
        assert (rewards.shape, terminated.shape, infos["turn"].tolist()) == ((1,), (1,), [1])
        gates.gates[expected].clear()
    envs.send([gates.wait(0, "again")], [2])
    gates.gates[1].set()
    gates.gates[0].set()
    ids, observations, *_ = envs.recv(min=2, timeout=10)
    assert (ids.tolist(), said(observations)) == ([1, 2], ["word 1", "again"])
    envs.close()


def test_a_reply_after_a_timeout_is_neither_lost_nor_taken_for_another(gates: Gates) -> None:
    envs = vector_env(gates.task, 2)
    envs.reset(options={"sample": 0})
    envs.send([gates.wait(0, "first 0"), gates.wait(1, "first 1")])
    ids, observations, rewards, *_ = envs.recv(min=2, timeout=0.05)
    assert (ids.size, observations, rewards.shape) == (0, (), (0,))
    with pytest.raises(CallerError, match="answer outstanding"):
        envs.send([gates.wait(0, "second")], [0])
    gates.gates[0].set()
    gates.gates[1].set()
    ids, observations, *_ = envs.recv(min=2, timeout=10)
    assert (ids.tolist(), said(observations)) == ([0, 1], ["first 0", "first 1"])
    for word in ("second", "third"):
        observations, *_ = envs.step([gates.wait(0, f"{word} 0"), gates.wait(1, f"{word} 1")])
        assert said(observations) == [f"{word} 0", f"{word} 1"]
    envs.close()


def test_an_interrupted_wait_loses_nothing(gates: Gates) -> None:
    envs = vector_env(gates.task, 2)
    envs.reset(options={"sample": 0})

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def kill() -> None:
        for _ in range(2):
            assert gates.entered.acquire(timeout=60)
        time.sleep(0.2)  # both are under way: by now the caller waits
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Thread(target=kill).start()
        with pytest.raises(KeyboardInterrupt):
            envs.step([gates.wait(0, "zero"), gates.wait(1, "one")])
    finally:
        signal.signal(signal.SIGUSR1, before)
    gates.gates[0].set()
    gates.gates[1].set()
    ids, observations, *_ = envs.recv(min=2, timeout=10)
    assert (ids.tolist(), said(observations)) == ([0, 1], ["zero", "one"])
    envs.close()


def test_a_reset_drops_what_was_sent(gates: Gates) -> None:
    envs = vector_env(gates.task, 2)
    envs.reset(options={"sample": 0})
    envs.send([gates.wait(0, "late"), gates.wait(1, "late")])
    observations, infos = envs.reset(options={"sample": 0})
    gates.gates[0].set()
    gates.gates[1].set()
    assert said(observations) == ["Go.", "Go."]
    assert infos["turn"].tolist() == [0, 0]
    observations, _, _, _, infos = envs.step([gates.wait(0, "new 0"), gates.wait(0, "new 1")])
    assert (said(observations), infos["turn"].tolist()) == (["new 0", "new 1"], [1, 1])
    with pytest.raises(CallerError, match="nothing is outstanding"):
        envs.recv()
    envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_whatever_the_order_each_env_gets_its_own_replies(gates: Gates, mode: AutoresetMode) -> None:
    gates.gates[0].set()
    envs = vector_env(gates.task, 6, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    envs.reset(options={"sample": 0})
    sent: dict[int, str] = {}
    received = 0
    for step in itertools.count():  # a slow machine has fewer replies at a time
        if received > 300:
            break
        idle = [number for number in range(6) if number not in sent]
        chosen = [number for number in idle if rng.random() < 0.5]
        for number in chosen:
            sent[number] = f"{number} at {step}"
        envs.send([gates.wait(0, sent[number]) for number in chosen], chosen)
        if not sent:
            continue
        ids, observations, *_, infos = envs.recv(min=int(rng.integers(3)), timeout=float(rng.choice([0, 0.001, 5])))
        for number, word, turn in zip(ids, said(observations), infos.get("turn", []), strict=True):
            assert turn == 0 or word == sent[number]
            del sent[int(number)]
            received += 1
    envs.close()


def test_sessions_advance_at_once(gates: Gates) -> None:
    envs = vector_env(gates.task, 16)
    envs.reset(options={"sample": 0})
    observations, *_ = envs.step([{"name": "meet", "arguments": {"count": 16}}] * 16)
    assert said(observations) == ["met"] * 16
    envs.close()


def test_same_step_and_send_begin_the_next_episode_by_themselves() -> None:
    envs = vector_env(short_task(), 2, autoreset_mode="SameStep")
    envs.reset(seed=1, options={"sample": 0})
    envs.send([SUBMIT], [1])
    ids, observations, rewards, terminated, _, infos = envs.recv()
    assert (ids.tolist(), rewards.tolist(), terminated.tolist()) == ([1], [0.0], [True])
    assert said(observations)[0].startswith("Reach")
    assert said([infos["final_obs"][0]]) == ["Ended at 0."]
    assert infos["final_info"]["status"].tolist() == ["completed"]
    assert infos["status"].tolist() == ["running"]
    envs.close()


# client and clean-up


def test_the_client_s_methods_are_at_hand() -> None:
    envs = vector_env(num_envs=2)
    _, infos = envs.reset(seed=1, options={"sample": 1})
    turn = envs.start_sample("counter/dev/0")
    assert [info.sample for info in envs.list_sessions()] == ["counter/train/1"] * 2 + ["counter/dev/0"]
    turn = envs.interact(turn.session_id, [assistant(None, [ToolCall("c1", "add", '{"number": 6}')])], turn=1)
    branch = envs.fork(turn.session_id)
    done = envs.interact(branch.session_id, [assistant(None, [ToolCall("c2", "submit", "{}")])])
    assert (done.reward, envs.cancel(turn.session_id).status) == (1.0, "cancelled")
    copied = envs.fork(infos["session_id"][0])
    envs.step([SUBMIT] * 2)
    assert [info.session_id for info in envs.list_sessions()] == [copied.session_id]
    assert envs.list_workers()[0].sessions == 1
    envs.close()


def test_a_given_client_stays_open_and_its_sessions_are_ended() -> None:
    with SyncClient(LocalClient(tasks={"counter": counter_task()})) as client:
        envs = AgentVectorEnv("counter", 3, client=client, split="dev")
        _, infos = envs.reset(seed=1)
        assert all(sample.startswith("counter/dev/") for sample in infos["sample"])
        assert len(client.list_sessions()) == 3
        envs.reset(seed=1)
        assert len(client.list_sessions()) == 3
        envs.close()
        assert client.list_sessions() == []


def test_render_shows_every_conversation() -> None:
    envs = vector_env(num_envs=2, render_mode="ansi")
    envs.reset(options={"sample": 0})
    envs.step([ADD, "hm"])
    shown = envs.render()
    assert shown is not None
    assert shown[0] == 'user: Reach 1.\nassistant: add({"number": 1})\ntool: The total is 1.'
    assert shown[1].startswith("user: Reach 1.\nassistant: hm\nuser: ")
    envs.close()
    assert vector_env().render() is None


def test_nothing_is_left_after_close() -> None:
    before = {thread.name for thread in threading.enumerate()}
    closed: list[int] = []

    class Watched(Counter):
        def close(self) -> None:
            closed.append(1)

    envs = vector_env(make_task(Watched, samples={"train": [{"target": 1}]}), 5)
    envs.reset(seed=1)
    envs.step([ADD] * 5)
    envs.close()
    envs.close()
    assert len(closed) == 5
    left = {t.name for t in threading.enumerate() if t.name.startswith("agentbench-fc-loop")} - before
    assert left == set()


def test_transcripts_can_be_played_again(tmp_path: Any) -> None:
    from agentbench_fc.replay import replay_file

    path = tmp_path / "episodes.jsonl"
    envs = gym.make_vec("agentbench-fc/KG-v0", num_envs=2, transcripts=path, prompt="compact", max_turns=2)
    envs.reset(seed=1)
    envs.action_space.seed(1)
    for _ in range(2):
        envs.step(envs.action_space.sample())
    envs.close()
    assert path.read_text().count('"type": "start"') == 2
    report = replay_file(path)
    assert (report.sessions, report.turns, report.divergences) == (2, 6, [])
