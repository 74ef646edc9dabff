"""From groups to trained rows: who is trained on, with which mask and which advantage. Numpy only.

A trajectory leaves no trace here when it is unusable, when its group says nothing (all rewards equal), or when no token
of it is young enough: it is in no statistic, no row and no denominator. Each is counted.

Not here: tensors (collate.py); the arithmetic of advantages (advantages.py) and of lags (staleness.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.advantages import Array, group_advantages
from agentrl_trainer.config import Normalization
from agentrl_trainer.normalization import TaskNormalizer
from agentrl_trainer.staleness import trained_mask
from agentrl_trainer.types import SIBLINGS, Group, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What one optimizer step trains on, and what it left out."""

    trajectories: list[Trajectory]
    masks: list[NDArray[np.bool_]]
    """(T,) of each: tokens that enter the loss; at least one is True."""
    advantages: Array
    """(N,) one per trajectory."""
    behaviour: list[NDArray[np.float32]] | None = None
    """(T,) of each: log-prob under the policy, or mixture, that sampled the token; None: as the engine gave it."""
    old: list[NDArray[np.float32]] | None = None
    """(T,) of each: the denominator of the clipped ratio; None: `behaviour`."""
    weights: list[NDArray[np.float32]] | None = None
    """(T,) of each: importance weight that multiplies the advantage; None: 1."""
    unusable: int = 0
    """Trajectories lost to faults of tasks or machines."""
    uninformative: int = 0
    """Trajectories of groups with equal rewards or one usable member."""
    outdated: int = 0
    """Trajectories of which every token was over the lag bound."""

    @property
    def tokens(self) -> int:
        """Trained tokens: the denominator of the loss."""
        return int(sum(mask.sum() for mask in self.masks))

    @property
    def behaviours(self) -> list[NDArray[np.float32]]:
        """(T,) of each: log-prob under whatever counts as the sampling policy."""
        return self.behaviour or [trajectory.logprobs for trajectory in self.trajectories]

    def subset(self, indices: Sequence[int]) -> "Rows":
        """These rows alone, in this order; the counts of what was left out stay."""

        def some(values: list[Any] | None) -> list[Any] | None:
            return None if values is None else [values[i] for i in indices]

        return replace(
            self,
            trajectories=[self.trajectories[i] for i in indices],
            masks=[self.masks[i] for i in indices],
            advantages=self.advantages[list(indices)],
            behaviour=some(self.behaviour),
            old=some(self.old),
            weights=some(self.weights),
        )


def train_rows(
    groups: Sequence[Group],
    normalization: Normalization | TaskNormalizer,
    *,
    version: int,
    max_lag: int,
    fresh_engines: int,
) -> Rows:
    """Chooses the rows and gives each its advantage.

    Args:
        groups: The batch.
        normalization: Of the group and of the task; with running statistics, the object that keeps them.
        version: Weight version of the trainer that consumes the batch.
        max_lag: Bound on the lag of fresh-engine tokens.
        fresh_engines: How many engines of the pool are fresh; they have the lowest numbers.
    """
    normalizer = normalization if isinstance(normalization, TaskNormalizer) else TaskNormalizer(normalization)
    options = normalizer.options
    usable = [(number, t) for number, group in enumerate(groups) for t in group.usable]
    trajectories = [t for _, t in usable]
    masks = [trained_mask(t, version, max_lag=max_lag, fresh_engines=fresh_engines) for t in trajectories]
    lengths = np.array([mask.sum() for mask in masks], dtype=np.int64)
    rewards = np.array([t.reward for t in trajectories], dtype=np.float64)
    # the group's mean and deviation are those of all its usable members, whatever the lag bound leaves of them
    advantages, informative = group_advantages(
        rewards,
        [(number, t.metrics.get(SIBLINGS, "")) for number, t in usable],
        scale=options.group_scale,
        tolerance=options.tolerance,
    )
    alive = lengths > 0
    chosen = alive & informative if options.exclude_zero_variance else alive
    advantages = normalizer(advantages, lengths, [t.task for t in trajectories], chosen)
    kept = np.flatnonzero(chosen)
    return Rows(
        trajectories=[trajectories[i] for i in kept],
        masks=[masks[i] for i in kept],
        advantages=advantages[kept],
        unusable=sum(len(group.trajectories) - len(group.usable) for group in groups),
        uninformative=int((alive & ~chosen).sum()),
        outdated=int((~alive).sum()),
    )
