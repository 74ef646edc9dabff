"""Advantages against their definitions, computed token by token and group by group."""

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl_trainer.advantages import group_advantages, normalize_tokens, task_advantages

rewards_of_groups = st.lists(st.lists(st.integers(-20, 100).map(lambda r: r / 100), min_size=1, max_size=6), min_size=1)
rows = st.lists(st.tuples(st.integers(-100, 100), st.integers(1, 300)), min_size=2, max_size=20)


@given(rewards_of_groups, st.sampled_from(["std", "none"]), st.randoms(use_true_random=False))
def test_a_group_is_compared_with_itself_alone_in_any_order(
    groups: list[list[float]], scale: str, shuffler: random.Random
) -> None:
    entries = [(g, r) for g, members in enumerate(groups) for r in members]
    shuffler.shuffle(entries)
    found = group_advantages(np.array([r for _, r in entries]), [g for g, _ in entries], scale=scale)
    for (g, reward), advantage, informative in zip(entries, found.advantages, found.informative, strict=True):
        members = groups[g]
        mean = sum(members) / len(members)
        std = (sum((r - mean) ** 2 for r in members) / len(members)) ** 0.5
        alike = len(members) == 1 or max(members) - min(members) <= 1e-6
        expected = 0.0 if alike else (reward - mean) / (std if scale == "std" else 1)
        assert advantage == pytest.approx(expected, abs=1e-9)
        assert informative == (not alike)


def test_better_than_the_group_is_positive() -> None:
    assert group_advantages(np.array([1.0, 0.0]), ["g", "g"]).advantages.tolist() == [1.0, -1.0]


def test_rewards_within_the_tolerance_are_equal() -> None:
    rewards = np.array([0.1 + 0.2, 0.3, 0.3])  # the floats differ
    assert rewards[0] != rewards[1]
    assert not group_advantages(rewards, ["g"] * 3).informative.any()
    assert group_advantages(rewards, ["g"] * 3, tolerance=0.0).informative.all()
    assert not group_advantages(np.array([]), []).advantages.size


@given(rows, st.floats(0.1, 10), st.integers(-3, 3))
def test_tokens_of_a_task_have_mean_0_and_deviation_1(rows: list[tuple[int, int]], scale: float, shift: int) -> None:
    rewards, lengths = np.array(rows, dtype=float).T
    assume(np.ptp(rewards) > 0)
    normalized = normalize_tokens(rewards / 100, lengths)
    tokens = np.repeat(normalized, lengths.astype(int))
    np.testing.assert_allclose([tokens.mean(), tokens.std()], [0, 1], atol=1e-9)
    np.testing.assert_allclose(normalize_tokens(scale * rewards + shift, lengths), normalized, atol=1e-9)


@given(rows)
def test_without_centring_no_sign_changes_and_the_deviation_is_still_1(rows: list[tuple[int, int]]) -> None:
    advantages, lengths = np.array(rows, dtype=float).T
    assume(np.ptp(advantages) > 0)
    scaled = normalize_tokens(advantages, lengths, center=False)
    assert (np.sign(scaled) == np.sign(advantages)).all()
    assert np.repeat(scaled, lengths.astype(int)).std() == pytest.approx(1)


@pytest.mark.parametrize("center", [True, False])
def test_nothing_to_learn_gives_zeros_never_nan(center: bool) -> None:
    for advantages, lengths in (([0.3], [7]), ([0.3, 0.3], [7, 2]), ([0.3, -1], [0, 0]), ([], [])):
        found = normalize_tokens(np.array(advantages, dtype=float), np.array(lengths, dtype=float), center=center)
        assert found.tolist() == [0.0] * len(advantages)


batches = st.lists(
    st.tuples(st.integers(-100, 100), st.integers(1, 50), st.sampled_from(["db", "kg", "os"]), st.booleans()),
    min_size=1,
    max_size=24,
)


@given(batches)
def test_each_task_is_normalized_over_its_own_included_rows(batch: list[tuple[int, int, str, bool]]) -> None:
    advantages, lengths, tasks, included = (list(column) for column in zip(*batch, strict=True))
    found = task_advantages(np.array(advantages) / 100, np.array(lengths), tasks, np.array(included))
    tokens: dict[str, list[float]] = defaultdict(list)
    for value, length, task, inside in zip(found, lengths, tasks, included, strict=True):
        if inside:
            tokens[task] += [value] * length
        else:
            assert value == 0
    for values in tokens.values():
        assert np.isfinite(values).all()
        assert np.mean(values) == pytest.approx(0, abs=1e-9)
        assert np.std(values) == pytest.approx(1) or not np.any(values)


def test_a_long_task_does_not_drown_a_short_one() -> None:
    advantages = np.array([1.0, -1.0, 0.01, -0.01])
    found = task_advantages(advantages, np.array([500, 500, 5, 5]), ["a", "a", "b", "b"], np.ones(4, dtype=bool))
    np.testing.assert_allclose(found, [1, -1, 1, -1])
