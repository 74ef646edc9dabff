"""The client in process: starts, turns, order, forks, and what a rude caller or tool can do to it."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from client_toys import call, gates, local, slow_task, until
from toys import rude_task

from agentbench_fc import session_table
from agentbench_fc.client import Client, LocalClient
from agentbench_fc.episode import ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError, Conflict, Gone, NotFound, TaskError, Unavailable
from agentbench_fc.rewards import Status


async def test_a_session_from_start_to_reward_and_after() -> None:
    async with local() as client:
        assert isinstance(client, Client)
        turn = await client.start_sample("counter", 0)
        (info,) = await client.list_sessions()
        assert (info.session_id, info.task, info.sample, info.turn) == (
            turn.session_id,
            "counter",
            "counter/train/0",
            0,
        )
        assert 0 < info.expires_in_s <= 600  # type: ignore[operator]
        json.dumps(info.to_dict())
        turn = await client.interact(turn.session_id, call("add", number=1), turn=1)
        assert not turn.finish
        end = await client.interact(turn.session_id, call("submit"), turn=2)
        assert (end.status, end.reward, end.success) == (Status.COMPLETED, 1.0, True)
        assert await client.list_sessions() == []
        assert await client.interact(turn.session_id, call("submit"), turn=2) == end  # a lost reply, asked for again
        assert await client.cancel(turn.session_id) == end
        for number in (None, 1, 3):
            with pytest.raises(Gone, match="has finished as completed"):
                await client.interact(turn.session_id, call("submit"), turn=number)
        with pytest.raises(Gone):
            await client.renew(turn.session_id)
        (worker,) = await client.list_workers()
        assert (worker.worker_id, worker.sessions, worker.started, worker.finished) == ("local", 0, 1, 1)
        json.dumps(worker.to_dict())


async def test_samples_by_number_by_id_and_by_seed() -> None:
    async with local() as client:
        assert await client.samples("counter") == [f"counter/train/{n}" for n in range(5)]
        assert await client.get_indices("counter", "dev") == [0, 1]
        turn = await client.start_sample("counter", "counter/dev/1")
        assert turn.messages[0]["content"] == "Reach 7."
        turn = await client.start_sample("counter", 0, split="dev")
        assert turn.messages[0]["content"] == "Reach 6."
        pairs = [[(await client.start_sample("counter", seed=s)).messages for _ in "ab"] for s in range(8)]
        assert all(a == b for a, b in pairs)
        assert len({str(a) for a, _ in pairs}) > 1
        await client.start_sample("counter")
        seeds = {info.seed for info in (await client.list_sessions())[-1:]}
        assert seeds != {0}


async def test_a_seed_decides_what_chance_does() -> None:
    async with local() as client:
        rolls = []
        for seed in (1, 1, 2, 3, 4):
            turn = await client.start_sample("counter", 0, seed=seed)
            replies = [await client.interact(turn.session_id, call("roll")) for _ in range(4)]
            rolls.append([reply.messages[0]["content"] for reply in replies])
        assert rolls[0] == rolls[1]
        assert len({str(r) for r in rolls}) > 2


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("cuonter",), {}, NotFound, "no task 'cuonter'"),
        (("counter", 99), {}, NotFound, "It has 0 to 4"),
        (("counter", "counter/dev/9"), {}, NotFound, "no sample"),
        (("counter",), {"split": "tset"}, NotFound, "no split 'tset'"),
        (("counter",), {"profile": "agentbench"}, CallerError, "profile 'default', not 'agentbench'"),
        (("counter",), {"prompt": "compact"}, CallerError, "prompt 'default', not 'compact'"),
        (("counter",), {"options": {"max_turns": 3}}, CallerError, "takes no options"),
        (("missing.py:TASK",), {}, NotFound, "no such file"),
    ],
)
async def test_a_start_that_cannot_be_is_refused_and_takes_no_slot(
    arguments: Any, options: Any, error: type[Exception], text: str
) -> None:
    async with local(max_sessions=1) as client:
        for _ in range(2):
            with pytest.raises(error, match=text):
                await client.start_sample(*arguments, **options)
        assert await client.list_sessions() == []
        await client.start_sample("counter")


async def test_unknown_sessions_are_not_found() -> None:
    async with local() as client:
        for act in (client.cancel, client.renew, client.fork):
            with pytest.raises(NotFound, match="no session 'nobody'"):
                await act("nobody")
        with pytest.raises(NotFound):
            await client.interact("nobody", call("submit"))


async def test_turns_out_of_order_and_bad_messages_cost_nothing() -> None:
    async with local() as client:
        turn = await client.start_sample("counter", 0)
        for wrong in (0, 2, -1):
            with pytest.raises(Conflict, match="out of order"):
                await client.interact(turn.session_id, call("add", number=1), turn=wrong)
        for bad in ("text", [], [{"role": "user", "content": "x"}], None):
            with pytest.raises(CallerError):
                await client.interact(turn.session_id, bad)  # type: ignore[arg-type]
        with pytest.raises(CallerError, match="cannot end a session as completed"):
            await client.cancel(turn.session_id, status="completed")
        reply = await client.interact(turn.session_id, call("add", number=1), turn=1)
        assert reply.messages[0]["content"] == "The total is 1."


async def test_a_second_call_at_once_is_a_conflict_at_once() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with LocalClient(tasks={"slow": task}) as client:
        turn = await client.start_sample("slow", 0)
        first = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
        await until(entered.is_set)
        began = time.monotonic()
        for act in (client.interact(turn.session_id, call("work"), turn=1), client.fork(turn.session_id)):
            with pytest.raises(Conflict, match="another call is under way"):
                await act
        assert time.monotonic() - began < 2, "of the 20 s that the call takes"
        assert (await client.list_sessions())[0].busy
        gate.set()
        assert (await first).messages[0]["content"] == "worked 1"
        assert not (await client.list_sessions())[0].busy


async def test_a_caller_that_stops_waiting_does_not_hurt_the_session() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with LocalClient(tasks={"slow": task}) as client:
        turn = await client.start_sample("slow", 0)
        waiting = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
        await until(entered.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(Conflict):
            await client.interact(turn.session_id, call("work"), turn=1)
        gate.set()
        async with asyncio.timeout(10):
            while (await client.list_sessions())[0].busy:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        reply = await client.interact(turn.session_id, call("work"), turn=1)  # the stored one
        assert reply.messages[0]["content"] == "worked 1"
        reply = await client.interact(turn.session_id, call("peek"), turn=2)
        assert reply.messages[0]["content"] == "worked 1"


async def test_a_call_given_up_before_it_began_is_not_played() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with LocalClient(tasks={"slow": task}, max_concurrency=1) as client:
        a, b = [await client.start_sample("slow", 0) for _ in "ab"]
        first = asyncio.create_task(client.interact(a.session_id, call("work"), turn=1))
        await until(entered.is_set)
        queued = asyncio.create_task(client.interact(b.session_id, call("work"), turn=1))
        await asyncio.sleep(0.02)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        gate.set()
        await first
        reply = await client.interact(b.session_id, call("peek"), turn=1)
        assert reply.messages[0]["content"] == "worked 0"


async def test_a_start_whose_caller_went_away_leaves_no_session() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with LocalClient(tasks={"slow": task}, max_sessions=1) as client:
        waiting = asyncio.create_task(client.start_sample("slow", 1))
        await until(entered.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(Unavailable, match="all 1 sessions are taken"):
            await client.start_sample("slow", 0)
        gate.set()
        await until(lambda: client._table.counts["finished"] == 1)
        assert await client.list_sessions() == []
        await client.start_sample("slow", 0)


async def test_slots_are_bounded_and_come_back() -> None:
    async with local(max_sessions=3) as client:
        turns = [await client.start_sample("counter", 0) for _ in range(3)]
        with pytest.raises(Unavailable):
            await client.start_sample("counter", 0)
        with pytest.raises(Unavailable):
            await client.fork(turns[0].session_id)
        await client.cancel(turns[0].session_id)
        child = await client.fork(turns[1].session_id)
        await client.interact(child.session_id, call("submit"))
        for _ in range(5):
            failed = await client.start_sample("rude", 0)
            await client.interact(failed.session_id, call("raises", kind="infrastructure"))
        assert len(await client.list_sessions()) == 2


async def test_a_failed_start_is_a_finished_session() -> None:
    async with LocalClient(tasks={"rude": rude_task(start="raise")}, max_sessions=1) as client:
        for _ in range(2):
            turn = await client.start_sample("rude", 0)
            assert (turn.status, turn.finish) == (Status.INIT_FAILED, True)
        assert await client.list_sessions() == []
        with pytest.raises(Gone, match="env init failed: KeyError|env init failed: 'no such file'"):
            await client.interact(turn.session_id, call("ends"), turn=1)


async def test_sessions_run_side_by_side_and_do_not_mix() -> None:
    async with local(max_concurrency=8) as client:

        async def play(target: int) -> tuple[float | None, str]:
            turn = await client.start_sample("counter", target - 1)
            for n in range(target):
                turn = await client.interact(turn.session_id, call("add", number=1), turn=n + 1)
            end = await client.interact(turn.session_id, call("submit"), turn=target + 1)
            return end.reward, str(end.messages[0]["content"])

        targets = [1 + n % 5 for n in range(200)]
        assert await asyncio.gather(*map(play, targets)) == [(1.0, f"Ended at {t}.") for t in targets]
        assert client._table.counts["finished"] == 200


async def test_an_open_session_holds_no_thread() -> None:
    async with local(max_concurrency=4) as client:
        await client.start_sample("counter", 0)
        before = threading.active_count()
        await asyncio.gather(*(client.start_sample("counter", 0) for _ in range(300)))
        assert threading.active_count() <= before + 8


async def test_the_affinity_of_a_task_is_kept() -> None:
    class Affine(ToolEpisode):
        affinity = "thread"

        def start(self) -> str:
            self.home = threading.get_ident()
            return "Go."

        @tool
        def at_home(self) -> bool:
            """Whether this is the thread of the start."""
            return threading.get_ident() == self.home

    async with LocalClient(tasks={"affine": make_task(Affine, samples={"train": [{}]})}) as client:
        turns = [await client.start_sample("affine", 0) for _ in range(4)]
        for _ in range(5):
            replies = await asyncio.gather(*(client.interact(t.session_id, call("at_home")) for t in turns))
            assert [reply.messages[0]["content"] for reply in replies] == ["true"] * 4


# what tools do


async def test_a_hanging_tool_holds_nobody_else_up() -> None:
    async with local(max_concurrency=2) as client:
        hanging = [await client.start_sample("rude", 0) for _ in range(2)]
        other = await client.start_sample("counter", 0)
        calls = [asyncio.create_task(client.interact(t.session_id, call("hangs"))) for t in hanging]
        await asyncio.sleep(0.02)
        reply = await client.interact(other.session_id, call("add", number=1))
        assert reply.messages[0]["content"] == "The total is 1."
        for turn in await asyncio.gather(*calls):
            assert "did not finish within 0.8 seconds" in str(turn.messages[0]["content"])


async def test_a_tool_that_exits_or_raises_ends_nothing() -> None:
    async with local() as client:
        turn = await client.start_sample("rude", 0)
        for kind in ("exit", "zero", "recursion"):
            reply = await client.interact(turn.session_id, call("raises", kind=kind))
            assert not reply.finish
        assert (await client.interact(turn.session_id, call("ends"))).reward == 1.0


async def test_a_cancel_gets_through_while_a_call_hangs() -> None:
    task = slow_task()
    entered, gate = gates(task)
    async with LocalClient(tasks={"slow": task}, max_concurrency=1, max_sessions=1) as client:
        turn = await client.start_sample("slow", 0)
        waiting = asyncio.create_task(client.interact(turn.session_id, call("work"), turn=1))
        await until(entered.is_set)
        end = await client.cancel(turn.session_id)
        assert (end.status, end.finish, end.metrics["reason"]) == (Status.CANCELLED, True, "cancelled by the client")
        assert await client.list_sessions() == []  # its slot is free though the call still runs
        with pytest.raises(Gone, match="cancelled"):
            await client.interact(turn.session_id, call("work"), turn=1)
        gate.set()
        assert (await waiting).status is Status.CANCELLED


async def test_a_client_out_of_context_says_so() -> None:
    async with local() as client:
        turn = await client.start_sample("counter", 0)
        end = await client.cancel(turn.session_id, status="agent context limit")
        assert (end.status, end.reward, end.success) == (Status.CONTEXT_LIMIT, 0.0, False)
        assert await client.cancel(turn.session_id) == end


# forks


@pytest.mark.parametrize("turn", [0, 1, None])
async def test_a_fork_is_a_session_of_its_own(turn: int | None) -> None:
    async with local() as client:
        parent = await client.start_sample("counter", 1, seed=5)
        await client.interact(parent.session_id, call("add", number=1))
        child = await client.fork(parent.session_id, turn)
        assert child.turn == (1 if turn is None else turn)
        assert child.session_id != parent.session_id
        infos = {info.session_id: info for info in await client.list_sessions()}
        assert infos[child.session_id].parent == parent.session_id
        end = await client.interact(child.session_id, call("submit"), turn=child.turn + 1)
        assert end.reward == 0.0
        await client.interact(parent.session_id, call("add", number=1), turn=2)
        assert (await client.interact(parent.session_id, call("submit"), turn=3)).reward == 1.0


async def test_a_finished_session_can_be_forked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "KEPT_LOGS", 2)
    async with local(tombstones=4) as client:
        ids = []
        for _ in range(6):
            turn = await client.start_sample("counter", 0)
            ids.append(turn.session_id)
            await client.interact(turn.session_id, call("add", number=1))
            await client.interact(turn.session_id, call("submit"))
        child = await client.fork(ids[5], 1)
        assert (await client.interact(child.session_id, call("submit"))).reward == 1.0
        with pytest.raises(CallerError, match="ended the session"):
            await client.fork(ids[5])
        with pytest.raises(Gone, match="record was dropped"):
            await client.fork(ids[3], 1)
        assert (await client.interact(ids[3], call("submit"), turn=2)).reward == 1.0  # the last reply is still there
        with pytest.raises(NotFound, match="ended long ago"):
            await client.interact(ids[0], call("submit"), turn=2)
        assert len(client._table._ended) == 4


async def test_a_fork_of_no_turn_is_refused_and_takes_no_slot() -> None:
    async with local(max_sessions=2) as client:
        turn = await client.start_sample("counter", 0)
        for _ in range(3):
            with pytest.raises(CallerError, match="there is no turn 7"):
                await client.fork(turn.session_id, 7)
        await client.fork(turn.session_id)


# loading


async def test_a_task_is_loaded_once_per_profile_and_options(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(
        "import pathlib, time\n"
        "from agentbench_fc.episode import ToolEpisode, make_task, tool\n"
        "class Say(ToolEpisode):\n"
        "    def start(self): return 'Say.'\n"
        "    @tool\n"
        "    def say_it(self, word: str): return word\n"
        "def make(word='x', fail=False):\n"
        "    with open(pathlib.Path(__file__).with_name('log'), 'a') as log: log.write(word)\n"
        "    time.sleep(0.1)\n"
        "    if fail: raise RuntimeError('no data')\n"
        "    return make_task(Say, samples={'train': [{}]})\n"
    )
    name = f"{tmp_path / 'my_task.py'}:make"
    async with LocalClient() as client:
        turns = await asyncio.gather(
            *(client.start_sample(name) for _ in range(5)),
            *(client.start_sample(name, options={"word": "y"}) for _ in range(5)),
        )
        assert sorted((tmp_path / "log").read_text()) == ["x", "y"]
        assert len({turn.session_id for turn in turns}) == 10
        assert (await client.list_workers())[0].tasks == (name,)
        for _ in range(2):  # a load that failed is tried again
            with pytest.raises(TaskError, match="cannot be made: RuntimeError"):
                await client.start_sample(name, options={"fail": True})
        assert sorted((tmp_path / "log").read_text()) == ["x", "x", "x", "y"]
        waiting = asyncio.create_task(client.start_sample(name, options={"word": "z"}))
        sharing = asyncio.create_task(client.start_sample(name, options={"word": "z"}))
        await asyncio.sleep(0.03)
        waiting.cancel()  # one of two that share a load
        assert (await sharing).turn == 0
