"""Our engine and the unmodified upstream one give the same observations, one by one."""

import importlib.util
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import missing

from agentbench_fc.procs import Child
from agentbench_fc.registry import tasks_root
from agentbench_fc.tasks.alfworld.engine import Engine, Game
from agentbench_fc.tasks.alfworld.naming import display_names

STEPS = 30
QUICK_REAL = range(15)
QUICK_GENERATED = (*range(8), *range(18, 24), 12)
"""Games that every change is checked with: all kinds, mostly of the easy level, which upstream plays quickly."""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    if not all(importlib.util.find_spec(name) for name in ("alfworld", "textworld", "fast_downward")):
        missing("the extra alfworld is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALFWORLD_DATA", str(tmp_path_factory.mktemp("alfworld")))  # its import makes the folder
        with Child("alfworld_upstream:Upstream", start_timeout_s=120) as child:
            yield child


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(loaded=3)
    yield engine
    engine.close()


def check(path: Path, seed: int, upstream: Child, engine: Engine) -> None:
    trace = upstream.call("trace", {"path": str(path), "steps": STEPS, "seed": seed}, timeout_s=240)
    game = Game.load(path)
    play = engine.start(game)
    wins = []
    for number, (command, feedback, admissible, won) in enumerate(trace):
        seen = play.seen if not number else play.step(command)
        where = f"{path}, step {number}, {command!r}"
        assert seen.feedback == feedback, where
        assert list(seen.admissible) == admissible, where
        assert seen.won == won, where
        assert seen.acted == (not number or feedback != "Nothing happens."), where
        wins.append(won)
    assert not wins[0]
    assert wins[len(game.walkthrough)], "the walkthrough wins"
    assert len(trace) == 1 + len(game.walkthrough) + STEPS


def test_names_are_upstream_s(upstream: Child) -> None:
    rng = random.Random(0)
    for _ in range(50):
        kinds = rng.sample(["egg", "sink", "basin", "desk_lamp", "a_bar_b", "cd"], 3)
        ends = [
            "",
            "_bar_01",
            "_bar__minus_00_dot_75",
            "_bar_2_bar_sinkbasin",
            "_bar_10",
            "_bar_9",
            "_bar__plus_1_comma_2",
        ]
        ids = sorted({rng.choice(kinds) + rng.choice(ends) for _ in range(12)})
        assert display_names(ids) == upstream.call("names", {"ids": ids}, timeout_s=60)


def real_games(test_data: Path) -> list[Path]:
    """Of all splits, the small rooms first: the first ones are quick."""
    games = sorted((test_data / "alfworld_sample").glob("json_2.1.1/*/*/*/game.tw-pddl"))
    if len(games) != 60:
        missing(f"{len(games)} of the 60 real games are there")
    return sorted(games, key=lambda path: (path.stat().st_size, path))


def numbers(count: int, quick: Collection[int]) -> list[Any]:
    return [pytest.param(n, marks=[] if n in quick else [pytest.mark.full]) for n in range(count)]


@pytest.mark.parametrize("number", numbers(60, QUICK_REAL))
def test_a_real_game_plays_as_upstream_plays_it(number: int, test_data: Path, upstream: Child, engine: Engine) -> None:
    check(real_games(test_data)[number], number, upstream, engine)


@pytest.mark.parametrize("number", numbers(72, QUICK_GENERATED))
def test_a_generated_game_plays_as_upstream_plays_it(number: int, upstream: Child, engine: Engine) -> None:
    from agentbench_fc.tasks.alfworld.games import open_games

    games = open_games(tasks_root() / "alfworld")
    split = ("train", "valid_seen", "valid_unseen")[number % 3]
    check(games.path(games.samples(split)[number]), number, upstream, engine)
