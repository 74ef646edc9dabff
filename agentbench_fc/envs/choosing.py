"""Which task, split and sample a Gymnasium env plays: its constructor's and its reset's options, checked.

Not here: ids -> tasks (registry.py), ids -> samples (samples.py).
"""

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.registry import load_task

RESET_OPTIONS = ("sample", "seed", "split")


def open_task(
    task: str | Task, profile: str, prompt: str, options: Mapping[str, Any], known: tuple[str, ...]
) -> tuple[Task, bool]:
    """The task, and whether it was made here (its maker closes it).

    Args:
        task: An id, a path `file.py:TASK`, or the task itself.
        profile: For `load_task`.
        prompt: For `load_task`.
        options: The task's own; a near miss of one of the env's `known` options is told as such.
        known: Names of the env's own options.

    Raises:
        CallerError: unknown option, profile or style.
        NotFound: no such task.
    """
    if isinstance(task, str):
        for name in options:
            if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
                raise CallerError(f"unknown option {name!r} [env of task {task}]. Did you mean {close[0]!r}?")
        return load_task(task, profile=profile, prompt=prompt, **options), True
    if not isinstance(task, Task) or isinstance(task, type):
        raise CallerError(f"task is of type {type(task).__name__} [env]. Give an id, `file.py:TASK`, or a Task.")
    if options or (profile, prompt) != ("default", "default"):
        given = ", ".join([*options, *(name for name in (profile, prompt) if name != "default")])
        raise CallerError(f"a ready Task takes no options, got {given} [env]. Give its id instead, or make it so.")
    return task, False


class Choice(NamedTuple):
    """What a reset asks for: the arguments of `find_sample` and of the session."""

    sample: str | int | None
    split: str | None
    seed: int


def read_options(options: Mapping[str, Any] | None, split: str | None, drawn: int) -> Choice:
    """The choice that `options` of a reset make; what they leave open comes from `split` and the `drawn` seed.

    Raises:
        CallerError: unknown option, or a value of the wrong kind.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise CallerError(f"options is of type {type(options).__name__} [reset]. Give a dict.")
    given = dict(options or {})
    for name in given:
        if name not in RESET_OPTIONS:
            raise CallerError(f"unknown option {name!r} [reset]. {did_you_mean(str(name), RESET_OPTIONS)}")
    sample, named, seed = given.get("sample"), given.get("split"), given.get("seed")
    if named is not None and not isinstance(named, str):
        raise CallerError(f"split is of type {type(named).__name__} [reset options]. Give its name.")
    if isinstance(sample, np.integer):
        sample = int(sample)
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, (str, int))):
        raise CallerError(f"sample is of type {type(sample).__name__} [reset options]. Give an id or a number.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise CallerError(f"seed is {seed!r} [reset options]. Use an integer >= 0.")
    by_id = isinstance(sample, str)  # an id names its own split
    return Choice(sample, named or (None if by_id else split), drawn if seed is None else int(seed))


def draw(rng: np.random.Generator) -> tuple[int, str]:
    """An episode's seed and a session id; always the same number of draws, whatever a reset's options fix."""
    return int(rng.integers(2**31)), rng.bytes(8).hex()
