"""From rewards to advantages: relative to the group, then normalized over the tokens of each task. Numpy only.

All tokens of a trajectory share one advantage, so the token-level statistics of a task are those of its trajectories,
weighted by their trained tokens: mean 0 and deviation 1 over tokens come from one affine map of the scalars.

>>> rewards = np.array([1.0, 0.0, 0.0, 0.0])
>>> group_advantages(rewards, groups=["g"] * 4, scale="none").advantages
array([ 0.75, -0.25, -0.25, -0.25])

Not here: which trajectories are usable (types.py); importance weights (trainer.py, TRL's loss).
Source: GRPO, arXiv 2402.03300; the task normalization is AgentRL's, arXiv 2510.04206.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = 1e-8
"""A deviation below it is 0: there is nothing to scale by."""


class GroupAdvantages(NamedTuple):
    """One entry per trajectory."""

    advantages: Array
    """(N,) relative to the group."""
    informative: NDArray[np.bool_]
    """(N,) False: the group has one member or all its rewards are equal; the advantage is 0."""


def group_advantages(
    rewards: Array,
    groups: Sequence[Hashable],
    *,
    scale: Literal["std", "none"] = "std",
    tolerance: float = 1e-6,
) -> GroupAdvantages:
    """Compares each trajectory with the others of its group.

    Args:
        rewards: (N,) shaped rewards of usable trajectories.
        groups: (N,) group of each; groups may differ in size, because members can fail.
        scale: `std` divides by the group's deviation (over its members, not an estimate); `none` does not.
        tolerance: Rewards whose range is at most this are equal.
    """
    advantages = np.zeros(len(rewards))
    informative = np.zeros(len(rewards), dtype=bool)
    for members in _indices(groups):
        own = np.asarray(rewards, dtype=float)[members]
        if np.ptp(own) <= tolerance:  # one member alone too
            continue
        centred = own - own.mean()
        advantages[members] = centred / own.std() if scale == "std" else centred
        informative[members] = True
    return GroupAdvantages(advantages, informative)


def normalize_tokens(advantages: Array, lengths: Array, *, center: bool = True) -> Array:
    """Zero mean and unit deviation over the trained tokens of one task.

    Args:
        advantages: (N,) one per trajectory, unitless; all its tokens share it.
        lengths: (N,) trained tokens of each; they are the weights.
        center: False only divides by the deviation, so that no advantage changes its sign.

    Returns:
        (N,) float64; zeros where all are equal or nothing is trained: there is nothing to learn.
    """
    if lengths.sum() <= 0:
        return np.zeros_like(advantages)
    mean = float(np.average(advantages, weights=lengths))
    std = float(np.sqrt(np.average((advantages - mean) ** 2, weights=lengths)))
    if std <= EPS:
        return np.zeros_like(advantages)
    scaled: Array = (advantages - mean if center else advantages) / std
    return scaled


def task_advantages(
    advantages: Array,
    lengths: NDArray[np.int64],
    tasks: Sequence[str],
    included: NDArray[np.bool_],
    *,
    center: bool = True,
) -> Array:
    """Applies `normalize_tokens` to each task of a batch on its own.

    Args:
        advantages: (N,) relative to the group.
        lengths: (N,) trained tokens of each trajectory.
        tasks: (N,) task of each.
        included: (N,) False: neither counted in the statistics nor moved; the advantage stays 0.
        center: As in `normalize_tokens`.

    Returns:
        (N,) float64. A task with one trajectory, or without deviation, gets zeros.
    """
    normalized = np.zeros(len(advantages))
    for members in _indices(tasks):
        chosen = members[included[members]]
        normalized[chosen] = normalize_tokens(advantages[chosen], lengths[chosen].astype(float), center=center)
    return normalized


def _indices(labels: Sequence[Hashable]) -> list[NDArray[np.intp]]:
    """Positions of each distinct label, in order of first appearance."""
    positions: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        positions.setdefault(label, []).append(i)
    return [np.array(found, dtype=np.intp) for found in positions.values()]
