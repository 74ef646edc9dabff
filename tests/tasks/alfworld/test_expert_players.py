"""Experts: the one that knows the way wins from wherever it starts, the one that explores sees nothing hidden.

Run with `-s` to see the figures of the card.
"""

import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alfworld_toys import need_engine

from agentbench_fc.episode import Expert, Sample, Turn
from agentbench_fc.messages import Message, ToolCall, assistant, user
from agentbench_fc.players import best_constant, fixed, make_player, play
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.alfworld.engine import Engine, Game, Play
from agentbench_fc.tasks.alfworld.expert import explore, follow, places_of
from agentbench_fc.tasks.alfworld.games import Games, open_games
from agentbench_fc.tasks.alfworld.rules import LIST_MODES, ListMode, listed, read_actions
from agentbench_fc.tasks.alfworld.scenes import LEVELS
from agentbench_fc.tasks.alfworld.task import AlfworldTask

FOLDER = tasks_root() / "alfworld"
TURNS = 20


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    need_engine()
    made = Engine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def games() -> Games:
    need_engine()
    return open_games(FOLDER)


def begun(engine: Engine, games: Games, sample: Sample) -> Play:
    return engine.start(Game.read(games.content(sample), where=sample.id))


def turn_of(game: Play, number: int, mode: ListMode) -> Turn:
    text = f"{game.seen.feedback}\n\nPossible actions:\n{listed(game.seen.admissible, mode)}"
    return Turn("s", number, [user(text)], [], Status.RUNNING, False, None, None)


def moves_to_win(game: Play, expert: Expert, *, limit: int = TURNS, mode: ListMode = "full") -> int | None:
    """How many moves an expert needs; None: it did not win."""
    move = next(expert)
    for number in range(1, limit + 1):
        assert isinstance(move, ToolCall)
        assert move.name == "take_action"
        game.step(json.loads(move.arguments)["action"])
        if game.seen.won:
            return number
        try:
            move = expert.send(turn_of(game, number, mode))
        except StopIteration:
            return None
    return None


def explorer(games: Games, sample: Sample) -> Expert:
    return explore(sample.data["goal"], sample.data["task_type"], places_of(games.content(sample)["pddl_problem"]))


@pytest.mark.parametrize("mode", LIST_MODES)
def test_following_a_walkthrough_takes_as_many_moves_as_it_has(engine: Engine, games: Games, mode: ListMode) -> None:
    for sample in games.samples("valid_unseen")[:12]:
        walkthrough = sample.data["walkthrough"]
        assert moves_to_win(begun(engine, games, sample), follow(walkthrough), mode=mode) == len(walkthrough)


def test_it_wins_from_the_middle_of_a_game_that_somebody_else_began(engine: Engine, games: Games) -> None:
    """Others go about and open things, or have done the first part of the walkthrough."""
    rng = random.Random(0)
    for sample in games.samples("valid_unseen")[:12]:
        walkthrough = sample.data["walkthrough"]
        for _ in range(5):
            game = begun(engine, games, sample)
            for command in walkthrough[: rng.randrange(len(walkthrough) - 1)]:
                game.step(command)
            for _ in range(rng.randrange(4)):
                harmless = [a for a in game.seen.admissible if a.startswith(("go to", "open", "close", "look"))]
                game.step(rng.choice(harmless))
            assert moves_to_win(game, follow(walkthrough), limit=30) is not None, sample.id


def test_it_puts_down_what_is_in_the_way(engine: Engine, games: Games) -> None:
    tried = 0
    for sample in games.samples("valid_unseen")[:12]:
        walkthrough = sample.data["walkthrough"]
        take = next(number for number, step in enumerate(walkthrough) if step.startswith("take "))
        kind = walkthrough[take].split()[1]
        game = begun(engine, games, sample)
        for command in walkthrough[:take]:
            game.step(command)
        others = [a for a in game.seen.admissible if a.startswith("take ") and a.split()[1] != kind]
        if others:
            tried += 1
            game.step(others[0])
            assert moves_to_win(game, follow(walkthrough)) is not None, sample.id
    assert tried >= 4


def test_a_walkthrough_that_does_not_fit_ends(engine: Engine, games: Games) -> None:
    sample = games.samples("train")[0]
    for wrong in (["go to moon 1", "take cheese 1 from moon 1"], ["open fridge 9"], ["look"]):
        assert moves_to_win(begun(engine, games, sample), follow(wrong)) is None


@pytest.mark.parametrize("mode", LIST_MODES)
def test_exploring_wins_small_rooms_and_knows_nothing_that_is_hidden(
    engine: Engine, games: Games, mode: ListMode
) -> None:
    for sample in games.samples("valid_unseen")[:6]:
        assert moves_to_win(begun(engine, games, sample), explorer(games, sample), mode=mode) is not None


def test_exploring_does_not_depend_on_where_things_are_before_they_are_seen(games: Games) -> None:
    """The places it knows are the same when the facts of what lies where are taken out of the problem."""
    for sample in games.samples("valid_unseen")[:18]:
        problem = str(games.content(sample)["pddl_problem"])
        lines = [line for line in problem.splitlines() if not line.strip().startswith(("(inReceptacle", "(objectAt"))]
        assert places_of("\n".join(lines)) == places_of(problem)


def test_the_explorer_names_places_as_the_game_does(engine: Engine, games: Games) -> None:
    for sample in games.samples("valid_unseen")[:12]:
        offered = {action.removeprefix("go to ") for action in begun(engine, games, sample).seen.admissible}
        names = {place.name for place in places_of(str(games.content(sample)["pddl_problem"]))}
        assert names == offered - {"help", "look", "inventory"}


