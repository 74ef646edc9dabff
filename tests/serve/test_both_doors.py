"""The same behaviour in process and over HTTP, straight to the worker and through the controller: no difference."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from client_toys import Clock, call, gates, slow_task, until
from serve_stack import stack
from toys import counter_task, rude_task

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, Conflict, Gone, NotFound, Unavailable
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.protocol import Client
from agentbench_fc.rewards import Status

DOORS = ["in process", "direct", "gateway"]


@contextlib.asynccontextmanager
async def through(door: str, tasks: dict[str, Task], capacity: int = 64, **options: Any) -> AsyncIterator[Client]:
    if door == "in process":
        async with LocalClient(tasks=tasks, max_sessions=capacity, **options) as client:
            yield client
    else:
        async with (
            stack(tasks, default_capacity=capacity, **options) as served,
            served.client(direct=door == "direct", start_wait_s=0.2) as client,
        ):
            yield client


@pytest.fixture(params=DOORS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with through(request.param, {"counter": counter_task(), "rude": rude_task()}) as client:
        yield client


async def test_a_session_from_start_to_reward_and_after(client: Client) -> None:
    assert isinstance(client, Client)
    turn = await client.start_sample("counter", 0)
    assert (turn.turn, turn.messages) == (0, [{"role": "user", "content": "Reach 1."}])
    assert [tool["function"]["name"] for tool in turn.tools] == ["add", "roll", "submit"]
    (info,) = await client.list_sessions()
    assert (info.session_id, info.task, info.sample, info.turn) == (turn.session_id, "counter", "counter/train/0", 0)
    assert 0 < (info.expires_in_s or 0) <= 600
    turn = await client.interact(turn.session_id, call("add", number=1), turn=1)
    assert not turn.finish
    assert [message["tool_call_id"] for message in turn.messages] == ["c1"]  # type: ignore[typeddict-item]
    end = await client.interact(turn.session_id, call("submit"), turn=2)
    assert (end.status, end.reward, end.success) == (Status.COMPLETED, 1.0, True)
    assert await client.list_sessions() == []
    assert await client.interact(turn.session_id, call("submit"), turn=2) == end
    assert await client.cancel(turn.session_id) == end
    for number in (1, 3):
        with pytest.raises(Gone, match="has finished as completed"):
            await client.interact(turn.session_id, call("submit"), turn=number)
    with pytest.raises(Gone):
        await client.renew(turn.session_id)
    (worker,) = await client.list_workers()
    assert (worker.sessions, worker.started, worker.finished, "counter" in worker.tasks) == (0, 1, 1, True)


async def test_samples_by_number_by_id_and_by_seed(client: Client) -> None:
    assert await client.samples("counter") == [f"counter/train/{n}" for n in range(5)]
    assert await client.get_indices("counter", "dev") == [0, 1]
    for sample, split in (("counter/dev/1", None), (1, "dev"), (np.int64(1), "dev")):
        turn = await client.start_sample("counter", sample, split=split)
        assert turn.messages[0]["content"] == "Reach 7."
    same = [await client.start_sample("counter", seed=5) for _ in range(2)]
    assert same[0].messages == same[1].messages
    for bad in ("counter/dev/9", 5, -1):
        with pytest.raises(NotFound):
            await client.start_sample("counter", bad)
    with pytest.raises(CallerError):
        await client.start_sample("counter", True)
    with pytest.raises(NotFound, match="no task 'kounter'"):
        await client.start_sample("kounter")
    with pytest.raises(NotFound, match="no split"):
        await client.samples("counter", "tset")
    with pytest.raises(CallerError):
        await client.start_sample("counter", profile="agentbnech")


async def test_equal_seeds_give_equal_sessions(client: Client) -> None:
    async def rolls() -> list[str | None]:
        turn = await client.start_sample("counter", 0, seed=11)
        return [(await client.interact(turn.session_id, call("roll"))).messages[0]["content"] for _ in range(4)]

    assert await rolls() == await rolls()


@pytest.mark.parametrize("arguments", ["{", "[]", "{}", '{"number": "one"}', "NaN", "[" * 2000], ids=range(6))
async def test_a_bad_call_costs_a_turn_not_the_episode(client: Client, arguments: str) -> None:
    session = (await client.start_sample("counter", 0)).session_id
    turn = await client.interact(session, [assistant(None, [ToolCall("c1", "add", arguments)])], turn=1)
    assert [message["tool_call_id"] for message in turn.messages] == ["c1"]  # type: ignore[typeddict-item]
    assert (turn.finish, turn.reward) == (False, None)
    await client.interact(session, call("add", number=1), turn=2)
    assert (await client.interact(session, call("submit"), turn=3)).reward == 1.0


async def test_whatever_a_model_writes_passes_the_wire(client: Client) -> None:
    session = (await client.start_sample("counter", 0)).session_id
    deep: Any = {}
    for _ in range(900):
        deep = {"x": deep}
    for messages in (
        [{"role": "assistant", "content": "lone \ud800 surrogate"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": deep}}]}],
        [{"role": "assistant", "content": [{"type": "text", "text": "part"}], "tool_calls": []}],
        [{"role": "assistant", "content": "x" * 2_000_000}],
        [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "add", "arguments": {"number": 2}}}]}],
    ):
        assert not (await client.interact(session, messages)).finish
    (info,) = await client.list_sessions()
    assert info.turn == 5


async def test_turns_out_of_order_and_bad_messages_cost_nothing(client: Client) -> None:
    turn = await client.start_sample("counter", 0)
    for wrong in (0, 2, -1):
        with pytest.raises(Conflict, match="out of order"):
            await client.interact(turn.session_id, call("add", number=1), turn=wrong)
    for bad in ("text", [], [{"role": "user", "content": "x"}], None, [3], [{"role": "assistant", "content": 3}]):
        with pytest.raises(CallerError):
            await client.interact(turn.session_id, bad)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="cannot end a session as completed"):
        await client.cancel(turn.session_id, status="completed")
    for method in (client.renew, client.fork, client.cancel):
        with pytest.raises(NotFound):
            await method("nobody")
    with pytest.raises(NotFound):
        await client.interact("nobody", call("submit"))
    reply = await client.interact(turn.session_id, call("add", number=1), turn=1)
    assert reply.messages[0]["content"] == "The total is 1."


async def test_a_repeated_turn_gets_the_stored_reply(client: Client) -> None:
    turn = await client.start_sample("counter", 0)
    first = await client.interact(turn.session_id, call("add", number=1), turn=1)
    again = await client.interact(turn.session_id, call("add", number=1), turn=1)
    assert first == again
    assert (await client.interact(turn.session_id, call("add", number=0), turn=2)).messages[0]["content"] == (
        "The total is 1."
    )


async def test_forks_are_independent(client: Client) -> None:
    turn = await client.start_sample("counter", 1)
    await client.interact(turn.session_id, call("add", number=1))
    await client.interact(turn.session_id, call("add", number=1))
    now, past = await client.fork(turn.session_id), await client.fork(turn.session_id, 1)
    assert (now.turn, past.turn, len({turn.session_id, now.session_id, past.session_id})) == (2, 1, 3)
    assert (await client.renew(past.session_id)).parent == turn.session_id
    assert (await client.interact(past.session_id, call("submit"))).reward == 0.0
    assert (await client.interact(now.session_id, call("submit"))).reward == 1.0
    assert (await client.interact(turn.session_id, call("submit"), turn=3)).reward == 1.0
    with pytest.raises(CallerError, match="no turn 9"):
        await client.fork(turn.session_id, 9)


async def test_faults_of_a_task_end_its_episode_as_data(client: Client) -> None:
    for kind, fault in (("task", "task"), ("infrastructure", "environment")):
        turn = await client.start_sample("rude", 0)
        end = await client.interact(turn.session_id, call("raises", kind=kind))
        assert (end.status, end.finish, end.metrics["fault"]) == (Status.TASK_ERROR, True, fault)
    turn = await client.start_sample("rude", 0)
    late = await client.interact(turn.session_id, call("hangs"))
    assert "did not finish within 0.8 seconds" in (late.messages[0]["content"] or "")
    turn = await client.start_sample("rude", 0)
    assert (await client.interact(turn.session_id, call("surrogate"))).messages[0]["content"] == "bad ? text"


async def test_a_cancelled_session_is_masked(client: Client) -> None:
    turn = await client.start_sample("counter", 0)
    end = await client.cancel(turn.session_id, status="agent context limit")
    assert (end.status, end.finish) == (Status.CONTEXT_LIMIT, True)
    assert await client.cancel(turn.session_id) == end
    with pytest.raises(Gone):
        await client.interact(turn.session_id, call("submit"), turn=1)


@pytest.mark.parametrize("door", DOORS)
async def test_slots_are_bounded_and_come_back(door: str) -> None:
    async with through(door, {"counter": counter_task()}, capacity=2) as client:
        turns = [await client.start_sample("counter", 0) for _ in range(2)]
        with pytest.raises(Unavailable):
            await client.start_sample("counter", 0)
        await client.cancel(turns[0].session_id)
        await client.start_sample("counter", 0)


@pytest.mark.parametrize("door", DOORS)
async def test_a_second_call_at_once_is_a_conflict(door: str) -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with through(door, {"slow": task}) as client:
        turn = await client.start_sample("slow", 0)
        first = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
        await until(entered.is_set)
        for act in (client.interact(turn.session_id, call("work"), turn=1), client.fork(turn.session_id)):
            with pytest.raises(Conflict, match="another call is under way"):
                await act
        assert (await client.list_sessions())[0].busy
        gate.set()
        assert (await first).messages[0]["content"] == "worked 1"


@pytest.mark.parametrize("door", DOORS)
async def test_an_idle_session_expires_and_says_why(door: str) -> None:
    clock = Clock()
    async with through(door, {"counter": counter_task()}, idle_timeout_s=0.3, clock=clock) as client:
        turn = await client.start_sample("counter", 0)
        for _ in range(3):
            clock.now += 0.2
            await client.renew(turn.session_id)
        clock.now += 0.2
        assert len(await client.list_sessions()) == 1, "renewed at 0.6, and it is 0.8"
        clock.now += 0.2
        async with asyncio.timeout(20):
            while await client.list_sessions():  # noqa: ASYNC110  (a thread ends it)
                await asyncio.sleep(0.02)
        with pytest.raises(Gone, match="expired: idle for 0.3 s"):
            await client.interact(turn.session_id, call("submit"), turn=1)
        (worker,) = await client.list_workers()
        assert (worker.sessions, worker.expired) == (0, 1)


@pytest.mark.parametrize("door", DOORS)
async def test_a_start_whose_caller_went_away_leaves_no_session(door: str) -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with through(door, {"slow": task}) as client:
        waiting = asyncio.create_task(client.start_sample("slow", 1))
        await until(entered.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.1)
        gate.set()
        async with asyncio.timeout(20):
            while (await client.list_workers())[0].finished != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await client.list_sessions() == []


async def test_infos_are_json(client: Client) -> None:
    await client.start_sample("counter", 0)
    json.dumps([info.to_dict() for info in await client.list_sessions()])
    json.dumps([info.to_dict() for info in await client.list_workers()])
