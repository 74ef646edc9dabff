"""Chaos: real processes behind a bad network, killed, stopped and restarted at random while sessions run.

Every session ends in exactly one of two ways: finished with the right reward, or a reported infrastructure error. None
is lost, doubled or stuck, and all slots come back.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from client_toys import call
from serve_stack import ask
from tcp_proxy import Proxy

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.serve.client import HttpClient

TASK = f"{Path(__file__).parents[1] / 'toys_as_task.py'}:TASK"
HEARTBEAT_S = 0.5
IDLE_S = 20.0
KINDS = ("lost answers", "doubled requests", "delays", "refused")


@contextlib.contextmanager
def kept_ports(count: int) -> Iterator[list[int]]:
    """Ports that nobody else gets within the block, although the processes that listen there come and go.

    A socket that is bound and does not listen keeps each: others are not given it, and who asks for it by its number
    with SO_REUSEADDR, as our servers do, may listen.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            ports.append(int(sock.getsockname()[1]))
        yield ports


@dataclass
class Cluster:
    """A controller and workers as processes, each behind a proxy."""

    ports: list[int]
    proxies: list[Proxy]
    log: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return self.proxies[0].url

    def command(self, number: int) -> list[str]:
        cli = [sys.executable, "-m", "agentbench_fc.cli"]
        own = ["--port", str(self.ports[number])]
        if number == 0:
            return [*cli, "controller", *own, "--heartbeat", str(HEARTBEAT_S)]
        controller = f"http://127.0.0.1:{self.ports[0]}"
        options = ["--controller", controller, "--name", f"w{number}", "--advertise", self.proxies[number].url]
        return [*cli, "worker", TASK, *own, *options, "--idle-timeout", str(IDLE_S), "--drain", "1"]

    def start(self, number: int) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.command(number), stdout=log, stderr=log, start_new_session=True)
        if number < len(self.processes):
            self.processes[number] = process
        else:
            self.processes.append(process)

    def kill(self, number: int) -> None:
        """At once: whoever is cancelled over it must not leave a process behind that only seems to live."""
        self.deeds["controller killed" if number == 0 else "worker killed"] += 1
        self.processes[number].kill()
        self.processes[number].wait(10)

    async def ready(self, workers: int) -> None:
        """Until all are, in their own words and in the controller's, which may take a dead one for alive a while."""
        async with asyncio.timeout(100):
            while True:
                try:
                    present = {(await self.row(number))["worker_id"] for number in range(1, workers + 1)}
                    rows = (await ask(f"http://127.0.0.1:{self.ports[0]}", "GET", "/v1/list_workers")).body["workers"]
                    if {row["worker_id"] for row in rows if row["status"] == "alive"} == present:
                        return
                except (OSError, aiohttp.ClientError):
                    pass  # not there yet
                await asyncio.sleep(0.1)

    async def row(self, number: int) -> dict[str, Any]:
        """What a worker says of itself."""
        (row,) = (await ask(f"http://127.0.0.1:{self.ports[number]}", "GET", "/v1/list_workers")).body["workers"]
        return dict(row)

    async def taken(self) -> int:
        """Slots in use, as the workers themselves say."""
        return sum([(await self.row(number))["sessions"] for number in range(1, len(self.ports))])


@contextlib.asynccontextmanager
async def cluster(workers: int, folder: Path) -> AsyncIterator[Cluster]:
    with kept_ports(workers + 1) as ports:
        proxies = [await Proxy.before(f"http://127.0.0.1:{port}") for port in ports]
        made = Cluster(ports, proxies, folder / "log")
        try:
            for number in range(workers + 1):
                made.start(number)
            await made.ready(workers)
            yield made
        finally:
            for process in made.processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
            for process in made.processes:
                await asyncio.to_thread(process.wait, 10)
            for proxy in proxies:
                await proxy.aclose()


