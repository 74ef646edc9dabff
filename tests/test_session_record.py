"""What a session hands out is the caller's: growing a history in it changes neither record, fork nor stored reply."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from toys import Counter, ForkingCounter, counter_task

from agentbench_fc.client import LocalClient, SyncClient
from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.session import Session


def add(number: int) -> list[Message]:
    return [assistant(None, [ToolCall("c1", "add", f'{{"number": {number}}}')])]


def spoil(turn: Turn) -> None:
    turn.messages[0]["content"] = "changed"
    turn.messages.append(assistant("grown"))
    turn.tools.clear()
    turn.metrics["mine"] = 1


@pytest.mark.parametrize("episode", [Counter, ForkingCounter])
def test_a_session_whose_turns_were_changed_forks_and_repeats_as_before(episode: type[Counter]) -> None:
    task = counter_task(episode)
    session = Session(task, task.samples("train")[0])
    spoil(session.start())
    spoil(session.interact(add(3), 1))
    spoil(session.last)
    repeated = session.interact(add(3), 1)
    assert [m["content"] for m in repeated.messages] == ["The total is 3."]
    spoil(repeated)
    assert [session.fork(turn).turn for turn in (0, 1)] == [0, 1]
    child = session.fork()
    assert [m["content"] for m in child.interact(add(1)).messages] == ["The total is 4."]
    assert [p.turn.messages[0]["content"] for p in session.log] == ["Reach 1.", "The total is 3."]
    assert child.last.tools == list(task.spec.tools)


@pytest.fixture
def client() -> Iterator[SyncClient]:
    with SyncClient(LocalClient(tasks={"counter": counter_task()}), timeout_s=20) as client:
        yield client


def test_the_stored_reply_of_a_finished_session_stays_as_it_was(client: SyncClient) -> None:
    session_id = client.start_sample("counter", 0).session_id
    submit = [assistant(None, [ToolCall("c1", "submit", "{}")])]
    for _ in range(3):
        turn = client.interact(session_id, submit, 1)
        assert [m["content"] for m in turn.messages] == ["Ended at 0."]
        spoil(turn)
    assert [m["content"] for m in client.cancel(session_id).messages] == ["Ended at 0."]


@pytest.mark.parametrize("seed", ["7", 1.5, True, [1]], ids=repr)
def test_a_seed_that_is_no_integer_is_refused(client: SyncClient, seed: Any) -> None:
    with pytest.raises(CallerError, match="seed is"):
        client.start_sample("counter", 0, seed=seed)


@pytest.mark.parametrize("options", [[1], {1: 2}, "x", {"profile": "agentbench"}, {"name": "db"}], ids=repr)
def test_options_that_are_none_are_refused(client: SyncClient, options: Any) -> None:
    with pytest.raises(CallerError, match="task options"):
        client.start_sample("kg", 0, options=options)
    assert client.list_workers()[0].sessions == 0


def test_a_refused_seed_takes_no_place() -> None:
    async def run() -> int:
        async with LocalClient(tasks={"counter": counter_task()}, max_sessions=1) as client:
            for _ in range(3):
                with pytest.raises(CallerError):
                    await client.start_sample("counter", 0, seed="x")  # type: ignore[arg-type]
            return (await client.start_sample("counter", 0, seed=-1)).turn

    assert asyncio.run(run()) == 0
