"""What an evaluation found, per task and kind of decoding.

Not here: playing the episodes (rollout/); when to evaluate (callbacks.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentrl_trainer.config import RunConfig

Decoding = Literal["sampled", "greedy"]
Play = Callable[[str, str, int, float, int], list[dict[str, Any]]]
"""`RolloutProcess.evaluate(task, split, n, temperature, seed)`: one record per episode."""
SEED_OFFSET = 1_000_003
"""Evaluations draw from their own stream of seeds, the same before and after training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """Scores of one task under one decoding."""

    task: str
    decoding: Decoding
    episodes: int
    """Scored episodes; faults of machines or tasks are not among them."""
    success: float
    """Share of episodes that succeeded."""
    reward: float
    """Mean raw reward."""
    turns: float
    """Mean agent turns."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Episodes per final status, faults included."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def summarize(task: str, decoding: Decoding, records: Sequence[Mapping[str, Any]]) -> EvalResult:
    """Scores of the episodes of one evaluation; unusable ones only count in the statuses."""
    scored = [record for record in records if record.get("usable", True)]
    return EvalResult(
        task=task,
        decoding=decoding,
        episodes=len(scored),
        success=_mean([float(bool(record.get("success"))) for record in scored]),
        reward=_mean([float(record.get("raw_reward") or 0.0) for record in scored]),
        turns=_mean([float(record.get("turns") or 0.0) for record in scored]),
        statuses=dict(sorted(Counter(str(record.get("status")) for record in records).items())),
    )


def evaluate(play: Play, config: RunConfig) -> list[EvalResult]:
    """Plays the held-out samples of each task, sampled and, where wanted, greedily."""
    options = config.evaluation
    results = []
    for task in config.tasks:
        decodings: list[tuple[Decoding, float]] = [("sampled", options.temperature)]
        if options.greedy:
            decodings.append(("greedy", 0.0))
        for decoding, temperature in decodings:
            records = play(task.name, task.eval_split, options.n, temperature, config.seed + SEED_OFFSET)
            results.append(summarize(task.name, decoding, records))
    return results


def eval_metrics(results: Sequence[EvalResult]) -> dict[str, float]:
    """The scores by metric name, e.g. `eval/db/success_sampled`."""
    figures: dict[str, float] = {}
    for result in results:
        figures[f"eval/{result.task}/success_{result.decoding}"] = result.success
        figures[f"eval/{result.task}/reward_{result.decoding}"] = result.reward
    return figures


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
