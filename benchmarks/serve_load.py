"""Turns per second over HTTP: our worker directly, our worker through the controller, and AgentRL's worker.

    python benchmarks/serve_load.py                          # the three columns, and their ratios
    python benchmarks/serve_load.py --sessions-open 10000    # so many sessions open at once behind one controller

One toy task (a sum that a tool adds to), one client, one run: the columns are measured in turn, round by round, so that
a machine that slows down slows them all. The client is a process of its own that keeps one connection per session and
sends the next turn when it has read the last; it checks every answer. Access logs are off everywhere. AgentRL's worker
is the package `agentrl-worker` 0.4.0, installed as it comes into an environment of its own below the cache folder
(`--reference PYTHON` names another one); where it cannot be installed its column is left out and the reason printed.
Its task is asynchronous code on the event loop, which is its quickest way; ours are blocking tools with deadlines.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.cache import cache_dir

DIRECT_BOUND, GATEWAY_BOUND = 3.0, 1.5
REFERENCE = "agentrl-worker==0.4.0"
TURNS = 40
HERE = Path(__file__).resolve()

OURS = '''
from agentbench_fc.episode import ToolEpisode, make_task, tool

class Adder(ToolEpisode):
    """A sum."""

    max_turns = 1_000_000

    def start(self):
        self.total = 0
        return "Add numbers."

    @tool
    def add(self, number: int):
        """Adds a number.

        Args:
            number: What to add.
        """
        self.total += number
        return f"The total is {self.total}."

TASK = make_task(Adder, samples={"train": [{}]}, name="adder")
'''

THEIRS = """
import json, logging, sys
import uvicorn
from agentrl.worker.task import Task
from agentrl.worker.task_worker import TaskWorker
from agentrl.worker.typings import SampleStatus, TaskSampleExecutionResult

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds a number.", "parameters": {
    "type": "object", "properties": {"number": {"type": "integer", "description": "What to add."}},
    "required": ["number"], "additionalProperties": False}}}]

class Adder(Task):
    def __init__(self):
        super().__init__("adder", concurrency=100_000, tools=TOOLS, full_async=True)

    def get_indices(self):
        return [0]

    async def start_sample(self, index, session):
        total = 0
        session.inject({"role": "user", "content": "Add numbers."})
        for _ in range(1_000_000):
            response = await session.action()
            for message in response.messages:
                for call in message.get("tool_calls") or []:
                    total += json.loads(call["function"]["arguments"])["number"]
                    session.inject({"role": "tool", "tool_call_id": call["id"], "content": f"The total is {total}."})
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)

logging.disable(logging.CRITICAL)
run = uvicorn.run
uvicorn.run = lambda app, **options: run(app, access_log=False, log_level="critical", **options)
TaskWorker(Adder(), "http://127.0.0.1:1/api").run(host="127.0.0.1", port=int(sys.argv[1]))
"""


class Connection:
    """HTTP/1.1 on one kept-alive connection, as little as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> "Connection":
        """Opens one."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def post(self, path: str, body: dict[str, Any], headers: str = "") -> dict[str, Any]:
        """One exchange; anything but 200 ends the run."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
        self._writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        value: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{answer[:20]!r} {value}")
        return value

    def close(self) -> None:
        """Closes it."""
        self._writer.close()


