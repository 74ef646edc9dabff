"""The blocking façade: the same client from many threads, with deadlines, closed cleanly."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from toys import counter_task, rude_task

from agentbench_fc.client import LocalClient, SyncClient
from agentbench_fc.episode import ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError, Gone, InfrastructureError, NotFound
from agentbench_fc.messages import Message, ToolCall, assistant


def call(name: str, **arguments: Any) -> list[Message]:
    return [assistant(None, [ToolCall("c1", name, json.dumps(arguments))])]


@pytest.fixture
def client() -> Iterator[SyncClient]:
    with SyncClient(LocalClient(tasks={"counter": counter_task(), "rude": rude_task()})) as client:
        yield client


def test_all_methods_are_there(client: SyncClient) -> None:
    turn = client.start_sample("counter", 0, split="train", seed=3)
    child = client.fork(turn.session_id)
    client.interact(turn.session_id, call("add", number=1), turn=1)
    assert client.interact(turn.session_id, call("submit"), turn=2).reward == 1.0
    assert [info.session_id for info in client.list_sessions()] == [child.session_id]
    assert client.renew(child.session_id).turn == 0
    assert client.cancel(child.session_id).finish
    assert client.list_workers()[0].finished == 2
    assert client.samples("counter", "dev") == ["counter/dev/0", "counter/dev/1"]
    assert client.get_indices("counter") == [0, 1, 2, 3, 4]
    with pytest.raises(NotFound):
        client.start_sample("nothing")


def test_sixteen_threads_share_it(client: SyncClient) -> None:
    wins: list[float | None] = []

    def play(n: int) -> None:
        for k in range(12):
            target = 1 + (n + k) % 5
            turn = client.start_sample("counter", target - 1)
            for number in range(target):
                turn = client.interact(turn.session_id, call("add", number=1), turn=number + 1)
            wins.append(client.interact(turn.session_id, call("submit")).reward)

    threads = [threading.Thread(target=play, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wins == [1.0] * (16 * 12)


def test_a_deadline_is_an_infrastructure_error_and_the_session_lives() -> None:
    release = threading.Event()

    class Slow(ToolEpisode):
        def start(self) -> str:
            return "Go."

        @tool
        def work(self) -> str:
            """Works."""
            release.wait(20)
            return "done"

    task = make_task(Slow, samples={"train": [{}]})
    with SyncClient(LocalClient(tasks={"slow": task}), timeout_s=2.0) as client:
        turn = client.start_sample("slow")
        with pytest.raises(InfrastructureError, match=r"no answer within 2 s"):
            client.interact(turn.session_id, call("work"), turn=1)
        release.set()
        while client.list_sessions()[0].busy:
            time.sleep(0.01)
        assert client.interact(turn.session_id, call("work"), turn=1).messages[0]["content"] == "done"


def test_after_the_close_calls_are_refused_and_the_thread_is_gone(client: SyncClient) -> None:
    turn = client.start_sample("counter")
    client.close()
    client.close()
    assert not client._thread.is_alive()
    for act in (lambda: client.interact(turn.session_id, call("submit")), client.list_sessions):
        with pytest.raises(CallerError, match="was closed"):
            act()
    with pytest.raises(Gone, match="the client was closed"):
        asyncio.run(client._client.interact(turn.session_id, call("submit")))


def test_a_blocking_call_on_its_own_loop_is_refused(client: SyncClient) -> None:
    async def inside() -> None:
        client.list_sessions()

    with pytest.raises(CallerError, match="own event loop"):
        asyncio.run_coroutine_threadsafe(inside(), client._loop).result(10)


def test_closing_while_a_call_waits_fails_that_call() -> None:
    client = SyncClient(LocalClient(tasks={"rude": rude_task()}))
    turn = client.start_sample("rude")
    heard: list[BaseException | str] = []

    def wait() -> None:
        try:
            heard.append(str(client.interact(turn.session_id, call("hangs")).status))
        except (CallerError, InfrastructureError) as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    client.close()
    thread.join(20)
    assert len(heard) == 1


def test_an_impossible_deadline_is_refused() -> None:
    with pytest.raises(CallerError, match="Use seconds > 0"):
        SyncClient(LocalClient(), timeout_s=0)


def test_a_script_that_forgets_to_close_ends_clean_and_its_sessions_are_ended(tmp_path: Any) -> None:
    code = """
import sys
from agentbench_fc.client import LocalClient, SyncClient
from toys import counter_task
client = SyncClient(LocalClient(tasks={"counter": counter_task()}, transcripts=sys.argv[1]))
client.start_sample("counter", 0)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])}
    path = tmp_path / "t.jsonl"
    out = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, "")
    assert '"the client was closed"' in path.read_text()
