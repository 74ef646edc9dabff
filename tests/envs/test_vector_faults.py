"""Many sessions at once, and something is wrong: a session fails, or a caller does."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from toys import counter_task, rude_task
from vector_toys import ADD, Gates, said, vector_env

from agentbench_fc.client import LocalClient, SyncClient
from agentbench_fc.envs.env import AgentEnv
from agentbench_fc.envs.vector import AgentVectorEnv
from agentbench_fc.errors import CallerError, InfrastructureError, NotFound

# sessions that fail


def test_a_failing_session_is_truncated_and_the_others_go_on(gates: Gates) -> None:
    envs = vector_env(gates.task)
    envs.reset(options={"sample": 0})
    gates.gates[0].set()
    actions = [gates.wait(0, "fine"), {"name": "fail"}, gates.wait(0, "fine")]
    observations, rewards, terminated, truncated, infos = envs.step(actions)
    assert (said(observations)[0], said(observations)[2]) == ("fine", "fine")
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0] * 3, [False] * 3, [False, True, False])
    assert infos["masked"].tolist() == [False, True, False]
    assert infos["metrics"]["fault"].tolist() == [None, "task", None]
    _, _, _, truncated, infos = envs.step([gates.wait(0, "fine")] * 3)
    assert infos["turn"].tolist() == [2, 0, 2]
    envs.close()


def test_a_call_without_an_answer_ends_its_session_only(gates: Gates) -> None:
    envs = vector_env(gates.task, 2, timeout_s=3.0)
    envs.reset(options={"sample": 0})
    gates.gates[1].set()
    observations, rewards, terminated, truncated, infos = envs.step([gates.wait(0, "late"), gates.wait(1, "fine")])
    assert (said(observations), rewards.tolist()) == (["", "fine"], [0.0, 0.0])
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert infos["status"].tolist() == ["task error", "running"]
    assert " 3 s" in infos["metrics"]["reason"][0]
    gates.gates[0].set()
    envs.step([gates.wait(1, "ignored"), gates.wait(1, "two")])  # the late reply belongs to nobody
    observations, *_ = envs.step([gates.wait(1, "fresh"), gates.wait(1, "three")])
    assert said(observations) == ["fresh", "three"]
    envs.close()


def test_an_expired_session_is_truncated_and_masked() -> None:
    with SyncClient(LocalClient(tasks={"counter": counter_task()})) as client:
        envs = AgentVectorEnv("counter", 2, client=client)
        _, infos = envs.reset(seed=1)
        client.cancel(infos["session_id"][0])
        _, rewards, terminated, truncated, infos = envs.step([ADD, ADD])
        assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0, 0], [False] * 2, [True, False])
        assert infos["status"].tolist() == ["cancelled", "running"]
        assert infos["masked"].tolist() == [True, False]
        envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_a_task_that_cannot_start_is_truncated_at_the_next_step(gates: Gates, mode: AutoresetMode) -> None:
    envs = vector_env(gates.task, 2, autoreset_mode=mode)
    observations, infos = envs.reset(options={"split": ["train", "broken"]})
    assert said(observations) == ["Go.", ""]
    assert infos["status"].tolist() == ["running", "env init failed"]
    gates.gates[0].set()
    _, rewards, _, truncated, infos = envs.step([gates.wait(0, "fine")] * 2)
    assert (rewards.tolist(), truncated.tolist()) == ([0.0, 0.0], [False, True])
    ended = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert (ended["masked"][1], ended["metrics"]["fault"][1]) == (True, "environment")
    envs.close()


def test_no_room_on_the_worker_is_a_start_that_failed() -> None:
    client = LocalClient(tasks={"counter": counter_task()}, max_sessions=2)
    envs = AgentVectorEnv("counter", 3, client=client)
    _, infos = envs.reset(seed=1)
    assert sorted(infos["status"].tolist()) == ["env init failed", "running", "running"]
    _, _, _, truncated, infos = envs.step([ADD] * 3)
    assert truncated.sum() == 1
    reasons = [reason for reason in infos["metrics"]["reason"] if reason]
    assert len(reasons) == 1
    assert "all 2 sessions are taken" in reasons[0]
    _, infos = envs.reset(seed=1)  # the old sessions make room for the new ones
    assert sorted(infos["status"].tolist()) == ["env init failed", "running", "running"]
    envs.close()


def test_hanging_tools_cost_a_turn_not_the_step() -> None:
    envs = vector_env(rude_task(), 2)
    envs.reset()
    observations, _, _, truncated, _ = envs.step([{"name": "hangs"}, {"name": "prints", "arguments": {"size": 3}}])
    assert "within 0.8 seconds" in said(observations)[0]
    assert (said(observations)[1], truncated.tolist()) == ("xxx", [False, False])
    envs.close()


class Flaky(LocalClient):
    """A connection that breaks once, after the server has taken the turn."""

    broken = False

    async def interact(self, session_id: str, messages: Any, turn: int | None = None) -> Any:
        if not self.broken:
            self.broken = True
            raise InfrastructureError("the connection broke [worker w1]. Try another worker.")
        return await super().interact(session_id, messages, turn)


def test_a_session_whose_call_failed_is_not_left_behind() -> None:
    client = Flaky(tasks={"counter": counter_task()})
    envs = AgentVectorEnv("counter", 2, client=client)
    envs.reset(seed=1)
    _, _, _, truncated, infos = envs.step([ADD, ADD])
    assert truncated.tolist() == [True, False]
    assert infos["metrics"]["fault"][0] == "environment"
    envs.step([ADD, ADD])
    assert len(envs.list_sessions()) == 2
    envs.close()


# what a caller gets wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"autoreset_mode": "NEXTSTEP"}, "Did you mean 'NEXT_STEP'"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"render_mode": "human"}, "no render_mode"),
        ({"splitt": "dev"}, "Did you mean 'split'"),
        ({"client": LocalClient(), "transcripts": "x"}, "Tell the client"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_options_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        gym.make_vec("agentbench-fc/KG-v0", **({"num_envs": 2} | arguments))


def test_a_task_object_needs_the_own_client() -> None:
    with pytest.raises(CallerError, match="Give an id"):
        AgentVectorEnv(counter_task(), 2, client=LocalClient())
    with pytest.raises(NotFound, match="no task 'nothing'"):
        AgentVectorEnv("nothing", 2, client=LocalClient())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1, 2]}, "list of 3"),
        ({"seed": -4}, ">= 0"),
        ({"options": {"sampel": 1}}, "Did you mean 'sample'"),
        ({"options": {"sample": [1, 2]}}, "2 values for 3 envs"),
        ({"options": {"sample": [0, 1, 99]}}, "0 to 4"),
        ({"options": {"reset_mask": [True, False, True]}}, "bool array"),
        ({"options": {"reset_mask": np.array([True, False])}}, "bool array"),
        ({"options": {"reset_mask": np.array([False] * 3)}}, "no True"),
    ],
    ids=repr,
)
def test_bad_resets_are_told(arguments: dict[str, Any], message: str) -> None:
    envs = vector_env()
    with pytest.raises(CallerError, match=message):
        envs.reset(**arguments)
    envs.reset()
    envs.close()


def test_bad_steps_are_told_and_begin_nothing() -> None:
    envs = vector_env()
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([ADD] * 3)
    envs.reset(seed=1)
    for actions, ids in (([ADD] * 2, None), ([ADD], [7]), ([ADD, ADD], [1, 1]), ([ADD, ADD, 3], None)):
        with pytest.raises(CallerError):
            envs.send(actions, ids)
    assert envs.step([ADD] * 3)[4]["turn"].tolist() == [1, 1, 1]
    envs.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.step([ADD] * 3)


@pytest.mark.parametrize("actions", [None, 5, "xyz", {0: ADD}], ids=repr)
def test_actions_that_are_no_list_of_actions_are_refused(actions: Any) -> None:
    envs = vector_env()
    envs.reset(seed=0)
    with pytest.raises(CallerError, match="one action per env"):
        envs.step(actions)
    assert said(envs.step([ADD] * 3)[0]) == ["The total is 1."] * 3
    envs.close()


@pytest.mark.parametrize("ids", [5, ["a"], [0.9], [None]], ids=repr)
def test_ids_that_are_no_integers_are_refused(ids: Any) -> None:
    envs = vector_env()
    envs.reset(seed=0)
    with pytest.raises(CallerError, match="ids is"):
        envs.send([ADD], ids)
    envs.send([ADD], np.array([1]))
    assert envs.recv().ids.tolist() == [1]
    envs.close()


@pytest.mark.parametrize(
    "arguments", [{"options": "x"}, {"options": [1]}, {"seed": [1, 2, "x"]}, {"seed": [1, 2, 0.5]}], ids=str
)
def test_resets_of_a_wrong_kind_are_refused(arguments: dict[str, Any]) -> None:
    envs = vector_env()
    with pytest.raises(CallerError, match="reset"):
        envs.reset(**arguments)
    envs.close()
    env = AgentEnv(counter_task())
    with pytest.raises(CallerError, match="Give a dict"):
        env.reset(options="x")  # type: ignore[arg-type]
    env.close()
