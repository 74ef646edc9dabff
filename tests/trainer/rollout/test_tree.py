"""Branches share what came before them, are of other policies, and are compared with each other alone."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError
from agentrl_trainer.chat.buffer import TokenBuffer
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.config import Engines, Normalization, Rollout, RunConfig
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.rollout.trajectory import EpisodeSpec, Player, PlayOptions
from agentrl_trainer.rollout.tree import play_tree
from agentrl_trainer.rows import train_rows
from agentrl_trainer.types import INNER, POLICIES, SIBLINGS, Group, Trajectory

CALL = '<tool_call>\n{{"name": "add", "arguments": {{"n": {}}}}}\n</tool_call>'


class Sum(ToolEpisode):
    """Four numbers; the reward is their sum over 12."""

    max_turns = 9

    def start(self) -> str:
        self.numbers: list[int] = []
        return "Add four numbers from 0 to 3."

    @tool
    def add(self, n: int) -> str | Reply:
        """Adds a number."""
        self.numbers.append(n)
        text = f"{self.numbers}"
        return self.finish(text, reward=sum(self.numbers) / 12) if len(self.numbers) == 4 else text


class Says:
    """Always adds the same number."""

    def __init__(self, renderer: ChatRenderer, role: EngineRole, number: int) -> None:
        self.name = f"says-{number}"
        self.role = role
        self.version = 10 + number
        self._ids = (*renderer._encode(CALL.format(number)), 2)

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        return Completion(self._ids, (-0.5,) * len(self._ids), (self.version,) * len(self._ids), "stop")

    async def update_weights(self, path: Path, version: int) -> None: ...

    async def health(self) -> bool:
        return True

    async def aclose(self) -> None: ...


@pytest.fixture(scope="module")
def renderer(chat_folder: Path) -> ChatRenderer:
    return ChatRenderer(chat_folder)


@pytest.fixture
async def client() -> AsyncIterator[LocalClient]:
    task = make_task(Sum, samples={"train": [{}]}, name="sum")
    async with LocalClient(tasks={"sum": task}) as client:
        yield client
        assert await client.list_sessions() == []


async def grow(client: LocalClient, renderer: ChatRenderer, seed: int, tree: int, branches: int) -> list[Trajectory]:
    pool = EnginePool(
        [Says(renderer, "fresh", 0)], [Says(renderer, "stale", 1), Says(renderer, "stale", 3)], stale_lags=(2, 8)
    )
    player = Player(client, renderer, pool, PlayOptions(max_new_tokens=99, max_context=2000))
    spec = EpisodeSpec(task="sum", sample_id="sum/train/0", seed=1, group_id="g", replica=tree)
    return await play_tree(
        player, spec, random.Random(seed), branches=branches, temperature=0.8, cross_policy="step", deadline_s=20
    )


def numbers(row: Trajectory) -> list[int]:
    """Which policy took each turn of the mask."""
    turns = np.unique(row.turns[row.mask])
    return [int(row.engines[row.mask & (row.turns == turn)][0]) for turn in turns]


async def test_leaves_and_trunk_divide_the_tokens_of_the_tree_among_them(
    client: LocalClient, renderer: ChatRenderer
) -> None:
    kinds = set()
    for seed in range(12):
        rows = await grow(client, renderer, seed, tree=1, branches=3)
        leaves = [row for row in rows if INNER not in row.metrics]
        assert [row.replica for row in leaves] == [3, 4, 5]
        first = {int(row.turns[row.mask].min()) for row in leaves}
        (turn,) = first
        kinds.add(turn)
        assert len({numbers(row)[0] for row in leaves}) == 3, "each goes on with another policy"
        assert all(row.metrics["drift"] == 0 for row in leaves)
        if turn == 1:
            assert all(SIBLINGS not in row.metrics for row in rows)
            assert len(rows) == 3
            continue
        inner = rows[-1]
        assert {row.metrics[SIBLINGS] for row in leaves} == {f"1@{turn}"}
        assert SIBLINGS not in inner.metrics
        assert inner.reward == pytest.approx(np.mean([row.reward for row in leaves]))
        end = len(inner.ids)
        for row in leaves:
            np.testing.assert_array_equal(row.ids[:end], inner.ids)
            assert not row.mask[:end].any()
            assert row.reward == pytest.approx(sum((0, 1, 3)[e] for e in numbers(inner) + numbers(row)) / 12)
            assert len(row.metrics[POLICIES]) == len(numbers(row)) == 5 - turn
            assert row is leaves[0] or len(row.metrics[POLICIES][0]) == 1, "its policy was not drawn"
        assert len(inner.metrics[POLICIES]) == turn - 1
    assert kinds == {1, 2, 3, 4}


async def test_credit_stays_within_the_tree(client: LocalClient, renderer: ChatRenderer) -> None:
    rows: list[Trajectory] = []
    for tree, seed in enumerate((0, 1, 2, 3)):
        rows += await grow(client, renderer, seed, tree=tree, branches=2)
    group = Group(id="g", task="sum", sample_id="sum/train/0", trajectories=rows, admitted_version=10)
    kept = train_rows([group], Normalization(task="none", group_scale="none"), version=10, max_lag=9, fresh_engines=1)
    found = {id(row): float(a) for row, a in zip(kept.trajectories, kept.advantages, strict=True)}
    sets: dict[str, list[Trajectory]] = {}
    for row in rows:
        sets.setdefault(row.metrics.get(SIBLINGS, ""), []).append(row)
    assert len(sets) > 2
    for members in sets.values():
        mean = np.mean([row.reward for row in members])
        for row in members:
            assert found.get(id(row), 0.0) == pytest.approx(row.reward - mean)


async def test_a_session_that_cannot_be_forked_leaves_the_trunk_as_it_is(
    client: LocalClient, renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(session_id: str, turn: int | None = None) -> None:
        raise CallerError("its record was dropped.")

    monkeypatch.setattr(client, "fork", refuse)
    (row,) = await grow(client, renderer, 3, tree=0, branches=2)
    assert numbers(row)
    assert len(numbers(row)) == 4
    assert SIBLINGS not in row.metrics


async def test_a_buffer_goes_on_from_any_turn_as_if_nothing_else_had_been(
    client: LocalClient, renderer: ChatRenderer
) -> None:
    (row,) = await grow(client, renderer, 3, tree=0, branches=1)
    for turn in range(1, 5):
        buffer = TokenBuffer.before(row, turn)
        copy = buffer.to_trajectory(task="t", sample_id="s", group_id="g", replica=0, status="completed", reward=0.0)
        end = int(np.flatnonzero(row.turns >= turn)[0])
        for name in ("ids", "mask", "logprobs", "versions", "engines", "turns"):
            np.testing.assert_array_equal(getattr(copy, name), getattr(row, name)[:end])
        assert buffer.drift == 0
        assert copy.prompt_length == row.prompt_length


def test_trees_that_cannot_be_are_refused() -> None:
    with pytest.raises(CallerError, match="not two or more trees of 3"):
        RunConfig(rollout=Rollout(branches=3))
    with pytest.raises(CallerError, match="not two or more trees of 8"):
        RunConfig(rollout=Rollout(branches=8))
    with pytest.raises(CallerError, match="second policy"):
        RunConfig(rollout=Rollout(branches=2), engines=Engines(cross_policy="none"))
