"""AgentRL's workers behind our controller: their tasks are started and played like any other, by any client.

A worker of AgentRL reports itself by POST /api/receive_heartbeat, and is then a member of the fleet like one of ours.
What the controller sends to it is answered in this process, by a `Stub` that speaks wire v1 to the controller and
AgentRL's wire to the worker, and keeps what the worker does not: turn numbers with the last reply, request ids, leases.

What such a worker cannot do is refused with a reason: fork, profiles, prompt styles, options, splits but `all`. Its
sessions end with the controller: a new one cancels what it finds, and a turn whose answer is lost ends its session.

Not here: stubs (compat_stub.py), AgentRL's clients (compat.py).
Source: agentrl-worker 0.4.0, as it behaves; tests/contract runs it.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from pydantic import BaseModel

from agentbench_fc.serve.compat import agentrl_route, read_agentrl
from agentbench_fc.serve.compat_stub import Registration, Stub
from agentbench_fc.serve.fleet import Fleet
from agentbench_fc.serve.http import Handler, Reply, Request, encode
from agentbench_fc.serve.link import Link, NoAnswer

LEAST_GAP_S = 0.02
"""Between two heartbeats of ours for a worker that became free."""


class Notice(BaseModel):
    """A cancelled session is over."""

    session_id: int


class Doors(Link):
    """A link whose calls to AgentRL's workers go to their stubs."""

    def __init__(self, *, token: str | None = None) -> None:
        super().__init__(token=token)
        self.stubs: dict[str, Stub] = {}

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """As `Link.send`."""
        if self.stubs:
            parts = url.split("/", 3)
            stub = self.stubs.get("/".join(parts[:3]))
            if stub is not None:
                try:
                    async with asyncio.timeout(timeout_s):
                        return await stub.answer(f"/{parts[3]}", body or b"", headers or {})
                except TimeoutError as error:
                    raise NoAnswer(f"no answer within {timeout_s or 0:g} s [{url}].", sent=True) from error
        return await super().send(method, url, body, timeout_s=timeout_s, headers=headers)


class AgentRLWorkers:
    """Takes AgentRL's workers into a fleet; `routes` are to be offered beside wire v1.

    Args:
        doors: The controller's link.
        fleet: The controller's fleet.
        heartbeat: The controller's handler of heartbeats.
    """

    def __init__(self, doors: Doors, fleet: Fleet, heartbeat: Handler) -> None:
        self._doors = doors
        self._fleet = fleet
        self._heartbeat = heartbeat
        self._link = Link()
        self._due: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.routes = [
            agentrl_route("POST", "receive_heartbeat", self._receive_heartbeat, "AgentRL: a worker lives."),
            agentrl_route("POST", "cancel_notice", self._cancel_notice, "AgentRL: a cancelled session is over."),
        ]

    async def aclose(self) -> None:
        """Ends what it holds."""
        for task in self._tasks:
            task.cancel()
        for stub in self._doors.stubs.values():
            stub.close()
        await self._link.aclose()

    async def _receive_heartbeat(self, request: Request) -> Reply:
        said = read_agentrl(Registration, request)
        for address in [a for a, s in self._doors.stubs.items() if s.worker_id not in self._fleet.members]:
            self._doors.stubs.pop(address).close()
        made = Stub(said.name, said.address, self._link, lambda: self._beat_soon(made))
        stub = self._doors.stubs.get(made.address)
        if stub is None or stub.worker_id != made.worker_id:
            if stub is not None:
                stub.close()
            stub = self._doors.stubs[made.address] = made
        await self._beat(stub, said)
        self._behind_the_scenes(stub.reconcile())
        return Reply(encode({}))

    async def _cancel_notice(self, request: Request) -> Reply:
        number = read_agentrl(Notice, request).session_id
        any(stub.notice(number) for stub in self._doors.stubs.values())
        return Reply(encode({}))

    async def _beat(self, stub: Stub, said: Registration | None = None) -> None:
        raw = stub.beat(said).model_dump_json().encode()
        reply = await self._heartbeat(Request("/v1/heartbeat", {}, b"", raw))
        stub.obey(json.loads(reply.body))

    def _beat_soon(self, stub: Stub) -> None:
        """A slot became free: those that wait for one should not wait for the next heartbeat."""
        if stub.worker_id not in self._due:
            self._due.add(stub.worker_id)
            self._behind_the_scenes(self._beat_once(stub))

    async def _beat_once(self, stub: Stub) -> None:
        await asyncio.sleep(LEAST_GAP_S)  # several slots at once are one beat
        self._due.discard(stub.worker_id)
        await self._beat(stub)

    def _behind_the_scenes(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no hold on it
        task.add_done_callback(self._tasks.discard)