def test_an_explorer_that_finds_nothing_looks_around_to_the_end(engine: Engine, games: Games) -> None:
    sample = games.samples("train")[0]
    places = places_of(str(games.content(sample)["pddl_problem"]))
    nowhere = explore({"object": "Unicorn", "receptacle": "Bed"}, "pick_and_place_simple", places)
    game = begun(engine, games, sample)
    assert moves_to_win(game, nowhere, limit=40) is None
    assert nowhere.send(turn_of(game, 41, "full")) == ToolCall("call_42", "take_action", '{"action": "look"}')


def test_both_play_official_games_whose_places_share_locations(engine: Engine, test_data: Path) -> None:
    official = open_games(FOLDER, data=test_data / "alfworld_sample")
    for split in official.splits:
        for sample in official.samples(split)[::6]:
            walkthrough = sample.data["walkthrough"]
            assert moves_to_win(begun(engine, official, sample), follow(walkthrough)) == len(walkthrough)
            found = moves_to_win(begun(engine, official, sample), explorer(official, sample), limit=100)
            assert found is not None, sample.id


class RandomAdmissible:
    """Plays any of the actions that a message lists."""

    def __init__(self, sample: Sample, seed: int) -> None:
        self._rng = random.Random(f"{sample.id} {seed}")

    def act(self, turn: Turn) -> list[Message]:
        action = self._rng.choice(read_actions(str(turn.messages[-1]["content"])))
        return [assistant(None, [ToolCall(f"call_{turn.turn + 1}", "take_action", json.dumps({"action": action}))])]


def figures(task: AlfworldTask, split: str, count: int, repeats: int) -> dict[str, dict[str, float]]:
    """Player -> level -> share of games that it wins."""
    policies: dict[str, Callable[..., object]] = {
        "walkthrough": make_player("expert", task),
        "no-op": make_player("noop", task),
        "random text": make_player("random", task),
        "random action of the list": RandomAdmissible,
    }
    won: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in task.samples(split)[:count]:
        for name, policy in policies.items():
            for seed in range(repeats if name.startswith("random") else 1):
                score = play(task, sample, policy, seed=seed).raw_reward  # type: ignore[arg-type]
                won[name][str(sample.data["level"])].append(score)
    return {name: {level: statistics.fmean(levels[level]) for level in LEVELS} for name, levels in won.items()}


@pytest.fixture(scope="module")
def task() -> Iterator[AlfworldTask]:
    need_engine()
    made = load_task("alfworld", processes=1)
    assert isinstance(made, AlfworldTask)
    yield made
    made.close()


def checked(task: AlfworldTask, split: str, count: int, repeats: int) -> None:
    found = figures(task, split, count, repeats)
    for name, levels in found.items():
        print(f"alfworld/{split}: {name}", ", ".join(f"{level} {100 * score:.1f} %" for level, score in levels.items()))
    assert set(found["walkthrough"].values()) == {1.0}
    assert set(found["no-op"].values()) == {0.0}
    assert all(
        score <= 0.05 for name, levels in found.items() if name.startswith("random") for score in levels.values()
    )


def test_the_walkthrough_always_wins_the_noop_never_and_chance_hardly(task: AlfworldTask) -> None:
    checked(task, "valid_unseen", 18, 2)


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_so_it_is_on_every_game(task: AlfworldTask, split: str) -> None:
    checked(task, split, 180, 5)


def test_no_fixed_sequence_of_actions_wins_more_than_a_few(task: AlfworldTask) -> None:
    best = best_constant(task, limit=18)
    print(f"alfworld: best of {best.candidates} constants, {100 * best.score:.1f} % where learnt: {best.moves}")
    samples = task.samples("valid_unseen")[:18]
    assert statistics.fmean(play(task, sample, fixed(best.moves)).raw_reward for sample in samples) <= 0.06


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("level", LEVELS)
def test_even_the_constant_chosen_on_the_very_games_wins_less_than_5_percent(engine: Engine, level: str) -> None:
    games = open_games(FOLDER, level=level)
    samples = games.samples("valid_unseen")
    counts: Counter[tuple[str, ...]] = Counter()
    for sample in samples:
        walkthrough = sample.data["walkthrough"]
        for length in (1, 2, 3):
            beginning = walkthrough[: length - 1]
            counts.update({(*walkthrough[-length:],), (*walkthrough[:length],), (*beginning, walkthrough[-1])})
    candidates = [moves for moves, _ in counts.most_common(60)]
    won: Counter[tuple[str, ...]] = Counter()
    for sample in samples:
        for moves in candidates:
            game = begun(engine, games, sample)
            for move in moves:
                game.step(move)
            won[moves] += game.seen.won
    ((best, times),) = won.most_common(1)
    share = 100 * times / len(samples)
    print(f"alfworld/valid_unseen: best of {len(candidates)} constants, {level} {share:.1f} %: {best}")
    assert times < 0.05 * len(samples)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_the_explorer_wins_nearly_all_small_rooms_and_fewer_large_ones(engine: Engine, games: Games) -> None:
    needed: dict[str, list[int | None]] = defaultdict(list)
    for sample in games.samples("valid_unseen"):
        game = begun(engine, games, sample)
        needed[sample.data["level"]].append(moves_to_win(game, explorer(games, sample), limit=150))
    share = {level: sum((n or 999) <= TURNS for n in needed[level]) / len(needed[level]) for level in LEVELS}
    print("alfworld/valid_unseen: explorer", ", ".join(f"{level} {100 * share[level]:.1f} %" for level in LEVELS))
    assert all(n is not None for counts in needed.values() for n in counts)
    assert share["easy"] >= 0.98 > share["hard"]
    assert share["easy"] >= share["normal"] >= share["hard"]
