"""The simulator: its laws hold, pacing reaches the bound, and asynchrony pays where latency is what costs."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def sim() -> Iterator[ModuleType]:
    loaded = []
    for name in ("virtual_time", "async_sim"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        loaded.append(name)
    yield sys.modules["async_sim"]
    for name in loaded:
        del sys.modules[name]


def test_virtual_time_jumps_and_tells_of_a_deadlock(sim: ModuleType) -> None:
    async def race() -> list[int]:
        ends = []

        async def nap(seconds: float, number: int) -> None:
            await asyncio.sleep(seconds)
            ends.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number, seconds in enumerate((3000.0, 1000.0, 2000.0)):
                tasks.create_task(nap(seconds, number))
        return ends

    assert sim.virtual_time.run(race()) == [1, 2, 0]
    with pytest.raises(RuntimeError, match="a deadlock"):
        sim.virtual_time.run(asyncio.Event().wait())  # type: ignore[arg-type]


def test_requests_share_the_engine_by_its_law(sim: ModuleType) -> None:
    """K = 2: one request alone works at 1 / 1.5, two together at 1 / 2 each."""

    async def measure() -> list[float]:
        engine, loop, ends = sim.Engine(2.0), asyncio.get_running_loop(), []

        async def ask(start: float, work: float) -> None:
            await asyncio.sleep(start)
            await engine.generate(work)
            ends.append(loop.time())

        await asyncio.gather(ask(0.0, 2.0), ask(1.5, 1.0))
        return ends

    # the first has 1 of 2 done at 1.5, then both need 1 at half speed
    assert sim.virtual_time.run(measure()) == pytest.approx([3.5, 3.5])


@pytest.mark.parametrize("name", ["short", "database", "graph", "household", "shop, straggling"])
def test_at_a_lag_of_2_a_balanced_run_reaches_the_bound(sim: ModuleType, name: str) -> None:
    places, steps = sim.BATCH // 2, 15
    base = sim.Setting(
        profiles=[sim.PROFILES[name]], saturation=places, train_s=0.0, max_lag=2, steps=steps, places=places
    )
    alone = sim.virtual_time.run(sim.generation(base, sim.BATCH * steps))
    text, share = sim.bound_row(name, places=places, speed=1.0, steps=steps, alone=alone)
    assert share >= sim.OF_BOUND, text


def test_where_latency_costs_asynchrony_doubles_what_the_same_machines_do(sim: ModuleType) -> None:
    sync, both = sim.compare(float(sim.BATCH), 0.05, 12)
    assert both.per_s >= sim.RATIO * sync.per_s
    assert set(sync.lags) == {0}, "a bound of 0 is synchronous training"
    assert sync.mixed == sync.masked == 0
    assert both.mixed > 0.2
    assert both.token_lag < 2


def test_depth_control_halves_the_lag_where_the_trainer_is_slow_and_costs_nothing(sim: ModuleType) -> None:
    setting = sim.Setting(profiles=[sim.PROFILES["short"]], saturation=64, train_s=0.2, max_lag=2, steps=30, places=64)
    controlled = sim.virtual_time.run(sim.training(setting))
    full = sim.virtual_time.run(sim.training(sim.replace(setting, auto_depth=False)))
    assert controlled.per_s == pytest.approx(full.per_s, rel=0.001)
    assert controlled.token_lag < 1.2 < 1.9 < full.token_lag


def test_equal_seeds_give_equal_runs(sim: ModuleType) -> None:
    setting = sim.Setting(profiles=list(sim.PROFILES.values()), saturation=32, train_s=0.02, max_lag=1, steps=6)
    first, again = (sim.virtual_time.run(sim.training(setting)) for _ in range(2))
    assert first == again
    assert first != sim.virtual_time.run(sim.training(sim.replace(setting, seed=1)))
