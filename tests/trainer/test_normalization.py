"""Task normalization over a stream of batches, its state in a checkpoint, and a task pair where a global one fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl_trainer.advantages import group_advantages, normalize_tokens, token_spread, weighted_median
from agentrl_trainer.config import Normalization
from agentrl_trainer.normalization import TaskNormalizer
from agentrl_trainer.rows import train_rows
from agentrl_trainer.types import Group, Trajectory

Batches = list[list[tuple[int, int]]]
batches = st.lists(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 200)), min_size=1, max_size=6), min_size=1, max_size=6
)


def normalize(normalizer: TaskNormalizer, batch: list[tuple[int, int]], task: str = "db") -> np.ndarray:
    advantages, lengths = np.array(batch, dtype=float).T
    found = normalizer(advantages, lengths.astype(int), [task] * len(batch), np.ones(len(batch), dtype=bool))
    normalizer.commit()
    return found


@settings(deadline=None)
@given(batches, st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_running_statistics_are_the_averages_of_all_tokens_each_weighted_by_its_age(
    stream: Batches, decay: float
) -> None:
    normalizer = TaskNormalizer(Normalization(task="stream", decay=decay))
    for batch in stream:
        found = normalize(normalizer, batch)
    values, lengths = np.array([row for batch in stream for row in batch], dtype=float).T
    ages = np.repeat(np.arange(len(stream))[::-1], [len(batch) for batch in stream])
    weights = lengths * decay**ages
    mean = np.average(values, weights=weights)
    std = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    assume(std > 1e-6 or std == 0)
    last = np.array([value for value, _ in stream[-1]], dtype=float)
    expected = (last - mean) / std if std > 1e-6 else np.zeros(len(last))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@settings(deadline=None)
@given(batches)
def test_without_memory_a_stream_is_the_batch(stream: Batches) -> None:
    streaming = TaskNormalizer(Normalization(task="stream", decay=0.0))
    alone = TaskNormalizer(Normalization(task="batch"))
    for batch in stream:
        np.testing.assert_allclose(normalize(streaming, batch), normalize(alone, batch), atol=1e-9)


def test_one_trajectory_of_a_task_is_scaled_by_what_earlier_batches_showed() -> None:
    normalizer = TaskNormalizer(Normalization(task="stream", decay=0.9))
    assert normalize(normalizer, [(0, 10)]).tolist() == [0.0], "nothing to scale by yet"
    normalize(normalizer, [(1, 10), (-1, 10)])
    assert normalize(normalizer, [(1, 10)])[0] > 0.8
    assert normalize(normalizer, [(1, 10)], task="kg").tolist() == [0.0], "tasks do not mix"
    found = TaskNormalizer(Normalization(task="batch"))
    assert normalize(found, [(1, 10)]).tolist() == [0.0]


def test_a_batch_that_was_not_consumed_leaves_no_trace(tmp_path: Path) -> None:
    options = Normalization(task="stream", decay=0.5)
    whole, broken = TaskNormalizer(options), TaskNormalizer(options)
    for normalizer in (whole, broken):
        normalize(normalizer, [(2, 10), (-1, 30)])
    broken(np.array([9.0, -9.0]), np.array([5, 5]), ["db", "db"], np.array([True, True]))  # no commit
    broken.save(tmp_path)
    resumed = TaskNormalizer.load(options, tmp_path)
    again = [(1, 7), (0, 3), (-4, 11)]
    np.testing.assert_array_equal(normalize(resumed, again), normalize(whole, again))
    assert TaskNormalizer.load(options, tmp_path / "absent").state == {}


def test_the_floor_keeps_a_nearly_constant_task_small() -> None:
    rows = np.array([0.001, -0.001]), np.array([10.0, 10.0])
    assert np.abs(normalize_tokens(*rows)).max() == pytest.approx(1)
    assert np.abs(normalize_tokens(*rows, floor=0.1)).max() == pytest.approx(0.01)
    assert np.abs(normalize_tokens(np.zeros(2), rows[1], floor=0.1)).max() == 0


def test_a_robust_scale_is_not_set_by_a_few_extreme_rewards() -> None:
    usual = np.array([0.4, 0.5, 0.6, 0.45, 0.55])
    lengths = np.full(6, 10.0)
    for extreme in (-1.0, -100.0):
        spread = token_spread(np.append(usual, extreme), lengths, "mad")
        assert spread.center == pytest.approx(0.45)
        assert spread.scale == pytest.approx(1.4826 * 0.05)
    assert token_spread(np.append(usual, -100.0), lengths).scale > 30
    mostly_equal = np.array([0.0, 0.0, 0.0, 1.0])
    assert token_spread(mostly_equal, lengths[:4], "mad").scale == pytest.approx(0.5), "the deviation takes its place"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=9))
def test_the_weighted_median_is_the_median_of_the_tokens(rows: list[tuple[int, int]]) -> None:
    values, weights = np.array(rows, dtype=float).T
    tokens = np.sort(np.repeat(values, weights.astype(int)))
    assert weighted_median(values, weights) == tokens[(len(tokens) - 1) // 2]


@settings(deadline=None, max_examples=50)
@given(
    scale=st.floats(0.1, 10),
    shift=st.integers(-3, 3),
    seed=st.integers(0, 2**31),
    task=st.sampled_from(["batch", "stream"]),
    group_scale=st.sampled_from(["std", "none"]),
    spread=st.sampled_from(["std", "mad"]),
)
def test_from_rewards_to_advantages_no_affine_map_of_a_tasks_rewards_matters(
    make_trajectory: Callable[..., Trajectory],
    make_group: Callable[..., Group],
    scale: float,
    shift: int,
    seed: int,
    **options: Any,
) -> None:
    def advantages(a: float, b: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        groups = [
            make_group(
                [
                    make_trajectory(
                        rng=rng, turns=((int(rng.integers(1, 30)), 1),), task=name,
                        reward=float(rng.integers(0, 3)) * (a if name == "kg" else 1) + (b if name == "kg" else 0),
                    )
                    for _ in range(4)
                ],
                number,
            )
            for number, name in enumerate(["db", "kg", "kg"])
        ]  # fmt: skip
        return train_rows(groups, Normalization(**options), version=0, max_lag=0, fresh_engines=1).advantages

    np.testing.assert_allclose(advantages(scale, shift), advantages(1, 0), atol=1e-7)


REWARD = {"long": 1.0, "short": 0.02}
"""Of success: `short` gives partial credit in small coin."""
TOKENS = {"long": 200, "short": 4}


class Bandit:
    """A policy over two tasks that knows only "right" and "wrong", one decision per trajectory, even at the start."""

    def __init__(self) -> None:
        self.logits = {"long": 0.0, "short": 0.0}

    def success(self, task: str) -> float:
        return float(1 / (1 + np.exp(-self.logits[task])))

    def learn(self, tasks: list[str], right: np.ndarray, advantages: np.ndarray, rate: float) -> None:
        """A policy-gradient step over the mean decision of each task."""
        scores = np.array([float(r) - self.success(task) for task, r in zip(tasks, right, strict=True)])
        for task in self.logits:
            own = np.array([t == task for t in tasks])
            self.logits[task] += rate * float((advantages * scores)[own].mean())


def train(task_normalization: str, *, seed: int, steps: int = 30) -> dict[str, float]:
    bandit, rng = Bandit(), np.random.default_rng(seed)
    normalizer = TaskNormalizer(Normalization(task=task_normalization))  # type: ignore[arg-type]
    for _ in range(steps):
        tasks = ["long"] * 16 + ["short"] * 16
        right = rng.random(32) < np.array([bandit.success(task) for task in tasks])
        rewards = np.array([REWARD[task] * r for task, r in zip(tasks, right, strict=True)])
        raw, informative = group_advantages(rewards, [i // 8 for i in range(32)], scale="none")
        advantages = normalizer(raw, np.array([TOKENS[task] for task in tasks]), tasks, informative)
        normalizer.commit()
        bandit.learn(tasks, right, advantages, rate=0.3)
    return {task: bandit.success(task) for task in TOKENS}


@pytest.mark.parametrize("own", ["batch", "stream"])
def test_a_long_task_sets_the_scale_for_a_short_one_under_global_normalization_but_not_per_task(own: str) -> None:
    seeds = range(5)
    naive, per_task = [train("global", seed=s) for s in seeds], [train(own, seed=s) for s in seeds]
    assert min(r["long"] for r in naive) > 0.88, "the naive one learns the long task"
    assert max(r["short"] for r in naive) < 0.75, "and not the short one: its steps are too small"
    assert min(min(r.values()) for r in per_task) > 0.88, "per task, both are learnt"


def test_where_success_is_long_the_global_mean_punishes_the_short_tasks_successes() -> None:
    advantages, lengths = np.array([2.65] + [-0.38] * 7 + [0.38] * 7 + [-2.65]), np.array([200] + [4] * 15)
    tasks, every = ["long"] * 8 + ["short"] * 8, np.ones(16, dtype=bool)
    naive = TaskNormalizer(Normalization(task="global"))(advantages, lengths, tasks, every)
    own = TaskNormalizer(Normalization(task="batch"))(advantages, lengths, tasks, every)
    assert (naive[8:] < 0).all()
    assert (own[8:15] > 0).all()
    assert own[15] < 0
