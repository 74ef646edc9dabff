"""A day of leases on a virtual clock: sessions are used, ended, forgotten, renewed; slots and memory do not drift."""

import gc
import random
import tracemalloc

import pytest
from client_toys import Clock, call, until
from toys import counter_task

from agentbench_fc.serve import hosted as hosted_module
from agentbench_fc.serve.config import WorkerConfig
from agentbench_fc.serve.schema import CancelRequest, InteractRequest, StartRequest
from agentbench_fc.serve.worker import Worker

HOUR = 3600.0
TICK_S = 240.0
IDLE_S = 600.0
LIFETIME_S = 2 * HOUR


async def test_slots_and_memory_do_not_drift_in_24_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_module, "ENDED_STARTS", 100)  # so that it is full before the evening
    clock, dice = Clock(), random.Random(5)
    worker = Worker(
        WorkerConfig(
            given={"counter": counter_task()},
            name="w1",
            idle_timeout_s=IDLE_S,
            lifetime_s=LIFETIME_S,
            default_capacity=200,
            clock=clock,
        )
    )
    await worker.open()
    (hosted,) = worker.hosted
    born: dict[str, float] = {}
    used: dict[str, float] = {}
    turns: dict[str, int] = {}
    started = expired = 0
    memory: dict[int, int] = {}
    tracemalloc.start()
    for _tick in range(int(24 * HOUR / TICK_S)):
        clock.now += TICK_S
        for session_id in [s for s in born if clock.now >= min(born[s] + LIFETIME_S, used[s] + IDLE_S)]:
            del born[session_id], used[session_id], turns[session_id]
            expired += 1
        hosted.client.expire()
        assert {info.session_id for info, _ in await hosted.sessions()} == set(born)
        for _ in range(5):
            request = StartRequest(task="counter", sample=0, request_id=f"request-{started:06}")
            turn = await hosted.start(request, f"client-{dice.randrange(3)}")
            started += 1
            born[turn.session_id] = used[turn.session_id] = clock.now
            turns[turn.session_id] = 0
        for session_id in list(born):
            deed = dice.random()
            if deed < 0.3 and turns[session_id] < 10:
                turns[session_id] += 1
                messages = [dict(message) for message in call("add", number=0)]
                await hosted.play(InteractRequest(session_id=session_id, messages=messages, turn=turns[session_id]))
                used[session_id] = clock.now
            elif deed < 0.4:
                await hosted.client.renew(session_id)
                used[session_id] = clock.now
            elif deed < 0.5:
                await hosted.cancel(CancelRequest(session_id=session_id))
                del born[session_id], used[session_id], turns[session_id]
        hour = int(clock.now / HOUR)
        if clock.now % HOUR == 0:
            gc.collect()
            memory[hour] = tracemalloc.get_traced_memory()[0]
            load = await hosted.load()
            assert load.taken == len(born) == sum(load.clients.values()) == len(hosted.starts())
    tracemalloc.stop()
    assert expired > 100
    load = await hosted.load()
    assert (load.started, load.started - load.finished, load.expired) == (started, len(born), expired)
    # by the evening the tombstones are full; from then on nothing may grow
    assert memory[24] < memory[18] * 1.05, {hour: f"{size / 1e6:.2f} MB" for hour, size in memory.items()}
    clock.now += LIFETIME_S
    hosted.client.expire()
    await until(lambda: worker.taken == 0)
    assert (hosted._client_of, hosted._open_by, len(hosted.client._table.leases)) == ({}, {}, 0)
    await worker.aclose()
