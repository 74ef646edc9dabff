"""How old the tokens of a batch are, and which of them are too old to be trained on. Numpy only.

The lag of a token is the version that consumes it minus the version that sampled it. The bound holds for tokens of
fresh engines; a stale engine (cross-policy sampling) lags on purpose: its tokens are counted apart and never masked.

Not here: pacing, which keeps lags low in the first place (rollout/); what a mask does to the loss (collate.py).
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.types import Trajectory

SHOWN = 8
"""Lags above it share the last place of the histogram."""


def due(version: int, lags: Iterable[int], held: Container[int]) -> list[int]:
    """The lags whose stale engines take a version: its divisors, and those that hold none yet, whatever it is.

    Replaying the versions that each lag holds, oldest first, brings new engines to the same.
    """
    return [lag for lag in lags if lag not in held or version % lag == 0]


def fresh_tokens(trajectory: Trajectory, fresh_engines: int) -> NDArray[np.bool_]:
    """(T,) True where a fresh engine sampled the token; a pool numbers its fresh engines first."""
    fresh: NDArray[np.bool_] = trajectory.mask & (trajectory.engines < fresh_engines)
    return fresh


def trained_mask(trajectory: Trajectory, version: int, *, max_lag: int, fresh_engines: int) -> NDArray[np.bool_]:
    """(T,) the trajectory's mask without the fresh tokens whose lag passes the bound."""
    late = fresh_tokens(trajectory, fresh_engines) & (version - trajectory.versions > max_lag)
    kept: NDArray[np.bool_] = trajectory.mask & ~late
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """Ages of the sampled tokens of one batch, in weight versions."""

    tokens: int
    """Sampled tokens of usable trajectories."""
    masked: int
    """Those over the bound."""
    mean: float
    """Mean lag of fresh-engine tokens, masked ones included."""
    p99: float
    """99 of 100 fresh-engine tokens have at most this lag, masked ones included."""
    largest: int
    """Largest lag of a fresh-engine token that is trained on; never above the bound."""
    stale_mean: float
    """Mean lag of stale-engine tokens; 0 without any."""
    stale_largest: int
    """Largest lag of a stale-engine token."""
    shares: tuple[float, ...]
    """Share of fresh-engine tokens with lag 0, 1 … up to the bound: the lags' histogram; the rest is over it."""
    stale_share: float
    """Share of tokens from stale engines."""
    mixed_share: float
    """Share of trajectories with tokens of more than one weight version."""

    @property
    def masked_share(self) -> float:
        """Share of tokens that the bound took out of the loss."""
        return self.masked / self.tokens if self.tokens else 0.0


def lag_report(trajectories: Sequence[Trajectory], version: int, *, max_lag: int, fresh_engines: int) -> LagReport:
    """Counts the lags of the usable trajectories that version `version` consumes."""
    fresh: list[NDArray[np.int32]] = []
    stale: list[NDArray[np.int32]] = []
    mixed = 0
    for trajectory in trajectories:
        lags = (version - trajectory.versions).astype(np.int32)
        own = fresh_tokens(trajectory, fresh_engines)
        fresh.append(lags[own])
        stale.append(lags[trajectory.mask & ~own])
        mixed += len(np.unique(trajectory.versions[trajectory.mask])) > 1
    all_fresh = np.concatenate(fresh) if fresh else np.zeros(0, np.int32)
    all_stale = np.concatenate(stale) if stale else np.zeros(0, np.int32)
    trained = all_fresh[all_fresh <= max_lag]
    tokens = len(all_fresh) + len(all_stale)
    counts = np.bincount(np.clip(trained, 0, min(max_lag, SHOWN)), minlength=min(max_lag, SHOWN) + 1)
    return LagReport(
        tokens=tokens,
        masked=len(all_fresh) - len(trained),
        mean=float(all_fresh.mean()) if len(all_fresh) else 0.0,
        largest=int(trained.max()) if len(trained) else 0,
        p99=float(np.quantile(all_fresh, 0.99, method="higher")) if len(all_fresh) else 0.0,
        stale_largest=int(all_stale.max()) if len(all_stale) else 0,
        shares=tuple(float(count) / max(1, len(all_fresh)) for count in counts),
        stale_mean=float(all_stale.mean()) if len(all_stale) else 0.0,
        stale_share=len(all_stale) / tokens if tokens else 0.0,
        mixed_share=mixed / len(trajectories) if trajectories else 0.0,
    )
