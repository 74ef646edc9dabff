"""Everything that takes `url=`: the Gymnasium env, the vector env, the mixed one, and evaluation."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from serve_stack import Stack, stack_in_thread
from toys import counter_task, rude_task

import agentbench_fc  # noqa: F401  (registers the ids)
from agentbench_fc.doctor import diagnose
from agentbench_fc.envs.parts import shares
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.evaluate import EvalConfig, evaluate

TASK = f"{Path(__file__).parents[1] / 'toys_as_task.py'}:TASK"
ADD, SUBMIT = {"name": "add", "arguments": {"number": 1}}, {"name": "submit", "arguments": {}}


@pytest.fixture(scope="module")
def served() -> Iterator[Stack]:
    # patience: what this thread imports meanwhile holds the other one up, and makes its heartbeats late
    patience = {"suspect_after_s": 30.0, "dead_after_s": 60.0}
    with stack_in_thread(tasks={"rude": rude_task()}, refs=(TASK, "db"), workers=2, controller=patience) as made:
        yield made


def episode(env: Any, seed: int) -> list[Any]:
    """What an env gives for the same actions, without what is random by design."""
    out: list[Any] = []
    messages, info = env.reset(seed=seed)
    out.append((messages, info["sample"], info["status"]))
    for action in [{"name": "roll", "arguments": {}}, ADD, "no call", {"name": "add", "arguments": "{"}, SUBMIT]:
        messages, reward, terminated, truncated, info = env.step(action)
        metrics = {key: value for key, value in info["metrics"].items() if key != "session_id"}
        out.append((messages, reward, terminated, truncated, info["success"], info["raw_reward"], metrics))
    return out


def test_an_env_plays_the_same_episode_in_process_and_over_http(served: Stack) -> None:
    with (
        gym.make("agentbench-fc/Task-v0", task=TASK) as near,
        gym.make("agentbench-fc/Task-v0", task=TASK, url=served.url, render_mode="ansi") as far,
    ):
        assert near.action_space == far.action_space
        for seed in range(4):
            assert episode(near, seed) == episode(far, seed)
        assert "tool: The total is" in str(far.render())


def test_gymnasium_finds_nothing_wrong_with_it(served: Stack) -> None:
    env = gym.make("agentbench-fc/Task-v0", task="counter", url=served.url)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_a_fork_over_http_is_independent(served: Stack) -> None:
    env: Any = gym.make("agentbench-fc/Task-v0", task="counter", url=served.url).unwrapped
    env.reset(seed=1, options={"sample": 1})
    env.step(ADD)
    child = env.fork()
    child.step(ADD)
    assert child.step(SUBMIT)[1] == 1.0
    assert env.step(SUBMIT)[1] == 0.0
    env.close()
    child.close()


def test_wrong_options_are_told(served: Stack) -> None:
    with pytest.raises(NotFound):
        gym.make("agentbench-fc/Task-v0", task="kounter", url=served.url)
    with pytest.raises(NotFound):
        gym.make("agentbench-fc/Task-v0", task="counter", split="tset", url=served.url)
    with pytest.raises(CallerError, match="an id that the workers serve"):
        gym.make("agentbench-fc/Task-v0", task=counter_task(), url=served.url)
    with pytest.raises(CallerError, match="Tell the workers"):
        gym.make("agentbench-fc/Task-v0", task="counter", url=served.url, transcripts="x")
    env = gym.make("agentbench-fc/Task-v0", task="counter", url=served.url)
    with pytest.raises(NotFound):
        env.reset(options={"sample": 99})
    env.close()


def test_a_vector_env_plays_the_same_episodes(served: Stack) -> None:
    def play(**options: Any) -> list[Any]:
        envs = gym.make_vec("agentbench-fc/Task-v0", num_envs=4, vectorization_mode="vector_entry_point", **options)
        observations, infos = envs.reset(seed=3)
        out: list[Any] = [observations, list(infos["sample"])]
        for action in ({"name": "roll", "arguments": {}}, SUBMIT, SUBMIT, ADD):
            observations, rewards, terminated, truncated, infos = envs.step([action] * 4)
            out.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist()))
        envs.close()
        return out

    assert play(task=TASK) == play(task="counter", url=served.url)


@pytest.mark.parametrize("remote", [False, True], ids=["in process", "http"])
def test_several_tasks_in_one_vector_env(served: Stack, remote: bool) -> None:
    names = {"counter" if remote else TASK: 3, "db": 1}
    where = {"url": served.url} if remote else {}
    envs: Any = gym.make_vec(
        "agentbench-fc/Mixed-v0", num_envs=6, vectorization_mode="vector_entry_point", tasks=names, **where
    )
    observations, infos = envs.reset(seed=5)
    assert [sample.split("/")[0] for sample in infos["sample"]] == ["counter", "db"] * 2 + ["counter"] * 2
    assert envs.action_space.contains(envs.action_space.sample())
    tools = [{tool["function"]["name"] for tool in tools} for tools in infos["tools"]]
    assert "execute_sql" in tools[1]
    assert tools[0] == {"add", "roll", "submit"}
    names_of_all = {tool["function"]["name"] for tool in envs.unwrapped.single_action_space.tools}
    assert names_of_all == tools[0] | tools[1]
    select = {"name": "execute_sql", "arguments": {"query": "SELECT 1"}}
    actions = [ADD, select, ADD, select, ADD, ADD]
    observations, _, _, _, infos = envs.step(actions)
    assert observations[0][0]["content"] == "The total is 1."
    assert "1" in observations[1][0]["content"]
    envs.close()


def test_envs_are_dealt_out_by_weight() -> None:
    dealt = shares({"a": 1, "b": 2, "c": 5}, 16)
    assert {name: dealt.count(name) for name in "abc"} == {"a": 3, "b": 4, "c": 9}
    assert dealt[:3] == ["a", "b", "c"]
    for weights, count in (({}, 3), ({"a": 0}, 3), ({"a": 1, "b": 1}, 1)):
        with pytest.raises(CallerError):
            shares(weights, count)
    with pytest.raises(CallerError, match="Give several"):
        gym.make_vec("agentbench-fc/Mixed-v0", num_envs=2, vectorization_mode="vector_entry_point")


def test_a_service_that_vanishes_ends_episodes_as_masked() -> None:
    with stack_in_thread(tasks={"counter": counter_task()}) as gone:
        env: Any = gym.make("agentbench-fc/Task-v0", task="counter", url=gone.url).unwrapped
        env.reset(seed=1)
    client = env._remote.client._client
    client._calls.timeout_s = client._start_wait_s = 0.5
    _, reward, terminated, truncated, info = env.step(ADD)
    assert (reward, terminated, truncated, info["masked"], info["status"]) == (0.0, False, True, True, "task error")
    assert info["metrics"]["fault"] in {"environment", "worker"}
    _, info = env.reset(seed=1)
    assert info["status"] == "env init failed"
    env.close()


def test_evaluation_runs_its_sessions_elsewhere(served: Stack, tmp_path: Path) -> None:
    def run(url: str | None, out: str) -> Any:
        config = EvalConfig(tasks=(TASK,), split="dev", player="expert", repeats=2, url=url, out=tmp_path / out)
        return asyncio.run(evaluate(config)).to_dict()

    near, far = run(None, "near"), run(served.url, "far")
    started = sum(worker.hosted[1].client._table.counts["started"] for worker in served.workers)
    assert started >= 4
    assert near["tasks"][TASK]["success"] == far["tasks"][TASK]["success"]
    assert far["scored"] == 4


def test_doctor_looks_at_a_service(served: Stack) -> None:
    found = [finding for finding in diagnose(served.url).findings if finding.area == "service"]
    assert [finding.state for finding in found] == ["ok"] * 3
    assert "2 of 2 workers alive, serving counter, db, rude" in found[0].detail
    (nobody,) = [finding for finding in diagnose("http://127.0.0.1:9").findings if finding.area == "service"]
    assert (nobody.state, nobody.mend) == ("missing", "agentbench-fc serve TASK…")
