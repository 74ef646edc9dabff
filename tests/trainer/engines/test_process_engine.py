"""An engine in its own process answers like the one in this process, and its death is an error at once.

That it ends with its parent is held in rollout/test_process.py.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.engines.base import ContextFull, Sampling
from agentrl_trainer.engines.pool import EnginePool, NoEngineLeft
from agentrl_trainer.engines.process import ProcessEngine
from agentrl_trainer.engines.transformers import TransformersEngine


async def test_it_answers_like_the_engine_in_this_process_survives_bad_requests_and_its_death_is_told_at_once(
    model_folder: Path, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    engine = await ProcessEngine.start(model_folder, log=tmp_path / "engine.log", max_context=256)
    here = TransformersEngine(model_folder, max_context=256)
    sampling = Sampling(max_tokens=9, seed=3, stop_ids=(2,))
    try:
        there = await asyncio.gather(*(engine.generate([5, 6 + i], sampling, timeout_s=30) for i in range(4)))
        for i, answer in enumerate(there):
            expected = await here.generate([5, 6 + i], sampling, timeout_s=30)
            assert answer.ids == expected.ids
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        with pytest.raises(ContextFull, match="exceed the context"):
            await engine.generate([5] * 256, sampling, timeout_s=30)
        with pytest.raises(InfrastructureError, match="no answer to generate within"):
            await engine.generate([5], Sampling(max_tokens=250), timeout_s=0.01)
        with pytest.raises(InfrastructureError, match="cannot be read"):
            await engine.update_weights(tmp_path, 1)
        await engine.update_weights(make_model(1), 7)
        assert set((await engine.generate([5], sampling, timeout_s=30)).versions) == {7}
        assert (engine.version, engine.vocabulary, await engine.health()) == (7, 304, True)
        await _killed(engine)
    finally:
        await here.aclose()
        await engine.aclose()
    assert not engine._child.alive


async def _killed(engine: ProcessEngine) -> None:
    os.kill(engine._child.process.pid, signal.SIGSTOP)  # however late we come back, it has not answered
    waiting = asyncio.create_task(engine.generate([5], Sampling(max_tokens=255), timeout_s=200))
    await asyncio.sleep(0.05)
    os.kill(engine._child.process.pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"ended by signal SIGKILL \[engine-0\]"):
        await waiting
    assert time.monotonic() - start < 5, "not at the end of the request's time"
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        await engine.generate([5], Sampling(max_tokens=1), timeout_s=60)
    assert not await engine.health()


async def test_a_killed_engine_comes_back_with_the_newest_weights_a_bounded_number_of_times(
    model_folder: Path, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    engine = await ProcessEngine.start(model_folder, log=tmp_path / "engine.log", max_context=256)
    pool = EnginePool([engine], restarts=1)
    sampling = Sampling(max_tokens=8, temperature=0)
    try:
        await pool.update(make_model(1), 5)
        before = await pool.generate(0, [5, 6], sampling, timeout_s=60)
        os.kill(engine._child.process.pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="SIGKILL"):
            await pool.generate(0, [5, 6], sampling, timeout_s=60)
        assert pool.draw(random.Random(0))[0] == 0, "turns wait for the only engine"
        after = await pool.generate(0, [5, 6], sampling, timeout_s=60)
        assert (after.ids, set(after.versions)) == (before.ids, {5})
        assert (tmp_path / "engine.before.log").exists()
        os.kill(engine._child.process.pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="SIGKILL"):
            await pool.generate(0, [5, 6], sampling, timeout_s=60)
        with pytest.raises(NoEngineLeft, match="SIGKILL"):
            pool.draw(random.Random(0))
    finally:
        await pool.aclose()
