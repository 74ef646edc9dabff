"""What is trained on, with which advantage, in which tensors; and what leaves no trace."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_trainer.collate import micro_batches
from agentrl_trainer.config import Normalization
from agentrl_trainer.rows import Rows, train_rows
from agentrl_trainer.staleness import lag_report, trained_mask
from agentrl_trainer.types import Group, Trajectory

Make = Callable[..., Any]


def rows_of(groups: list[Group], *, version: int = 0, **normalization: Any) -> Rows:
    return train_rows(groups, Normalization(**normalization), version=version, max_lag=2, fresh_engines=1)


@pytest.fixture
def group(make_trajectory: Make, make_group: Make) -> Make:
    rng = np.random.default_rng(0)

    def make(rewards: list[float | None], number: int = 0, **fields: Any) -> Group:
        return make_group([make_trajectory(rng=rng, reward=r, **fields) for r in rewards], number)

    return make


def test_a_mixed_group_is_trained_on_with_advantages_of_both_signs(group: Make) -> None:
    rows = rows_of([group([1.0, 0.0, 0.0, 0.0])])
    assert len(rows.trajectories) == 4
    assert rows.advantages[0] > 0 > rows.advantages[1]
    assert rows.tokens == 28


def test_groups_that_say_nothing_are_left_out_and_counted(group: Make) -> None:
    rows = rows_of([group([1.0, 1.0], 0), group([0.5], 1), group([1.0, 0.0], 2)])
    assert [t.group_id for t in rows.trajectories] == ["g2", "g2"]
    assert rows.uninformative == 3
    assert rows.tokens == 14


def test_the_papers_form_keeps_equal_groups_in_the_task_statistics(group: Make) -> None:
    groups = [group([1.0, 1.0], 0), group([1.0, 0.0, 0.0], 1)]
    for t in groups[1].trajectories[:1]:
        t.mask[-4:] = False  # shorter, so that the token mean is not 0
    rows = rows_of(groups, exclude_zero_variance=False)
    assert len(rows.trajectories) == 5
    assert rows.advantages[0] == rows.advantages[1] != 0
    tokens = np.repeat(rows.advantages, [int(m.sum()) for m in rows.masks])
    np.testing.assert_allclose([tokens.mean(), tokens.std()], [0, 1], atol=1e-9)


def test_a_failed_member_shrinks_its_group_and_touches_nothing_else(group: Make, make_trajectory: Make) -> None:
    whole = rows_of([group([1.0, 0.0, 0.0])])
    for broken in ({"usable": False, "reward": 5.0}, {"reward": None}):
        groups = [group([1.0, 0.0, 0.0])]
        groups[0].trajectories.append(make_trajectory(rng=np.random.default_rng(9), **broken))
        rows = rows_of(groups)
        np.testing.assert_array_equal(rows.advantages, whole.advantages)
        assert (rows.tokens, rows.unusable, len(rows.trajectories)) == (whole.tokens, 1, 3)


def test_tokens_over_the_bound_are_masked_and_stale_engines_may_lag(group: Make) -> None:
    fresh, stale = group([1.0, 0.0], 0, version=4), group([1.0, 0.0], 1, version=0, engine=1)
    late = group([1.0, 0.0], 2, version=1)
    mixed = group([1.0, 0.0], 3, version=4)
    mixed.trajectories[0].versions[5:7] = 1  # the first two sampled tokens are too old
    rows = rows_of([fresh, stale, late, mixed], version=4)
    assert [t.group_id for t in rows.trajectories] == ["g0", "g0", "g1", "g1", "g3", "g3"]
    assert rows.outdated == 2
    assert rows.masks[4].sum() == rows.masks[5].sum() - 2

    report = lag_report([t for g in (fresh, stale, late, mixed) for t in g.trajectories], 4, max_lag=2, fresh_engines=1)
    assert (report.tokens, report.masked, report.largest) == (56, 16, 0)
    assert report.stale_mean == 4.0
    assert report.stale_share == 0.25
    assert report.mean == pytest.approx(16 * 3 / 42)
    assert report.mixed_share == 1 / 8
    assert report.masked_share == 16 / 56


@given(version=st.integers(0, 5), sampled_at=st.integers(0, 5), max_lag=st.integers(0, 4), engine=st.integers(0, 2))
def test_the_mask_keeps_what_the_bound_says(
    make_trajectory: Make, version: int, sampled_at: int, max_lag: int, engine: int
) -> None:
    t = make_trajectory(rng=np.random.default_rng(0), version=sampled_at, engine=engine)
    kept = trained_mask(t, version, max_lag=max_lag, fresh_engines=1)
    assert (kept == (t.mask if engine >= 1 or version - sampled_at <= max_lag else np.zeros_like(t.mask))).all()


shapes = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(shapes=shapes, budget=st.integers(8, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(
    make_trajectory: Make, shapes: list[Any], budget: int
) -> None:
    rng = np.random.default_rng(1)
    trajectories = [make_trajectory(rng=rng, prompt=prompt, turns=turns) for prompt, turns in shapes]
    rows = Rows(
        trajectories=trajectories,
        masks=[t.mask & (rng.random(len(t.mask)) < 0.8) for t in trajectories],
        advantages=np.arange(1.0, len(trajectories) + 1),
    )
    seen: dict[float, Trajectory] = {}
    for part in micro_batches(rows, budget, pad_id=0):
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        assert ids.shape == attention.shape
        assert len(ids) == 1 or ids.numel() <= budget
        assert part["prompt_mask"].all(), "nothing is padded on the left"
        assert float(part["num_items_in_batch"]) == rows.tokens
        split = part["prompt_ids"].shape[1]
        for row, advantage in enumerate(part["advantages"].tolist()):
            i = int(advantage) - 1
            t = trajectories[i]
            n = int(attention[row].sum())
            assert ids[row, :n].tolist() == t.ids.tolist()
            assert not attention[row, n:].any()
            assert not ids[row, n:].any()
            expected = np.zeros(ids.shape[1], dtype=bool)
            expected[:n] = rows.masks[i]
            assert part["tool_mask"][row].bool().tolist() == expected[split:].tolist()
            assert not expected[:split].any()
            behaviour = np.where(rows.masks[i], t.logprobs, 0)[split:]
            np.testing.assert_array_equal(part["old_per_token_logps"][row, : n - split], behaviour)
            seen[advantage] = t
    assert len(seen) == len(trajectories)


def test_no_rows_make_no_micro_batches(group: Make) -> None:
    rows = rows_of([group([1.0, 1.0])])
    assert micro_batches(rows, 100, pad_id=0) == []
