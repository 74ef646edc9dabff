"""Schemas from type hints and docstrings, and tasks from one class."""

from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from agentbench_fc.episode import Episode, Reply, Sample, Task, ToolEpisode, make_task, tool, tool_specs
from agentbench_fc.errors import NotFound, TaskError
from agentbench_fc.session import Session


class Shop(ToolEpisode):
    max_turns = 3
    max_output_chars = 500

    def start(self) -> str:
        return "Buy."

    @tool
    def buy(self, item: str, count: int = 1, size: Literal["s", "l"] = "s", tags: list[str] | None = None) -> str:
        """Buys an item
        from the shelf.

        More words that are not part of the summary.

        Args:
            item: Name of the item,
                as on the shelf.
            count (int): How many.

        Returns:
            A receipt: not an argument.
        """
        return f"{count} x {item}"


class LargeShop(Shop):
    @tool
    def leave(self) -> Reply:
        """Leaves."""
        return self.finish(reward=0.5)


def test_the_schema_comes_from_hints_and_docstring() -> None:
    buy, leave = (spec["function"] for spec in tool_specs(LargeShop))
    assert buy["description"] == "Buys an item from the shelf."
    properties = buy["parameters"]["properties"]
    assert properties["item"] == {"type": "string", "description": "Name of the item, as on the shelf."}
    assert properties["count"] == {"type": "integer", "default": 1, "description": "How many."}
    assert properties["size"]["enum"] == ["s", "l"]
    assert buy["parameters"]["required"] == ["item"]
    assert buy["parameters"]["additionalProperties"] is False
    assert set(properties) == {"item", "count", "size", "tags"}
    assert leave["parameters"]["properties"] == {}
    for function in (buy, leave):
        Draft202012Validator.check_schema(function["parameters"])


def test_a_parameter_without_a_hint_is_the_authors_fault() -> None:
    class Bare(ToolEpisode):
        @tool
        def go(self, where) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
            """Goes."""
            return str(where)

    with pytest.raises(TaskError, match="'where' has no type hint"):
        tool_specs(Bare)


def test_a_class_and_its_samples_are_a_task() -> None:
    task = make_task(LargeShop, samples={"train": [{"n": 1}, {"n": 2}], "dev": []})
    assert isinstance(task, Task)
    assert (task.spec.name, task.spec.max_turns, task.spec.max_output_chars) == ("large_shop", 3, 500)
    assert [s.id for s in task.samples("train")] == ["large_shop/train/0", "large_shop/train/1"]
    with pytest.raises(NotFound, match=r"no split 'tran'.*Did you mean 'train'"):
        task.samples("tran")
    episode = task.open(task.samples("train")[0], seed=1)
    assert isinstance(episode, Episode)
    assert episode.call("buy", {"item": "a", "count": 2}) == Reply("2 x a")
    assert episode.call("leave", {}) == Reply("", reward=0.5, success=False, done=True)
    assert task.expert(task.samples("train")[0]) is None
    assert episode.fork() is None


def test_an_episode_without_a_start_fails_at_its_start() -> None:
    class Empty(ToolEpisode):
        @tool
        def go(self) -> str:
            """Goes."""
            return ""

    task = make_task(Empty, samples={"train": [{}]})
    turn = Session(task, task.samples("train")[0]).start()
    assert "has no start" in turn.metrics["reason"]


def test_random_numbers_depend_on_sample_and_seed_alone() -> None:
    def draw(sample_id: str, seed: int) -> float:
        return Shop(Sample(sample_id, 0, "train", {}), seed).rng.random()

    assert draw("a", 1) == draw("a", 1)
    values: list[Any] = [draw("a", 1), draw("a", 2), draw("b", 1)]
    assert len(set(values)) == 3
