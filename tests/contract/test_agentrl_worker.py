"""AgentRL's own worker, unchanged, with a task of its own, behind our controller and played by our client."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from serve_stack import Stack, ask, stack, until

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, Conflict, Gone, InfrastructureError, NotFound
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.serve.client import HttpClient
from agentbench_fc.serve.faults import SessionLost

START_S = 30.0
CONCURRENCY = 2


@contextlib.asynccontextmanager
async def agentrl_process(python: Path, folder: Path, url: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "config.yaml"
    config.write_text(
        json.dumps(
            {
                "guess-std": {
                    "module": "agentrl_guess.Guess",
                    "parameters": {"name": "guess-std", "concurrency": CONCURRENCY},
                }
            }
        )
    )
    with (folder / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            str(python), "-m", "agentrl.worker", "guess-std", "--config", str(config), "--controller", f"{url}/api",
            "--self", f"http://127.0.0.1:{port}/api", "--host", "127.0.0.1", "--port", str(port),
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def guess(number: int) -> list[dict[str, Any]]:
    return [assistant(None, [ToolCall("c1", "guess", json.dumps({"number": number}))])]


async def play(client: HttpClient, sample: int | str) -> list[Turn]:
    """A whole game by bisection."""
    turns = [await client.start_sample("guess-std", sample)]
    low, high = 1, 100
    while not turns[-1].finish:
        middle = (low + high) // 2
        turns.append(await client.interact(turns[0].session_id, guess(middle), turn=len(turns)))
        low, high = (middle + 1, high) if "higher" in str(turns[-1].messages) else (low, middle - 1)
    return turns


async def registered(served: Stack) -> str:
    await until(lambda: served.controller.fleet.known("guess-std"), START_S)
    (worker_id,) = [m.id for m in served.controller.fleet.members.values() if m.load("guess-std")]
    return worker_id


async def test_its_sessions_are_played_by_our_client(agentrl_worker: Path, tmp_path: Path) -> None:
    port = free_port()
    settings = {"dead_after_s": 60}
    async with (
        stack(workers=0, controller=settings) as served,
        agentrl_process(agentrl_worker, tmp_path, served.url, port) as process,
    ):
        worker_id = await registered(served)
        async with served.client() as client:
            assert await client.samples("guess-std") == ["0", "1", "2", "3", "broken"]

            # More games than it has slots: they wait for one another.
            games = await asyncio.gather(*(play(client, sample) for sample in [0, 1, 2, "3"]))
            for turns in games:
                assert [turn.turn for turn in turns] == list(range(len(turns)))
                assert turns[0].tools[0]["function"]["name"] == "guess"
                assert [message["role"] for message in turns[0].messages] == ["system", "user"]
                assert {turn.status for turn in turns[:-1]} == {"running"}
                assert all(turn.reward is None for turn in turns[:-1])
                last = turns[-1]
                assert (last.status, last.reward, last.success, last.metrics) == (
                    "completed",
                    1.0,
                    True,
                    {"score": 1.0},
                )
            (worker,) = await client.list_workers()
            assert (worker.started, worker.finished, worker.sessions, worker.capacity) == (4, 4, 0, CONCURRENCY)

            # Turns are numbered here: a repeated one gives the first answer, and any other is refused.
            session = (await client.start_sample("guess-std", 0)).session_id
            first = await client.interact(session, guess(1), turn=1)
            assert await client.interact(session, guess(99), turn=1) == first
            with pytest.raises(Conflict):
                await client.interact(session, guess(1), turn=3)
            with pytest.raises(CallerError):
                await client.interact(session, [])
            with pytest.raises(CallerError):
                await client.fork(session)
            (info,) = await client.list_sessions()
            assert (info.session_id, info.task, info.sample, info.turn) == (session, "guess-std", "0", 1)
            assert (await client.renew(session)).turn == 1

            # A turn that is under way: a second call is refused, and cancel ends it.
            slow = asyncio.create_task(client.interact(session, guess(0), turn=2))
            await asyncio.sleep(0.2)
            with pytest.raises(Conflict):
                await client.interact(session, guess(1), turn=2)
            ended = await client.cancel(session)
            assert (ended.status, ended.finish, ended.reward) == ("cancelled", True, None)
            with pytest.raises(Gone):
                await slow
            assert await client.list_sessions() == []

            # Its slots come back by its notice; a game without a right guess runs into its limit.
            lost = await client.start_sample("guess-std", 1)
            while not lost.finish:
                lost = await client.interact(lost.session_id, guess(1))
            assert (lost.status, lost.reward, lost.success, lost.turn) == ("task limit reached", 0.0, False, 7)
            broken = await client.start_sample("guess-std", "broken")
            assert (broken.status, broken.finish, broken.reward) == ("task error", True, None)

            for wrong in ({"sample": 9}, {"sample": "x"}, {"split": "std"}):
                with pytest.raises(NotFound):
                    await client.start_sample("guess-std", **wrong)  # type: ignore[arg-type]
            for wrong in ({"profile": "agentbench"}, {"prompt": "compact"}, {"options": {"x": 1}}):
                with pytest.raises(CallerError):
                    await client.start_sample("guess-std", 0, **wrong)  # type: ignore[arg-type]

            # The same sessions on AgentRL's wire.
            opened = await ask(served.url, "POST", "/api/start_sample", {"name": "guess-std", "index": 2})
            head = {"session_id": opened.headers["session_id"]}
            told = await ask(served.url, "POST", "/api/interact", {"messages": guess(42)}, headers=head)
            assert (told.body["status"], told.body["reward"], told.body["metric"]) == ("completed", 1.0, {"score": 1.0})

        await forgotten_by_its_controller(served, port)
        session = await killed(served, process)
        async with agentrl_process(agentrl_worker, tmp_path, served.url, port), served.client() as client:
            fleet = served.controller.fleet
            await until(lambda: fleet.members[worker_id].state == "alive", START_S)
            with pytest.raises(SessionLost):
                await client.interact(session, guess(1))
            assert (await play(client, 0))[-1].reward == 1.0


async def forgotten_by_its_controller(served: Stack, port: int) -> None:
    """A controller that knows nothing of a session cancels it at the worker, and says that it is lost."""
    async with served.client(cancel_on_close=False) as client:
        session = (await client.start_sample("guess-std", 0)).session_id
        served.controller._link.stubs.clear()
        beat = {"name": "guess-std", "address": f"http://127.0.0.1:{port}/api", "concurrency": 2, "indices": [0]}
        assert (await ask(served.url, "POST", "/api/receive_heartbeat", beat)).status == 200
        with pytest.raises(SessionLost):
            await client.interact(session, guess(1))
        async with asyncio.timeout(10):
            while (await ask(f"http://127.0.0.1:{port}", "GET", "/api/worker_status")).body["current"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def killed(served: Stack, process: asyncio.subprocess.Process) -> str:
    """A session on a worker that dies is an error, and never hangs."""
    async with served.client(cancel_on_close=False, timeout_s=2.0) as client:
        session = (await client.start_sample("guess-std", 0)).session_id
        process.kill()
        await process.wait()
        with pytest.raises(InfrastructureError):
            await client.interact(session, guess(1))
    return session
