"""What the episodes of an evaluation add up to: means over repeats, pass@k, histograms, percentiles.

>>> pass_at_k(n=4, c=1, k=2)
0.5
>>> mean_and_std([0.0, 2.0, 4.0])
Spread(mean=2.0, std=2.0)

An episode without a score (a model error, a fault of the task or of the machines) is counted apart. Every score is
given twice: over the scored episodes, which is what the model can do, and over all with 0 for the missing, which
is a lower bound and what a user of that endpoint got.

Not here: one episode's reward (tasks/), the text of a report (report.py).
Source: the unbiased pass@k of arXiv 2107.03374.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentbench_fc.evaluation.results import EpisodeResult


class Spread(NamedTuple):
    """A mean over repeats, and the sample standard deviation of the repeats' means."""

    mean: float | None
    """None: there was nothing to average."""
    std: float | None
    """None with fewer than two repeats."""


class Percentiles(NamedTuple):
    """Of seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """One task's part of an evaluation."""

    task: str
    episodes: int
    scored: int
    samples: int
    success: Spread
    """Over scored episodes."""
    success_all: Spread
    """Over all episodes, a missing score counted as a failure."""
    reward: Spread
    reward_all: Spread
    pass_at: Mapping[int, float]
    """k -> pass@k, over the samples with at least k scored repeats."""
    pass_at_samples: Mapping[int, int]
    """k -> how many samples that are."""
    statuses: Mapping[str, int]
    errors: Mapping[str, int]
    """Why scores are missing: kind or fault -> episodes."""
    error_examples: Mapping[str, str]
    turns: float | None
    """Mean of scored episodes."""
    invalid_call_rate: float | None
    """Calls that no tool could take, of all calls."""
    no_call_rate: float | None
    """Turns without a call, of all turns."""
    cut_answers: int
    retries: int
    prompt_tokens: int | None
    completion_tokens: int | None
    model_latency: Percentiles | None
    start_latency: Percentiles | None
    step_latency: Percentiles | None
    metrics: Mapping[str, float]
    """The task's own, mean over the scored episodes that report it."""


def summarize(task: str, results: Iterable[EpisodeResult]) -> TaskScores:
    """The scores of one task; the order of the results does not matter."""
    rows = sorted((r for r in results if r.task == task), key=lambda r: r.key)
    scored = [row for row in rows if row.scored]
    errors = [row for row in rows if not row.scored]
    repeats = range(max((row.repeat for row in rows), default=-1) + 1)
    by_sample = _grouped(scored)
    most = len(repeats)
    eligible = {k: [g for g in by_sample.values() if len(g) >= k] for k in range(1, most + 1)}
    calls, turns = sum(r.calls for r in rows), sum(r.turns for r in rows)
    return TaskScores(
        task=task,
        episodes=len(rows),
        scored=len(scored),
        samples=len({row.sample for row in rows}),
        success=_over_repeats(repeats, scored, lambda row: float(bool(row.success))),
        success_all=_over_repeats(repeats, rows, lambda row: float(row.scored and bool(row.success))),
        reward=_over_repeats(repeats, scored, lambda row: row.reward or 0.0),
        reward_all=_over_repeats(repeats, rows, lambda row: (row.reward or 0.0) if row.scored else 0.0),
        pass_at={
            k: statistics.fmean(pass_at_k(len(g), sum(bool(r.success) for r in g), k) for g in groups)
            for k, groups in eligible.items()
            if groups
        },
        pass_at_samples={k: len(groups) for k, groups in eligible.items()},
        statuses=dict(Counter(row.status for row in rows).most_common()),
        errors=dict(Counter(_reason(row) for row in errors).most_common()),
        error_examples={_reason(row): row.error or "" for row in reversed(errors)},
        turns=_mean([float(row.turns) for row in scored]),
        invalid_call_rate=sum(r.invalid_calls for r in rows) / calls if calls else None,
        no_call_rate=sum(r.no_call_turns for r in rows) / turns if turns else None,
        cut_answers=sum(row.cut_answers for row in rows),
        retries=sum(row.tries for row in rows),
        prompt_tokens=_total([row.prompt_tokens for row in rows]),
        completion_tokens=_total([row.completion_tokens for row in rows]),
        model_latency=percentiles([s for row in rows for s in row.model_s]),
        start_latency=percentiles([row.env_s[0] for row in rows if row.env_s]),
        step_latency=percentiles([s for row in rows for s in row.env_s[1:]]),
        metrics=_metric_means(scored),
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k repeats, drawn from n of which c succeeded, is a success.

    Raises:
        ValueError: not 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} repeats is not defined [pass_at_k]. Use 1 <= k <= n.")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_and_std(values: Sequence[float]) -> Spread:
    """The mean, and the sample standard deviation (n - 1)."""
    return Spread(_mean(values), statistics.stdev(values) if len(values) > 1 else None)


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """The smallest values that 50, 95 and 99 % do not exceed; None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Percentiles(*(ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.95, 0.99)))


def macro_average(scores: Sequence[TaskScores]) -> dict[str, float | None]:
    """Success and reward averaged over tasks, each task with equal weight; None when a task has no score."""
    out: dict[str, float | None] = {}
    for name in ("success", "success_all", "reward", "reward_all"):
        means: list[float | None] = [getattr(each, name).mean for each in scores]
        known = [mean for mean in means if mean is not None]
        out[name] = statistics.fmean(known) if known and len(known) == len(means) else None
    return out


def _over_repeats(
    repeats: Iterable[int], rows: Sequence[EpisodeResult], value: Callable[[EpisodeResult], float]
) -> Spread:
    """The mean over all rows, and the deviation of the means of the single repeats."""
    means = [m for r in repeats if (m := _mean([value(row) for row in rows if row.repeat == r])) is not None]
    return Spread(_mean([value(row) for row in rows]), mean_and_std(means).std)


def _grouped(rows: Iterable[EpisodeResult]) -> dict[str, list[EpisodeResult]]:
    groups: dict[str, list[EpisodeResult]] = {}
    for row in rows:
        groups.setdefault(row.sample, []).append(row)
    return groups


def _reason(row: EpisodeResult) -> str:
    return f"{row.status}: {row.kind or row.fault or 'unknown'}"


def _metric_means(rows: Iterable[EpisodeResult]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.fmean(found) for name, found in sorted(values.items())}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
