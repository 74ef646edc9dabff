"""The figures of a step: what was sampled, how old it was, what was left out, where the time went.

Names have a room before the slash; shares are in [0, 1], times in seconds, lags in weight versions.

Not here: the loss's own figures (TRL: loss, grad_norm, entropy, clip_ratio/*); how figures are shown (report.py).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.queue import StepBatch
from agentrl_trainer.rows import Rows
from agentrl_trainer.staleness import LagReport
from agentrl_trainer.types import INNER, Trajectory

Metrics = dict[str, float]
LOG_LIMIT = 30.0
"""A log-ratio beyond it is cut before it is raised."""


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
        "lag/p99": lag.p99,
        "lag/max": lag.largest,
        "lag/masked_share": lag.masked_share,
        "lag/stale_mean": lag.stale_mean,
        "lag/stale_share": lag.stale_share,
        "lag/stale_max": lag.stale_largest,
        "lag/mixed_share": lag.mixed_share,
        "queue/left": batch.left,
        "time/wait_s": batch.waited_s,
    }
    figures |= {f"lag/share_{age}": share for age, share in enumerate(lag.shares)}
    episodes = [t for t in trajectories if INNER not in t.metrics]
    for task, own in sorted(by_task(episodes).items()):
        figures[f"reward/{task}"] = _mean(t.reward for t in own if t.reward is not None)
        figures[f"success/{task}"] = _mean(float(t.success or False) for t in own)
        figures[f"turns/{task}"] = _mean(float(t.turns.max(initial=0)) for t in own)
        figures[f"tokens/{task}"] = _mean(t.trained_tokens for t in own)
    every = [t for group in batch.groups for t in group.trajectories]
    figures["chat/drift_tokens"] = sum(int(t.metrics.get("drift", 0)) for t in every)
    figures["chat/repaired_turns"] = sum(int(t.metrics.get("repaired_turns", 0)) for t in every)
    for status, count in Counter(t.status for t in every).items():
        figures[f"status/{status.replace(' ', '_')}"] = count / len(every)
    return figures


def ratio_metrics(rows: Rows, logprobs: Sequence[NDArray[np.float32]], version: int, fresh_engines: int) -> Metrics:
    """How far the trained policy is from the ones that sampled, over trained tokens, before the update.

    All are of the ratio as it is, before any bound or mask. `ratio/ess` is the effective sample size as a share:
    (sum w)^2 / (n sum w^2), 1 when all weights are equal.

    Args:
        rows: What is trained.
        logprobs: (T,) of each row, under the trained policy at the start of the step.
        version: The version that consumes the batch.
        fresh_engines: The first so many engines are fresh.
    """
    parts = zip(logprobs, rows.behaviours, rows.masks, strict=True)
    flat = _flat([(new - old)[mask] for new, old, mask in parts])
    if not flat.size:
        return {}
    own = list(zip(rows.trajectories, rows.masks, strict=True))
    fresh = _flat([t.engines[mask] for t, mask in own]) < fresh_engines
    same = _flat([t.versions[mask] for t, mask in own]) == version
    low, high = np.quantile(flat, [0.01, 0.99])
    figures: Metrics = {
        "ratio/mean_abs_log": float(np.abs(flat).mean()),
        "ratio/max_abs_log": float(np.abs(flat).max()),
        "ratio/m2": float((flat**2).mean()),
        "ratio/p01": float(np.exp(max(low, -LOG_LIMIT))),
        "ratio/p99": float(np.exp(min(high, LOG_LIMIT))),
        "ratio/beyond_2_share": float((np.abs(flat) > np.log(2)).mean()),
        "ratio/ess": _effective(flat),
    }
    if fresh.any() and not fresh.all():
        figures |= {"ratio/ess_fresh": _effective(flat[fresh]), "ratio/ess_stale": _effective(flat[~fresh])}
    if same.any():  # nothing but the engine's arithmetic can be between these two
        figures["ratio/engine_gap"] = float(np.abs(flat[same]).mean())
    return figures


def _effective(log_ratios: NDArray[np.float64]) -> float:
    weights = np.exp(np.clip(log_ratios, -LOG_LIMIT, LOG_LIMIT))
    return float(weights.sum() ** 2 / (log_ratios.size * (weights**2).sum()))


def _flat(parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)


class WeightedMetrics:
    """TRL logs one value per micro-batch; this leaves one per step, the mean weighted by trained tokens."""

    def __init__(self, metrics: defaultdict[str, list[float]]) -> None:
        self._metrics = metrics
        self._before: dict[str, int] = {}
        self._weights: list[float] = []

    def __enter__(self) -> "WeightedMetrics":
        self._before = {name: len(values) for name, values in self._metrics.items()}
        return self

    def add(self, weight: float) -> None:
        """Ends one micro-batch."""
        self._weights.append(weight)

    def __exit__(self, *exception: object) -> None:
        for name, values in self._metrics.items():
            own = values[self._before.get(name, 0) :]
            if len(own) == len(self._weights) > 0:
                values[self._before.get(name, 0) :] = [_weighted_mean(own, self._weights)]


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if np.isfinite(v)]
    total = sum(w for _, w in pairs)
    return sum(v * w for v, w in pairs) / total if total else float("nan")


def by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories of each task, in order."""
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task, []).append(trajectory)
    return tasks


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(sum(found) / len(found)) if found else 0.0
