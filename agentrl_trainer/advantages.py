"""From rewards to advantages: relative to the group, then normalized over the tokens of each task. Numpy only.

All tokens of a trajectory share one advantage, so the token-level statistics of a task are those of its trajectories,
weighted by their trained tokens: mean 0 and deviation 1 over tokens come from one affine map of the scalars.

>>> rewards = np.array([1.0, 0.0, 0.0, 0.0])
>>> group_advantages(rewards, groups=["g"] * 4, scale="none").advantages
array([ 0.75, -0.25, -0.25, -0.25])

Not here: which trajectories are usable (types.py); running statistics (normalization.py); importance weights
(offpolicy.py).
Source: GRPO, arXiv 2402.03300; the task normalization is AgentRL's, arXiv 2510.04206.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Label = TypeVar("Label", bound=Hashable)
NORMAL = 1.4826
"""A normal distribution's deviation over its median absolute deviation."""
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
    for members in positions(groups).values():
        own = np.asarray(rewards, dtype=float)[members]
        if np.ptp(own) <= tolerance:  # one member alone too
            continue
        centred = own - own.mean()
        advantages[members] = centred / own.std() if scale == "std" else centred
        informative[members] = True
    return GroupAdvantages(advantages, informative)


class Spread(NamedTuple):
    """Where the advantages of one task lie, over its trained tokens."""

    center: float
    scale: float


def token_spread(advantages: Array, lengths: Array, spread: Literal["std", "mad"] = "std") -> Spread:
    """Center and scale over tokens: mean and deviation, or median and scaled median absolute deviation.

    Args:
        advantages: (N,) one per trajectory, unitless; all its tokens share it.
        lengths: (N,) trained tokens of each; they are the weights; at least one is above 0.
        spread: `mad` keeps a few extreme rewards from setting the scale; where more than half of the tokens agree, so
            that it is 0, the deviation around the median takes its place.
    """
    if spread == "std":
        center = float(np.average(advantages, weights=lengths))
    else:
        center = weighted_median(advantages, lengths)
        if (mad := weighted_median(np.abs(advantages - center), lengths)) > EPS:
            return Spread(center, NORMAL * mad)
    return Spread(center, float(np.sqrt(np.average((advantages - center) ** 2, weights=lengths))))


def weighted_median(values: Array, weights: Array) -> float:
    """The least value that at least half of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def normalize_tokens(
    advantages: Array,
    lengths: Array,
    *,
    center: bool = True,
    spread: Literal["std", "mad"] = "std",
    floor: float = 0.0,
) -> Array:
    """Zero mean and unit deviation over the trained tokens of one task.

    Args:
        advantages: (N,) one per trajectory, unitless; all its tokens share it.
        lengths: (N,) trained tokens of each; they are the weights.
        center: False only divides by the deviation, so that no advantage changes its sign.
        spread: What is scaled to 1; see `token_spread`.
        floor: The least that is divided by.

    Returns:
        (N,) float64; zeros where all are equal or nothing is trained: there is nothing to learn.
    """
    if lengths.sum() <= 0:
        return np.zeros_like(advantages)
    return rescale(advantages, token_spread(advantages, lengths, spread), center=center, floor=floor)


def rescale(advantages: Array, spread: Spread, *, center: bool, floor: float = 0.0) -> Array:
    """The affine map to mean 0 and deviation 1; zeros where there is no deviation to divide by."""
    scale = max(spread.scale, floor)
    if scale <= EPS:
        return np.zeros_like(advantages)
    scaled: Array = (advantages - spread.center if center else advantages) / scale
    return scaled


def task_advantages(
    advantages: Array,
    lengths: NDArray[np.int64],
    tasks: Sequence[str],
    included: NDArray[np.bool_],
    *,
    center: bool = True,
    spread: Literal["std", "mad"] = "std",
    floor: float = 0.0,
) -> Array:
    """Applies `normalize_tokens` to each task of a batch on its own.

    Args:
        advantages: (N,) relative to the group.
        lengths: (N,) trained tokens of each trajectory.
        tasks: (N,) task of each.
        included: (N,) False: neither counted in the statistics nor moved; the advantage stays 0.
        center: As in `normalize_tokens`, like `spread` and `floor`.
        spread: What is scaled to 1.
        floor: The least that is divided by.

    Returns:
        (N,) float64. A task with one trajectory, or without deviation, gets zeros.
    """
    normalized = np.zeros(len(advantages))
    for members in positions(tasks).values():
        chosen = members[included[members]]
        own = lengths[chosen].astype(float)
        normalized[chosen] = normalize_tokens(advantages[chosen], own, center=center, spread=spread, floor=floor)
    return normalized


def positions(labels: Sequence[Label]) -> dict[Label, NDArray[np.intp]]:
    """Where each distinct label stands, in order of first appearance."""
    found: dict[Label, list[int]] = {}
    for i, label in enumerate(labels):
        found.setdefault(label, []).append(i)
    return {label: np.array(places, dtype=np.intp) for label, places in found.items()}
