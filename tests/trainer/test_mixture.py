"""The pool's log-probs by enumeration: exact over a stretch, and unbiased as a denominator."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_trainer.mixture import PolicyHistory, mixture_logprobs, pooled, stretches
from agentrl_trainer.types import Trajectory

Make = Callable[..., Trajectory]
VOCABULARY, LENGTH = 3, 3


class Table:
    """A policy over sequences of LENGTH tokens: any conditional distribution, one per prefix."""

    def __init__(self, rng: np.random.Generator, sharpness: float) -> None:
        prefixes = [p for n in range(LENGTH) for p in itertools.product(range(VOCABULARY), repeat=n)]
        logits = {prefix: sharpness * rng.normal(size=VOCABULARY) for prefix in prefixes}
        self.logprobs = {p: values - np.logaddexp.reduce(values) for p, values in logits.items()}

    def of(self, tokens: tuple[int, ...]) -> np.ndarray:
        return np.array([self.logprobs[tokens[:n]][token] for n, token in enumerate(tokens)])


@settings(deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 0.95), st.floats(0.1, 4))
def test_the_product_over_a_stretch_is_the_likelihood_under_the_pool(seed: int, weight: float, sharp: float) -> None:
    rng = np.random.default_rng(seed)
    near, far = Table(rng, sharp), Table(rng, sharp)
    total = 0.0
    for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH):
        found = mixture_logprobs(np.log([weight, 1 - weight]), np.stack([near.of(tokens), far.of(tokens)]))
        likelihood = weight * np.exp(near.of(tokens).sum()) + (1 - weight) * np.exp(far.of(tokens).sum())
        assert np.exp(found.sum()) == pytest.approx(likelihood, rel=1e-9)
        first = weight * np.exp(near.of(tokens)[0]) + (1 - weight) * np.exp(far.of(tokens)[0])
        assert np.exp(found[0]) == pytest.approx(first), "the balance heuristic at the first token"
        total += np.exp(found.sum())
    assert total == pytest.approx(1)


def test_both_ratios_are_unbiased_and_the_mixture_varies_less() -> None:
    rng = np.random.default_rng(0)
    trained, fresh, stale = Table(rng, 0.7), Table(rng, 0.7), Table(rng, 2.0)
    value = {tokens: float(rng.normal()) for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH)}
    wanted = sum(np.exp(trained.of(t).sum()) * v for t, v in value.items())
    moments = {"conditional": np.zeros(2), "mixture": np.zeros(2), "token mixture": np.zeros(2)}
    for tokens, v in value.items():
        both = np.stack([fresh.of(tokens), stale.of(tokens)])
        for policy in (0, 1):
            chance = 0.5 * np.exp(both[policy].sum())
            behaviours = {
                "conditional": both[policy],
                "mixture": mixture_logprobs(np.log([0.5, 0.5]), both),
                "token mixture": np.log(np.exp(both).mean(axis=0)),  # forgets which policy the stretch came from
            }
            for name, behaviour in behaviours.items():
                estimate = np.exp((trained.of(tokens) - behaviour).sum()) * v
                moments[name] += chance * np.array([estimate, estimate**2])
    assert moments["conditional"][0] == pytest.approx(wanted, rel=1e-9)
    assert moments["mixture"][0] == pytest.approx(wanted, rel=1e-9)
    assert moments["mixture"][1] < 0.8 * moments["conditional"][1]
    assert abs(moments["token mixture"][0] - wanted) > 1e-3, "a test that any mixture passes proves nothing"


def test_draws_are_turns_or_whole_trajectories_and_know_who_else_was_there(make_trajectory: Make) -> None:
    t = make_trajectory(rng=np.random.default_rng(0), turns=((2, 1), (3, 1), (1, 1), (2, 0)))
    for turn, (engine, version) in enumerate([(1, 4), (0, 6), (1, 4), (0, 9)], start=1):
        own = t.mask & (t.turns == turn)
        t.engines[own], t.versions[own] = engine, version
    options = {"admitted": 5, "fresh_engines": 1, "stale_sync_steps": 4}
    draws = list(stretches(t, per="step", **options))  # type: ignore[arg-type]
    assert [d.own for d in draws] == [4, 6, 4, 9]
    assert [d.policies[1][1] for d in draws] == [5, 4, 6, 8]
    assert np.concatenate([d.tokens for d in draws]).tolist() == np.flatnonzero(t.mask).tolist()
    runs = list(stretches(t, per="trajectory", **options))  # type: ignore[arg-type]
    assert [(run.own, len(run.tokens)) for run in runs] == [(4, 2), (6, 3), (4, 1), (9, 2)], "its engine was replaced"
    t.engines[t.mask] = 1
    (whole,) = stretches(t, per="trajectory", **options)  # type: ignore[arg-type]
    assert (whole.own, len(whole.tokens)) == (4, 8)

    t.metrics["policies"] = [[[0.7, 4], [0.3, 5]]]
    noted = next(stretches(t, per="step", **options))  # type: ignore[arg-type]
    assert [tuple(p) for p in noted.policies] == [(0.7, 4), (0.3, 5)]


def test_unknown_and_equal_policies_leave_the_engines_own_log_probs(make_trajectory: Make) -> None:
    t = make_trajectory(rng=np.random.default_rng(0), version=4)
    draws = list(stretches(t, per="step", admitted=4, fresh_engines=1, stale_sync_steps=4))
    np.testing.assert_array_equal(pooled(t, draws, {4: np.zeros_like(t.logprobs)}), t.logprobs)  # stale is at 4 too
    draws = list(stretches(t, per="step", admitted=4, fresh_engines=1, stale_sync_steps=3))
    np.testing.assert_array_equal(pooled(t, draws, {}), t.logprobs)  # version 3 is forgotten
    found = pooled(t, draws, {3: (t.logprobs - 0.1).astype(np.float32)})
    assert (found[t.mask] < t.logprobs[t.mask]).all()
    assert (found[~t.mask] == t.logprobs[~t.mask]).all()


def test_the_history_holds_what_trained_tokens_can_need() -> None:
    model = torch.nn.Linear(2, 1)
    history = PolicyHistory(max_lag=2, stale_lags=(4,))
    for version in range(12):
        with torch.no_grad():
            model.weight.fill_(version)
        history.remember(model.state_dict(), version)
    assert history.versions == {8, 9, 10, 11}
    history.remember(model.state_dict(), 12)
    assert history.versions == {8, 10, 11, 12}
    history.load(model, 8)
    assert model.weight[0, 0] == 8
