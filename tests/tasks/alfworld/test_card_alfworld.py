"""The card says what is true."""

import inspect
import re
import statistics
from collections import defaultdict

from agentbench_fc.registry import tasks_root
from agentbench_fc.spec import load_spec
from agentbench_fc.tasks import alfworld
from agentbench_fc.tasks.alfworld.generate import make_game
from agentbench_fc.tasks.alfworld.generated import TRAIN_GAMES, VALID_GAMES
from agentbench_fc.tasks.alfworld.rules import LIST_MODES
from agentbench_fc.tasks.alfworld.scenes import HELD_OUT, LEVELS, read_world

FOLDER = tasks_root() / "alfworld"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
ROOT = tasks_root().parent


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose header begins with a text."""
    table = CARD.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]


def test_every_option_is_explained_and_no_other() -> None:
    options = list(inspect.signature(alfworld.make).parameters)[2:]
    explained = [name for row in rows("option") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(explained) == sorted(options)


def test_values_of_options_are_those_of_the_code() -> None:
    values = {name: row[1] for row in rows("option") for name in re.findall(r"`(\w+)`", row[0])}
    assert re.findall(r"`(\w+)`", values["level"]) == list(LEVELS)
    assert re.findall(r"`(\w+)`", values["actions"]) == list(LIST_MODES)
    assert re.findall(r"`(\w+)`", values["expert"]) == list(alfworld.EXPERTS)


def test_numbers_of_the_head_are_those_of_the_task() -> None:
    spec = load_spec(FOLDER / "task.yaml")
    (head,) = rows("version · ids")
    assert head[0].startswith(spec.version)
    assert f"train {TRAIN_GAMES:,}" in head[1]
    assert f"valid_seen {VALID_GAMES}, valid_unseen {VALID_GAMES}" in head[1]
    assert head[2] == f"{spec.max_turns} turns, {spec.call_timeout_s:g} s per call"
    assert head[4].endswith(spec.affinity)
    assert set(spec.splits) <= set(re.findall(r"\w+", head[1]))
    assert set(spec.metrics) <= set(re.findall(r"`(\w+)`", CARD.partition("**Metrics**")[2]))


def test_levels_are_as_large_as_the_card_says() -> None:
    world = read_world(FOLDER / "world.yaml")
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number in range(900):
        game = make_game(world, "train", number)
        found[game.level].append((len(game.places), len(game.lies), len(game.walkthrough)))
    for row in rows("level"):
        places, things, lengths = zip(*found[row[0]], strict=True)
        assert row[1] == f"{min(places)}–{max(places)}"
        assert row[2] == f"{min(things)}–{max(things)}"
        low, high, mean = re.findall(r"[\d.]+", row[5])
        assert (int(low), int(high)) == (min(lengths), max(lengths))
        assert float(mean) == round(statistics.fmean(lengths), 1)
        assert world.levels[row[0]].hidden == {"easy": 0.0, "normal": 4 / 10, "hard": 17 / 20}[row[0]]
    assert len(rows("level")) == len(LEVELS)
    assert all(len(room.scenes) == 30 for room in world.rooms.values())
    assert HELD_OUT == 4


def test_tests_that_the_card_names_are_there() -> None:
    if not (ROOT / "tests").is_dir():  # an installed package
        return
    named = set(re.findall(r"test_\w+\.py", CARD))
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert named
