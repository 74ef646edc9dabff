"""One task as a Gymnasium env: determinism, actions, endings, options, and the checker's approval."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from toys import ForkingCounter, Rude, counter_task, rude_task

import agentbench_fc
from agentbench_fc.envs.env import AgentEnv
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.messages import AgentTurn, ToolCall, assistant
from agentbench_fc.registry import available_built_ins, load_task
from agentbench_fc.replay import replay_file
from agentbench_fc.rewards import Status

GUESS = str(Path(__file__).parents[2] / "examples" / "guess_number.py") + ":TASK"
CALL = {"name": "add", "arguments": {"number": 2}}
SUBMIT = {"name": "submit", "arguments": {}}


class Partial(ToolEpisode):
    """Pays 0.25 for each step, at most two; fails on demand."""

    max_turns = 4
    max_invalid_calls = 1

    def start(self) -> str:
        return "Go."

    @tool
    def earn(self) -> Reply:
        """Earns."""
        return Reply("Paid.", reward=0.25)

    @tool
    def stop(self, success: bool) -> Reply:
        """Stops."""
        return self.finish("Done.", reward=0.0, success=success)


def env_of(task: Any = None, **options: Any) -> AgentEnv:
    return AgentEnv(task or counter_task(), **options)


def partial_env(**options: Any) -> AgentEnv:
    return AgentEnv(make_task(Partial, samples={"train": [{}]}), **options)


def play(env: gym.Env[Any, Any], actions: list[Any]) -> list[tuple[float, bool, bool, dict[str, Any]]]:
    return [(float(r), te, tr, info) for _, r, te, tr, info in map(env.step, actions)]


# the checker and the wrappers


@pytest.mark.parametrize("name", ["Task", "DB", "KG"])
def test_gymnasium_s_checker_has_nothing_to_say(name: str) -> None:
    if name.lower() not in [*available_built_ins(), "task"]:
        pytest.fail(f"{name} is not built in")
    options = {"task": GUESS} if name == "Task" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(f"agentbench-fc/{name}-v0", **options)
        check_env(env.unwrapped)
        env.close()


@pytest.mark.parametrize("name", ["DB", "KG"])
def test_an_expert_s_calls_win_through_gymnasium(name: str) -> None:
    env = gym.make(f"agentbench-fc/{name}-v0", split="train")
    agent_env = env.unwrapped
    assert isinstance(agent_env, AgentEnv)
    for seed in range(3):
        _, info = env.reset(seed=seed)
        assert agent_env.session is not None
        moves = agent_env.task.expert(agent_env.session.sample)
        assert moves is not None
        action, total, over = next(moves), 0.0, False
        while not over:
            _, reward, terminated, truncated, info = env.step(action)
            total, over = total + float(reward), terminated or truncated
            action = None if over else moves.send(agent_env.session.last)
        assert (total, terminated, info["success"], info["raw_reward"]) == (1.0, True, True, 1.0)
    env.close()


def test_time_limit_and_episode_statistics_wrap_it() -> None:
    env = RecordEpisodeStatistics(TimeLimit(gym.make("agentbench-fc/Task-v0", task=GUESS), max_episode_steps=3))
    env.reset(seed=1, options={"sample": 50})
    steps = play(env, [{"name": "guess", "arguments": {"number": 1}}] * 3)
    assert [truncated for _, _, truncated, _ in steps] == [False, False, True]
    assert steps[-1][3]["episode"]["l"] == 3
    env.reset(seed=1, options={"sample": "guess_number/train/50"})
    assert play(env, [{"name": "guess", "arguments": {"number": 51}}])[0][3]["episode"]["r"] == 1.0


def test_the_spec_makes_an_equal_env_again() -> None:
    env = gym.make("agentbench-fc/Task-v0", task=GUESS, abnormal_penalty=0, render_mode="ansi")
    assert env.spec is not None
    twin = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert twin.reset(seed=4) == env.reset(seed=4)
    assert env.spec.max_episode_steps is None


# reset


@pytest.mark.parametrize("options", [{"task": GUESS}, {"task": "kg"}, {"task": load_task(GUESS)}])
def test_a_closed_env_says_so(options: dict[str, Any]) -> None:
    env = gym.make("agentbench-fc/Task-v0", **options)
    env.reset(seed=1)
    fork = env.unwrapped.fork()  # type: ignore[attr-defined]
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="Make another one"):
        env.reset()
    env.close()
    assert fork.session.status == Status.RUNNING
    fork.close()


def test_equal_seeds_give_equal_episodes_and_later_resets_follow() -> None:
    one, two = env_of(), env_of()
    first = [one.reset(seed=7), one.reset(), one.reset()]
    assert first == [two.reset(seed=7), two.reset(), two.reset()]
    assert len({info["session_id"] for _, info in first}) == 3
    samples = {one.reset(seed=seed)[1]["sample"] for seed in range(40)}
    assert samples == {f"counter/train/{n}" for n in range(5)}
    rolls = [play(env, [{"name": "roll"}] * 3) for env in (one, two) if env.reset(seed=3)]
    assert rolls[0] == rolls[1]


def test_options_choose_sample_split_and_seed() -> None:
    env = env_of()
    assert env.reset(options={"sample": 3})[1]["sample"] == "counter/train/3"
    assert env.reset(options={"sample": "counter/dev/1"})[1]["sample"] == "counter/dev/1"
    assert env.reset(options={"sample": 1, "split": "dev"})[1]["sample"] == "counter/dev/1"
    assert env.reset(options={"split": "dev"})[1]["sample"].startswith("counter/dev/")
    env.reset(seed=1, options={"seed": 5, "sample": 0})
    assert env.session is not None
    assert env.session.seed == 5
    assert env_of(split="dev").reset(seed=0)[1]["sample"].startswith("counter/dev/")
    fixed, free = env_of(), env_of()
    fixed.reset(seed=2, options={"sample": 0, "seed": 9})
    free.reset(seed=2)
    assert fixed.reset() == free.reset()  # fixing one episode does not shift the draws of the next


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampel": 1}, "Did you mean 'sample'"),
        ({"sample": 99}, "0 to 4"),
        ({"sample": -1}, "0 to 4"),
        ({"sample": "counter/train/99"}, "An id looks like"),
        ({"sample": 1.5}, "type float"),
        ({"sample": True}, "type bool"),
        ({"split": "dve"}, "Did you mean 'dev'"),
        ({"split": 3}, "type int"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
    ids=repr,
)
def test_bad_reset_options_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        env_of().reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "kgg"}, "Did you mean 'kg'"),
        ({"task": GUESS, "splt": "dev"}, "Did you mean 'split'"),
        ({"task": "kg", "max_truns": 3}, "max_truns"),
        ({"task": GUESS, "reward": "shaped"}, "Known: raw, success"),
        ({"task": GUESS, "abnormal_penalty": 0.5}, "abnormal_penalty is 0.5"),
        ({"task": GUESS, "parser": "qwen9"}, "parser"),
        ({"task": GUESS, "split": "tset"}, "no split 'tset'"),
        ({"task": "kg", "profile": "agentbnech"}, "agentbnech"),
        ({"task": 3}, "type int"),
        ({"task": counter_task(), "max_turns": 3}, "takes no options"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an object would be named by its address
)
def test_bad_options_are_told_when_the_env_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        gym.make("agentbench-fc/Task-v0", **arguments)


def test_a_bad_render_mode_is_told() -> None:
    with pytest.raises(CallerError, match="no render_mode 'human'"):
        AgentEnv(counter_task(), render_mode="human")


def test_a_reserved_task_names_what_is_available() -> None:
    missing = sorted({"os": "OS", "alfworld": "ALFWorld", "webshop": "WebShop"}.items())
    for task, name in missing:
        if task in available_built_ins():
            continue
        with pytest.raises(NotFound, match=r"not in this version yet.*Available: db, kg"):
            gym.make(f"agentbench-fc/{name}-v0")


def test_task_options_reach_the_task() -> None:
    env = AgentEnv("kg", max_turns=2, prompt="compact")
    assert env.task.spec.max_turns == 2
    assert env.task.spec.prompt == "compact"
    env.reset(seed=0)
    steps = play(env, ["I do not know what to do.", "Still not."])
    assert [truncated for _, _, truncated, _ in steps] == [False, True]
    env.close()


# actions


@pytest.mark.parametrize(
    "action",
    [
        CALL,
        {"name": "add", "arguments": '{"number": 2}'},
        ToolCall("c9", "add", '{"number": 2}'),
        ToolCall("c9", "add", '{"number": 2}').to_dict(),
        AgentTurn("", (ToolCall("c9", "add", '{"number": 2}'),)),
        assistant("Adding.", [ToolCall("c9", "add", '{"number": 2}')]),
        [assistant(None, [ToolCall("c9", "add", '{"number": 2}')])],
        'Adding.\n<tool_call>\n{"name": "add", "arguments": {"number": 2}}\n</tool_call>',
    ],
    ids=lambda action: type(action).__name__,
)
def test_every_form_of_an_action_plays_the_same(action: Any) -> None:
    env = env_of()
    env.reset(seed=1)
    (message,), reward, terminated, truncated, info = env.step(action)
    assert (message["role"], message["content"]) == ("tool", "The total is 2.")
    assert (reward, terminated, truncated, info["turn"], info["status"]) == (0.0, False, False, 1, "running")


def test_raw_text_is_read_by_the_named_parser() -> None:
    env = env_of(parser="glm4")
    env.reset(seed=1)
    assert env.step('add\n{"number": 2}')[0][0]["content"] == "The total is 2."


@pytest.mark.parametrize(
    "action", ["no call", {"name": "add", "arguments": "{"}, {"name": "nothing"}, {"name": "add", "arguments": {}}]
)
def test_what_a_model_gets_wrong_costs_a_turn(action: Any) -> None:
    env = env_of()
    env.reset(seed=1)
    messages, reward, terminated, truncated, info = env.step(action)
    assert len(messages) == 1
    assert (reward, terminated, truncated, info["turn"]) == (0.0, False, False, 1)
    assert env.step(CALL)[0][0]["content"] == "The total is 2."


@pytest.mark.parametrize("action", [None, 3, b"x", {"arguments": {}}, {"role": "user", "content": "x"}, [3], []])
def test_what_a_caller_gets_wrong_is_an_error_and_costs_nothing(action: Any) -> None:
    env = env_of()
    env.reset(seed=1)
    with pytest.raises(CallerError):
        env.step(action)
    assert env.step(CALL)[4]["turn"] == 1


# endings


def test_a_finished_episode_terminates_and_needs_a_reset() -> None:
    env = env_of()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(CALL)
    env.reset(options={"sample": 1})
    steps = play(env, [CALL, SUBMIT])
    assert steps[-1][:3] == (1.0, True, False)
    assert {k: steps[-1][3][k] for k in ("status", "success", "raw_reward", "masked", "turn")} == {
        "status": "completed",
        "success": True,
        "raw_reward": 1.0,
        "masked": False,
        "turn": 2,
    }
    with pytest.raises(gym.error.ResetNeeded, match="Call reset"):
        env.step(CALL)
    env.reset()
    env.step(CALL)


@pytest.mark.parametrize(
    ("options", "actions", "rewards", "terminated", "status"),
    [
        ({}, ["earn", "earn", "x", "earn"], [0.25, 0.25, 0, -0.7], False, "task limit reached"),
        ({"abnormal_penalty": 0}, ["earn", "earn", "x", "earn"], [0.25, 0.25, 0, 0.25], False, "task limit reached"),
        ({}, ["earn", "x", "x"], [0.25, 0, -0.45], True, "agent invalid action"),
        ({}, ["earn", "stop"], [0.25, 0], True, "completed"),
        ({"reward": "success"}, ["earn", "stop"], [0, 1], True, "completed"),
        ({"reward": "success"}, ["earn", "x", "x"], [0, 0, -0.2], True, "agent invalid action"),
    ],
)
def test_the_rewards_of_an_episode_sum_to_its_shaped_reward(
    options: dict[str, Any], actions: list[str], rewards: list[float], terminated: bool, status: str
) -> None:
    env = partial_env(**options)
    env.reset()
    forms: dict[str, Any] = {"earn": {"name": "earn"}, "stop": {"name": "stop", "arguments": {"success": True}}}
    steps = play(env, [forms.get(action, "no call") for action in actions])
    assert [step[0] for step in steps] == pytest.approx(rewards)
    assert steps[-1][1:3] == (terminated, not terminated)
    assert steps[-1][3]["status"] == status


@pytest.mark.parametrize("kind", ["task", "infrastructure"])
def test_a_failure_of_the_task_is_masked(kind: str) -> None:
    env = AgentEnv(rude_task())
    env.reset()
    env.step({"name": "pays", "arguments": {"amount": 0.5}})
    _, reward, terminated, truncated, info = env.step({"name": "raises", "arguments": {"kind": kind}})
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["masked"], info["status"], info["success"]) == (True, "task error", None)
    assert info["metrics"]["fault"] == ("task" if kind == "task" else "environment")


def test_a_task_that_cannot_start_is_truncated_at_the_first_step() -> None:
    env = AgentEnv(rude_task(start="raise"))
    messages, info = env.reset()
    assert (messages, info["status"], info["masked"]) == ((), "env init failed", True)
    _, reward, terminated, truncated, info = env.step("anything")
    assert (reward, terminated, truncated, info["masked"]) == (0.0, False, True, True)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("anything")


def test_close_and_reset_free_the_episode() -> None:
    opened: list[Rude] = []

    class Watched(Rude):
        def start(self) -> str:
            opened.append(self)
            return super().start()

    env = AgentEnv(make_task(Watched, samples={"train": [{}]}))
    env.reset()
    env.reset()
    assert [episode.closed for episode in opened] == [1, 0]
    env.close()
    env.close()
    assert [episode.closed for episode in opened] == [1, 1]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(CALL)


# what is seen


def test_nothing_that_is_returned_is_the_session_s_own() -> None:
    env = env_of()
    messages, info = env.reset(seed=1)
    kept = copy.deepcopy(messages)
    messages[0]["content"] = "changed"  # type: ignore[index]
    info["tools"].clear()
    info["metrics"]["x"] = 1
    assert env.session is not None
    assert tuple(env.session.log[0].turn.messages) == kept
    assert env.step(CALL)[4]["tools"] == list(env.task.spec.tools)


def test_ansi_shows_the_conversation() -> None:
    env = env_of(render_mode="ansi")
    assert env.render() == ""
    env.reset(options={"sample": 1})
    env.step(assistant("I add.", [ToolCall("c1", "add", '{"number": 2}')]))
    assert env.render() == (
        'user: Reach 2.\nassistant: I add.\nassistant: add({"number": 2})\ntool: The total is 2.\n'
        "[counter/train/1, turn 1: running]"
    )
    assert env_of().render() is None


@pytest.mark.parametrize("task", [counter_task, lambda: counter_task(ForkingCounter)], ids=["replay", "native"])
def test_a_fork_goes_its_own_way(task: Callable[[], Any]) -> None:
    env = env_of(task())
    with pytest.raises(gym.error.ResetNeeded):
        env.fork()
    env.reset(options={"sample": 1})
    env.step(CALL)
    child, earlier = env.fork(), env.fork(0)
    assert child.step(SUBMIT)[1] == 1.0
    assert earlier.step(SUBMIT)[1] == 0.0
    assert env.step(CALL)[0][0]["content"] == "The total is 4."
    with pytest.raises(CallerError, match="no turn 9"):
        env.fork(9)


def test_transcripts_hold_every_episode_once(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = AgentEnv(GUESS, transcripts=path)
    env.reset(options={"sample": 6})
    env.step({"name": "guess", "arguments": {"number": 7}})
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["task"] for line in lines if line["type"] == "start"] == [GUESS] * 3
    ends = [line["status"] for line in lines if line["type"] == "end"]
    assert ends == ["completed", "cancelled", "cancelled"]
    assert load_task(GUESS).spec.name == "guess_number"


def test_transcripts_can_be_played_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = gym.make("agentbench-fc/DB-v0", transcripts=path, prompt="compact", max_turns=2)
    for seed in range(3):
        env.reset(seed=seed)
        play(env, [{"name": "execute_sql", "arguments": {"query": "SHOW TABLES"}}, "no call"])
    env.close()
    report = replay_file(path)
    assert (report.sessions, report.divergences) == (3, [])


def test_public_names_load_on_first_use() -> None:
    for name in agentbench_fc.__all__:
        assert getattr(agentbench_fc, name) is not None
        assert name in dir(agentbench_fc)
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = agentbench_fc.Sesion
