"""The OS task: samples, and a pool of sandboxes that all its sessions share.

Not here: what an episode does (episode.py); where samples come from (generate.py, readers.py).
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated, manifest_hash
from agentbench_fc.episode import Expert, Sample
from agentbench_fc.errors import CallerError, NotFound, did_you_mean
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.os import expert, generate
from agentbench_fc.tasks.os.boxes import Boxes, Pool
from agentbench_fc.tasks.os.episode import OsEpisode, Rules
from agentbench_fc.tasks.os.grading import Grader, References

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
        self._rows = rows
        self._splits = tuple(splits)
        self._level = level
        self._loaded: dict[str, list[Sample]] = {}
        self._lock = threading.Lock()
        self._boxes = Boxes(make_pool)
        grader = Grader(self._boxes, References(), agentbench=spec.profile == "agentbench")
        self._rules = Rules(spec, grader, command_timeout_s)

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split."""
        if split not in self._splits:
            raise NotFound(f"no split {split!r} [task os]. {did_you_mean(split, self._splits)}")
        with self._lock:
            if split not in self._loaded:
                kept = [
                    (number, data)
                    for number, data in enumerate(self._rows(split))
                    if self._level is None or data["level"] == self._level
                ]
                self._loaded[split] = [
                    Sample(data.get("id", f"{self.spec.name}/{split}/{number}"), index, split, data)
                    for index, (number, data) in enumerate(kept)
                ]
        return self._loaded[split]

    def open(self, sample: Sample, seed: int) -> OsEpisode:
        """A fresh sandbox, set up; nothing in it depends on the seed."""
        return OsEpisode.begin(self._rules, sample)

    def expert(self, sample: Sample) -> Expert | None:
        """Runs the sample's solution and hands in what it shows."""
        return expert.solve(sample)

    def close(self) -> None:
        """Throws all sandboxes away."""
        self._boxes.close()


def generated_rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """The generated samples of a split, from the cache, checked against the task's manifest."""
    name = f"os/{generate.VERSION}/{split}.jsonl"
    path = generated(name, partial(generate.make_split, split), sha256=manifest_hash(folder, f"{split}.jsonl"))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_level(level: str | None, *, generated_data: bool) -> None:
    """Refuses a level that no sample has.

    Raises:
        CallerError: unknown, or the data have no levels.
    """
    if level is None:
        return
    if not generated_data:
        raise CallerError("level is given with data [task os]. AgentBench's samples have no levels: leave it out.")
    if level not in generate.LEVELS:
        raise CallerError(f"no level {level!r} [task os]. {did_you_mean(level, generate.LEVELS)}")
