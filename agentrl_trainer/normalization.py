"""Task advantage normalization that remembers: running statistics of each task, saved with the checkpoint. Numpy only.

A dynamic batch may hold one trajectory of a task; its deviation is then undefined and the task learns nothing from it.
Running statistics scale it by what earlier batches showed:

>>> normalizer = TaskNormalizer(Normalization(task="stream", decay=0.5))
>>> yes, tokens = np.array([True, True]), np.array([10, 10])
>>> normalizer(np.array([1.0, -1.0]), tokens, ["db", "db"], yes)
array([ 1., -1.])
>>> normalizer.commit()
>>> normalizer(np.array([1.0]), tokens[:1], ["db"], yes[:1]).round(2)  # mean 0.5, deviation 0.87
array([0.58])

Not here: the advantages that are normalized (advantages.py), which rows are included (rows.py).
Source: the per-batch form is AgentRL's, arXiv 2510.04206; decayed moments after Adam's, arXiv 1412.6980, merged as in
Chan, Golub and LeVeque 1979.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentrl_trainer.advantages import Array, Spread, positions, rescale, task_advantages, token_spread
from agentrl_trainer.config import Normalization

FILE = "normalization.json"


@dataclass(slots=True)
class Running:
    """Decayed statistics of one task.

    The weight decays with what it weighs. So the statistics are plain averages from the first batch on, and there is no
    start-up bias to be corrected: Adam's division by 1 - decay^t is implied.
    """

    weight: float = 0.0
    """Trained tokens, each times decay^age."""
    mean: float = 0.0
    moment: float = 0.0
    """Weighted sum of squared distances from the mean (of robust scales: of them)."""

    def add(self, center: float, variance: float, weight: float, decay: float) -> None:
        """Ages what is known by one batch and merges the batch's own statistics."""
        old = decay * self.weight
        self.weight = old + weight
        delta = center - self.mean
        self.mean += delta * weight / self.weight
        self.moment = decay * self.moment + variance * weight + delta**2 * old * weight / self.weight

    @property
    def spread(self) -> Spread:
        """Mean and deviation so far."""
        return Spread(self.mean, float(np.sqrt(self.moment / self.weight)) if self.weight else 0.0)


class TaskNormalizer:
    """Normalizes the advantages of one batch after another.

    A call does not move `state`; `commit` does, once the optimizer has taken the step. So a checkpoint that a signal
    forces in between holds the statistics of exactly the steps that it holds.

    Args:
        options: What is normalized by what.
        state: Running statistics by task, to go on with.
    """

    def __init__(self, options: Normalization, state: Mapping[str, Running] | None = None) -> None:
        self.options = options
        self.state: dict[str, Running] = dict(state or {})
        self._moved: dict[str, Running] = {}

    def __call__(
        self, advantages: Array, lengths: NDArray[np.int64], tasks: Sequence[str], included: NDArray[np.bool_]
    ) -> Array:
        """The normalized advantages; arguments as in `task_advantages`."""
        options = self.options
        if options.task == "none":
            return advantages
        if options.task == "stream":
            return self._stream(advantages, lengths, tasks, included)
        labels = tasks if options.task == "batch" else ["all"] * len(tasks)
        return task_advantages(
            advantages, lengths, labels, included,
            center=options.center, spread=options.spread, floor=options.floor,
        )  # fmt: skip

    def commit(self) -> None:
        """The batch of the last call is consumed: its statistics stay."""
        self.state |= self._moved
        self._moved = {}

    def save(self, folder: Path) -> None:
        """Writes the running statistics into a checkpoint's folder."""
        content = {task: asdict(running) for task, running in self.state.items()}
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, options: Normalization, folder: Path) -> Self:
        """Goes on with the statistics of a checkpoint; one without them starts anew."""
        path = folder / FILE
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return cls(options, {task: Running(**running) for task, running in content.items()})

    def _stream(
        self, advantages: Array, lengths: NDArray[np.int64], tasks: Sequence[str], included: NDArray[np.bool_]
    ) -> Array:
        options = self.options
        self._moved = {}
        normalized = np.zeros(len(advantages))
        for task, members in positions(tasks).items():
            chosen = members[included[members]]
            own, weights = advantages[chosen], lengths[chosen].astype(float)
            if weights.sum() <= 0:
                continue
            batch = token_spread(own, weights, options.spread)
            running = self._moved[task] = replace(self.state.get(task, Running()))
            running.add(batch.center, batch.scale**2, float(weights.sum()), options.decay)
            normalized[chosen] = rescale(own, running.spread, center=options.center, floor=options.floor)
        return normalized
