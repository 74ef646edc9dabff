"""How sessions and clients end: leases, transcripts, closing, and what is left of them."""

import asyncio
import gc
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from client_toys import Clock, call, gates, local, slow_task, until
from toys import Counter, Rude, counter_task

from agentbench_fc import client as client_module
from agentbench_fc.client import LocalClient
from agentbench_fc.episode import make_task
from agentbench_fc.errors import CallerError, Gone, InfrastructureError, TaskError
from agentbench_fc.rewards import Status
from agentbench_fc.transcript import read


async def test_an_idle_session_expires_and_says_why() -> None:
    clock = Clock()
    async with local(idle_timeout_s=10, lifetime_s=100, clock=clock) as client:
        idle, used, renewed = [await client.start_sample("counter", 0) for _ in range(3)]
        clock.now = 9
        await client.interact(used.session_id, call("add", number=1))
        assert (await client.renew(renewed.session_id)).expires_in_s == 10
        clock.now = 10
        client.expire()
        assert [info.session_id for info in await client.list_sessions()] == [used.session_id, renewed.session_id]
        for turn in (None, 1):
            with pytest.raises(Gone, match="cancelled: expired: idle for 10 s"):
                await client.interact(idle.session_id, call("add", number=1), turn=turn)
        with pytest.raises(Gone, match="expired"):
            await client.renew(idle.session_id)
        end = await client.cancel(idle.session_id)
        assert (end.status, end.finish, end.reward) == (Status.CANCELLED, True, None)
        assert end.metrics["reason"] == "expired: idle for 10 s"
        assert (await client.list_workers())[0].expired == 1


async def test_a_session_does_not_outlive_its_lifetime() -> None:
    clock = Clock()
    async with local(idle_timeout_s=None, lifetime_s=100, clock=clock) as client:
        turn = await client.start_sample("counter", 0)
        clock.now = 99
        await client.renew(turn.session_id)
        clock.now = 100
        client.expire()
        with pytest.raises(Gone, match="expired: open for 100 s"):
            await client.interact(turn.session_id, call("submit"))


async def test_a_call_under_way_is_not_idle_but_its_lifetime_ends() -> None:
    clock, task = Clock(), slow_task()
    entered, gate = gates(task)
    async with LocalClient(
        tasks={"slow": task}, idle_timeout_s=10, lifetime_s=50, max_sessions=1, clock=clock
    ) as client:
        turn = await client.start_sample("slow", 0)
        waiting = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
        await until(entered.is_set)
        clock.now = 49
        assert client.expire() == []
        clock.now = 50
        assert client.expire() == [turn.session_id]
        assert await client.list_sessions() == []
        with pytest.raises(Gone, match="open for 50 s"):
            await client.renew(turn.session_id)
        await until(lambda: len(client._table) == 0)
        await asyncio.sleep(1.2)  # the cancel has reached the session
        gate.set()
        end = await waiting
        assert (end.status, end.metrics["reason"]) == (Status.CANCELLED, "expired: open for 50 s")


async def test_the_reaper_works_by_itself_and_survives_an_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with local(idle_timeout_s=0.2) as client:
        right, failures = LocalClient.expire, 0

        def sometimes(self: LocalClient) -> list[str]:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise RuntimeError("out of luck")
            return right(self)

        monkeypatch.setattr(LocalClient, "expire", sometimes)
        with caplog.at_level(logging.CRITICAL + 1):
            await client.start_sample("counter", 0)
            await until(lambda: client._table.counts["expired"] == 1)
        assert failures == 3
        assert client._reaper is not None
        assert client._reaper.is_alive()
    await until(lambda: not client._reaper.is_alive())  # type: ignore[union-attr]


# transcripts


