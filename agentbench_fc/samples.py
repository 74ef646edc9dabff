"""Finds a sample of a task: by id, by its number within a split, or at random by seed.

>>> from agentbench_fc.episode import ToolEpisode, make_task
>>> task = make_task(ToolEpisode, name="toy", samples={"train": [{}, {}, {}], "dev": [{}]})
>>> find_sample(task, "toy/train/2").id, find_sample(task, 0, split="dev").id
('toy/train/2', 'toy/dev/0')
>>> find_sample(task, seed=7) == find_sample(task, seed=7)
True

Not here: where samples come from (each task's own code).
"""

import operator
import random
from collections.abc import Sequence
from typing import SupportsIndex

from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import CallerError, NotFound

DEFAULT_SPLIT = "train"


def choose_split(task: Task, split: str | None) -> str:
    """The split meant: the one given, else `train`, else the only one there is."""
    if split is not None:
        return split
    splits = list(task.spec.splits)
    return splits[0] if len(splits) == 1 else DEFAULT_SPLIT


def find_sample(
    task: Task, sample: str | SupportsIndex | None = None, *, split: str | None = None, seed: int = 0
) -> Sample:
    """The sample meant by an id, by a number within the split, or by neither: then a random one, chosen by `seed`.

    Raises:
        NotFound: no such split, id or number.
        CallerError: `sample` is of another type.
    """
    if isinstance(sample, str):
        return _by_id(task, sample, split)
    name = choose_split(task, split)
    rows = task.samples(name)
    if not rows:
        raise NotFound(f"split {name!r} is empty [task {task.spec.name}]. Choose another split.")
    if sample is None:
        return rows[random.Random(f"{task.spec.name}/{name}#{seed}").randrange(len(rows))]
    if isinstance(sample, bool) or not hasattr(sample, "__index__"):
        raise CallerError(
            f"sample is of type {type(sample).__name__} [task {task.spec.name}]. Give an id, a number, or leave it out."
        )
    number = operator.index(sample)
    if not 0 <= number < len(rows):
        raise NotFound(f"no sample {number} in split {name!r} [task {task.spec.name}]. It has 0 to {len(rows) - 1}.")
    return rows[number]


def checked_seed(seed: SupportsIndex) -> int:
    """The seed as a plain integer.

    Raises:
        CallerError: it is none; a transcript could not be read again.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise CallerError(f"seed is {seed!r:.80} [start]. Use an integer, or leave it out.")
    return operator.index(seed)


def _by_id(task: Task, sample_id: str, split: str | None) -> Sample:
    for name in [split] if split is not None else _likely_first(task, sample_id):
        rows = task.samples(name)
        found = _guess(rows, sample_id) or next((row for row in rows if row.id == sample_id), None)
        if found is not None:
            return found
    where = f"split {split!r} of task {task.spec.name}" if split is not None else f"task {task.spec.name}"
    name = choose_split(task, split)
    rows = task.samples(name) if name in task.spec.splits else ()
    hint = f"An id looks like {rows[0].id!r}." if rows else f"Its splits: {', '.join(task.spec.splits) or 'none'}."
    raise NotFound(f"no sample {sample_id!r} [{where}]. {hint}")


def _likely_first(task: Task, sample_id: str) -> list[str]:
    """All splits; the one that the id names comes first, so that the others need not be generated."""
    named = sample_id.split("/")[1:2]
    return sorted(task.spec.splits, key=lambda split: split not in named)


def _guess(rows: Sequence[Sample], sample_id: str) -> Sample | None:
    """The row that an id of the form `<task>/<split>/<n>` points at, without a search."""
    number = sample_id.rpartition("/")[2]
    if number.isascii() and number.isdigit() and len(number) < 12 and int(number) < len(rows):
        row = rows[int(number)]
        return row if row.id == sample_id else None
    return None
