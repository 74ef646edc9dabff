"""The worker's side of the bond with its controller: heartbeats out, orders in.

A heartbeat goes out every period, and at once (at most every 50 ms) when a slot becomes free in a task that was full.
The first one to a controller that it has not told yet carries the request ids of the open sessions: with them a
controller that was killed knows again which starts were done.

Not here: what the controller makes of it (fleet.py).
"""

import asyncio
import contextlib
import logging
from typing import Any

from agentbench_fc.errors import AgentBenchError
from agentbench_fc.serve import schema
from agentbench_fc.serve.config import HEARTBEAT_S
from agentbench_fc.serve.link import Link
from agentbench_fc.serve.worker import Worker

logger = logging.getLogger(__name__)

LEAST_GAP_S = 0.05
SEND_TIMEOUT_S = 5.0


class Heart:
    """Keeps a worker known to a controller.

    Args:
        worker: The worker.
        url: Of the controller.
    """

    def __init__(self, worker: Worker, url: str) -> None:
        self._worker = worker
        self._url = url.rstrip("/")
        self._link = Link(token=worker.config.token)
        self._period = HEARTBEAT_S
        self._knows: str | None = None
        self._done = 0
        self._beat = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard = True
        worker.on_free = self._freed

    async def run(self) -> None:
        """Beats until it is cancelled."""
        while True:
            await self._try()
            self._beat.clear()
            try:
                async with asyncio.timeout(self._period):
                    await self._beat.wait()
                await asyncio.sleep(LEAST_GAP_S)  # several slots at once are one beat
            except TimeoutError:
                pass

    async def leave(self) -> None:
        """Tells the controller that the worker ends now."""
        await self._try(leaving=True)
        await self._link.aclose()

    async def _try(self, *, leaving: bool = False) -> None:
        try:
            await self._send(leaving)
            self._heard = True
        except AgentBenchError as error:
            if self._heard:  # once, not every period
                logger.warning("the controller does not answer: %s", error)
            self._heard = False
        except Exception:  # a heart must not stop because of one beat
            logger.exception("a heartbeat failed by a defect")

    async def _send(self, leaving: bool) -> None:
        worker = self._worker
        beat = schema.Heartbeat(
            worker_id=worker.worker_id,
            name=worker.config.name,
            address=worker.address,
            version=schema.version(),
            draining=worker.draining,
            leaving=leaving,
            tasks=[await hosted.load() for hosted in worker.hosted],
            log=worker.tail.lines(3),
            knows=self._knows,
            starts=[pair for hosted in worker.hosted for pair in hosted.starts()] if self._knows is None else None,
            orders_done=self._done,
        )
        reply: dict[str, Any] = await self._link.call(
            "POST", f"{self._url}/v1/heartbeat", beat.model_dump_json().encode(), timeout_s=SEND_TIMEOUT_S
        )
        self._period = float(reply["heartbeat_s"])
        if reply["controller"] != self._knows:
            # What was sent this time was for another one, unless it was everything.
            self._knows = reply["controller"] if beat.starts is not None else None
            if self._knows is None:
                self._beat.set()
            self._done = 0
        if reply["order"] > self._done:
            worker.end_sessions(reply["cancel_sessions"])
            for request_id in reply["cancel_starts"]:
                worker.take_back(request_id)
            self._done = reply["order"]

    def _freed(self) -> None:
        """A slot became free; called on any thread."""
        if self._worker.draining or any(hosted.was_full() for hosted in self._worker.hosted):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and sessions end after it
                self._loop.call_soon_threadsafe(self._beat.set)
