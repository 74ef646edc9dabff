"""Wire v1 itself: statuses, error bodies, tokens, limits, options, and the committed OpenAPI documents."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from client_toys import call, gates, slow_task, until
from serve_stack import ask, stack
from toys import counter_task

from agentbench_fc.errors import CallerError, InfrastructureError, Unavailable
from agentbench_fc.serve import calls
from agentbench_fc.serve.client import HttpClient
from agentbench_fc.serve.faults import STATUSES, SessionLost, Unauthorized, WorkerSuspect, from_wire, to_wire
from agentbench_fc.serve.http import Limits
from agentbench_fc.serve.openapi import documents, text
from agentbench_fc.serve.server import bind

START = {"task": "counter", "sample": 0}
TOKEN = "a-long-random-token"


def test_the_committed_documents_are_those_of_the_code() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name, document in documents().items():
        assert (docs / name).read_text(encoding="utf-8") == text(document), "python -m agentbench_fc.serve.openapi docs"


@pytest.mark.parametrize("kind", [*STATUSES, SessionLost, WorkerSuspect], ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind: type[Exception]) -> None:
    error = kind("it broke [here]. Mend it.")
    status, body, headers = to_wire(error)  # type: ignore[arg-type]
    again = from_wire(status, json.loads(json.dumps({"error": body})))
    assert (type(again), str(again)) == (kind, str(error))
    assert (again.retryable, again.fault) == (body["retryable"], body["fault"])
    assert bool(headers) == body["retryable"]
    assert status == 500 or 400 <= status < 500 or body["fault"] in {"environment", "worker"}


@pytest.mark.parametrize("status", [400, 404, 413, 418, 429, 500, 502, 504])
def test_answers_of_other_servers_are_judged_by_their_status(status: int) -> None:
    for body in (None, [], {"detail": "nginx"}, {"error": "x"}):
        error = from_wire(status, body)
        assert isinstance(error, InfrastructureError if status in {429, 500, 502, 504} else CallerError)


async def test_statuses() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with stack({"counter": counter_task(), "slow": task}, default_capacity=3) as served:
        for url in (served.url, served.workers[0].address):

            async def post(name: str, body: Any, url: str = url, **options: Any) -> Any:
                return await ask(url, "POST", f"/v1/{name}", body, **options)

            opened = await post("start_sample", START)
            assert opened.status == 200
            session = opened.body["session_id"]
            say = {"session_id": session, "messages": call("add", number=1)}
            cases = [
                (404, "NotFound", await post("start_sample", {"task": "kounter"})),
                (404, "NotFound", await post("start_sample", {"task": "counter", "sample": 99})),
                (404, "NotFound", await post("interact", {"session_id": "x", "messages": []})),
                (404, "NotFound", await ask(url, "GET", "/v1/nothing")),
                (405, "CallerError", await ask(url, "GET", "/v1/interact")),
                (409, "Conflict", await post("interact", say | {"turn": 7})),
                (422, "CallerError", await post("interact", say | {"messages": []})),
                (422, "CallerError", await post("interact", say | {"messages": [{"role": "user"}]})),
                (422, "CallerError", await post("interact", {"session_id": session})),
                (422, "CallerError", await post("interact", say | {"surprise": 1})),
                (422, "CallerError", await post("interact", say | {"turn": True})),
                (422, "CallerError", await post("interact", None, raw=b"{")),
                (422, "CallerError", await post("interact", None, raw=b"[" * 100_000)),
                (422, "CallerError", await post("interact", None, raw=b'"\xff"')),
                (422, "CallerError", await post("interact", None, raw=b"")),
                (422, "CallerError", await post("start_sample", START | {"wait_s": 1e9})),
                (422, "CallerError", await post("start_sample", START | {"profile": "agentbnech"})),
                (422, "CallerError", await post("cancel", {"session_id": session, "status": "completed"})),
                (422, "CallerError", await post("cancel", {})),
                (422, "CallerError", await ask(url, "GET", "/v1/get_indices")),
                (422, "CallerError", await ask(url, "GET", "/v1/get_indices?task=counter&options=%7B")),
                (422, "CallerError", await ask(url, "GET", "/v1/get_indices?task=counter&task=counter")),
                (404, "NotFound", await ask(url, "GET", "/v1/get_indices?task=counter&split=tset")),
            ]
            for status, kind, answer in cases:
                error = answer.body["error"]
                assert (answer.status, error["type"]) == (status, kind), answer
                assert set(error) == {"type", "message", "retryable", "fault"}
                assert (error["fault"], error["retryable"]) == ("client", False)
            await post("cancel", {"session_id": session})
            gone = await post("interact", say)
            assert (gone.status, gone.body["error"]["type"]) == (410, "Gone")

            full = [await post("start_sample", START) for _ in range(3)]
            refused = await post("start_sample", START | {"wait_s": 0.1})
            assert (refused.status, refused.body["error"]["type"]) == (429, "Unavailable")
            assert refused.headers["retry-after"] == "1"
            assert refused.body["error"]["retryable"] is True
            for each in full:
                await post("cancel", {"session_id": each.body["session_id"]})

            slow = (await post("start_sample", {"task": "slow", "sample": 0})).body["session_id"]
            gate.clear()
            entered.clear()
            body = {"session_id": slow, "messages": call("work"), "turn": 1}
            first = asyncio.create_task(post("interact", body | {"request_id": "request-1"}))
            await until(entered.is_set)
            busy = await post("interact", body)
            assert (busy.status, busy.body["error"]["type"]) == (409, "Conflict")
            same = asyncio.create_task(post("interact", body | {"request_id": "request-1"}))
            await asyncio.sleep(0.1)
            gate.set()
            assert (await first).body == (await same).body
            await post("cancel", {"session_id": slow})


async def test_a_start_with_the_same_request_id_is_the_same_session() -> None:
    async with stack({"counter": counter_task()}, workers=2) as served:
        body = START | {"request_id": "start-0001"}
        at_once = await asyncio.gather(*(ask(served.url, "POST", "/v1/start_sample", body) for _ in range(5)))
        later = await ask(served.url, "POST", "/v1/start_sample", body | {"retry": True})
        assert len({answer.body["session_id"] for answer in (*at_once, later)}) == 1
        assert sum(worker.taken for worker in served.workers) == 1
        session = later.body["session_id"]
        forks = [
            await ask(served.url, "POST", "/v1/fork", {"session_id": session, "request_id": "fork-0001"})
            for _ in range(2)
        ]
        assert forks[0].body["session_id"] == forks[1].body["session_id"] != session
        undone = await ask(served.url, "POST", "/v1/cancel", {"request_id": "start-0001"})
        assert undone.body == {"session_id": session}
        refused = await ask(served.url, "POST", "/v1/start_sample", START | {"request_id": "start-0002"})
        assert refused.status == 200
        never = await ask(served.url, "POST", "/v1/cancel", {"request_id": "start-0003"})
        assert never.body == {"session_id": None}
        late = await ask(served.url, "POST", "/v1/start_sample", START | {"request_id": "start-0003"})
        assert (late.status, "taken back" in late.body["error"]["message"]) == (422, True)


async def test_tokens() -> None:
    async with stack({"counter": counter_task()}, token=TOKEN) as served:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        worker = served.workers[0].address
        for url in (served.url, worker):
            for headers in ({}, {"Authorization": "Bearer wrong-token"}, {"Authorization": f"Basic {TOKEN}"}):
                for method, path in (("POST", "/v1/start_sample"), ("GET", "/v1/list_workers"), ("GET", "/metrics")):
                    answer = await ask(url, method, path, START if method == "POST" else None, headers=headers)
                    assert (answer.status, answer.body["error"]["type"]) == (401, "Unauthorized")
            for path in ("/healthz", "/readyz"):
                assert (await ask(url, "GET", path)).status == 200
            assert (await ask(url, "GET", "/metrics", headers=bearer)).status == 200
        opened = await ask(served.url, "POST", "/v1/start_sample", START, headers=bearer)
        other = await ask(served.url, "POST", "/v1/start_sample", START, headers=bearer)
        say = {"session_id": opened.body["session_id"], "messages": call("add", number=1), "turn": 1}
        for token, status in ((opened.body["token"], 200), (other.body["token"], 401), ("", 401)):
            answer = await ask(worker, "POST", "/v1/interact", say, headers={"Authorization": f"Session {token}"})
            assert answer.status == status
        for path in ("/v1/start_sample", "/v1/list_sessions"):
            method = "POST" if "start" in path else "GET"
            headers = {"Authorization": f"Session {opened.body['token']}"}
            answer = await ask(worker, method, path, START if method == "POST" else None, headers=headers)
            assert answer.status == 401
        guess = {"Authorization": "Bearer guess"}
        guesses = await asyncio.gather(*(ask(worker, "GET", "/v1/list_tasks", headers=guess) for _ in range(60)))
        assert 429 in {answer.status for answer in guesses}  # guessing is slowed down
        async with HttpClient(served.url, token=TOKEN) as client:
            assert len(await client.list_sessions()) == 2
        async with HttpClient(served.url) as client:
            with pytest.raises(Unauthorized, match="a token is missing"):
                await client.list_sessions()


def test_another_address_than_loopback_demands_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(CallerError, match="no token"):
            bind(host, 0, None)
    with pytest.raises(CallerError, match="shorter than 8"):
        bind("127.0.0.1", 0, "short")
    bind("0.0.0.0", 0, TOKEN).close()
    taken = bind("127.0.0.1", 0, None)
    taken.listen()
    with pytest.raises(InfrastructureError, match="cannot listen"):
        bind("127.0.0.1", taken.getsockname()[1], None)
    taken.close()


async def test_sizes_and_rates_are_bounded() -> None:
    limits = Limits(max_body=10_000, max_headers=2_000)
    async with stack({"counter": counter_task()}, limits=limits) as served:
        worker = served.workers[0].address
        large = await ask(worker, "POST", "/v1/interact", raw=b"x" * 10_001)
        assert (large.status, large.body["error"]["type"]) == (413, "TooLarge")

        async def parts() -> Any:
            for _ in range(20):
                yield b"x" * 1000

        import aiohttp

        async with aiohttp.ClientSession() as session, session.post(f"{worker}/v1/interact", data=parts()) as reply:
            assert reply.status == 413
        headers = await ask(worker, "GET", "/healthz", headers={"X-Filler": "x" * 2_001})
        assert headers.status == 431
    async with stack({"counter": counter_task()}, limits=Limits(rate=3.0)) as served:
        worker = served.workers[0].address
        statuses = [(await ask(worker, "GET", "/healthz")).status for _ in range(60)]
        assert statuses[0] == 200
        assert {200, 429} == set(statuses), "3 a second, even where a request takes a quarter of one"


async def test_a_head_that_never_ends_is_cut_off() -> None:
    async with stack({"counter": counter_task()}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012
            for n in range(2000):
                writer.write(f"x-{n}: {'y' * 100}\r\n".encode())
                await writer.drain()
            await reader.readexactly(1)
        writer.close()
        assert (await ask(served.url, "GET", "/healthz")).status == 200


async def test_only_harmless_options_come_over_the_wire(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    async with stack(tasks=None, workers=0) as served:
        from agentbench_fc.serve.config import WorkerConfig

        await served.add(WorkerConfig(tasks=("db",), name="w1", max_variants=3))
        for options in (
            {"data": str(tmp_path / "secret")},
            {"backend": "mariadb"},
            {"max_turns": 10**9},
            {"max_turns": True},
            {"call_timeout_s": None},
            {"call_timeout_s": 1e9},
        ):
            answer = await ask(served.url, "POST", "/v1/start_sample", {"task": "db", "options": options})
            assert answer.status == 422, options
            assert "over the wire" in answer.body["error"]["message"].lower()
        for task in (f"{tmp_path / 'evil.py'}:TASK", "os.system", "../../etc/passwd", "kg"):
            assert (await ask(served.url, "POST", "/v1/start_sample", {"task": task})).status == 404
        for n in (3, 4):
            answer = await ask(
                served.url, "POST", "/v1/start_sample", {"task": "db", "split": "dev", "options": {"max_turns": n}}
            )
            assert answer.status == 200
        answer = await ask(
            served.url,
            "POST",
            "/v1/start_sample",
            {"task": "db", "split": "dev", "prompt": "compact", "options": {"max_turns": 5}},
        )
        assert answer.status == 200
        answer = await ask(served.url, "POST", "/v1/start_sample", {"task": "db", "options": {"max_turns": 6}})
        assert (answer.status, "combinations" in answer.body["error"]["message"]) == (422, True)


async def test_scores_over_results() -> None:
    async with stack({"counter": counter_task()}) as served, served.client() as client:
        rows: list[dict[str, Any]] = [
            {"sample": f"counter/dev/{n}", "repeat": r, "status": "completed", "reward": float(r), "success": bool(r)}
            for n in range(3)
            for r in range(2)
        ]
        scores = await client.calculate_overall("counter", rows)
        assert (scores["success"][0], scores["pass_at"]["2"], scores["episodes"]) == (0.5, 1.0, 6)
        for bad in (rows[0] | {"status": "running"}, rows[0] | {"reward": 2.0}, rows[0] | {"repeat": 10**9}):
            with pytest.raises(CallerError, match="malformed"):
                await client.calculate_overall("counter", [bad])
        assert (await client.calculate_overall("counter", []))["episodes"] == 0


async def test_metrics_tell_what_happened() -> None:
    async with stack({"counter": counter_task()}) as served, served.client() as client:
        turn = await client.start_sample("counter", 0)
        await client.interact(turn.session_id, call("nothing"))
        await client.interact(turn.session_id, call("add", number=1))
        await client.interact(turn.session_id, call("submit"))
        worker = (await ask(served.workers[0].address, "GET", "/metrics")).body.decode()
        for line in (
            'agentbench_fc_sessions_ended_total{status="completed",task="counter"} 1.0',
            'agentbench_fc_invalid_calls_total{task="counter"} 1.0',
            'agentbench_fc_calls_total{task="counter"} 3.0',
            'agentbench_fc_step_seconds_count{task="counter"} 3.0',
            'agentbench_fc_sessions_taken{task="counter"} 0.0',
        ):
            assert line in worker
        controller = (await ask(served.url, "GET", "/metrics")).body.decode()
        assert 'agentbench_fc_workers{state="alive"} 1.0' in controller
        assert 'agentbench_fc_start_queue_seconds_count{task="counter"} 1.0' in controller
        (task,) = await client.list_tasks()
        assert (task["task"], task["workers"], task["capacity"]) == ("counter", 1, 512)


async def test_without_workers_a_start_says_so() -> None:
    async with stack(workers=0) as served:
        assert (await ask(served.url, "GET", "/readyz")).status == 503
        async with served.client(start_wait_s=0.3) as client:
            with pytest.raises(Unavailable, match="no worker is there for it"):
                await client.start_sample("counter")


@pytest.mark.parametrize("url", ["localhost:5020", "ftp://x", "", "http://"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(CallerError, match="Use http://host:port"):
        HttpClient(url)


async def test_a_server_that_is_not_ours_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_GAPS_S", (100.0,))  # beyond the deadline: the first answer is the last

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=20) as client:
        with pytest.raises(InfrastructureError, match="Is it an agentbench-fc server"):
            await client.list_workers()
