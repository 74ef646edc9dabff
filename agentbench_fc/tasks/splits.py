"""What the tasks have in common about samples: splits that are read once, generated rows, and levels.

>>> rows = [{"level": "easy"}, {"level": "hard"}, {"level": "hard", "id": "mine"}]
>>> splits = Splits("toy", ["dev"], lambda split: numbered(rows), level="hard")
>>> [(sample.id, sample.index) for sample in splits.samples("dev")]
[('toy/dev/1', 0), ('mine', 1)]

Not here: what a row holds (each task's generate.py and readers.py); the cache folder (cache.py).
"""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated, manifest_hash
from agentbench_fc.episode import Sample
from agentbench_fc.errors import CallerError, NotFound, did_you_mean

Row = tuple[int | str, Mapping[str, Any]]
"""A sample's number within its split, or an id of its own; and its data."""


class Splits:
    """The samples of a task; each split is read when it is first asked for. Safe to use from several threads.

    Args:
        task: Its name.
        names: Of the splits.
        read: Split -> its rows, in id order.
        level: Keep only rows of this level; they keep their numbers.
    """

    def __init__(
        self, task: str, names: Collection[str], read: Callable[[str], Iterable[Row]], *, level: str | None = None
    ) -> None:
        self._task = task
        self._names = tuple(names)
        self._read = read
        self._level = level
        self._loaded: dict[str, tuple[Sample, ...]] = {}
        self._lock = threading.Lock()

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split, in id order.

        Raises:
            NotFound: no such split.
        """
        if split not in self._names:
            raise NotFound(f"no split {split!r} [task {self._task}]. {did_you_mean(split, self._names)}")
        with self._lock:  # sessions ask from many threads; the first one reads
            if split not in self._loaded:
                kept = [row for row in self._read(split) if self._level is None or row[1].get("level") == self._level]
                self._loaded[split] = tuple(
                    Sample(name if isinstance(name, str) else f"{self._task}/{split}/{name}", index, split, data)
                    for index, (name, data) in enumerate(kept)
                )
            return self._loaded[split]


def numbered(rows: Iterable[Mapping[str, Any]]) -> Iterable[Row]:
    """Rows by their position, or by their own `id` where they have one."""
    return ((data.get("id", number), data) for number, data in enumerate(rows))


def generated_rows(place: str, folder: Path, build: Callable[[str], bytes], split: str) -> list[dict[str, Any]]:
    """The generated samples of a split, from the cache, checked against the task's manifest.

    Args:
        place: Folder below the cache; it names the task and the generator's version.
        folder: The task's folder, with the manifest.
        build: Makes a split's JSON lines.
        split: Which.
    """
    file = f"{split}.jsonl"
    path = generated(f"{place}/{file}", partial(build, split), sha256=manifest_hash(folder, file))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_level(task: str, level: str | None, levels: Collection[str], *, generated_data: bool) -> None:
    """Refuses a level that no sample has.

    Raises:
        CallerError: unknown, or the data have no levels.
    """
    if level is None:
        return
    if not generated_data:
        raise CallerError(f"level is given with data [task {task}]. AgentBench's samples have no levels: leave it out.")
    if level not in levels:
        raise CallerError(f"no level {level!r} [task {task}]. {did_you_mean(level, levels)}")
