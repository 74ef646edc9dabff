"""From a batch of groups to the tensors of TRL's GRPO loss: trained rows, then micro-batches by padded tokens.

A trajectory leaves no trace here when it is unusable, when its group says nothing (all rewards equal), or when no token
of it is young enough: it is in no statistic, no tensor and no denominator. Each is counted.

Not here: the loss (trainer.py); the arithmetic of advantages (advantages.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl_trainer.advantages import Array, group_advantages, task_advantages
from agentrl_trainer.config import Normalization
from agentrl_trainer.staleness import trained_mask
from agentrl_trainer.types import Group, Trajectory

MicroBatch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What one optimizer step trains on, and what it left out."""

    trajectories: list[Trajectory]
    masks: list[NDArray[np.bool_]]
    """(T,) of each: tokens that enter the loss; at least one is True."""
    advantages: Array
    """(N,) one per trajectory."""
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


def train_rows(
    groups: Sequence[Group], normalization: Normalization, *, version: int, max_lag: int, fresh_engines: int
) -> Rows:
    """Chooses the rows and gives each its advantage.

    Args:
        groups: The batch.
        normalization: Of the group and of the task.
        version: Weight version of the trainer that consumes the batch.
        max_lag: Bound on the lag of fresh-engine tokens.
        fresh_engines: How many engines of the pool are fresh; they have the lowest numbers.
    """
    usable = [(number, t) for number, group in enumerate(groups) for t in group.usable]
    trajectories = [t for _, t in usable]
    masks = [trained_mask(t, version, max_lag=max_lag, fresh_engines=fresh_engines) for t in trajectories]
    lengths = np.array([mask.sum() for mask in masks], dtype=np.int64)
    rewards = np.array([t.reward for t in trajectories], dtype=np.float64)
    # the group's mean and deviation are those of all its usable members, whatever the lag bound leaves of them
    advantages, informative = group_advantages(
        rewards,
        [number for number, _ in usable],
        scale=normalization.group_scale,
        tolerance=normalization.tolerance,
    )
    alive = lengths > 0
    chosen = alive & informative if normalization.exclude_zero_variance else alive
    if normalization.task == "batch":
        tasks = [t.task for t in trajectories]
        advantages = task_advantages(advantages, lengths, tasks, chosen, center=normalization.center)
    kept = np.flatnonzero(chosen)
    return Rows(
        trajectories=[trajectories[i] for i in kept],
        masks=[masks[i] for i in kept],
        advantages=advantages[kept],
        unusable=sum(len(group.trajectories) - len(group.usable) for group in groups),
        uninformative=int((alive & ~chosen).sum()),
        outdated=int((~alive).sum()),
    )


def micro_batches(rows: Rows, token_budget: int, *, pad_id: int) -> list[MicroBatch]:
    """Splits rows into micro-batches of at most `token_budget` padded tokens; a longer row is alone in its own.

    Rows of similar length share a micro-batch. Sequences are split into "prompt" and "completion" at the shortest
    prompt of the micro-batch, so that nothing is padded on the left; `tool_mask` says what is trained.

    Returns:
        For each: `prompt_ids`, `prompt_mask` (B, P), `completion_ids`, `completion_mask`, `tool_mask`,
        `old_per_token_logps` (B, C), `advantages` (B,), and `num_items_in_batch`, the trained tokens of all of them.
    """
    total = rows.tokens
    order = sorted(range(len(rows.trajectories)), key=lambda i: -len(rows.trajectories[i].ids))  # stable
    batches: list[list[int]] = []
    for i in order:
        longest = len(rows.trajectories[batches[-1][0]].ids) if batches else 0
        if batches and (len(batches[-1]) + 1) * longest <= token_budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [_collate(rows, members, total, pad_id) for members in batches]


def _collate(rows: Rows, members: Sequence[int], total: int, pad_id: int) -> MicroBatch:
    chosen = [rows.trajectories[i] for i in members]
    length = max(len(t.ids) for t in chosen)
    split = max(1, min(t.prompt_length for t in chosen))  # the first token of a sequence has no prediction
    ids = np.full((len(chosen), length), pad_id, dtype=np.int64)
    attention = np.zeros((len(chosen), length), dtype=np.int64)
    trained = np.zeros((len(chosen), length), dtype=np.int64)
    logprobs = np.zeros((len(chosen), length), dtype=np.float32)
    for row, (trajectory, i) in enumerate(zip(chosen, members, strict=True)):
        n = len(trajectory.ids)
        ids[row, :n] = trajectory.ids
        attention[row, :n] = 1
        trained[row, :n] = rows.masks[i]
        logprobs[row, :n] = np.where(rows.masks[i], trajectory.logprobs, 0.0)
    return {
        "prompt_ids": torch.from_numpy(ids[:, :split]),
        "prompt_mask": torch.from_numpy(attention[:, :split]),
        "completion_ids": torch.from_numpy(ids[:, split:]),
        "completion_mask": torch.from_numpy(attention[:, split:]),
        "tool_mask": torch.from_numpy(trained[:, split:]),
        "old_per_token_logps": torch.from_numpy(logprobs[:, split:]),
        "advantages": torch.tensor([rows.advantages[i] for i in members], dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(total)),
    }
