"""The figures of a step: what was sampled, how old it was, what was left out, where the time went.

Names have a room before the slash; shares are in [0, 1], times in seconds, lags in weight versions.

Not here: the loss's own figures (TRL: loss, grad_norm, entropy, clip_ratio/*); how figures are shown (report.py).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.queue import StepBatch
from agentrl_trainer.rows import Rows
from agentrl_trainer.staleness import LagReport
from agentrl_trainer.types import Trajectory

Metrics = dict[str, float]


def batch_metrics(batch: StepBatch, rows: Rows, lag: LagReport) -> Metrics:
    """What the step consumed, per task where tasks differ."""
    trajectories = batch.trajectories
    figures: Metrics = {
        "batch/groups": len(batch.groups),
        "batch/trajectories": len(trajectories),
        "batch/trained_trajectories": len(rows.trajectories),
        "batch/trained_tokens": rows.tokens,
        "batch/unusable": rows.unusable,
        "batch/uninformative": rows.uninformative,
        "batch/outdated": rows.outdated,
        "lag/mean": lag.mean,
        "lag/max": lag.largest,
        "lag/masked_share": lag.masked_share,
        "lag/stale_mean": lag.stale_mean,
        "lag/stale_share": lag.stale_share,
        "lag/mixed_share": lag.mixed_share,
        "queue/left": batch.left,
        "time/wait_s": batch.waited_s,
    }
    for task, own in sorted(by_task(trajectories).items()):
        figures[f"reward/{task}"] = _mean(t.reward for t in own if t.reward is not None)
        figures[f"success/{task}"] = _mean(float(t.success or False) for t in own)
        figures[f"turns/{task}"] = _mean(float(t.turns.max(initial=0)) for t in own)
        figures[f"tokens/{task}"] = _mean(t.trained_tokens for t in own)
    every = [t for group in batch.groups for t in group.trajectories]
    for status, count in Counter(t.status for t in every).items():
        figures[f"status/{status.replace(' ', '_')}"] = count / len(every)
    return figures


def ratio_metrics(log_ratios: Sequence[NDArray[np.float32]]) -> Metrics:
    """How far the trained policy is from the ones that sampled, over trained tokens, before the update.

    `ratio/ess` is the effective sample size as a share: (sum w)^2 / (n sum w^2), 1 when all weights are equal.
    """
    flat = np.concatenate(log_ratios).astype(np.float64) if log_ratios else np.zeros(0)
    if not flat.size:
        return {}
    weights = np.exp(np.clip(flat, -30, 30))
    return {
        "ratio/mean_abs_log": float(np.abs(flat).mean()),
        "ratio/max_abs_log": float(np.abs(flat).max()),
        "ratio/ess": float(weights.sum() ** 2 / (flat.size * (weights**2).sum())),
    }


def by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories of each task, in order."""
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task, []).append(trajectory)
    return tasks


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(sum(found) / len(found)) if found else 0.0
