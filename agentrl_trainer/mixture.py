"""The log-prob of a token under the whole pool it could have come from, not only under the engine that it came from.

A draw picks one policy m with probability w_m for a stretch of tokens (an agent turn, or a trajectory). The stretch so
far has the likelihood L_m under each policy, and sum_m w_m L_m under the pool; a token's log-prob is what it adds to
the logarithm of that. For the first token this is the balance heuristic log(sum_m w_m pi_m); later ones weigh the
policies by how well they explain the stretch so far, so that the product over a stretch is exact.

>>> near, far = np.log([0.5, 0.5]), np.log([0.1, 0.5])
>>> np.exp(mixture_logprobs(np.log([0.5, 0.5]), np.stack([near, far]))).round(3)  # 0.3, then 0.5 whoever it was
array([0.3, 0.5])

Not here: the ratio that this is the denominator of (offpolicy.py).
Source: multiple importance sampling, Veach and Guibas 1995.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl_trainer.types import POLICIES, Trajectory

Array = NDArray[np.float64]
Policies = Sequence[tuple[float, int]]
"""Weight and weight version of each policy that one draw could have picked."""


class Stretch(NamedTuple):
    """Tokens of one draw."""

    tokens: NDArray[np.intp]
    """Positions in the trajectory, in order."""
    policies: Policies
    """What the draw could have picked, the sampling one included."""
    own: int
    """The version that it picked."""


def mixture_logprobs(log_weights: Array, logprobs: Array) -> Array:
    """Log-probs of the tokens of one stretch under the pool.

    Args:
        log_weights: (M,) of the policies; they need not add up to 1.
        logprobs: (M, T) of each token under each policy.

    Returns:
        (T,) whose sum is the log-likelihood of the stretch under the pool.
    """
    prior = log_weights - np.logaddexp.reduce(log_weights)
    paths = np.concatenate([np.zeros((len(prior), 1)), np.cumsum(logprobs, axis=1)], axis=1)
    return np.diff(np.logaddexp.reduce(prior[:, None] + paths, axis=0))


def stretches(
    trajectory: Trajectory, *, per: str, admitted: int, fresh_engines: int, stale_sync_steps: int
) -> Iterator[Stretch]:
    """The draws of one trajectory.

    Where the rollout did not note what a draw could have picked, it is derived: a fresh engine of version v had beside
    it the stale one of the last synchronization up to v; a stale engine had beside it the fresh version that the
    trajectory last met, or that its group was admitted at.

    Args:
        trajectory: Whose tokens.
        per: What one draw decides: `step` (a turn) or `trajectory`.
        admitted: Version at which its group was admitted.
        fresh_engines: The first so many engines of the pool are fresh.
        stale_sync_steps: Versions between two synchronizations of the stale ones.
    """
    tokens = np.flatnonzero(trajectory.mask)
    engines = trajectory.engines[tokens]
    # which draw a token is of; a trajectory's draw is repeated where its engine failed
    draws = trajectory.turns[tokens] - 1 if per == "step" else np.cumsum(np.diff(engines, prepend=engines[:1]) != 0)
    noted = trajectory.metrics.get(POLICIES) or []
    newest = admitted
    for number, draw in enumerate(dict.fromkeys(draws.tolist())):
        own = tokens[draws == draw]
        version = int(trajectory.versions[own[0]])
        if trajectory.engines[own[0]] < fresh_engines:
            newest, other = version, version - version % stale_sync_steps
        else:
            newest = other = max(newest, version)
        policies = noted[number] if number < len(noted) else [(1.0, version), (1.0, other)]
        yield Stretch(own, policies, version)


def pooled(trajectory: Trajectory, draws: Sequence[Stretch], scores: Mapping[int, NDArray[np.float32]]) -> Array:
    """(T,) the trajectory's log-probs under the pool; under its own engine where no other policy is known.

    Args:
        trajectory: Whose tokens.
        draws: Its stretches.
        scores: By version, (T,) log-probs of the trajectory's tokens under that version. Versions that are missing are
            left out of the mixture: what remains is exact given that none of them was drawn.
    """
    result = trajectory.logprobs.astype(np.float64)
    for stretch in draws:
        weights: dict[int, float] = {}
        for weight, version in stretch.policies:
            weights[version] = weights.get(version, 0.0) + weight
        own = weights.pop(stretch.own, 0.0)
        others = {v: w for v, w in weights.items() if v in scores and w > 0}
        if not others or own <= 0:
            continue
        paths = [trajectory.logprobs, *(scores[version] for version in others)]
        logprobs = np.stack([path[stretch.tokens] for path in paths]).astype(np.float64)
        result[stretch.tokens] = mixture_logprobs(np.log([own, *others.values()]), logprobs)
    return result


class PolicyHistory:
    """The weights of the versions that tokens of the next batches may come from, in main memory.

    Args:
        max_lag: Bound on the lag of fresh-engine tokens.
        stale_lags: Of each stale policy, the versions between two of its synchronizations.
    """

    def __init__(self, *, max_lag: int, stale_lags: Sequence[int]) -> None:
        self._max_lag = max_lag
        self._lags = tuple(stale_lags)
        self._states: dict[int, dict[str, Tensor]] = {}

    def remember(self, state: Mapping[str, Tensor], version: int) -> None:
        """Keeps a copy of the weights of the newest version, and forgets those that no trained token can need."""
        self._states[version] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        oldest = version - self._max_lag
        for known in list(self._states):
            beside = any(known % lag == 0 and known >= oldest - lag for lag in self._lags)
            if known < oldest and not beside:
                del self._states[known]

    @property
    def versions(self) -> set[int]:
        """Which are known."""
        return set(self._states)

    @torch.no_grad()
    def load(self, model: torch.nn.Module, version: int) -> None:
        """Puts a version's weights into the model."""
        model.load_state_dict(self._states[version])
