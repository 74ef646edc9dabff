"""The draw is uniform over kinds, loads are balanced within a kind, faulty engines leave, aborts are sent again."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool, generate_until_done


class Counting:
    """An engine over the natural numbers: the token after n is n + 1; it can abort, fail and die."""

    def __init__(self, name: str, role: EngineRole = "fresh", *, abort_after: int = 10**9) -> None:
        self.name = name
        self.role: EngineRole = role
        self.version = 0
        self.abort_after = abort_after
        self.error: Exception | None = None
        self.alive = True
        self.asked: list[tuple[int, int]] = []
        self.closed = False

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        self.asked.append((len(ids), sampling.max_tokens))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        count = min(self.abort_after, sampling.max_tokens)
        new = tuple(range(ids[-1] + 1, ids[-1] + 1 + count))
        reason = "abort" if count < sampling.max_tokens else "length"
        return Completion(new, (-1.0,) * count, (self.version,) * count, reason)

    async def update_weights(self, path: Path, version: int) -> None:
        if self.error is not None:
            raise self.error
        self.version = version

    async def health(self) -> bool:
        return self.alive

    async def aclose(self) -> None:
        self.closed = True


def test_kinds_are_drawn_uniformly_whatever_their_numbers() -> None:
    pool = EnginePool([Counting("f")], [Counting(f"s{i}", "stale") for i in range(3)])
    rng = random.Random(0)
    drawn = Counter(pool.draw(rng)[0] for _ in range(4000))
    assert 1850 < drawn[0] < 2150
    assert {pool.draw(rng, fresh_only=True)[0] for _ in range(50)} == {0}


async def test_within_a_kind_the_least_loaded_engine_takes_the_turn() -> None:
    pool = EnginePool([Counting("a"), Counting("b"), Counting("c")])
    rng = random.Random(0)

    async def turn() -> int:
        index, _ = pool.draw(rng)
        await pool.generate(index, [1], Sampling(max_tokens=3), timeout_s=5)
        return index

    assert Counter(await asyncio.gather(*(turn() for _ in range(9)))) == {0: 3, 1: 3, 2: 3}
    assert [engine["busy"] for engine in pool.stats()] == [0, 0, 0]


def test_a_trajectory_keeps_its_engine_until_that_fails() -> None:
    pool = EnginePool([Counting("f")], [Counting("s", "stale")])
    picks = [pool.picker(random.Random(seed), "trajectory") for seed in range(20)]
    first = [pick() for pick in picks]
    assert set(first) == {0, 1}
    assert [pick() for pick in picks] == first
    pool._out(1, "dead.")
    assert {pick() for pick in picks} == {0}
    assert {EnginePool([Counting("f")], [Counting("s")]).picker(random.Random(1), "none")() for _ in range(9)} == {0}


def test_a_draws_note_names_only_what_could_have_been_drawn() -> None:
    fresh, stale = [Counting("f"), Counting("g")], Counting("s", "stale")
    pool = EnginePool(fresh, [stale])
    fresh[0].version, fresh[1].version, stale.version = 3, 4, 1
    assert pool.choices() == [(0.5, 3), (0.5, 1)]
    pool._out(2, "dead.")
    pool._out(0, "dead.")
    assert [version for _, version in pool.choices()] == [4], "an engine out of service is not in the mixture"
    assert {pool.draw(random.Random(seed))[0] for seed in range(9)} == {1}

    weighed = EnginePool([Counting("f")], [Counting("s", "stale")], weights=[1.0, 3.0])
    weighed._out(1, "dead.")
    weighed._reviving[1] = cast("asyncio.Task[None]", None)
    assert {weighed.draw(random.Random(seed))[0] for seed in range(9)} == {0, 1}, "a draw waits for it"
    assert [weight for weight, _ in weighed.choices()] == [0.25, 0.75], "so it is in the mixture"


async def test_an_aborted_turn_goes_on_from_its_tokens() -> None:
    engine = Counting("f", abort_after=4)
    answer = await generate_until_done(engine, [10], Sampling(max_tokens=10), timeout_s=5)
    assert answer.ids == tuple(range(11, 21))
    assert answer.finish_reason == "length"
    assert engine.asked == [(1, 10), (5, 6), (9, 2)]
    engine.abort_after = 0
    with pytest.raises(InfrastructureError, match="0 tokens came"):
        await generate_until_done(engine, [10], Sampling(max_tokens=10), timeout_s=0.12)


async def test_a_slow_engine_stays_a_dead_one_leaves_and_without_fresh_ones_the_pool_says_so(tmp_path: Path) -> None:
    fresh, stale = Counting("f"), Counting("s", "stale")
    pool = EnginePool([fresh], [stale])
    stale.error = InfrastructureError("too slow.")
    with pytest.raises(InfrastructureError, match="too slow"):
        await pool.generate(1, [1], Sampling(max_tokens=1), timeout_s=5)
    assert pool.stats()[1]["fault"] == ""
    stale.alive = False
    with pytest.raises(InfrastructureError, match="too slow"):
        await pool.generate(1, [1], Sampling(max_tokens=1), timeout_s=5)
    assert {pool.draw(random.Random(i))[0] for i in range(20)} == {0}
    await pool.update(tmp_path, 3, ("fresh", "stale"))
    assert (pool.version, fresh.version, stale.version) == (3, 3, 0)
    fresh.error = InfrastructureError("disk full.")
    with pytest.raises(InfrastructureError, match=r"no fresh engine is left.*disk full"):
        await pool.update(tmp_path, 4)
    await pool.aclose()
    assert fresh.closed


async def test_weights_of_another_model_are_told_and_cost_no_engine(tmp_path: Path) -> None:
    engine = Counting("f")
    pool = EnginePool([engine])
    engine.error = CallerError("another model.")
    with pytest.raises(CallerError, match="another model"):
        await pool.update(tmp_path, 1)
    assert pool.stats()[0]["fault"] == ""


def test_a_pool_needs_a_fresh_engine() -> None:
    with pytest.raises(CallerError, match="At least one"):
        EnginePool([], [Counting("s", "stale")])
