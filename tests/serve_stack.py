"""A controller and workers in the test's own event loop, over real sockets; and a raw HTTP exchange."""

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentbench_fc.episode import Task
from agentbench_fc.serve.client import HttpClient
from agentbench_fc.serve.config import ControllerConfig, WorkerConfig
from agentbench_fc.serve.controller import Controller
from agentbench_fc.serve.heartbeat import Heart
from agentbench_fc.serve.server import address_of, bind, serving
from agentbench_fc.serve.worker import Worker

HEARTBEAT_S = 0.2


@dataclass
class Stack:
    controller: Controller
    url: str
    workers: list[Worker]
    hearts: list[Heart]
    closers: list[contextlib.AsyncExitStack] = field(default_factory=list)

    def client(self, **options: Any) -> HttpClient:
        return HttpClient(self.url, **{"timeout_s": 30.0, **options})

    async def add(self, config: WorkerConfig) -> Worker:
        """One more worker."""
        stack = contextlib.AsyncExitStack()
        sock = bind("127.0.0.1", 0, None)
        worker = Worker(config, address=address_of(sock))
        await worker.open()
        stack.push_async_callback(worker.aclose)
        await stack.enter_async_context(serving(worker.app, sock))
        heart = Heart(worker, self.url)
        beating = asyncio.create_task(heart.run())
        stack.push_async_callback(heart._link.aclose)
        stack.callback(beating.cancel)
        self.workers.append(worker)
        self.hearts.append(heart)
        self.closers.append(stack)
        await until(lambda: worker.worker_id in self.controller.fleet.members)
        return worker

    async def kill(self, number: int) -> None:
        """A worker vanishes without a word."""
        await self.closers[number].aclose()


@contextlib.asynccontextmanager
async def stack(
    tasks: Mapping[str, Task] | None = None,
    *,
    workers: int = 1,
    controller: Mapping[str, Any] | None = None,
    token: str | None = None,
    refs: tuple[str, ...] = (),
    **worker: Any,
) -> AsyncIterator[Stack]:
    settings = ControllerConfig(**{"heartbeat_s": HEARTBEAT_S, "token": token, **(controller or {})})
    served = Controller(settings)
    sock = bind("127.0.0.1", 0, None)
    async with serving(served.app, sock):
        watch = asyncio.create_task(served.run())
        built = Stack(served, address_of(sock), [], [])
        try:
            for n in range(1, workers + 1):
                given = dict(tasks or {})
                await built.add(WorkerConfig(given=given, tasks=refs, name=f"w{n}", token=token, **worker))
            yield built
        finally:
            for closer in reversed(built.closers):
                await closer.aclose()
            watch.cancel()
            await served.aclose()


async def until(condition: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (threads and sockets change it)
            await asyncio.sleep(0.01)


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str]


async def ask(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One HTTP exchange, whatever its status."""
    import aiohttp

    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, url + path, data=data, headers=dict(headers or {}), timeout=aiohttp.ClientTimeout(total=20)
        ) as reply,
    ):
        text = await reply.read()
        is_json = reply.content_type == "application/json"
        return Answer(
            reply.status, json.loads(text) if is_json else text, {k.lower(): v for k, v in reply.headers.items()}
        )


@contextlib.contextmanager
def stack_in_thread(**options: Any) -> Iterator[Stack]:
    """The same on an event loop of its own, for code that blocks."""
    built: queue.SimpleQueue[Stack | BaseException] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def main() -> None:
        async with stack(**options) as made:
            built.put(made)
            await end.wait()

    def work() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            built.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="stack")
    thread.start()
    made = built.get(timeout=30)
    if isinstance(made, BaseException):
        raise made
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)
