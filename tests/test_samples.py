"""Samples by id, by number, by seed."""

from collections import Counter as Multiset
from typing import Any

import numpy as np
import pytest
from toys import Counter, counter_task

from agentbench_fc.episode import Sample, make_task
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.samples import choose_split, find_sample


def test_an_id_finds_its_sample_in_any_split() -> None:
    task = counter_task()
    for split in ("train", "dev"):
        for sample in task.samples(split):
            assert find_sample(task, sample.id) is sample
            assert find_sample(task, sample.id, split=split) is sample


def test_a_number_is_an_alias_within_the_split() -> None:
    task = counter_task()
    assert find_sample(task, 1).id == "counter/train/1"
    assert find_sample(task, np.int64(1), split="dev").id == "counter/dev/1"


def test_ids_of_another_form_are_found_by_search() -> None:
    class Odd:
        spec = counter_task().spec

        def samples(self, split: str) -> list[Sample]:
            return [Sample(f"os/{split}/7/bootstrap#{n}", i, split) for i, n in enumerate((84, 3))]

    odd: Any = Odd()
    assert find_sample(odd, "os/dev/7/bootstrap#3").index == 1


def test_the_seed_draws_and_all_samples_can_be_drawn() -> None:
    task = counter_task()
    drawn = Multiset(find_sample(task, seed=seed).id for seed in range(100))
    assert set(drawn) == {f"counter/train/{n}" for n in range(5)}
    assert find_sample(task, seed=5) is find_sample(task, seed=5)
    assert find_sample(task, split="dev", seed=5).split == "dev"


def test_the_only_split_is_the_default() -> None:
    assert choose_split(make_task(Counter, samples={"std": [{}]}), None) == "std"
    assert choose_split(counter_task(), None) == "train"


@pytest.mark.parametrize(
    ("sample", "split", "error", "text"),
    [
        ("counter/train/9", None, NotFound, "An id looks like 'counter/train/0'"),
        ("counter/train/0", "dev", NotFound, "split 'dev'"),
        ("nonsense", None, NotFound, "no sample 'nonsense'"),
        ("", None, NotFound, "no sample ''"),
        (0, "test", NotFound, "no split 'test'"),
        ("x", "test", NotFound, "no split 'test'"),
        (5, None, NotFound, "It has 0 to 4"),
        (-1, None, NotFound, "no sample -1"),
        (True, None, CallerError, "type bool"),
        (1.5, None, CallerError, "type float"),
    ],
)
def test_what_cannot_be_found_is_named(sample: Any, split: str | None, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        find_sample(counter_task(), sample, split=split)


def test_an_empty_split_is_named() -> None:
    with pytest.raises(NotFound, match="is empty"):
        find_sample(make_task(Counter, samples={"train": []}))
