"""A group as one frame: facts as JSON, per-token arrays as raw bytes behind it.

Not here: frames themselves (engines/wire.py).
"""

import json
from typing import Any, NamedTuple

import numpy as np

from agentrl_trainer.types import Group, Trajectory

_ARRAYS: tuple[tuple[str, str], ...] = (
    ("ids", "<i4"), ("mask", "?"), ("logprobs", "<f4"), ("versions", "<i4"), ("engines", "i1"), ("turns", "<i2"),
)  # fmt: skip
_FACTS = (
    "task", "sample_id", "group_id", "replica", "prompt_length", "status", "reward", "raw_reward", "success", "usable",
    "fault", "metrics",
)  # fmt: skip


class EncodedGroup(NamedTuple):
    """What goes over the wire."""

    head: dict[str, Any]
    body: bytes


def encode_group(group: Group) -> EncodedGroup:
    """The group as plain data and bytes. Metrics that JSON cannot hold become text."""
    rows = [{name: getattr(t, name) for name in _FACTS} | {"tokens": len(t.ids)} for t in group.trajectories]
    head = {
        "id": group.id,
        "task": group.task,
        "sample_id": group.sample_id,
        "admitted_version": group.admitted_version,
        "seconds": group.seconds,
        "trajectories": rows,
    }
    arrays = [
        getattr(trajectory, name).astype(kind, copy=False).tobytes()
        for trajectory in group.trajectories
        for name, kind in _ARRAYS
    ]
    plain: dict[str, Any] = json.loads(json.dumps(head, default=str))
    return EncodedGroup(plain, b"".join(arrays))


def decode_group(head: dict[str, Any], body: bytes) -> Group:
    """The group that was encoded."""
    at = 0
    trajectories = []
    for row in head["trajectories"]:
        fields = dict(row)
        count = fields.pop("tokens")
        for name, kind in _ARRAYS:
            dtype = np.dtype(kind)
            fields[name] = np.frombuffer(body, dtype, count, at).copy()  # a copy can be written to
            at += dtype.itemsize * count
        trajectories.append(Trajectory(**fields))
    if at != len(body):
        raise ValueError(f"{len(body)} bytes for arrays of {at} [{head['id']}].")
    return Group(**{**head, "trajectories": trajectories})
