"""Workers and controllers that come, go, hang and restart; answers that get lost; clients that compete."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client_toys import call, gates, slow_task
from serve_stack import HEARTBEAT_S, Stack, ask, stack, until
from tcp_proxy import Proxy
from toys import counter_task

from agentbench_fc.client import SyncClient
from agentbench_fc.episode import Task, ToolEpisode, make_task, tool
from agentbench_fc.errors import InfrastructureError, Unavailable
from agentbench_fc.serve import calls
from agentbench_fc.serve.client import HttpClient
from agentbench_fc.serve.config import ControllerConfig, WorkerConfig
from agentbench_fc.serve.controller import Controller
from agentbench_fc.serve.faults import SessionLost
from agentbench_fc.serve.heartbeat import Heart
from agentbench_fc.serve.server import address_of, bind, serving


def counters() -> dict[str, Task]:
    return {"counter": counter_task()}


async def play(client: HttpClient, session_id: str, target: int, turn: int = 0) -> float | None:
    for number in range(turn + 1, turn + target + 1):
        await client.interact(session_id, call("add", number=1), number)
    return (await client.interact(session_id, call("submit"), turn + target + 1)).reward


@contextlib.asynccontextmanager
async def silent(heart: Heart) -> AsyncIterator[None]:
    """Its worker sends no heartbeat within the block; none is on its way either."""
    send, held, let_go = heart._send, asyncio.Event(), asyncio.Event()

    async def wait(leaving: bool) -> None:
        held.set()
        await let_go.wait()
        await send(leaving)

    heart._send = wait  # type: ignore[method-assign]
    await asyncio.wait_for(held.wait(), 20)
    try:
        yield
    finally:
        heart._send = send  # type: ignore[method-assign]
        let_go.set()


async def test_starts_spread_over_the_workers() -> None:
    # no heartbeat meanwhile: one that was written before a start came and read after it counts one too few
    async with stack(counters(), workers=3, controller={"heartbeat_s": 60.0}) as served, served.client() as client:
        await asyncio.gather(*(client.start_sample("counter", 0) for _ in range(30)))
        assert [worker.taken for worker in served.workers] == [10, 10, 10]
        assert len(await client.list_sessions()) == 30


async def test_a_dead_worker_is_reported_and_the_others_go_on() -> None:
    async with stack(counters(), workers=2) as served, served.client(timeout_s=20) as client:
        turns = [await client.start_sample("counter", 2) for _ in range(4)]
        victim = served.workers[0].worker_id
        mine = [turn.session_id for turn in turns if turn.session_id.startswith(victim)]
        await served.kill(0)
        for turn in turns:
            if turn.session_id in mine:
                with pytest.raises(SessionLost, match=f"{victim} is dead"):
                    await client.interact(turn.session_id, call("add", number=1), 1)
            else:
                assert await play(client, turn.session_id, 3) == 1.0
        assert await play(client, (await client.start_sample("counter", 0)).session_id, 1) == 1.0
        async with asyncio.timeout(20):  # one that is slow to say so may be doubted for a moment
            while (told := {worker.worker_id: worker.status for worker in await client.list_workers()}) != {
                victim: "dead",
                served.workers[1].worker_id: "alive",
            }:
                assert told[victim] == "dead"
                await asyncio.sleep(HEARTBEAT_S / 4)


async def test_a_restarted_worker_takes_sessions_within_a_heartbeat() -> None:
    async with stack(counters()) as served, served.client() as client:
        lost = (await client.start_sample("counter", 0)).session_id
        await served.kill(0)
        again = await served.add(WorkerConfig(given=counters(), name="w1"))
        member = served.controller.fleet.members[again.worker_id]
        async with silent(served.hearts[1]):
            beats = member.beats
            assert await play(client, (await client.start_sample("counter", 0)).session_id, 1) == 1.0
            assert member.beats == beats, "what it has told by now is enough"
        with pytest.raises(SessionLost):
            await client.interact(lost, call("submit"), 1)


async def test_the_client_plays_a_lost_session_again_on_another_worker() -> None:
    async with stack(counters(), workers=2) as served, served.client(rebuild=True, timeout_s=20) as client:
        turn = await client.start_sample("counter", 3)
        rolled = await client.interact(turn.session_id, call("roll"), 1)
        child = await client.fork(turn.session_id)
        number = next(n for n, w in enumerate(served.workers) if turn.session_id.startswith(w.worker_id))
        await served.kill(number)
        again = await client.interact(turn.session_id, call("add", number=0), 2)
        assert again.messages[0]["content"] == rolled.messages[0]["content"]  # the same roll, elsewhere
        assert (again.session_id, again.turn, len(again.tools)) == (turn.session_id, 2, 3)
        total = int((rolled.messages[0]["content"] or "").split()[-1].rstrip("."))
        await client.interact(turn.session_id, call("add", number=4 - total), 3)
        assert (await client.interact(turn.session_id, call("submit"), 4)).reward == 1.0
        await client.interact(child.session_id, call("add", number=4 - total), 2)
        assert (await client.interact(child.session_id, call("submit"), 3)).reward == 1.0


class Fickle(ToolEpisode):
    """Says something else in every process."""

    said = 0

    def start(self) -> str:
        return "Go."

    @tool
    def look(self) -> str:
        """Looks."""
        type(self).said += 1
        return str(type(self).said)


async def test_a_rebuild_that_comes_out_differently_is_told() -> None:
    task = make_task(Fickle, samples={"train": [{}]})
    async with stack({"fickle": task}, workers=2) as served, served.client(rebuild=True, timeout_s=20) as client:
        turn = await client.start_sample("fickle", 0)
        await client.interact(turn.session_id, call("look"), 1)
        number = next(n for n, w in enumerate(served.workers) if turn.session_id.startswith(w.worker_id))
        await served.kill(number)
        with pytest.raises(SessionLost, match="came out differently"):
            await client.interact(turn.session_id, call("look"), 2)


async def test_a_controller_that_is_replaced_loses_no_session() -> None:
    with contextlib.closing(bind("127.0.0.1", 0, None)) as kept:  # not listening, so that nobody else gets the port
        await _replace_the_controller(address_of(kept))


async def _replace_the_controller(url: str) -> None:
    async with stack(counters(), workers=2) as served:
        sock = bind("127.0.0.1", int(url.rpartition(":")[2]), None)
        first = Controller(ControllerConfig(heartbeat_s=HEARTBEAT_S))
        for heart in served.hearts:
            heart._url = url
        clients = [HttpClient(url, direct=direct, timeout_s=20) for direct in (True, False)]
        async with serving(first.app, sock):
            await until(lambda: len(first.fleet.members) == 2)
            turns = [(client, await client.start_sample("counter", n % 5)) for n in range(10) for client in clients]
            started = await ask(url, "POST", "/v1/start_sample", {"task": "counter", "request_id": "request-1"})
            for client, turn in turns:
                await client.interact(turn.session_id, call("add", number=0), 1)
        await first.aclose()
        # the port is free: calls find nobody, until another controller listens there
        midway = [
            asyncio.create_task(play(client, turn.session_id, n // 2 % 5 + 1, 1))
            for n, (client, turn) in enumerate(turns)
        ]
        again = asyncio.create_task(
            clients[0]._calls.call(
                "POST",
                "/v1/start_sample",
                {"task": "counter", "request_id": "request-1", "retry": True, "wait_s": 5.0},
            )
        )
        await asyncio.sleep(0.3)
        second = Controller(ControllerConfig(heartbeat_s=HEARTBEAT_S))
        async with serving(second.app, bind("127.0.0.1", int(url.rpartition(":")[2]), None)):
            watch = asyncio.create_task(second.run())
            assert await asyncio.gather(*midway) == [1.0] * 20
            assert (await again)["session_id"] == started.body["session_id"]
            await until(lambda: all(heart._knows == second.id for heart in served.hearts))
            for client in clients:
                await client.aclose()
            await clients[0].aclose()
            assert sum(worker.taken for worker in served.workers) == 1
            watch.cancel()
        await second.aclose()


async def test_a_worker_that_was_silent_ends_what_was_reported_lost() -> None:
    async with stack(counters()) as served, served.client(direct=False, timeout_s=20) as client:
        kept, lost = [(await client.start_sample("counter", 0)).session_id for _ in range(2)]
        member = served.controller.fleet.members[served.workers[0].worker_id]
        async with silent(served.hearts[0]):
            served.controller.fleet.bury(member, "no sign of life")
            with pytest.raises(SessionLost):
                await client.interact(lost, call("submit"), 1)
        await until(lambda: member.state == "alive")
        await until(lambda: served.workers[0].taken == 1)
        with pytest.raises(SessionLost):  # the same answer as before, not that it was cancelled
            await client.interact(lost, call("submit"), 1)
        assert await play(client, kept, 1) == 1.0


@contextlib.asynccontextmanager
async def behind_proxies(served: Stack) -> AsyncIterator[tuple[str, list[Proxy]]]:
    """Every way to the controller and to the workers leads through a proxy."""
    proxies = [await Proxy.before(served.url)]
    for worker in served.workers:
        proxy = await Proxy.before(worker.address)
        worker.address = proxy.url
        proxies.append(proxy)
    await until(lambda: {m.address for m in served.controller.fleet.members.values()} == {p.url for p in proxies[1:]})
    try:
        yield proxies[0].url, proxies
    finally:
        for proxy in proxies:
            await proxy.aclose()


async def test_a_start_whose_first_answer_is_lost_is_kept_where_it_was_known_to_be() -> None:
    async with stack(counters()) as served, behind_proxies(served) as (url, (_, proxy)), HttpClient(url) as client:
        losses = iter([True])
        proxy._strikes = lambda kind: kind == "lost answers" and next(losses, False)  # type: ignore[method-assign]
        member = served.controller.fleet.members[served.workers[0].worker_id]
        served.controller._remember_home("request-1", member)  # as after a heartbeat that tells of it
        body = {"task": "counter", "sample": 0, "request_id": "request-1", "retry": True, "wait_s": 5.0}
        started = await ask(url, "POST", "/v1/start_sample", body)
        assert next(losses, None) is None, "an answer was lost"
        await asyncio.sleep(3 * HEARTBEAT_S)  # what the controller orders goes with heartbeats
        assert await play(client, started.body["session_id"], 1) == 1.0


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "gateway"])
@pytest.mark.parametrize("trouble", ["lost answers", "doubled requests", "delays", "refused"])
async def test_sessions_survive_a_bad_network(direct: bool, trouble: str) -> None:
    async with stack(counters(), workers=2) as served, behind_proxies(served) as (url, proxies):
        for seed, proxy in enumerate(proxies):
            proxy.misbehave(trouble, share=0.15, seed=seed)
        async with HttpClient(url, direct=direct, timeout_s=60, attempt_timeout_s=2.0) as client:

            async def whole(n: int) -> float | None:
                turn = await client.start_sample("counter", n % 5)
                return await play(client, turn.session_id, n % 5 + 1)

            assert await asyncio.gather(*(whole(n) for n in range(20))) == [1.0] * 20
        assert sum(proxy.faults for proxy in proxies) > 3
        for proxy in proxies:
            proxy.misbehave("nothing")
        await until(lambda: sum(worker.taken for worker in served.workers) == 0, 20)
        infos = [(await hosted.client.list_workers())[0] for worker in served.workers for hosted in worker.hosted]
        assert sum(info.finished for info in infos) - sum(info.started for info in infos) == 0


async def test_a_worker_that_cannot_be_reached_directly_is_called_through_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stack(counters()) as served, served.client(timeout_s=20) as client:
        turn = await client.start_sample("counter", 1)
        client._sessions[turn.session_id].address = nobody = "http://127.0.0.1:9"  # nobody listens there
        call_it, asked = client._link.call, list[str]()

        async def spy(method: str, url: str, *arguments: Any, **options: Any) -> Any:
            asked.append(nobody if url.startswith(nobody) else "controller")
            return await call_it(method, url, *arguments, **options)

        monkeypatch.setattr(client._link, "call", spy)
        assert await play(client, turn.session_id, 2) == 1.0
        assert asked[:2] == [nobody, "controller"], "at once"
        assert asked.count(nobody) == 1, "and not there again"


async def test_waiting_starts_get_the_slots_that_become_free() -> None:
    async with stack(counters(), default_capacity=2) as served, served.client(start_wait_s=20) as client:

        async def whole() -> float | None:
            return await play(client, (await client.start_sample("counter", 0)).session_id, 1)

        assert await asyncio.gather(*(whole() for _ in range(20))) == [1.0] * 20
        assert len(served.controller.queue) == 0


async def test_two_trainers_share_one_controller_fairly() -> None:
    async with stack(counters(), workers=2, default_capacity=4) as served:
        clients = [served.client(client_id=name, start_wait_s=30) for name in ("greedy", "modest")]
        done: Counter[str] = Counter()
        most: Counter[str] = Counter()

        async def keep_busy(client: HttpClient, turns: int) -> None:
            while True:
                turn = await client.start_sample("counter", 0)
                for number in range(1, turns):
                    await asyncio.sleep(0.02)
                    await client.interact(turn.session_id, call("add", number=0), number)
                await client.cancel(turn.session_id)
                done[client.client_id] += turns

        # one asks with twenty starts at once for long sessions, the other with twelve for short ones
        tasks = [asyncio.create_task(keep_busy(clients[0], 10)) for _ in range(20)]
        await asyncio.sleep(0.3)
        tasks += [asyncio.create_task(keep_busy(clients[1], 3)) for _ in range(12)]
        await asyncio.sleep(1.5)
        for _ in range(20):
            await asyncio.sleep(0.05)
            held: Counter[str] = Counter()
            for worker in served.workers:
                for hosted in worker.hosted:
                    held.update(hosted._open_by)
            most.update(held)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.aclose()
        assert done["greedy"] > 0
        # served in order of arrival it would be 200 to 36
        assert 0.4 < most["greedy"] / most["modest"] < 2.5, (most, done)


async def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new() -> None:
    async with stack(counters(), workers=2, drain_s=20) as served, served.client() as client:
        turns = [await client.start_sample("counter", 0) for _ in range(4)]
        draining = asyncio.create_task(served.workers[0].drain())
        await until(lambda: served.controller.fleet.members[served.workers[0].worker_id].beat.draining)
        assert (await ask(served.workers[0].address, "GET", "/readyz")).status == 503
        for _ in range(3):
            turn = await client.start_sample("counter", 0)
            assert turn.session_id.startswith(served.workers[1].worker_id)
        assert not draining.done()
        for turn in turns:
            assert await play(client, turn.session_id, 1) == 1.0
        async with asyncio.timeout(20):
            await draining


async def test_a_turn_that_hangs_without_a_deadline_frees_its_slot() -> None:
    task = slow_task()
    _, gate = gates(task)
    object.__setattr__(task.spec, "call_timeout_s", None)
    async with stack({"slow": task}, default_capacity=1, step_timeout_s=0.5) as served, served.client() as client:
        turn = await client.start_sample("slow", 0)
        with pytest.raises(SessionLost, match=r"the turn took over 0\.5 s"):
            await client.interact(turn.session_id, call("work"), 1)
        assert served.workers[0].abandoned == 1
        await client.start_sample("slow", 0)
        gate.set()


async def test_a_start_that_hangs_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()

    class Stuck(ToolEpisode):
        def start(self) -> str:
            return "Go."

        @tool
        def look(self) -> str:
            """Looks."""
            return "x"

    inner = make_task(Stuck, samples={"train": [{}], "bad": [{}]}, name="stuck")

    class Hangs:
        spec, open, expert, close = inner.spec, inner.open, inner.expert, inner.close

        def samples(self, split: str) -> Any:
            if split == "bad":
                gate.wait(20)
            return inner.samples(split)

    tasks: dict[str, Task] = {"stuck": Hangs()}  # type: ignore[dict-item]
    async with stack(tasks, default_capacity=1, start_timeout_s=0.5) as served:
        with monkeypatch.context() as patch:
            patch.setattr(calls, "RETRY_GAPS_S", (100.0,))  # beyond the deadline: the first answer is the last
            async with served.client(timeout_s=30, start_wait_s=1.0) as client:
                with pytest.raises(InfrastructureError, match=r"took over 0\.5 s"):
                    await client.start_sample("stuck", split="bad")
        await until(lambda: served.workers[0].taken == 0)
        async with served.client() as client:
            assert (await client.start_sample("stuck", split="train")).turn == 0
        gate.set()


async def test_too_many_hanging_calls_make_a_worker_restart() -> None:
    task = slow_task()
    _, gate = gates(task)
    object.__setattr__(task.spec, "call_timeout_s", 0.1)
    async with stack({"slow": task}, max_abandoned=3) as served, served.client() as client:
        worker = served.workers[0]
        for n in range(3):
            assert not worker.stopping.is_set()
            turn = await client.start_sample("slow", 0)
            late = await client.interact(turn.session_id, call("work"), 1)
            assert "did not finish within" in (late.messages[0]["content"] or ""), n
        assert worker.stopping.is_set()
        assert worker.restart
        gate.set()


async def test_workers_that_disagree_on_a_task_are_told_apart() -> None:
    async with stack(counters()) as served, served.client() as client:
        other = counter_task()
        object.__setattr__(other.spec, "max_turns", 3)
        await served.add(WorkerConfig(given={"counter": other}, name="w2"))
        turns = [await client.start_sample("counter", 0) for _ in range(4)]
        assert all(turn.session_id.startswith(served.workers[0].worker_id) for turn in turns)
        rows = (await ask(served.url, "GET", "/v1/list_workers")).body["workers"]
        assert "its spec" in rows[1]["reason"]


async def test_the_hash_of_a_split_travels_once_it_is_used() -> None:
    async with stack(counters(), workers=2) as served, served.client() as client:
        await asyncio.gather(*(client.start_sample("counter", 0) for _ in range(4)))
        members = served.controller.fleet.members.values()
        await until(lambda: all(member.beat.tasks[0].splits for member in members))
        hashes = {member.beat.tasks[0].splits["train"] for member in members}
        assert len(hashes) == 1


async def test_a_single_worker_needs_no_controller() -> None:
    async with stack(counters()) as served, HttpClient(served.workers[0].address, start_wait_s=0.5) as client:
        assert await play(client, (await client.start_sample("counter", 0)).session_id, 1) == 1.0
        assert [worker.status for worker in await client.list_workers()] == ["alive"]


async def test_a_blocking_client_over_http() -> None:
    async with stack(counters()) as served:

        def blocking() -> float | None:
            with SyncClient(HttpClient(served.url)) as client:
                turn = client.start_sample("counter", 0)
                client.interact(turn.session_id, call("add", number=1), 1)
                client.start_sample("counter", 0)  # left open: the close ends it
                return client.interact(turn.session_id, call("submit"), 2).reward

        assert await asyncio.to_thread(blocking) == 1.0
        await until(lambda: served.workers[0].taken == 0)


async def test_nothing_answers_within_the_deadline() -> None:
    async with HttpClient("http://127.0.0.1:9", timeout_s=0.5) as client, asyncio.timeout(20):
        with pytest.raises(InfrastructureError, match=r"no usable answer within 0\.5 s"):
            await client.list_workers()


async def test_a_rejected_flood_of_starts_leaves_nothing_behind() -> None:
    async with stack(counters(), default_capacity=2, controller={"max_waiting": 5}) as served:
        async with served.client(start_wait_s=0.5, timeout_s=30) as client:
            results = await asyncio.gather(
                *(client.start_sample("counter", 0) for _ in range(40)), return_exceptions=True
            )
            good = [result for result in results if not isinstance(result, BaseException)]
            assert len(good) == 2
            assert all(isinstance(r, Unavailable) for r in results if isinstance(r, BaseException))
        await until(lambda: served.workers[0].taken == 0)
        assert len(served.controller.queue) == 0
        member = next(iter(served.controller.fleet.members.values()))
        assert (sum(member.reserved.values()), sum(member.starting.values())) == (0, 0)
