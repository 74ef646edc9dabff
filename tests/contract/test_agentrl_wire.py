"""AgentRL's wire as our controller speaks it: names, session numbers, shapes and codes."""

import asyncio
from typing import Any

import pytest
from client_toys import call, gates, slow_task
from serve_stack import Answer, Stack, ask, stack
from toys import Counter, counter_task, rude_task

from agentbench_fc.episode import make_task
from agentbench_fc.errors import InfrastructureError
from agentbench_fc.serve.compat import session_number

SAY = {"messages": call("add", number=1)}


async def start(served: Stack, name: str = "counter", index: Any = 0, **more: Any) -> Answer:
    return await ask(
        served.url, "POST", "/api/start_sample", {"name": name, "index": index, "custom_task": None} | more
    )


async def interact(served: Stack, session: Any, body: Any = SAY) -> Answer:
    return await ask(served.url, "POST", "/api/interact", body, headers={"session_id": str(session)})


async def test_names_carry_a_split() -> None:
    samples = {"train": [{"target": 1}] * 5, "std": [{"target": 6}, {"target": 7}]}
    tasks = {"db": make_task(Counter, samples=samples, name="db"), "web-shop": counter_task()}
    async with stack(tasks) as served:
        counts = {"db": 5, "dbbench": 5, "db-std": 2, "dbbench-std": 2, "web-shop": 5, "web-shop-dev": 2}
        for name, count in counts.items():
            answer = await ask(served.url, "GET", f"/api/get_indices?name={name}")
            assert (answer.status, answer.body) == (200, list(range(count))), name
        opened = await start(served, "dbbench-std", 1)
        assert "7" in opened.body["messages"][-1]["content"]
        async with served.client() as client:
            (info,) = await client.list_sessions()
        assert (info.task, info.sample, info.split, info.profile) == ("db", "db/std/1", "std", "default")
        assert int(opened.headers["session_id"]) == session_number(info.session_id) < 2**53


async def test_names_carry_a_profile() -> None:
    async with stack(refs=("kg",)) as served:
        tools = {}
        for name in ("kg-dev", "kg-dev@agentbench"):
            tools[name] = [tool["function"]["name"] for tool in (await start(served, name)).body["tools"]]
        assert set(tools["kg-dev"]) - set(tools["kg-dev@agentbench"]) == {"submit_answer"}
        async with served.client() as client:
            assert [info.profile for info in await client.list_sessions()] == ["default", "agentbench"]
        assert (await start(served, "kg-dev@agentbnech")).status == 422


async def test_a_session_from_start_to_end() -> None:
    async with stack({"counter": counter_task()}, default_capacity=2) as served:
        opened = await start(served)
        number = opened.headers["session_id"]
        assert set(opened.body) == {"messages", "tools", "status", "finish", "reward", "metric", "metrics"}
        assert [tool["function"]["name"] for tool in opened.body["tools"]] == ["add", "roll", "submit"]
        assert (opened.body["status"], opened.body["finish"], opened.body["reward"]) == ("running", False, 0)

        listed = (await ask(served.url, "GET", "/api/list_sessions")).body
        assert {number: ("counter", "counter/train/0", False)} == {
            key: (row["name"], row["index"], row["locked"]) for key, row in listed.items()
        }
        ((worker,),) = [
            task["workers"].values() for task in (await ask(served.url, "GET", "/api/list_workers")).body.values()
        ]
        assert (worker["status"], worker["capacity"], worker["current"]) == ("ALIVE", 2, 1)

        told = await interact(served, number)
        assert [message["role"] for message in told.body["messages"]] == ["tool"]
        ended = await interact(served, number, {"messages": call("submit")})
        assert (ended.body["status"], ended.body["finish"], ended.body["reward"]) == ("completed", True, 1.0)
        assert ended.body["metric"]["score"] == 1.0
        assert (await interact(served, number)).status == 400

        other = (await start(served, index="counter/dev/1")).headers["session_id"]
        cancelled = await ask(served.url, "POST", "/api/cancel", headers={"session_id": other})
        assert cancelled.body == {"session_id": int(other)}
        assert (await interact(served, other)).status == 400
        assert (await ask(served.url, "GET", "/api/list_sessions")).body == {}


