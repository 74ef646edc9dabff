"""Infos of many envs -> one dict of arrays with masks, Gymnasium's form for vector envs.

>>> infos = batch_infos([{"turn": 1, "success": None}, None, {"turn": 2, "success": True}])
>>> infos["turn"].tolist(), infos["_turn"].tolist(), infos["success"].tolist()
([1, 0, 2], [True, False, True], [None, None, True])

Gymnasium's own `_add_info` takes an array's type from the first env's value, so that a later 0.5 after a 0 is cut to 0
and a None after a True becomes False. Here all values decide together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ALWAYS_OBJECTS = frozenset({"final_obs"})


def batch_infos(infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """One dict: each key holds an array over the envs, `_key` tells which of them had it; dicts are merged alike.

    Args:
        infos: (N,) one per env; None: this env has none.

    Returns:
        Arrays of shape (N,); of bool, int or float where every value is one, else of objects.
    """
    keys = dict.fromkeys(key for info in infos if info is not None for key in info)
    batched: dict[str, Any] = {}
    for key in keys:
        present = np.array([info is not None and key in info for info in infos], dtype=np.bool_)
        values = [info[key] if info is not None and key in info else None for info in infos]
        given = [value for value, here in zip(values, present, strict=True) if here]
        if all(isinstance(value, Mapping) for value in given):
            batched[key] = batch_infos(values)
        else:
            batched[key] = _array(values, given, present, objects=key in ALWAYS_OBJECTS)
        batched[f"_{key}"] = present
    return batched


def _array(values: Sequence[Any], given: Sequence[Any], present: Any, *, objects: bool) -> Any:
    kinds = {type(value) for value in given}
    if objects or not kinds <= {bool, int, float} or (bool in kinds and len(kinds) > 1):
        array = np.full(len(values), None, dtype=object)
    else:
        array = np.zeros(len(values), dtype=float if float in kinds else kinds.pop())
    for place in np.flatnonzero(present):
        array[place] = values[int(place)]
    return array
