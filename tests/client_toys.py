"""What the tests of clients share: a task whose calls end when the test says so, a clock, and a wait for threads."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from toys import counter_task, rude_task

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import Task, ToolEpisode, make_task, tool
from agentbench_fc.messages import Message, ToolCall, assistant


def call(name: str, **arguments: Any) -> list[Message]:
    return [assistant(None, [ToolCall("c1", name, json.dumps(arguments))])]


class Slow(ToolEpisode):
    """Calls that end when the test says so."""

    call_timeout_s: float | None = 20.0
    gate = threading.Event()
    entered = threading.Event()

    def start(self) -> str:
        if self.sample.data.get("slow_start"):
            type(self).entered.set()
            type(self).gate.wait(20)
        self.count = 0
        return "Go."

    @tool
    def work(self) -> str:
        """Works."""
        type(self).entered.set()
        type(self).gate.wait(20)
        self.count += 1
        return f"worked {self.count}"

    @tool
    def peek(self) -> str:
        """Looks."""
        return f"worked {self.count}"


def slow_task() -> Task:
    class Fresh(Slow):
        gate = threading.Event()
        entered = threading.Event()

    return make_task(Fresh, samples={"train": [{}, {"slow_start": True}]}, name="slow")


def gates(task: Task) -> tuple[threading.Event, threading.Event]:
    episode: Any = task._episode  # type: ignore[attr-defined]
    return episode.entered, episode.gate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (threads change it)
            await asyncio.sleep(0.005)


def local(**options: Any) -> LocalClient:
    return LocalClient(tasks={"counter": counter_task(), "rude": rude_task()}, **options)
