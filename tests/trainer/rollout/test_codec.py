"""What is decoded equals what was encoded, whatever its sizes."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl_trainer.rollout.codec import decode_group, encode_group
from agentrl_trainer.types import Group, Trajectory


@given(lengths=st.lists(st.integers(0, 20), max_size=4), seed=st.integers(0, 99))
def test_a_group_survives_the_wire(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        Trajectory(
            task="t", sample_id="t/train/0", group_id="g", replica=i, ids=rng.integers(0, 2**31, n, dtype=np.int32),
            prompt_length=n // 2, mask=rng.random(n) < 0.5, logprobs=-rng.random(n).astype(np.float32),
            versions=rng.integers(-1, 9, n, dtype=np.int32), engines=rng.integers(-1, 3, n, dtype=np.int8),
            turns=rng.integers(0, 9, n, dtype=np.int16), status="completed", reward=0.5 if i else None,
            raw_reward=0.25, success=bool(i), usable=bool(i), fault="" if i else "é\ud7ff", metrics={"turns": i},
        )
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    group = Group(id="g", task="t", sample_id="t/train/0", trajectories=rows, admitted_version=3, seconds=1.5)
    encoded = encode_group(group)
    again = decode_group(encoded.head, encoded.body)
    assert (again.id, again.admitted_version, again.seconds) == ("g", 3, 1.5)
    for one, two in zip(rows, again.trajectories, strict=True):
        for field in dataclasses.fields(Trajectory):
            a, b = getattr(one, field.name), getattr(two, field.name)
            if isinstance(a, np.ndarray):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype
                assert b.flags.writeable
            else:
                assert a == b


def test_metrics_that_json_cannot_hold_become_text() -> None:
    empty = {n: np.zeros(0, k) for n, k in (("ids", "i4"), ("versions", "i4"), ("logprobs", "f4"), ("mask", "?"))}
    row = Trajectory(
        task="t", sample_id="s", group_id="g", replica=0, prompt_length=0, engines=np.zeros(0, "i1"),
        turns=np.zeros(0, "i2"), status="completed", reward=0.0, metrics={"set": {1}}, **empty,
    )  # fmt: skip
    encoded = encode_group(Group(id="g", task="t", sample_id="s", trajectories=[row], admitted_version=0))
    assert decode_group(encoded.head, encoded.body).trajectories[0].metrics == {"set": "{1}"}