async def monkey(made: Cluster, seed: int) -> None:
    """Kills, stops and restarts, until it is cancelled."""
    dice = random.Random(seed)
    workers = range(1, len(made.ports))
    deeds = ["kill worker", "kill controller", "stop worker", "stop controller", "kill worker"]
    for round_number in itertools.count():
        for n, proxy in enumerate(made.proxies):
            proxy.misbehave(dice.choice(KINDS), share=0.05, seed=dice.randrange(2**31) + n)
        await asyncio.sleep(dice.uniform(0.5, 1.5) if round_number else 0.3)
        deed = dice.choice(deeds) if round_number else "kill worker"  # however fast the machine, one worker dies
        number = 0 if "controller" in deed else dice.choice(workers)
        if deed.startswith("kill"):
            made.kill(number)
            await asyncio.sleep(dice.uniform(0.0, 1.0))
            made.start(number)
        else:
            made.deeds[deed] += 1
            os.kill(made.processes[number].pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(dice.uniform(0.5, 6.0 if number else 2.0))
            finally:
                os.kill(made.processes[number].pid, signal.SIGCONT)


async def play(client: HttpClient, target: int) -> str:
    """One session to its end; how it ended."""
    try:
        turn = await client.start_sample("counter", target - 1)
        for number in range(1, target + 1):
            turn = await client.interact(turn.session_id, call("add", number=1), number)
            await asyncio.sleep(0.03)  # a model thinks
        turn = await client.interact(turn.session_id, call("submit"), target + 1)
    except InfrastructureError as error:
        return f"reported: {type(error).__name__}"
    assert turn.finish
    return "right" if turn.reward == 1.0 else f"wrong: {turn.status}, {turn.reward}, {turn.messages}"


async def storm(folder: Path, sessions: int, at_once: int, seed: int) -> Counter[str]:
    async with cluster(4, folder) as made, contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                HttpClient(made.url, direct=direct, rebuild=rebuild, timeout_s=60, attempt_timeout_s=3, start_wait_s=60)
            )
            for direct, rebuild in ((True, False), (False, False), (True, True))
        ]
        gate = asyncio.Semaphore(at_once)
        ends: Counter[str] = Counter()

        async def one(number: int) -> None:
            async with gate:
                ends[await play(clients[number % 3], number % 5 + 1)] += 1

        evil = asyncio.create_task(monkey(made, seed))
        try:
            async with asyncio.timeout(60 + sessions), asyncio.TaskGroup() as group:
                for number in range(sessions):
                    group.create_task(one(number))
        finally:
            evil.cancel()
            await asyncio.gather(evil, return_exceptions=True)
        for proxy in made.proxies:
            proxy.misbehave("nothing")
        for number, process in enumerate(made.processes):
            if process.poll() is not None:
                made.start(number)
        await made.ready(4)
        for client in clients:
            await client.aclose()
        async with asyncio.timeout(IDLE_S + 20):
            while await made.taken():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        print(f"seed {seed}: {dict(ends)}, {dict(made.deeds)}, {sum(p.faults for p in made.proxies)} network faults")
        assert made.deeds["worker killed"] >= 1
        assert sum(proxy.faults for proxy in made.proxies) >= sessions // 20
        return ends


def judge(ends: Counter[str], sessions: int) -> None:
    assert sum(ends.values()) == sessions
    bad = {end: count for end, count in ends.items() if end != "right" and not end.startswith("reported")}
    assert not bad
    assert ends["right"] >= sessions // 2


@pytest.mark.timeout(170)
async def test_200_sessions_on_4_workers_that_are_killed_at_random(tmp_path: Path) -> None:
    judge(await storm(tmp_path, sessions=200, at_once=12, seed=1), 200)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
async def test_2000_sessions_on_4_workers_that_are_killed_at_random(tmp_path: Path, seed: int) -> None:
    judge(await storm(tmp_path, sessions=2000, at_once=64, seed=seed), 2000)


async def away_and_back(made: Cluster, client: HttpClient) -> float:
    """A worker stands still until it is held dead, and goes on; the seconds from then until a start is done."""
    os.kill(made.processes[1].pid, signal.SIGSTOP)
    async with asyncio.timeout(30):
        while (await client.list_workers())[0].status != "dead":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    waiting = asyncio.create_task(client.start_sample("counter", 0))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    began = asyncio.get_running_loop().time()
    os.kill(made.processes[1].pid, signal.SIGCONT)
    await waiting
    return asyncio.get_running_loop().time() - began


async def test_a_returned_worker_serves_within_one_heartbeat(tmp_path: Path) -> None:
    async with cluster(1, tmp_path) as made:
        made.proxies[0].misbehave("nothing")
        async with HttpClient(made.url, timeout_s=60, start_wait_s=60, attempt_timeout_s=60) as client:
            kept = await client.start_sample("counter", 0)
            took = [await away_and_back(made, client)]
            while min(took) >= HEARTBEAT_S and len(took) < 8:  # the machine had no time for three processes just then
                took.append(await away_and_back(made, client))
            assert min(took) < HEARTBEAT_S, took
            await client.interact(kept.session_id, call("add", number=1), 1)  # nobody had reported it lost
            assert (await client.interact(kept.session_id, call("submit"), 2)).reward == 1.0
