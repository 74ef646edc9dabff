"""The buffer only grows, every array has one entry a token, and a cut turn is closed off the mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_trainer.chat.buffer import TokenBuffer
from agentrl_trainer.engines.base import Completion, FinishReason
from agentrl_trainer.types import NO_ENGINE, NO_VERSION, Trajectory

END = 2
FACTS = dict(task="t", sample_id="t/train/0", group_id="g", replica=0, status="completed", reward=1.0)


def completion(ids: list[int], reason: FinishReason = "stop", version: int = 4) -> Completion:
    return Completion(tuple(ids), tuple(-0.5 for _ in ids), tuple(version for _ in ids), reason)


def closed(buffer: TokenBuffer) -> Trajectory:
    return buffer.to_trajectory(**FACTS)


def test_a_sampled_end_is_not_doubled_and_a_missing_one_comes_in_off_the_mask() -> None:
    buffer = TokenBuffer([9, 9])
    buffer.append_sampled(completion([5, END]), 0, 1)
    buffer.append_observed([END, 7], 1)
    buffer.append_sampled(completion([6], "length", version=5), 1, 2)
    buffer.append_observed([END, 8], 2)
    row = closed(buffer)
    assert row.ids.tolist() == [9, 9, 5, END, 7, 6, END, 8]
    assert row.mask.tolist() == [False, False, True, True, False, True, False, False]
    assert row.turns.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert row.versions[row.mask].tolist() == [4, 4, 5]
    assert row.engines[row.mask].tolist() == [0, 0, 1]


def test_an_end_token_of_the_prompt_is_not_taken_for_a_sampled_one() -> None:
    buffer = TokenBuffer([9, END])
    buffer.append_sampled(completion([]), 0, 1)
    buffer.append_observed([END, 7], 1)
    assert buffer.ids == [9, END, END, 7]


def test_arrays_of_unequal_length_are_a_bug_of_the_engine() -> None:
    with pytest.raises(ValueError, match="2 ids, 1 log-probs"):
        TokenBuffer([1]).append_sampled(Completion((1, 2), (-1.0,), (0, 0), "stop"), 0, 1)


ids = st.lists(st.integers(3, 50), max_size=6)


@given(prompt=ids, turns=st.lists(st.tuples(ids, st.booleans(), ids), max_size=6))
def test_every_sampled_token_is_kept_in_order_and_nothing_else_is_trained(
    prompt: list[int], turns: list[tuple[list[int], bool, list[int]]]
) -> None:
    buffer = TokenBuffer(prompt)
    sampled: list[int] = []
    for number, (tokens, ended, observed) in enumerate(turns, start=1):
        said = [*tokens, END] if ended else tokens
        before = list(buffer.ids)
        buffer.append_sampled(completion(said, "stop" if ended else "length"), number % 2, number)
        buffer.append_observed([END, *observed], number)
        assert buffer.ids[: len(before)] == before
        sampled += said
    assert buffer.drift == 0
    assert buffer.repaired_turns == sum(not ended for _, ended, _ in turns)
    row = closed(buffer)
    assert row.ids[row.mask].tolist() == sampled
    assert not row.logprobs[~row.mask].any()
    assert (row.versions[~row.mask] == NO_VERSION).all()
    assert (row.engines[~row.mask] == NO_ENGINE).all()
    assert (np.diff(row.turns) >= 0).all()
    assert int((row.ids == END).sum()) == len(turns)  # each turn is closed exactly once


@pytest.mark.parametrize(("place", "drift"), [(0, 5), (2, 5), (4, 3), (6, 3), (8, 0)])
def test_an_id_that_changes_under_the_engines_feet_is_counted(place: int, drift: int) -> None:
    buffer = TokenBuffer([9, 9])
    buffer.append_sampled(completion([5, END]), 0, 1)
    buffer.append_observed([END, 7], 1)
    buffer.append_sampled(completion([5, 6, 6], "length"), 0, 2)
    buffer.append_observed([END, 8], 2)
    assert buffer.drift == 0
    buffer.ids[place] += 30
    assert buffer.drift == drift, "tokens behind a changed one were sampled from another context"
