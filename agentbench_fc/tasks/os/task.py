"""The OS task: samples, and a pool of sandboxes that all its sessions share.

Not here: what an episode does (episode.py); where samples come from (generate.py, readers.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentbench_fc.episode import Expert, Sample
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.os import expert
from agentbench_fc.tasks.os.boxes import Boxes, Pool
from agentbench_fc.tasks.os.episode import OsEpisode, Rules
from agentbench_fc.tasks.os.grading import Grader, References
from agentbench_fc.tasks.splits import Splits, numbered

Rows = Callable[[str], Sequence[Mapping[str, Any]]]
"""Split -> the samples' data in id order; an item may name its own `id`."""


class OsTask:
    """Samples of one data set under one spec.

    Args:
        spec: Tools, limits and texts.
        rows: Reads a split.
        splits: The names of the splits.
        make_pool: Makes the pool of sandboxes; called when the first session starts.
        level: Keep only samples of this level.
        command_timeout_s: Of one script in the agent's shell.
    """

    def __init__(
        self,
        spec: TaskSpec,
        rows: Rows,
        splits: Sequence[str],
        make_pool: Callable[[], Pool],
        *,
        level: str | None = None,
        command_timeout_s: float = 30.0,
    ) -> None:
        self.spec = spec
        self._splits = Splits(spec.name, splits, lambda split: numbered(rows(split)), level=level)
        self._boxes = Boxes(make_pool)
        grader = Grader(self._boxes, References(), agentbench=spec.profile == "agentbench")
        self._rules = Rules(spec, grader, command_timeout_s)

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split."""
        return self._splits.samples(split)

    def open(self, sample: Sample, seed: int) -> OsEpisode:
        """A fresh sandbox, set up; nothing in it depends on the seed."""
        return OsEpisode.begin(self._rules, sample)

    def expert(self, sample: Sample) -> Expert | None:
        """Runs the sample's solution and hands in what it shows."""
        return expert.solve(sample)

    def close(self) -> None:
        """Throws all sandboxes away."""
        self._boxes.close()