def turn(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": '{"number": 1}'}}
    return [{"role": "assistant", "content": "I add one.", "tool_calls": [call]}]


Play = Callable[[int, int], Any]


async def play_ours(port: int, session: int, *, direct: bool = True, seconds: list[float]) -> None:
    connection = await Connection.to(port)
    opened = await connection.post("/v1/start_sample", {"task": "adder", "sample": 0, "seed": session})
    session_id, headers = opened["session_id"], f"x-session-id: {opened['session_id']}\r\n"
    if direct:
        connection.close()
        connection = await Connection.to(int(opened["address"].rpartition(":")[2]))
        headers += f"authorization: Session {opened['token']}\r\n"
    for number in range(1, TURNS + 1):
        began = time.perf_counter()
        body = {"session_id": session_id, "messages": turn(number), "turn": number}
        answer = await connection.post("/v1/interact", body, headers)
        seconds.append(time.perf_counter() - began)
        assert answer["messages"][0]["content"] == f"The total is {number}."
    await connection.post("/v1/cancel", {"session_id": session_id}, headers)
    connection.close()


async def play_theirs(port: int, session: int, *, seconds: list[float]) -> None:
    connection = await Connection.to(port)
    await connection.post("/api/start_sample", {"index": 0, "session_id": session})
    for number in range(1, TURNS + 1):
        began = time.perf_counter()
        answer = await connection.post("/api/interact", {"session_id": session, "messages": turn(number)})
        seconds.append(time.perf_counter() - began)
        assert answer["env_out"]["messages"][-1]["content"] == f"The total is {number}."
    await connection.post("/api/cancel", {"session_id": session})
    connection.close()


async def load(kind: str, port: int, sessions: int, first: int) -> tuple[float, list[float]]:
    """Plays so many sessions at once; seconds as a whole, and of each turn."""
    seconds: list[float] = []
    plays = {
        "direct": lambda n: play_ours(port, n, seconds=seconds),
        "gateway": lambda n: play_ours(port, n, direct=False, seconds=seconds),
        "agentrl": lambda n: play_theirs(port, n, seconds=seconds),
    }
    began = time.perf_counter()
    await asyncio.gather(*(plays[kind](first + n) for n in range(sessions)))
    return time.perf_counter() - began, seconds


@dataclass
class Column:
    """What was measured of one system."""

    name: str
    port: int
    rates: list[float]
    seconds: list[float]


def measure(columns: list[Column], sessions: int, rounds: int) -> None:
    """Round by round, in alternating order; each load runs in a process of its own."""
    for number in range(-1, rounds):  # the first round warms up
        for column in columns if number % 2 else reversed(columns):
            first = (number + 2) * sessions
            command = [sys.executable, str(HERE), "--client", column.name, str(column.port), str(sessions), str(first)]
            out = subprocess.run(command, check=True, capture_output=True, timeout=600, text=True).stdout
            took, seconds = json.loads(out)
            if number >= 0:
                column.rates.append(sessions * TURNS / took)
                column.seconds += seconds


def percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def reference(python: str | None) -> tuple[str | None, str]:
    """An interpreter that has AgentRL's worker, or the reason why there is none."""
    if python is not None:
        return python, ""
    folder = cache_dir() / "agentrl-worker-0.4.0"
    executable = folder / "bin" / "python"
    marker = folder / "complete"
    if not marker.exists():
        print(f"installing {REFERENCE} into {folder}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=120)
            command = [str(executable), "-m", "pip", "install", "-q", REFERENCE]
            subprocess.run(command, check=True, capture_output=True, timeout=300, text=True)
        except (subprocess.SubprocessError, OSError) as error:
            words = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return None, words[-1] if words else repr(error)
        marker.touch()
    return str(executable), ""


class Servers:
    """Processes of this benchmark, ended together."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="serve-load-"))
        (self.folder / "ours.py").write_text(OURS)
        (self.folder / "theirs.py").write_text(THEIRS)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """One more process."""
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def ours(self, workers: int, capacity: int) -> int:
        """A controller and its workers; the controller's port."""
        ready = [self.folder / f"ready-{n}" for n in range(workers + 1)]
        cli = [sys.executable, "-m", "agentbench_fc.cli"]
        self.start([*cli, "controller", "--port", "0", "--heartbeat", "1", "--ready-file", str(ready[0])])
        url = wait_for(lambda: ready[0].read_text() if ready[0].exists() else "")
        for n in range(1, workers + 1):
            task = f"{self.folder / 'ours.py'}:TASK"
            options = ["--controller", url, "--name", f"w{n}", "--capacity", str(capacity), "--idle-timeout", "0"]
            self.start([*cli, "worker", task, *options, "--drain", "1", "--ready-file", str(ready[n])])
        for file in ready[1:]:
            wait_for(lambda file=file: file.read_text() if file.exists() else "")  # type: ignore[misc]
        return int(url.rpartition(":")[2])

    def theirs(self, python: str) -> int:
        """AgentRL's worker; its port."""
        import socket

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        self.start([python, str(self.folder / "theirs.py"), str(port)])

        def answers() -> str:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
            except OSError:
                return ""
            return "yes"

        wait_for(answers)
        return port

    def rss(self) -> list[int]:
        """Resident bytes of each process."""
        out = []
        for process in self._processes:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            out.append(pages * os.sysconf("SC_PAGE_SIZE"))
        return out

    def stop(self) -> None:
        """Ends them all."""
        for process in reversed(self._processes):  # the controller last, so that its workers can say goodbye
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(condition: Callable[[], str], seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise RuntimeError(f"nothing after {seconds:g} s")


def compare_rates(options: argparse.Namespace) -> int:
    python, why = reference(options.reference)
    servers = Servers()
    try:
        port = servers.ours(1, 100_000)
        columns = [Column("direct", port, [], []), Column("gateway", port, [], [])]
        if python is not None:
            columns.append(Column("agentrl", servers.theirs(python), [], []))
        else:
            print(f"agentrl-worker left out: {why}")
        measure(columns, options.sessions, options.rounds)
    finally:
        servers.stop()
    print(
        f"{options.sessions} sessions at once, {TURNS} turns each, {options.rounds} rounds, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for column in columns:
        p50, p99 = (1000 * percentile(column.seconds, share) for share in (0.5, 0.99))
        rate = statistics.median(column.rates)
        print(f"{column.name:<8} {rate:7.0f} turns/s   p50 {p50:6.1f} ms   p99 {p99:6.1f} ms")
    if python is None:
        return 0
    theirs = columns[2]
    missed = False
    for column, bound in zip(columns, (DIRECT_BOUND, GATEWAY_BOUND), strict=False):
        ratios = sorted(a / b for a, b in zip(column.rates, theirs.rates, strict=True))
        slower = percentile(column.seconds, 0.99) / percentile(theirs.seconds, 0.99)
        ratio = statistics.median(ratios)
        print(
            f"{column.name} / agentrl-worker 0.4.0: {ratio:.2f}x [{ratios[0]:.2f}, {ratios[-1]:.2f}] "
            f"(bound {bound:g}x), p99 {slower:.2f}x (bound 1x)"
        )
        missed |= ratio < bound or slower > 1
    return int(missed)


@asynccontextmanager
async def pool_of(port: int, size: int) -> AsyncIterator["asyncio.Queue[Connection]"]:
    queue: asyncio.Queue[Connection] = asyncio.Queue()
    connections = [await Connection.to(port) for _ in range(size)]
    for connection in connections:
        queue.put_nowait(connection)
    yield queue
    for connection in connections:
        connection.close()


async def keep_open(port: int, count: int, turns: int, servers: Servers) -> tuple[float, int]:
    """Opens sessions through the controller, plays some turns of each, ends them; seconds and bytes of all servers."""
    before = sum(servers.rss())
    began = time.perf_counter()
    async with pool_of(port, 128) as connections:

        async def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
            connection = await connections.get()
            try:
                return await connection.post(path, body)
            finally:
                connections.put_nowait(connection)

        opened = await asyncio.gather(
            *(call("/v1/start_sample", {"task": "adder", "sample": 0, "seed": n}) for n in range(count))
        )
        ids = [answer["session_id"] for answer in opened]
        assert len(set(ids)) == count
        for number in range(1, turns + 1):
            answers = await asyncio.gather(
                *(call("/v1/interact", {"session_id": i, "messages": turn(number), "turn": number}) for i in ids)
            )
            assert all(answer["messages"][0]["content"] == f"The total is {number}." for answer in answers)
        used = sum(servers.rss()) - before
        took = time.perf_counter() - began
        ends = await asyncio.gather(*(call("/v1/cancel", {"session_id": i}) for i in ids))
        assert all(answer["finish"] for answer in ends)
    return took, used


def open_many(options: argparse.Namespace) -> int:
    servers = Servers()
    try:
        port = servers.ours(options.workers, options.sessions_open)
        took, used = asyncio.run(keep_open(port, options.sessions_open, options.turns, servers))
    finally:
        servers.stop()
    calls = options.sessions_open * (options.turns + 1)
    print(
        f"{options.sessions_open} sessions open at once behind one controller and {options.workers} workers, "
        f"{options.turns} turns each through the gateway: no error, {calls / took:.0f} calls/s, "
        f"{used / options.sessions_open:.0f} B per session over all processes, load {os.getloadavg()[0]:.1f}"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=textwrap.shorten(__doc__ or "", 200))
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reference", help="A Python that has agentrl-worker 0.4.0.")
    parser.add_argument("--sessions-open", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        kind, port, sessions, first = options.client
        print(json.dumps(asyncio.run(load(kind, int(port), int(sessions), int(first)))))
        return 0
    return open_many(options) if options.sessions_open else compare_rates(options)


if __name__ == "__main__":
    sys.exit(main())
