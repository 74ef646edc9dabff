"""Real processes: the commands, their signals, their drain and restart, and a tree that ends as one."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from client_toys import call

from agentbench_fc.serve.client import HttpClient
from agentbench_fc.serve.faults import SessionLost

TASK = f"{Path(__file__).parents[1] / 'toys_as_task.py'}:TASK"
CLI = [sys.executable, "-m", "agentbench_fc.cli"]


class Processes:
    """Commands under test; what is left of them is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*CLI, *arguments],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def serving(self, name: str, *arguments: str, **env: str) -> tuple[subprocess.Popen[str], str]:
        ready = self.folder / name
        ready.unlink(missing_ok=True)
        process = self.start(*arguments, "--ready-file", str(ready), **env)
        return process, wait(lambda: ready.exists() and ready.read_text())

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


def wait(condition: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.03)
    raise AssertionError(f"nothing after {seconds} s")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=60)


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else gets: a bound socket keeps it, and does not hinder who listens with SO_REUSEADDR."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_tree_serves_and_ends_with_all_its_children(processes: Processes, port: int, end: signal.Signals) -> None:
    url = f"http://127.0.0.1:{port}"
    tree = processes.start("serve", TASK, "--port", str(port), "--workers", "2", "--drain", "0.5", "--heartbeat", "0.3")

    async def play() -> float | None:
        async with HttpClient(url, timeout_s=60, start_wait_s=30) as client:
            turn = await client.start_sample("counter", 0)
            await client.interact(turn.session_id, call("add", number=1), 1)
            return (await client.interact(turn.session_id, call("submit"), 2)).reward

    assert asyncio.run(play()) == 1.0
    alive = wait(lambda: len(found := children(tree.pid)) == 3 and found)
    tree.send_signal(end)
    tree.wait(60)  # beyond what children may take before they are killed
    assert tree.returncode == (-9 if end == signal.SIGKILL else 0)
    wait(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in alive), 10)


