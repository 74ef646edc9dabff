"""What a vector env is told beside its actions: autoreset mode, seeds, reset mask and options, checked.

Not here: the options of a single env's reset (choosing.py).
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from agentbench_fc.errors import CallerError, did_you_mean


def read_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The mode, given as such, by name (`NEXT_STEP`) or by value (`NextStep`).

    Raises:
        CallerError: there is no such mode.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if mode in (known.name, known.value):
            return known
    names = [known.name for known in AutoresetMode]
    raise CallerError(f"no autoreset_mode {mode!r} [vector env]. {did_you_mean(str(mode), names)}")


def seeds_of(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """One seed per env; env i of an int seed gets `seed + i`.

    Raises:
        CallerError: another number of seeds, or a seed that is no integer >= 0.
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        seeds: list[int | None] = [int(seed) + i for i in range(count)]
    elif isinstance(seed, (list, tuple, np.ndarray)) and len(seed) == count:
        try:
            seeds = [None if s is None else operator.index(s) for s in seed]
        except TypeError as error:
            raise CallerError(f"seed is {seed!r:.80} [reset]. Use integers >= 0.") from error
    else:
        raise CallerError(f"seed is {seed!r} [reset of {count} envs]. Use an integer, or a list of {count}.")
    if any(s is not None and s < 0 for s in seeds):
        raise CallerError(f"seed is {seed!r} [reset]. Use integers >= 0.")
    return seeds


def read_mask(options: Mapping[str, Any] | None, count: int) -> npt.NDArray[np.bool_]:
    """Which envs are reset: all, or `options["reset_mask"]`. The options are left as they are.

    Raises:
        CallerError: the options are no dict, the mask is no bool array of shape (count,), or empty of True.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise CallerError(f"options is of type {type(options).__name__} [reset]. Give a dict.")
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return np.ones(count, dtype=np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (count,):
        raise CallerError(f"reset_mask is {mask!r} [reset]. Use a bool array of shape ({count},).")
    if not mask.any():
        raise CallerError("reset_mask holds no True [reset]. Name at least one env, or call nothing.")
    return mask


def per_env(options: Mapping[str, Any] | None, count: int) -> list[dict[str, Any]]:
    """The options of each env: a list or array holds one value per env, anything else is for all.

    Raises:
        CallerError: a list of another length.
    """
    each: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in (options or {}).items():
        if name == "reset_mask":
            continue
        listed = isinstance(value, (list, tuple, np.ndarray))
        if listed and len(value) != count:
            raise CallerError(f"{name} has {len(value)} values for {count} envs [reset]. Give one, or one per env.")
        for number, own in enumerate(each):
            own[name] = value[number] if listed else value
    return each