async def test_every_end_is_written_down(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "t.jsonl"
    async with local(transcripts=path) as client:
        done = await client.start_sample("counter", 0, seed=1)
        await client.interact(done.session_id, call("add", number=1))
        child = await client.fork(done.session_id)
        await client.interact(done.session_id, call("submit"))
        cancelled = await client.start_sample("counter", 0)
        await client.cancel(cancelled.session_id)
        await client.start_sample("counter", 1)
    sessions = {session.session_id: session for session in read(path).sessions}
    assert len(sessions) == 4
    ends = [str(session.end["status"]) for session in sessions.values() if session.end]
    assert ends == ["completed", "cancelled", "cancelled", "cancelled"]
    assert sessions[done.session_id].start["seed"] == 1
    assert sessions[child.session_id].fork is not None
    assert sessions[child.session_id].turns[-1].metrics["reason"] == "the client was closed"


async def test_a_transcript_that_cannot_be_written_is_logged_and_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    async with local(transcripts=tmp_path / "file" / "t.jsonl") as client:
        turn = await client.start_sample("counter", 0)
        assert (await client.interact(turn.session_id, call("submit"))).finish
    assert "the transcript was not written" in caplog.text


# the end


async def test_closing_ends_all_sessions_and_further_calls_are_refused() -> None:
    closed = []

    class Closing(Counter):
        def close(self) -> None:
            closed.append(self.sample.id)

    client = LocalClient(tasks={"counter": counter_task(Closing)})
    turns = [await client.start_sample("counter", n) for n in range(5)]
    await client.aclose()
    await client.aclose()
    assert sorted(closed) == [f"counter/train/{n}" for n in range(5)]
    with pytest.raises(CallerError, match="client was closed"):
        await client.start_sample("counter")
    with pytest.raises(Gone, match="the client was closed"):
        await client.interact(turns[0].session_id, call("submit"))
    assert (await client.list_workers())[0].status == "closed"


async def test_closing_does_not_wait_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CLOSE_WAIT_S", 0.5)
    task = slow_task()
    entered, gate = gates(task)
    client = LocalClient(tasks={"slow": task})
    turn = await client.start_sample("slow", 0)
    waiting = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
    await until(entered.is_set)
    began = time.monotonic()
    await client.aclose()
    assert time.monotonic() - began < 5, "of the 20 s that the call takes"
    gate.set()
    await waiting


async def test_tasks_are_closed_although_sessions_will_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_WAIT_S", 0.5)
    gate, closed = threading.Event(), threading.Event()

    class Clinging(Counter):
        def close(self) -> None:
            gate.wait(20)

    task = counter_task(Clinging)
    task.close = closed.set  # type: ignore[method-assign]
    client = LocalClient()
    client.adopt(task, "clinging")
    for _ in range(8):  # more than there are threads that end sessions
        await client.start_sample("clinging", 0)
    with caplog.at_level(logging.ERROR):
        await client.aclose()
        assert closed.is_set()
        gate.set()
        gc.collect()
        await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


async def test_a_start_does_not_wait_for_ever_for_its_task(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "def make():\n"
        "    while not pathlib.Path(__file__).with_name('go').exists(): time.sleep(0.01)\n"
    )
    async with LocalClient(start_limit_s=0.2, max_sessions=1) as client:
        with pytest.raises(InfrastructureError, match=r"the start took over 0\.2 s") as told:
            await client.start_sample(f"{tmp_path / 'slow.py'}:make")
        assert told.type is InfrastructureError  # its name goes over the wire
        assert client.taken == 0
        (tmp_path / "go").touch()


@pytest.mark.parametrize("limit", [None, 20.0])
async def test_samples_that_cannot_be_read_are_the_task_s_fault(limit: float | None) -> None:
    task = counter_task()

    def samples(split: str) -> Any:
        raise TimeoutError("the disk sleeps")

    task.samples = samples  # type: ignore[method-assign]
    async with LocalClient(tasks={"counter": task}, start_limit_s=limit) as client:
        for act in (client.start_sample("counter", 0), client.samples("counter", "train")):
            with pytest.raises(TaskError, match="samples cannot be read: TimeoutError"):
                await act
        assert client.taken == 0


@pytest.mark.parametrize("options", [{"max_sessions": 0}, {"max_concurrency": 0}, {"idle_timeout_s": 0}])
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        LocalClient(**options)


def test_a_client_works_from_one_event_loop_after_another() -> None:
    client = local()

    async def begin() -> str:
        return (await client.start_sample("counter", 0)).session_id

    async def finish(session_id: str) -> float | None:
        await client.interact(session_id, call("add", number=1))
        end = await client.interact(session_id, call("submit"))
        await client.aclose()
        return end.reward

    assert asyncio.run(finish(asyncio.run(begin()))) == 1.0


def test_a_forgotten_client_leaves_no_thread_behind() -> None:
    class Named(Rude):
        pass

    before = set(threading.enumerate())
    client = LocalClient(tasks={"rude": make_task(Named, samples={"train": [{}]})}, idle_timeout_s=0.1)
    asyncio.run(client.start_sample("rude", 0))
    del client
    gc.collect()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = {t for t in set(threading.enumerate()) - before if t.name != "agentbench-fc-call"}
        if not left:
            break
        time.sleep(0.02)
    assert left == set()