def test_a_child_that_dies_is_started_again(processes: Processes, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    tree = processes.start("serve", TASK, "--port", str(port), "--workers", "1", "--drain", "0.5", "--heartbeat", "0.3")

    async def play(client: HttpClient, turn: Any) -> float | None:
        await client.interact(turn.session_id, call("add", number=1), 1)
        return (await client.interact(turn.session_id, call("submit"), 2)).reward

    def find(word: str) -> psutil.Process:
        found = [child for child in children(tree.pid) if word in child.cmdline()]
        return found[0]

    async def story() -> None:
        async with HttpClient(url, timeout_s=60, start_wait_s=30) as client:
            kept, lost = [await client.start_sample("counter", 0) for _ in range(2)]
            find("controller").kill()
            assert await play(client, kept) == 1.0
            assert await play(client, await client.start_sample("counter", 0)) == 1.0
            find("worker").kill()
            with pytest.raises(SessionLost):
                await client.interact(lost.session_id, call("add", number=1), 1)
            assert await play(client, await client.start_sample("counter", 0)) == 1.0

    asyncio.run(story())
    tree.terminate()
    assert tree.wait(60) == 0


def test_a_worker_drains_on_sigterm_and_says_goodbye(processes: Processes) -> None:
    _, url = processes.serving("controller", "controller", "--port", "0", "--heartbeat", "0.3")
    worker, _ = processes.serving("worker", "worker", TASK, "--controller", url, "--name", "w1", "--drain", "20")

    async def story() -> None:
        async with HttpClient(url, timeout_s=60, start_wait_s=30) as client:
            turn = await client.start_sample("counter", 0)
            worker.terminate()
            async with asyncio.timeout(15):
                while (await client.list_workers())[0].status != "draining":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await client.interact(turn.session_id, call("add", number=1), 1)
            assert worker.poll() is None
            assert (await client.interact(turn.session_id, call("submit"), 2)).reward == 1.0
            assert await asyncio.to_thread(worker.wait, 60) == 0
            assert (await client.list_workers())[0].status == "dead"
            with pytest.raises(SessionLost, match="it was stopped"):
                await client.interact(turn.session_id, call("submit"), 2)

    asyncio.run(story())


def test_the_tables_and_their_json(processes: Processes) -> None:
    _, url = processes.serving("controller", "controller", "--port", "0", "--heartbeat", "0.3")
    processes.serving("worker", "worker", TASK, "--controller", url, "--name", "w1", "--capacity", "counter=7")

    async def story() -> None:
        async with HttpClient(url, start_wait_s=30, client_id="me") as client:
            await client.start_sample("counter", 0)
            for arguments, words in (
                (("sessions",), ("counter/train/0", "me", "1 open sessions")),
                (("workers",), ("counter 1/7", "alive", "1 workers")),
            ):
                shown = await asyncio.to_thread(run, *arguments, "--url", url)
                assert shown.returncode == 0, shown.stderr
                for word in words:
                    assert word in shown.stdout
                as_json = await asyncio.to_thread(run, *arguments, "--url", url, "--json")
                assert len(json.loads(as_json.stdout)[arguments[0]]) == 1

    asyncio.run(story())


def test_a_hanging_worker_replaces_itself(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        "import time\n"
        "from agentbench_fc.episode import ToolEpisode, make_task, tool\n"
        "class Hangs(ToolEpisode):\n"
        "    call_timeout_s = 0.1\n"
        "    def start(self): return 'Go.'\n"
        "    @tool\n"
        "    def hang(self):\n"
        "        '''Hangs.'''\n"
        "        time.sleep(1000)\n"
        "TASK = make_task(Hangs, samples={'train': [{}]})\n"
    )
    task = f"{tmp_path / 'hangs.py'}:TASK"
    _, url = processes.serving("controller", "controller", "--port", "0", "--heartbeat", "0.3")
    worker, _ = processes.serving(
        *("worker", "worker", task, "--controller", url, "--name", "w1", "--drain", "0.5", "--max-abandoned", "2")
    )

    async def story() -> None:
        async with HttpClient(url, timeout_s=60, start_wait_s=30) as client:
            first = await client.start_sample("hangs", 0)
            for _ in range(2):
                turn = await client.start_sample("hangs", 0)
                await client.interact(turn.session_id, call("hang"), 1)
            async with asyncio.timeout(30):
                while True:
                    turn = await client.start_sample("hangs", 0)
                    if turn.session_id.partition(".")[0] != first.session_id.partition(".")[0]:
                        break
                    await asyncio.sleep(0.1)

    asyncio.run(story())
    assert worker.poll() is None  # the same process, a new incarnation


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("serve", "kgg"), 2, "Did you mean 'kg'?"),
        (("serve", "no/such.py:TASK"), 2, "no such file"),
        (("worker", "db", "--capacity", "db=none"), 2, "is no capacity"),
        (("worker", "db", "--capacity", "kg=3"), 2, "which is not served"),
        (("worker", "db", "--name", "a.b"), 2, "Use letters, digits"),
        (("worker", "db", "--host", "0.0.0.0"), 2, "there is no token"),
        (("worker", "db", "--allow-option", "level"), 2, "is no option"),
        (("controller", "--heartbeat", "0"), 2, "Use seconds > 0"),
        (("workers", "--url", "http://127.0.0.1:9"), 4, "no connection"),
    ],
)
def test_bad_command_lines_end_in_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert words in ended.stderr
    assert sum(line.startswith("agentbench-fc: ") for line in ended.stderr.splitlines()) == 1


def test_help_is_cheap() -> None:
    script = (
        "import sys\nfrom agentbench_fc.cli import main\nsys.argv = ['agentbench-fc', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted(m for m in ('fastapi', 'uvicorn', 'aiohttp', 'prometheus_client') if m in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stdout + ended.stderr
    assert "serve" in ended.stdout
