"""Ends that nobody planned: stops that cross, waits that would not end, rebuilds and starts that break off."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client_toys import call, gates, slow_task
from serve_stack import ask, stack, until
from toys import Counter, counter_task

from agentbench_fc import client as client_module
from agentbench_fc.episode import Task, ToolTask
from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.messages import Message
from agentbench_fc.serve import controller as controller_module
from agentbench_fc.serve import processes, tree
from agentbench_fc.serve import server as server_module
from agentbench_fc.serve.config import WorkerConfig
from agentbench_fc.serve.http import Limits
from agentbench_fc.serve.server import address_of, bind
from agentbench_fc.serve.worker import Worker


def clinging(gate: threading.Event, closed: threading.Event | None = None) -> ToolTask:
    """A task whose sessions do not end before the gate opens."""

    class Clinging(Counter):
        def close(self) -> None:
            gate.wait(20)
            if closed is not None:
                closed.set()

    return counter_task(Clinging)


# processes


async def test_a_worker_that_was_told_to_end_does_not_come_back() -> None:
    worker = Worker(WorkerConfig(given={"counter": counter_task()}))
    worker.stop()
    worker.stop(restart=True)  # calls that hang while it drains
    assert not worker.restart
    worker = Worker(WorkerConfig(given={"counter": counter_task()}))
    worker.stop(restart=True)
    assert worker.restart
    worker.stop()  # told to end while it drains for the restart
    assert not worker.restart


async def test_a_worker_that_is_told_to_end_while_it_closes_for_a_restart_closes_and_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    opens = Worker.open

    async def open_and_restart(self: Worker) -> None:
        await opens(self)
        self.stop(restart=True)

    async def close(self: Worker) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        closed.append(self.restart)

    monkeypatch.setattr(Worker, "open", open_and_restart)
    monkeypatch.setattr(Worker, "aclose", close)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert not await processes.run_worker(WorkerConfig(given={"counter": counter_task()}))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert closed == [False]


async def test_one_task_that_will_not_end_keeps_the_others_of_a_worker_waiting_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_WAIT_S", 18.0)
    gate, done, closed = threading.Event(), threading.Event(), threading.Event()
    done.set()
    worker = Worker(WorkerConfig(given={"a": clinging(gate), "b": clinging(done, closed)}))
    await worker.open()
    for hosted in worker.hosted:
        await hosted.client.start_sample(hosted.name, 0)
    closing = asyncio.create_task(worker.aclose())
    await until(closed.is_set, 15)
    assert not closing.done()
    gate.set()
    await closing


async def test_small_answers_are_sent_at_once_on_asyncio_s_own_loop_too() -> None:
    told = asyncio.get_running_loop().create_future()

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    sock = bind("127.0.0.1", 0, None)
    async with await asyncio.start_server(serve, sock=sock):
        _, writer = await asyncio.open_connection(*sock.getsockname())
        assert await asyncio.wait_for(told, 5)
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_does_not_start_is_no_orderly_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text(
        "import pathlib\n"
        "from agentbench_fc.episode import ToolEpisode, make_task\n"
        "TASK = make_task(ToolEpisode, name='given', samples={'train': [{}]})\n"
        "TASK.close = pathlib.Path(__file__).with_name('closed').touch\n"
    )

    @contextlib.asynccontextmanager
    async def serving(app: Any, sock: socket.socket) -> AsyncIterator[None]:
        raise TimeoutError("it does not start")
        yield

    monkeypatch.setattr(processes, "serving", serving)
    with pytest.raises(TimeoutError, match="does not start"):
        await processes.run_worker(WorkerConfig(tasks=(f"{tmp_path / 'given.py'}:TASK",)))
    assert (tmp_path / "closed").exists()  # what was loaded before


def test_a_child_that_cannot_be_started_just_now_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tree, "CLI", "this")  # a program that ends at once
    for name in ("RESTART_GAP_S", "POLL_S"):
        monkeypatch.setattr(tree, name, 0.01)
    tried = []

    class Poor(tree.Tree):
        def _start(self, arguments: list[str]) -> Any:
            tried.append(arguments)
            if len(tried) == 2:
                raise BlockingIOError("no process is left")
            return super()._start(arguments)

    family = Poor({"child": []}, env={}, drain_s=0.1)
    running = threading.Thread(target=family.run)
    running.start()
    deadline = time.monotonic() + 20
    while len(tried) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    family.stop()
    running.join(20)
    assert len(tried) >= 3
    assert "child could not be started" in caplog.text


def test_a_machine_whose_name_has_no_address_is_told_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with (
        contextlib.closing(bind("0.0.0.0", 0, "a long token")) as sock,
        pytest.raises(InfrastructureError, match=r"Name or service not known.*--advertise"),
    ):
        address_of(sock)


# waits


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nx-a: 1\r\n"], ids=["nothing", "half"])
@pytest.mark.parametrize("before", [False, True], ids=["first", "second"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, before: bool
) -> None:
    pytest.importorskip("httptools")
    if before and not sent:
        return  # an idle connection is kept, for the next request
    async with stack(workers=0) as served:
        monkeypatch.setattr(server_module, "HEAD_WAIT_S", 0.3)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        if before:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 200 " in await reader.readline()
            await reader.readuntil(b"}")
        writer.write(sent)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert (await ask(served.url, "GET", "/healthz")).status == 200


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with stack({"counter": counter_task()}, limits=Limits(body_s=0.3)) as served:
        port = int(served.workers[0].address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/interact HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc")
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 0.3 s" in answer
        writer.close()


async def test_a_worker_that_lives_but_does_not_answer_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "CALL_LIMIT_S", 0.5)
    task = slow_task()
    _, gate = gates(task)
    async with stack({"slow": task}) as served, served.client(direct=False) as client:
        turn = await client.start_sample("slow", 0)
        body = {"session_id": turn.session_id, "messages": call("work"), "turn": 1}
        answer = await ask(served.url, "POST", "/v1/interact", body)
        gate.set()
        assert answer.status == 503
        assert "no answer within 0.5 s" in answer.body["error"]["message"]


@pytest.mark.parametrize("body", [b"hello", b"[]", b'{"sessions": 1}'], ids=["text", "array", "number"])
async def test_another_program_at_a_worker_s_address_is_not_taken_for_it(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with stack({"counter": counter_task()}, workers=2) as served, served.client() as client:
        await client.start_sample("counter", 0)
        other = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with other:
            worker = served.workers[1]
            worker.address = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            member = served.controller.fleet.members[worker.worker_id]
            await until(lambda: member.address == worker.address)
            listed = (await ask(served.url, "GET", "/v1/list_sessions")).body
            assert (len(listed["sessions"]), listed["unheard"]) == (1, [worker.worker_id])
            workers = (await ask(served.url, "GET", "/v1/list_workers")).body["workers"]
            assert {row["worker_id"] for row in workers} == {w.worker_id for w in served.workers}


async def test_a_start_that_is_taken_back_and_will_not_end_stops_no_heartbeat() -> None:
    gate = threading.Event()
    async with stack({"counter": clinging(gate)}) as served:
        body = {"task": "counter", "sample": 0, "request_id": "request-1"}
        assert (await ask(served.url, "POST", "/v1/start_sample", body)).status == 200
        member = served.controller.fleet.members[served.workers[0].worker_id]
        member.order("start", "request-1")
        await until(lambda: member.orders == [])
        beats = member.beats
        await until(lambda: member.beats >= beats + 3, 15)
        assert served.workers[0].taken == 0
        gate.set()


# clients


async def test_a_closed_client_opens_no_connection_any_more() -> None:
    async with stack({"counter": counter_task()}) as served:
        client = served.client()
        turn = await client.start_sample("counter", 0)
        await client.aclose()
        for act in (
            client.start_sample("counter"),
            client.interact(turn.session_id, call("submit")),
            client.samples("counter"),
        ):
            with pytest.raises(CallerError, match="client was closed"):
                await act
        assert client._link._session is None


async def test_a_client_that_is_closed_takes_back_the_starts_under_way() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with stack({"slow": task}) as served:
        client = served.client()
        starting = asyncio.create_task(client.start_sample("slow", 1))
        await until(entered.is_set)
        await client.aclose()
        gate.set()
        with pytest.raises((CallerError, InfrastructureError)):
            await starting
        await until(lambda: served.workers[0].taken == 0)


async def test_a_rebuild_that_breaks_off_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: dict[str, Task] = {"counter": counter_task()}
    async with stack(tasks, workers=2) as served, served.client(rebuild=True, timeout_s=20) as client:
        turn = await client.start_sample("counter", 2)
        for number in (1, 2):
            await client.interact(turn.session_id, call("add", number=1), number)
        victim = next(n for n, w in enumerate(served.workers) if turn.session_id.startswith(w.worker_id))
        await served.kill(victim)
        right, turns = client._play, 0

        async def breaks_once(session_id: str, session: Any, sent: list[Message], turn: int | None) -> Any:
            nonlocal turns
            turns += 1
            if turns == 3:  # the lost one, then the second of the replay
                raise InfrastructureError("the network is away [test]. Try again.")
            return await right(session_id, session, sent, turn)

        monkeypatch.setattr(client, "_play", breaks_once)
        with pytest.raises(InfrastructureError, match="network is away"):
            await client.interact(turn.session_id, call("add", number=1))
        third = await client.interact(turn.session_id, call("add", number=1))
        assert (third.turn, third.messages[0]["content"]) == (3, "The total is 3.")
        assert (await client.interact(turn.session_id, call("submit"))).reward == 1.0
        await until(lambda: served.workers[1 - victim].taken == 0)  # the one that broke off is ended


async def test_combinations_of_options_that_do_not_exist_take_no_place(tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(
        "from agentbench_fc.episode import ToolEpisode, make_task, tool\n"
        "class Say(ToolEpisode):\n"
        "    def start(self): return 'Say.'\n"
        "    @tool\n"
        "    def say_it(self, word: str): return word\n"
        "def make(word='x'):\n"
        "    if word[0] == '!': raise ValueError('no such word')\n"
        "    return make_task(Say, samples={'train': [{}]}, name='say')\n"
    )
    ref = f"{tmp_path / 'say.py'}:make"
    async with stack(refs=(ref,), max_variants=2, allowed_options={"say": frozenset({"word"})}) as served:
        statuses = []
        for word in ("!a", "!b", "!c", "d", "e", "f", "d"):
            body = {"task": "say", "options": {"word": word}}
            statuses.append((await ask(served.url, "POST", "/v1/start_sample", body)).status)
        assert statuses == [424, 424, 424, 200, 200, 422, 200]
