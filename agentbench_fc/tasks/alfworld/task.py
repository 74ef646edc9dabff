"""The ALFWorld task: games as samples, and the processes that they are played in.

Not here: where games come from (games.py); what an episode does (episode.py).
"""

import threading
from collections.abc import Sequence
from dataclasses import replace

from agentbench_fc.episode import Expert, Sample
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.alfworld.episode import AlfworldEpisode, Rules
from agentbench_fc.tasks.alfworld.expert import explore, follow, places_of
from agentbench_fc.tasks.alfworld.workers import shared_workers


class AlfworldTask:
    """Games of one source under one spec.

    Args:
        spec: Tools, limits and texts.
        rules: What all episodes share; its workers are given back at the end.
        explores: The expert looks for things, instead of knowing where they are.
    """

    def __init__(self, spec: TaskSpec, rules: Rules, *, explores: bool = False) -> None:
        self.spec = replace(spec, splits=dict(rules.games.splits))
        self.backend = rules.games.source
        self._rules = rules
        self._explores = explores
        self._closing = threading.Lock()
        self._open = True

    def samples(self, split: str) -> Sequence[Sample]:
        """The games of a split."""
        return self._rules.games.samples(split)

    def open(self, sample: Sample, seed: int) -> AlfworldEpisode:
        """A game from its beginning; nothing in it is random, so the seed changes nothing."""
        return AlfworldEpisode(sample, self._rules)

    def expert(self, sample: Sample) -> Expert | None:
        """Plays the sample's walkthrough, or explores; None where the game file has what it takes for neither."""
        if not self._explores:
            walkthrough = sample.data.get("walkthrough")
            return follow(walkthrough) if walkthrough else None
        goal = sample.data.get("goal")
        if goal is None:
            return None
        places = places_of(self._rules.games.content(sample)["pddl_problem"])
        return explore(goal, sample.data["task_type"], places)

    def close(self) -> None:
        """Gives the processes back; safe to repeat."""
        with self._closing:
            open_before, self._open = self._open, False
        if open_before:
            shared_workers.give_back(self._rules.workers)