async def test_codes() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with stack({"counter": counter_task(), "rude": rude_task(), "slow": task}, default_capacity=1) as served:
        number = (await start(served)).headers["session_id"]
        cases = {
            "no such task": (406, await start(served, "kounter")),
            "no such split": (400, await start(served, "rude-std")),
            "no such index": (400, await start(served, "rude", 99)),
            "a custom sample": (400, await start(served, "rude", -1, custom_task={"x": 1})),
            "no index": (422, await start(served, "rude", None)),
            "no such session": (400, await interact(served, 1)),
            "no integer": (400, await interact(served, "x")),
            "no header": (400, await ask(served.url, "POST", "/api/interact", SAY)),
            "no messages": (422, await interact(served, number, {"messages": []})),
            "a user's message": (422, await interact(served, number, {"messages": [{"role": "user", "content": "x"}]})),
            "no object": (422, await interact(served, number, [1])),
            "nothing to cancel": (400, await ask(served.url, "POST", "/api/cancel", headers={"session_id": "7"})),
            "no name": (406, await ask(served.url, "GET", "/api/get_indices")),
        }
        for case, (status, answer) in cases.items():
            assert (answer.status, list(answer.body)) == (status, ["detail"]), case
        assert (await interact(served, number)).status == 200, "refusals leave a session as it was"

        slow = (await start(served, "slow")).headers["session_id"]
        under_way = asyncio.create_task(interact(served, slow, {"messages": call("work")}))
        await asyncio.to_thread(entered.wait, 10)
        assert (await interact(served, slow, {"messages": call("peek")})).status == 400
        gate.set()
        assert (await under_way).status == 200
        assert (await interact(served, slow, {"messages": call("peek")})).status == 200


async def test_a_full_task_is_406_only_after_a_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr("agentbench_fc.serve.compat.START_WAIT_S", 0.5)
    async with stack({"counter": counter_task()}, default_capacity=1) as served:
        first = (await start(served)).headers["session_id"]
        assert (await start(served)).status == 406
        monkeypatch.setattr("agentbench_fc.serve.compat.START_WAIT_S", 60.0)
        waiting = asyncio.create_task(start(served))
        await asyncio.sleep(0.1)
        await ask(served.url, "POST", "/api/cancel", headers={"session_id": first})
        assert (await waiting).status == 200


async def test_a_restarted_controller_finds_sessions_by_their_numbers() -> None:
    async with stack({"counter": counter_task()}) as served:
        numbers = [(await start(served)).headers["session_id"] for _ in range(3)]
        served.controller._agentrl._sessions.clear()
        for number in reversed(numbers):
            for total in (1, 2):
                told = await interact(served, number)
                assert told.body["messages"][0]["content"] == f"The total is {total}."


async def test_nothing_that_comes_in_breaks_it() -> None:
    bodies = [
        b"", b"null", b"{", b"[]", b'"\xff"', b"[" * 100_000, b'{"name": "\\ud800", "index": 0}', b'[{}]',
        b'{"session_id": "x"}', b'{"name": "counter", "index": ' + b"9" * 400 + b"}",
        b'{"name": "counter", "index": true}',
        b'{"name": "counter", "index": NaN}', b'{"name": "counter@", "index": -1}', b'{"name": "-@-", "index": ""}',
        b'{"messages": [{"role": "assistant", "content": {"a": [1]}, "tool_calls": "x"}]}',
        b'{"name": "x", "address": "file:///etc/passwd", "concurrency": 1, "indices": [1]}',
        b'{"name": "x", "address": "http://127.0.0.1:1/api", "concurrency": -1, "indices": [1]}',
        b'{"name": "counter", "address": "http://127.0.0.1:1/api", "concurrency": 1, "indices": [1, "1", {}]}',
    ]  # fmt: skip
    async with stack({"counter": counter_task()}) as served:
        number = (await start(served)).headers["session_id"]
        for session in (number, "", "-1", "9" * 30, "é", number):
            for path in ("start_sample", "interact", "cancel_notice", "receive_heartbeat"):
                for body in bodies:
                    head = {"session_id": session}
                    answer = await ask(served.url, "POST", f"/api/{path}", raw=body, headers=head)
                    assert answer.status in {200, 400, 406, 422}, (path, body[:80], answer)
        for query in (
            "",
            "name",
            "name=",
            "name=%ff",
            "name=counter-%00",
            "name=" + "x" * 5000,
            "name=%F0%9F%98%80-dev",
        ):
            assert (await ask(served.url, "GET", f"/api/get_indices?{query}")).status in {400, 406}, query
        assert len((await ask(served.url, "GET", "/api/list_workers")).body["counter"]["workers"]) == 1


async def test_a_worker_that_cannot_be_reached_is_an_error_and_no_wait() -> None:
    nowhere = {"name": "gone", "address": "http://127.0.0.1:1/api", "concurrency": 4, "indices": [0]}
    async with stack({"counter": counter_task()}) as served, served.client(timeout_s=2.0, start_wait_s=1.0) as client:
        assert (await ask(served.url, "POST", "/api/receive_heartbeat", nowhere)).status == 200
        with pytest.raises(InfrastructureError):
            await client.start_sample("gone", 0)
        states = {worker.tasks: worker.status for worker in await client.list_workers()}
        assert states[("counter",)] == "alive"
        assert states[("gone",)] in {"suspect", "dead"}
        assert (await client.start_sample("counter", 0)).status == "running"


async def test_a_controller_with_a_token_lets_nobody_in_without_it() -> None:
    async with stack({"counter": counter_task()}, token="a-long-random-token") as served:
        for method, name in (("POST", "start_sample"), ("POST", "receive_heartbeat"), ("GET", "list_sessions")):
            assert (await ask(served.url, method, f"/api/{name}")).status == 401
