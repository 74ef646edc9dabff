"""What makes up for tokens that another policy sampled: bounds on their importance ratio, and weights. Numpy only.

With the policy at the start of the step as `theta`, a token's ratio is pi_theta / pi_behaviour. Whatever is bounded or
masked here is decided for the whole batch at once, before its first gradient, so that it does not depend on how the
batch is split into micro-batches.

>>> options = OffPolicy(mode="decoupled", correction="truncate", max_ratio=2.0)
>>> np.exp(bounded(np.log([0.5, 1.0, 3.0]), options)).round(2)
array([0.5, 1. , 2. ])

Not here: the clipped objective (TRL's loss); the log-prob of a mixture of policies (mixture.py).
Source: truncated importance sampling, Espeholt et al., arXiv 1802.01561; decoupled objective, Hilton et al., arXiv
2110.00641, and AReaL, arXiv 2505.24298; second-moment masking M2PO, arXiv 2510.01161.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.config import OffPolicy
from agentrl_trainer.rows import Rows

Array = NDArray[np.float64]
PerRow = list[NDArray[np.float32]]
"""One (T,) array per row."""
LOG_LIMIT = 20.0
"""A log-ratio beyond it is cut before it is raised: float32 has no room for its exponential."""


class Corrected(NamedTuple):
    """The rows as they are trained, and what was done to them."""

    rows: Rows
    figures: dict[str, float]


def correct(rows: Rows, logprobs: PerRow, options: OffPolicy) -> Corrected:
    """Bounds, masks and weighs the trained tokens of a batch.

    Args:
        rows: What would be trained without any correction.
        logprobs: (T,) of each row, under the policy at the start of the step.
        options: What to do.

    Returns:
        Rows with smaller masks (a row without a token left is gone), with `old` and, in `decoupled` mode, `weights`.
        The loss divides by the tokens that are left.
    """
    flat = _Flat(rows, logprobs)
    ratio = flat.log_ratio if options.level == "token" else _of_turns(flat, options.turn_ratio)
    outside = bounded(ratio, options) != ratio
    keep = ~outside if options.correction == "mask" else np.ones(len(ratio), dtype=bool)
    m2_before = _second_moment(flat.log_ratio[keep])
    if options.m2_threshold:
        keep[keep] = m2_mask(flat.log_ratio[keep], options.m2_threshold)
    figures = {
        "offpolicy/masked_share": float(1 - keep.mean()) if len(keep) else 0.0,
        "offpolicy/outside_share": float(outside.mean()) if len(outside) else 0.0,
        "offpolicy/m2_before": m2_before,
        "offpolicy/m2_after": _second_moment(flat.log_ratio[keep]),
    }
    weights: PerRow | None = None
    if options.mode == "decoupled":
        weight = np.exp(np.clip(bounded(ratio, options), -LOG_LIMIT, LOG_LIMIT))
        figures["offpolicy/weight_mean"] = float(weight[keep].mean()) if keep.any() else 0.0
        figures["offpolicy/weight_max"] = float(weight[keep].max()) if keep.any() else 0.0
        weights = flat.per_row(weight)
    masks = [kept.astype(bool) for kept in flat.per_row(keep)]
    changed = replace(rows, masks=masks, weights=weights, old=logprobs if options.mode == "decoupled" else None)
    return Corrected(changed.subset([i for i, mask in enumerate(masks) if mask.any()]), figures)


def bounded(log_ratio: Array, options: OffPolicy) -> Array:
    """The log-ratio within the bounds; as it is where nothing is bounded."""
    if options.correction == "none":
        return log_ratio
    low = np.log(options.min_ratio) if options.min_ratio > 0 else -np.inf
    return np.clip(log_ratio, low, np.log(options.max_ratio))


def m2_mask(log_ratio: Array, threshold: float) -> NDArray[np.bool_]:
    """The fewest tokens to leave out so that the mean squared log-ratio of the others is at most `threshold`.

    The square does not cancel out as the mean of ratios does, and it weighs a token that has become less likely like
    one that has become likelier.

    Args:
        log_ratio: (N,) of each token.
        threshold: Above 0.

    Returns:
        (N,) False: left out.
    """
    order = np.argsort(-(log_ratio**2), kind="stable")
    # the sums from behind: what is left after the first 0, 1, 2 … of the order are gone
    left = np.append(np.cumsum((log_ratio[order] ** 2)[::-1])[::-1], 0.0)
    gone = int(np.argmax(left <= threshold * np.arange(len(order), -1, -1)))
    mask = np.ones(len(log_ratio), dtype=bool)
    mask[order[:gone]] = False
    return mask


class _Flat:
    """The trained tokens of all rows in one line."""

    def __init__(self, rows: Rows, logprobs: PerRow) -> None:
        self.rows = rows
        masks, behaviours = rows.masks, rows.behaviours
        pairs = zip(logprobs, behaviours, masks, strict=True)
        self.log_ratio: Array = _joined([(new - old)[mask] for new, old, mask in pairs])
        counts = [int(mask.sum()) for mask in masks]
        # a number for each turn of each row
        turns = [t.turns[mask].astype(np.int64) for t, mask in zip(rows.trajectories, masks, strict=True)]
        labels = np.repeat(np.arange(len(counts)) << 16, counts) + (np.concatenate(turns) if turns else 0)
        self.turns: NDArray[np.intp] = np.unique(labels, return_inverse=True)[1].reshape(-1)

    def per_row(self, values: NDArray[np.generic]) -> PerRow:
        """Back to (T,) arrays; 0 off the mask."""
        result, at = [], 0
        for mask in self.rows.masks:
            count = int(mask.sum())
            row = np.zeros(len(mask), dtype=np.float32)
            row[mask] = values[at : at + count]
            result.append(row)
            at += count
        return result


def _of_turns(flat: _Flat, kind: str) -> Array:
    """(N,) the log-ratio of each token's turn: the mean or the sum over its trained tokens."""
    total: Array = np.bincount(flat.turns, weights=flat.log_ratio).astype(np.float64)
    of_turn = total / np.bincount(flat.turns) if kind == "mean" else total
    found: Array = of_turn[flat.turns]
    return found


def _second_moment(log_ratio: Array) -> float:
    return float((log_ratio**2).mean()) if len(log_ratio) else 0.0


def _joined(parts: PerRow) -> Array:
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
