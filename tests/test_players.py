"""The players that need no model, on toy tasks."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from toys import counter_task

from agentbench_fc.episode import Expert, Reply, Sample, ToolEpisode, ToolTask, make_task, tool
from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.messages import ToolCall, read_agent_messages
from agentbench_fc.players import PLAYERS, best_constant, make_player, noop_move, play
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session


class Capital(ToolEpisode):
    """Look a fact up and say it; half of the samples have the same answer."""

    max_turns = 6

    def start(self) -> str:
        return f"What is the capital of `{self.sample.data['country']}`? Known words: alpha, beta."

    @tool
    def look_up(self, country: str, fact: str = "capital") -> str:
        """Looks a fact up."""
        return f"The capital of {country} is 'Oslo'."

    @tool
    def answer(self, cities: list[str], sure: bool) -> Reply:
        """Answers."""
        return self.finish("Noted.", reward=float(cities == [self.sample.data["city"]]))

    def say(self, text: str) -> Reply | None:
        return self.finish("Noted.", reward=0.25) if text == "I pass." else None


def solve(sample: Sample) -> Expert:
    turn = yield ToolCall("a", "look_up", json.dumps({"country": sample.data["country"]}))
    assert turn.messages[0]["role"] == "tool"
    yield ToolCall("b", "answer", json.dumps({"cities": [sample.data["city"]], "sure": True}))


def capital_task(expert: Any = solve, **attributes: Any) -> ToolTask:
    rows = [{"country": f"C{n}", "city": "Oslo" if n % 2 else f"City {n}"} for n in range(10)]
    episode = type("Capital", (Capital,), {"finish_tool": "answer", **attributes})
    return make_task(episode, samples={"train": rows, "dev": rows[:3], "none": []}, expert=expert)


def rewards(task: ToolTask, name: str, split: str = "train") -> list[float]:
    policy = make_player(name, task)
    return [play(task, sample, policy).raw_reward for sample in task.samples(split)]


def calls(session: Session) -> list[ToolCall]:
    return [call for played in session.log if played.sent for call in read_agent_messages(played.sent).calls]


def test_the_expert_wins_the_noop_does_not_and_the_constant_gets_its_share() -> None:
    task = capital_task()
    assert rewards(task, "expert") == [1.0] * 10
    assert rewards(task, "noop") == [0.0] * 10
    assert rewards(task, "constant") == [0.0, 1.0] * 5


def test_the_best_constant_is_the_most_frequent_answer() -> None:
    best = best_constant(capital_task())
    assert best.score == 0.5
    assert best.moves[-1] == ("answer", '{"cities": ["Oslo"], "sure": true}')
    assert best.candidates >= 6


def test_a_constant_of_several_moves_is_found() -> None:
    class TwoSteps(ToolEpisode):
        max_turns = 4

        def start(self) -> str:
            self.key = ""
            return "Turn the key, then open."

        @tool
        def turn_key(self, key: str) -> str:
            """Turns."""
            self.key = key
            return "Click."

        @tool
        def open_door(self) -> Reply:
            """Opens."""
            return self.finish("Open.", reward=float(self.key == self.sample.data["key"]))

    def expert(sample: Sample) -> Expert:
        yield ToolCall("1", "turn_key", json.dumps(dict(sample.data)))
        yield ToolCall("2", "open_door", "{}")

    task = make_task(TwoSteps, samples={"train": [{"key": k} for k in "aab"]}, expert=expert)
    best = best_constant(task)
    assert [name for name, _ in best.moves] == ["turn_key", "open_door"]
    assert best.score == pytest.approx(2 / 3)


def test_a_text_can_be_the_answer() -> None:
    def passes(sample: Sample) -> Expert:
        yield "I pass."

    task = capital_task(passes)
    assert rewards(task, "expert") == [0.25] * 10
    assert best_constant(task).moves == (("", "I pass."),)
    assert rewards(task, "constant") == [0.25] * 10


def test_the_noop_without_a_finishing_tool_repeats_one_call_to_the_limit() -> None:
    task = capital_task(finish_tool=None)
    session = play(task, task.samples("train")[0], make_player("noop", task))
    assert session.status is Status.LIMIT_REACHED
    assert noop_move(task) == ("look_up", '{"country": ""}')
    assert len({(call.name, call.arguments) for call in calls(session)}) == 1
    assert len({call.id for call in calls(session)}) == 6
    assert noop_move(capital_task()) == ("answer", '{"cities": [], "sure": false}')


def test_the_random_player_makes_valid_calls_with_what_it_saw_and_repeats_itself_only_by_seed() -> None:
    task = capital_task()
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in task.spec.tools}
    policy, sample = make_player("random", task), task.samples("train")[0]
    games = [calls(play(task, sample, policy, seed=seed)) for seed in range(40)]
    for call in (call for game in games for call in game):
        Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
    said = " ".join(call.arguments for game in games for call in game)
    assert "C0" in said
    assert "Oslo" in said
    assert games[0] == calls(play(task, sample, policy, seed=0))
    assert len({str(game) for game in games}) > 20


@pytest.mark.parametrize("name", PLAYERS)
def test_every_player_ends_every_episode_without_an_invalid_call(name: str) -> None:
    for task in (capital_task(), counter_task()):
        policy = make_player(name, task)
        for sample in task.samples("train"):
            session = play(task, sample, policy, seed=3)
            assert session.finished
            assert session.counters.invalid == 0


def test_what_cannot_be_played_is_said() -> None:
    with pytest.raises(CallerError, match="Did you mean 'expert'"):
        make_player("experts", capital_task())
    without = capital_task(None)
    with pytest.raises(CallerError, match="has no expert"):
        rewards(without, "expert")
    with pytest.raises(CallerError, match="has no expert"):
        make_player("constant", without)
    with pytest.raises(CallerError, match="has no samples"):
        make_player("constant", capital_task(), split="none")


def test_an_expert_that_stops_early_is_the_task_s_fault_and_closes_the_episode() -> None:
    closed = []

    def gives_up(sample: Sample) -> Expert:
        yield ToolCall("a", "look_up", '{"country": "x"}')

    task = capital_task(gives_up, close=lambda self: closed.append(self.sample.id))
    with pytest.raises(TaskError, match="stopped at turn 1"):
        rewards(task, "expert")
    assert closed == ["capital/train/0"]
