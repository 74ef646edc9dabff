"""Small games for tests of the engine, and sources that serve them."""

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from conftest import missing

from agentbench_fc.registry import tasks_root


def need_engine() -> None:
    """Skips where the engine is not installed."""
    if not all(importlib.util.find_spec(name) for name in ("alfworld", "textworld", "fast_downward")):
        missing("the extra alfworld is not installed")


@functools.lru_cache
def contents(count: int, level: str = "easy") -> Sequence[Mapping[str, Any]]:
    """What the game files of the first generated games hold, one kind of task after the other."""
    from agentbench_fc.tasks.alfworld.games import open_games

    need_engine()
    games = open_games(tasks_root() / "alfworld", level=level)
    samples = games.samples("train")
    return [games.content(samples[number]) for number in range(count)]
