"""Policies are drawn by their weights, updated by their own lags, and weighed by what they bring."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.config import Engines
from agentrl_trainer.configfile import load_config
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.mix import PolicyMix
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.rollout.supervisor import Died, SupervisedRollouts
from agentrl_trainer.weights import WeightPublisher, read_version


class Engine:
    """Only holds a version."""

    def __init__(self, name: str, role: EngineRole) -> None:
        self.name = name
        self.role = role
        self.version = -1
        self.dead = False

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        raise InfrastructureError("dead.")

    async def update_weights(self, path: Path, version: int) -> None:
        assert not path.is_absolute() or read_version(path) == version, "what an engine is told to take is there"
        self.version = version

    async def revive(self) -> None:
        self.version, self.dead = -1, False

    async def health(self) -> bool:
        return not self.dead

    async def aclose(self) -> None: ...


def pool_of(stale: int, **options: object) -> EnginePool:
    return EnginePool(
        [Engine("f", "fresh")],
        [Engine(f"s{n}", "stale") for n in range(stale)],
        **options,  # type: ignore[arg-type]
    )


async def test_stale_engines_follow_at_their_own_lags() -> None:
    pool = pool_of(3, stale_lags=(4, 16, 4))
    assert pool.policies == [[0], [1, 3], [2]]
    held = []
    for version in range(33):
        roles: tuple[EngineRole, ...] = ("fresh", "stale") if version % 4 == 0 else ("fresh",)
        await pool.update(Path("v"), version, roles)
        held.append([engine.version for engine in pool.engines])
    assert held[0] == [0, 0, 0, 0]
    assert held[15] == [15, 12, 0, 12]
    assert held[31] == [31, 28, 16, 28]
    assert pool.choices() == [(1 / 3, 32), (1 / 3, 32), (1 / 3, 32)]


async def test_an_engine_that_is_brought_back_holds_what_its_own_lag_says() -> None:
    pool = pool_of(2, stale_lags=(2, 6), restarts=1)
    for version in range(12):
        await pool.update(Path("v"), version, ("fresh", "stale") if version % 2 == 0 else ("fresh",))
    for index, engine in enumerate(pool.engines):
        assert isinstance(engine, Engine)
        engine.dead = True
        with pytest.raises(InfrastructureError):
            await pool.generate(index, [1], Sampling(max_tokens=1), timeout_s=5)
        await asyncio.wait_for(pool._reviving[index], 60)
    assert [engine.version for engine in pool.engines] == [11, 10, 6]


class Rollouts:
    """Engines of some lags behind the interface of a rollout process, which dies when it is told to."""

    def __init__(self, lags: Sequence[int]) -> None:
        self.pool = pool_of(len(lags), stale_lags=lags)
        self.dies = False

    def publish(self, path: Path, version: int, stale: bool) -> None:
        if self.dies:
            raise Died("killed.")
        asyncio.run(self.pool.update(path, version, ("fresh", "stale") if stale else ("fresh",)))

    def consumed(self, trajectories: int) -> None: ...

    def close(self) -> None: ...

    @property
    def versions(self) -> list[int]:
        return [engine.version for engine in self.pool.engines]


@settings(max_examples=40, deadline=None)
@given(
    lags=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    start=st.integers(0, 7),
    stops=st.sets(st.integers(0, 24), max_size=3),
    deaths=st.sets(st.integers(1, 24), max_size=3),
)
def test_engines_hold_after_a_resume_or_a_death_what_they_would_hold_without(
    lags: list[int], start: int, stops: set[int], deaths: set[int]
) -> None:
    processes: list[Rollouts] = []

    def begin(done: Collection[str]) -> Rollouts:
        processes.append(Rollouts(lags))
        return processes[-1]

    def supervised() -> SupervisedRollouts:
        return SupervisedRollouts(begin, done=(), restarts=9, counted=lambda group: 1, stale_lags=lags)  # type: ignore[arg-type,return-value]

    undisturbed = Rollouts(lags)
    with tempfile.TemporaryDirectory() as folder:
        rollouts = supervised()
        publisher = WeightPublisher(rollouts.publish, stale_lags=lags, folder=Path(folder) / "run")
        for version in range(start, start + 25):
            processes[-1].dies = version - start in deaths
            publisher.publish({"a": torch.full((2,), float(version))}, version)
            undisturbed.publish(Path("v"), version, stale=True)
            assert processes[-1].versions == undisturbed.versions
            if version - start in stops:
                saved = Path(folder) / f"checkpoint-{version}"
                publisher.save_stale(saved)
                publisher.close()
                rollouts = supervised()
                publisher = WeightPublisher(rollouts.publish, stale_lags=lags, folder=Path(folder) / f"run-{version}")
                publisher.restore_stale(saved, rollouts.publish)
                publisher.publish({"a": torch.full((2,), float(version))}, version)  # as a resumed run does
                assert processes[-1].versions == undisturbed.versions
        kept = {p.name for p in (publisher._folder).iterdir()}
        assert len(kept) <= len(set(lags)) + 2


def test_weights_decide_how_often_a_policy_is_drawn() -> None:
    pool = pool_of(2, stale_lags=(2, 8), weights=(2, 1, 1))
    rng = random.Random(0)
    drawn = Counter(pool.draw(rng)[0] for _ in range(4000))
    assert [drawn[i] / 4000 for i in range(3)] == pytest.approx([0.5, 0.25, 0.25], abs=0.03)
    assert {pool.draw(rng, fresh_only=True)[0] for _ in range(20)} == {0}
    pool._faults[1] = "dead"
    assert {pool.draw(rng)[0] for _ in range(200)} == {0, 2}
    pool._faults[2] = "dead"
    assert {pool.draw(rng)[0] for _ in range(50)} == {0}


@given(seed=st.integers(0, 500), policies=st.integers(2, 7))
def test_adaptive_weights_are_a_distribution_with_a_floor_whatever_comes(seed: int, policies: int) -> None:
    rng = random.Random(seed)
    mix = PolicyMix(policies, adaptive=True)
    for _ in range(60):
        members = []
        for _ in range(rng.randrange(5)):
            shares = [rng.random() for _ in range(policies)]
            members.append(([s / sum(shares) for s in shares], float(rng.randrange(2))))
        mix.learn(members)
        assert sum(mix.weights) == pytest.approx(1)
        assert min(mix.weights) >= min(0.1, 0.5 / policies) - 1e-9


def test_the_policy_that_makes_groups_differ_is_drawn_more_and_may_lose_it_again() -> None:
    """Trajectories of one policy each: policy 1 succeeds now and then, policy 0 never."""
    rng = random.Random(0)
    mix = PolicyMix(2, adaptive=True)

    def play(successful: int) -> None:
        members = []
        for _ in range(8):
            policy = rng.choices([0, 1], mix.weights)[0]
            reward = float(policy == successful and rng.random() < 0.2)
            members.append(([float(policy == 0), float(policy == 1)], reward))
        mix.learn(members)

    for _ in range(300):
        play(successful=1)
    assert mix.weights[1] > 0.6
    for _ in range(600):
        play(successful=0)
    assert mix.weights[0] > 0.6
    fixed = PolicyMix(2, weights=(3, 1))
    fixed.learn([([1.0, 0.0], 0.0), ([0.0, 1.0], 1.0)])
    assert fixed.weights == [0.75, 0.25]


def test_impossible_mixes_are_refused() -> None:
    with pytest.raises(CallerError, match="2 lags for 1 stale"):
        Engines(stale_lags=(2, 4))
    with pytest.raises(CallerError, match="for 2 policies"):
        Engines(weights=(1.0,))
    with pytest.raises(CallerError, match="what is trained"):
        Engines(weights=(0.0, 1.0))
    config = load_config(overrides=["engines.stale=2", "engines.stale_lags=4,6", "engines.weights=2,1,1"])
    assert config.engines.stale_lags == (4, 6)
    assert config.engines.stale_sync_steps == 2, "a publication reaches stale engines whenever one is due"
    assert config.engines.weights == (2.0, 1.0, 1.0)
    assert load_config(overrides=["engines.stale_lags=8"]).engines.stale_sync_steps == 8
