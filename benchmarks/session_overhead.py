"""What the session loop costs: CPU time per turn against a bare loop, and memory per open session.

    python benchmarks/session_overhead.py

The bare loop reads the same assistant messages, parses the arguments, validates them against the same compiled schema
and calls the same method. Both loops play the same turns and must give the same observations. The bounds: at most 10
times the bare loop's CPU time, with and without call deadlines, and 20 kB per open session.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import ToolEpisode, ToolTask, make_task, tool
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.session import Session

MAX_RATIO = 10.0
MAX_BYTES = 20_000
TURNS = 200


class Ledger(ToolEpisode):
    """A toy with a small state, a schema of three fields and answers of a line."""

    max_turns = 1_000_000

    def start(self) -> str:
        """Opens the book."""
        self.total = 0
        return "Keep the books."

    @tool
    def book(self, account: str, amount: int, note: str = "") -> str:
        """Books an amount.

        Args:
            account: Where to.
            amount: How much.
            note: Why.
        """
        self.total += amount
        return f"{account}: {amount} booked, the total is {self.total}. {note}"


def messages(count: int) -> list[list[Message]]:
    rows = [{"account": f"a{n % 7}", "amount": n, "note": "rent"} for n in range(count)]
    return [[assistant("I book.", [ToolCall(f"c{n}", "book", json.dumps(row))])] for n, row in enumerate(rows)]


def bare(task: ToolTask, turns: list[list[Message]]) -> list[str | None]:
    """The least that such a loop must do."""
    validator = task.spec.validators["book"]
    episode = Ledger(task.samples("train")[0], 0)
    episode.start()
    out: list[str | None] = []
    for sent in turns:
        replies = []
        for call in sent[0]["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            if next(validator.iter_errors(arguments), None) is None:
                content = getattr(episode, call["function"]["name"])(**arguments)
                replies.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        out.append(replies[0]["content"])
    return out


def through_session(task: ToolTask, turns: list[list[Message]]) -> list[str | None]:
    session = Session(task, task.samples("train")[0])
    session.start()
    out = [session.interact(sent, number).messages[0]["content"] for number, sent in enumerate(turns, start=1)]
    session.close()
    return out


def through_client(task: ToolTask, turns: list[list[Message]]) -> list[str | None]:
    async def play() -> list[str | None]:
        async with LocalClient(tasks={"ledger": task}) as client:
            turn = await client.start_sample("ledger", 0, seed=0)
            return [
                (await client.interact(turn.session_id, sent, number)).messages[0]["content"]
                for number, sent in enumerate(turns, start=1)
            ]

    return asyncio.run(play())


def cpu_ratio(new: Callable[[], Any], old: Callable[[], Any], pairs: int) -> tuple[float, float, float, float]:
    """Quartiles of new/old CPU seconds over interleaved pairs, and the median CPU microseconds of a turn of `new`."""
    assert old() == new(), "a faster wrong answer is no claim"  # also the warm-up
    seconds: dict[Callable[[], Any], list[float]] = {old: [], new: []}
    for i in range(pairs):
        for run in (old, new) if i % 2 else (new, old):
            start = time.process_time()
            run()
            seconds[run].append(time.process_time() - start)
    low, median, high = statistics.quantiles((n / o for n, o in zip(seconds[new], seconds[old], strict=True)), n=4)
    return low, median, high, statistics.median(seconds[new]) / TURNS * 1e6


def bytes_per_session(task: ToolTask, count: int) -> tuple[float, int]:
    """Traced memory of an open session after three turns, and the threads alive while all are open."""

    async def measure() -> tuple[float, int]:
        import threading

        async with LocalClient(tasks={"ledger": task}, lifetime_s=None, idle_timeout_s=3600) as client:
            first = await client.start_sample("ledger", 0)
            await client.cancel(first.session_id)
            gc.collect()
            tracemalloc.start()
            turns = messages(3)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                opened = await client.start_sample("ledger", 0)
                for number, sent in enumerate(turns, start=1):
                    await client.interact(opened.session_id, sent, number)
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
            threads = threading.active_count()
            tracemalloc.stop()
            assert len(await client.list_sessions()) == count
            return used / count, threads

    return asyncio.run(measure())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    plain = make_task(Ledger, samples={"train": [{}]})
    direct = ToolTask(Ledger, replace(plain.spec, call_timeout_s=None), {"train": [{}]})
    turns = messages(TURNS)
    broken = False
    print(
        f"{TURNS} turns a run, {options.pairs} interleaved pairs, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    for name, task, run, bound in (
        ("session, no call deadline", direct, through_session, MAX_RATIO),
        ("session, default deadline", plain, through_session, MAX_RATIO),
        ("client, default deadline", plain, through_client, None),
    ):
        low, median, high, micro = cpu_ratio(
            lambda task=task, run=run: run(task, turns),  # type: ignore[misc]
            lambda task=task: bare(task, turns),  # type: ignore[misc]
            options.pairs,
        )
        limit = f"bound {bound:g}x" if bound else "no bound"
        print(f"{name}: {median:.1f}x [{low:.1f}, {high:.1f}] the CPU time of a bare loop ({micro:.0f} us), {limit}")
        broken |= bound is not None and median > bound
    size, threads = bytes_per_session(plain, options.sessions)
    print(f"{options.sessions} open sessions: {size:.0f} B each (bound {MAX_BYTES}), {threads} threads in all")
    broken |= size >= MAX_BYTES or threads > 100
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
