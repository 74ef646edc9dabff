"""The KG task: a graph that all sessions share, and the samples asked about it.

Not here: what an episode does (episode.py); where graph and samples come from (generate.py, readers.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentbench_fc.episode import Expert, Sample
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.kg.episode import KGEpisode, Rules
from agentbench_fc.tasks.kg.expert import play
from agentbench_fc.tasks.splits import Splits

Rows = Sequence[tuple[int, Mapping[str, Any]]]
"""Number within the split, and the sample in AgentBench's format."""
Reader = Callable[[], Rows]


class KGTask:
    """Samples of one data set under one spec, with one backend for all sessions.

    Args:
        spec: Tools, limits and texts.
        rules: What all episodes share.
        splits: Split -> reader of its rows; called once, when the split is first asked for.
        level: Keep only samples of this level.
    """

    def __init__(
        self,
        spec: TaskSpec,
        rules: Rules,
        splits: Mapping[str, Reader],
        *,
        level: str | None = None,
    ) -> None:
        self.spec = spec
        self.backend = rules.backend.name
        self._rules = rules
        self._splits = Splits(spec.name, splits, lambda split: splits[split](), level=level)

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split."""
        return self._splits.samples(split)

    def open(self, sample: Sample, seed: int) -> KGEpisode:
        """A fresh episode; nothing in it is random, so the seed changes nothing."""
        return KGEpisode(sample, self._rules)

    def expert(self, sample: Sample) -> Expert | None:
        """Plays the sample's gold plan."""
        return play(sample, in_words=self.spec.finish_tool is None) if sample.data.get("actions") else None

    def close(self) -> None:
        """Frees the graph."""
        self._rules.backend.close()
