"""Bounds, masks and weights of off-policy tokens against their definitions, token by token."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import Engines, OffPolicy, Optimization, RunConfig
from agentrl_trainer.metrics import ratio_metrics
from agentrl_trainer.offpolicy import bounded, correct, m2_mask
from agentrl_trainer.rows import Rows
from agentrl_trainer.types import Trajectory

Make = Callable[..., Trajectory]
log_ratios = st.lists(st.floats(-3, 3), min_size=1, max_size=40).map(np.array)


@pytest.fixture
def batch(make_trajectory: Make) -> tuple[Rows, list[np.ndarray]]:
    """Four rows of several turns, and log-probs of a policy that has moved away."""
    rng = np.random.default_rng(5)
    trajectories = [
        make_trajectory(rng=rng, prompt=3, turns=[(int(rng.integers(1, 6)), 2) for _ in range(int(rng.integers(1, 4)))])
        for _ in range(4)
    ]
    rows = Rows(
        trajectories=trajectories,
        masks=[t.mask & (rng.random(len(t.mask)) < 0.9) for t in trajectories],
        advantages=np.array([1.0, -0.5, 2.0, -1.0]),
    )
    moved = [(t.logprobs + rng.normal(0, 0.8, len(t.ids))).astype(np.float32) for t in trajectories]
    return rows, moved


def by_turn(rows: Rows, moved: list[np.ndarray], i: int) -> dict[int, np.ndarray]:
    t, mask = rows.trajectories[i], rows.masks[i]
    ratio = moved[i] - t.logprobs
    return {turn: ratio[mask & (t.turns == turn)] for turn in np.unique(t.turns[mask]).tolist()}


@pytest.mark.parametrize("turn_ratio", ["mean", "product"])
@pytest.mark.parametrize("level", ["token", "turn"])
def test_decoupled_weights_are_the_truncated_ratio_of_token_or_turn(
    batch: tuple[Rows, list[np.ndarray]], level: Any, turn_ratio: Any
) -> None:
    rows, moved = batch
    options = OffPolicy(
        mode="decoupled", correction="truncate", level=level, turn_ratio=turn_ratio, max_ratio=1.5, min_ratio=0.5
    )
    found = correct(rows, moved, options)
    assert found.rows.weights is not None
    for i, (t, mask) in enumerate(zip(rows.trajectories, rows.masks, strict=True)):
        turns = by_turn(rows, moved, i)
        for place in np.flatnonzero(mask):
            own = moved[i][place] - t.logprobs[place]
            if level == "turn":
                whole = turns[int(t.turns[place])]
                own = whole.mean() if turn_ratio == "mean" else whole.sum()
            assert found.rows.weights[i][place] == pytest.approx(min(1.5, max(0.5, np.exp(own))), rel=1e-5)
        assert (found.rows.weights[i][~mask] == 0).all()
    assert found.rows.old is not None
    assert all((a == b).all() for a, b in zip(found.rows.old, moved, strict=True))
    assert found.figures["offpolicy/masked_share"] == 0
    assert found.figures["offpolicy/weight_max"] == pytest.approx(1.5)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_masked_tokens_leave_the_loss_and_its_denominator(batch: tuple[Rows, list[np.ndarray]], level: Any) -> None:
    rows, moved = batch
    options = OffPolicy(correction="mask", level=level, max_ratio=1.5, min_ratio=0.7)
    found = correct(rows, moved, options)
    expected = []
    for i, mask in enumerate(rows.masks):
        kept = mask.copy()
        for place in np.flatnonzero(mask):
            turn = by_turn(rows, moved, i)[int(rows.trajectories[i].turns[place])]
            own = turn.mean() if level == "turn" else moved[i][place] - rows.trajectories[i].logprobs[place]
            kept[place] = np.log(0.7) <= own <= np.log(1.5)
        expected.append(kept)
    survivors = [i for i, kept in enumerate(expected) if kept.any()]
    assert [id(t) for t in found.rows.trajectories] == [id(rows.trajectories[i]) for i in survivors]
    for mask, i in zip(found.rows.masks, survivors, strict=True):
        np.testing.assert_array_equal(mask, expected[i])
    assert 0 < found.rows.tokens == sum(int(kept.sum()) for kept in expected) < rows.tokens
    assert found.figures["offpolicy/masked_share"] == pytest.approx(1 - found.rows.tokens / rows.tokens)
    assert found.rows.weights is None, "in behavior mode the ratio stands in the clipped objective"


def test_nothing_is_touched_without_a_correction(batch: tuple[Rows, list[np.ndarray]]) -> None:
    rows, moved = batch
    found = correct(rows, moved, OffPolicy())
    assert all((a == b).all() for a, b in zip(found.rows.masks, rows.masks, strict=True))
    assert (found.rows.weights, found.rows.old) == (None, None)
    empty = correct(rows.subset([]), [], OffPolicy(mode="decoupled", correction="mask", m2_threshold=0.04))
    assert empty.rows.trajectories == []


@settings(deadline=None)
@given(log_ratios, st.floats(1, 3), st.floats(0, 0.9))
def test_bounds_keep_what_lies_between_them(ratios: np.ndarray, high: float, low: float) -> None:
    options = OffPolicy(correction="mask", max_ratio=high, min_ratio=low)
    found = np.exp(bounded(ratios, options))
    np.testing.assert_allclose(found, np.clip(np.exp(ratios), low, high), rtol=1e-9)


@settings(deadline=None)
@given(log_ratios, st.floats(0.01, 1.0))
def test_m2_masks_the_fewest_tokens(ratios: np.ndarray, threshold: float) -> None:
    mask = m2_mask(ratios, threshold)
    # the definition: take away the worst until it is enough
    left = sorted(abs(ratios))
    while left and sum(r**2 for r in left) / len(left) > threshold:
        left.pop()
    assert sorted(abs(ratios[mask])) == left


def test_m2_masking_is_counted_and_ends_at_its_threshold(batch: tuple[Rows, list[np.ndarray]]) -> None:
    rows, moved = batch
    found = correct(rows, moved, OffPolicy(m2_threshold=0.4))
    assert found.figures["offpolicy/m2_before"] > 0.4 >= found.figures["offpolicy/m2_after"] > 0
    assert 0 < found.figures["offpolicy/masked_share"] < 0.6


def test_ratio_figures_are_of_the_tokens_before_any_bound(batch: tuple[Rows, list[np.ndarray]]) -> None:
    rows, moved = batch
    rows.trajectories[1].engines[rows.trajectories[1].mask] = 1
    rows.trajectories[1].versions[rows.trajectories[1].mask] = 3
    figures = ratio_metrics(rows, moved, 3, fresh_engines=1)
    parts = [(m - t.logprobs)[k] for m, t, k in zip(moved, rows.trajectories, rows.masks, strict=True)]
    flat = np.concatenate(parts).astype(float)
    weights = np.exp(flat)
    assert figures["ratio/ess"] == pytest.approx(weights.sum() ** 2 / (len(flat) * (weights**2).sum()), rel=1e-6)
    assert figures["ratio/m2"] == pytest.approx((flat**2).mean(), rel=1e-6)
    assert figures["ratio/p99"] == pytest.approx(np.quantile(weights, 0.99), rel=0.05)
    assert figures["ratio/beyond_2_share"] == pytest.approx(((weights > 2) | (weights < 0.5)).mean())
    stale = np.exp(parts[1].astype(float))
    assert figures["ratio/ess_stale"] == pytest.approx(stale.sum() ** 2 / (len(stale) * (stale**2).sum()), rel=1e-6)
    assert figures["ratio/engine_gap"] == pytest.approx(np.abs(parts[1]).mean(), rel=1e-6)
    assert ratio_metrics(rows.subset([]), [], 3, fresh_engines=1) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"off_policy": {"ratio": "paper", "mode": "decoupled"}}, "ratio=paper has no ratio"),
        ({"off_policy": {"ratio": "paper", "m2_threshold": 0.04}}, "ratio=paper has no ratio"),
        ({"off_policy": {"correction": "truncate"}}, "use mode=decoupled"),
        ({"off_policy": {"max_ratio": 0.5}}, "max_ratio is 0.5"),
        ({"off_policy": {"min_ratio": 1.0}}, "min_ratio is 1.0"),
        ({"off_policy": {"ratio": "mixture"}, "engines": {"stale": 0}}, "one policy to draw from"),
        ({"off_policy": {"ratio": "mixture"}, "engines": {"cross_policy": "none"}}, "one policy to draw from"),
        ({"off_policy": {"mode": "decoupled"}, "optimization": {"loss_type": "vespo"}}, "loss_type dapo or cispo"),
        ({"normalization": {"decay": 1.5}}, "decay is 1.5"),
        ({"normalization": {"floor": -1.0}}, "floor is -1.0"),
    ],
)
def test_impossible_combinations_are_refused_with_the_cure(changes: dict[str, Any], message: str) -> None:
    from agentrl_trainer.configfile import from_dict

    with pytest.raises(CallerError, match=message):
        from_dict(changes)


def test_only_what_needs_it_costs_a_survey() -> None:
    assert not RunConfig().off_policy.needs_survey
    assert not OffPolicy(ratio="paper").needs_survey
    for option in (
        {"mode": "decoupled"},
        {"ratio": "mixture"},
        {"correction": "mask"},
        {"m2_threshold": 0.04},
    ):
        assert OffPolicy(**option).needs_survey  # type: ignore[arg-type]
    assert RunConfig(off_policy=OffPolicy(ratio="mixture"), engines=Engines(stale=2)).engines.used_stale == 2
    assert RunConfig(off_policy=OffPolicy(mode="decoupled"), optimization=Optimization(loss_type="cispo"))
