"""The canary refuses engines whose log-probs are not the trainer's, and does not make anybody wait."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.canary import Canary, canary_ids, canary_tolerance
from agentrl_trainer.config import Engines, Model, RunConfig


class Side:
    """A rollout side of one engine, and a trainer whose log-prob of id i is -i."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.version = -1
        self.asked = 0
        self.noted: list[Mapping[str, float]] = []
        self.free = threading.Event()
        self.free.set()
        self.answered = threading.Event()
        self.error: Exception | None = None

    def publish(self, path: Path, version: int, *, stale: bool) -> None:
        self.version = version

    def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        self.asked += 1
        try:
            assert self.free.wait(10)
            if self.error:
                raise self.error
            new = list(range(count))
            old = [self.version] * (count - 1) + [self.version - 1]
            logprobs = [-float(i) - self.shift for i in new[:-1]] + [7.0]
            return [{"engine": "engine-0-fresh", "ids": new, "logprobs": logprobs, "versions": old}]
        finally:
            self.answered.set()

    def logprobs(self, ids: Sequence[int], count: int) -> list[float]:
        assert list(ids[:2]) == [3, 4]
        return [-float(i) for i in ids[-count:]]

    def canary(self, **options: Any) -> Canary:
        given = {"temperature": 0.8, "tolerance": 0.01, "note": self.noted.append} | options
        return Canary(self.publish, self.probe, self.logprobs, [3, 4], **given)


def step(side: Side, canary: Canary, version: int) -> None:
    side.answered.clear()
    canary.publish(Path("v"), version, stale=False)
    assert side.answered.wait(10)
    if (asked := canary._asked) is not None:
        with pytest.raises(InfrastructureError) if side.error else _nothing():
            asked[1].result(10)
    canary.on_pre_optimizer_step(None, None, None)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_tokens_of_the_published_version_are_compared_and_noted() -> None:
    side = Side(shift=0.005)
    canary = side.canary()
    canary.publish(Path("v"), 0, stale=True)
    step(side, canary, 1)
    assert side.asked == 2
    for figures in side.noted:
        assert figures == pytest.approx({"canary/mean_difference": 0.005, "canary/max_difference": 0.005})


def test_an_engine_that_differs_at_the_start_is_refused_in_either_mode() -> None:
    for mode in ("error", "warn"):
        with pytest.raises(CallerError, match=r"differ by 0.5 on average.*engine-0-fresh, version 0.*own folder"):
            Side(shift=0.5).canary(on_difference=mode).publish(Path("v"), 0, stale=True)
    with pytest.raises(CallerError, match="differ by nan"):
        Side(shift=float("nan")).canary().publish(Path("v"), 0, stale=True)


def test_a_later_difference_is_an_error_or_a_warning_as_configured(caplog: pytest.LogCaptureFixture) -> None:
    side = Side()
    canary = side.canary()
    canary.publish(Path("v"), 0, stale=True)
    side.shift = 0.3
    with pytest.raises(CallerError, match="version 1"):
        step(side, canary, 1)
    side.shift = 0.0
    canary = side.canary(on_difference="warn")
    canary.publish(Path("v"), 0, stale=True)
    side.shift = 0.3
    with caplog.at_level(logging.WARNING):
        step(side, canary, 1)
        side.error = InfrastructureError("gone.")
        step(side, canary, 2)
    assert "differ by 0.3" in caplog.text
    assert "the canary got no answer: gone." in caplog.text


def test_a_slow_engine_makes_no_step_wait() -> None:
    side = Side()
    canary = side.canary()
    canary.publish(Path("v"), 0, stale=True)
    noted = len(side.noted)
    side.free.clear()
    canary.publish(Path("v"), 1, stale=False)
    canary.on_pre_optimizer_step(None, None, None)
    assert len(side.noted) == noted
    side.free.set()
    step(side, canary, 2)
    assert len(side.noted) == noted + 1


def test_the_tolerance_follows_from_what_numerics_explain() -> None:
    assert canary_tolerance(RunConfig()) == 0.01
    assert canary_tolerance(RunConfig(model=Model(dtype="bfloat16"))) == 0.1
    servers = Engines(kind="sglang", fresh_urls=("http://a:1",))
    assert canary_tolerance(RunConfig(engines=servers)) == 0.1
    assert canary_tolerance(RunConfig(engines=Engines(canary_tolerance=0.3))) == 0.3
    assert canary_ids(lambda text: [5, 900, 6], 100) == [5, 6]
    assert canary_ids(lambda text: [], 100) == [1]
