"""Batched infos keep every value as it is, whichever env has it."""

import numpy as np

from agentbench_fc.envs.infos import batch_infos


def test_numbers_are_typed_by_all_values_not_by_the_first() -> None:
    infos = batch_infos([{"f1": 0}, {"f1": 0.5}, {"f1": 1}])
    assert infos["f1"].tolist() == [0.0, 0.5, 1.0]


def test_none_is_not_false_and_true_is_not_one() -> None:
    infos = batch_infos([{"success": True, "mixed": True}, {"success": None, "mixed": 3}])
    assert infos["success"].tolist() == [True, None]
    assert infos["mixed"].tolist() == [True, 3]


def test_absent_values_are_masked() -> None:
    infos = batch_infos([None, {"turn": 3, "metrics": {"calls": 2}}, {"turn": 4, "metrics": {}}])
    assert infos["_turn"].tolist() == [False, True, True]
    assert infos["turn"].tolist() == [0, 3, 4]
    assert infos["metrics"]["calls"].tolist() == [0, 2, 0]
    assert infos["metrics"]["_calls"].tolist() == [False, True, False]


def test_lists_tuples_and_arrays_stay_whole() -> None:
    values = [[1, 2], (3,), np.array([4, 5])]
    infos = batch_infos([{"x": value, "final_obs": (i,)} for i, value in enumerate(values)])
    assert infos["x"].dtype == object
    assert all(kept is value for kept, value in zip(infos["x"], values, strict=True))
    assert infos["final_obs"].tolist() == [(0,), (1,), (2,)]


def test_nothing_is_nothing() -> None:
    assert batch_infos([None, None]) == {}
    assert batch_infos([{"metrics": {}}])["metrics"] == {}
