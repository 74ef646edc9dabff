"""A client's calls: repeated within a deadline until they are answered, straight by the worker or by its controller.

What is sent must be safe to repeat: a start carries a request id, a turn its number. A worker that cannot be reached
directly is called through the controller for a while.

Not here: one exchange (link.py); sessions (client.py).
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from agentbench_fc.errors import AgentBenchError, InfrastructureError, NotFound, Unavailable
from agentbench_fc.serve.http import encode
from agentbench_fc.serve.link import Link, NoAnswer

RETRY_GAPS_S = (0.05, 0.2, 0.5, 1.0, 2.0)
SHUNNED_S = 15.0
"""A worker that could not be reached directly is called through the controller for so long."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """The way to a session's worker, past the controller."""

    address: str
    token: str
    """The session's own."""


class Calls:
    """Calls to one controller and its workers. Use it on one event loop.

    Args:
        url: Of the controller, or of a single worker.
        link: For the exchanges.
        timeout_s: Deadline of a call with all its repeats, where it has no other.
        attempt_timeout_s: One attempt without an answer is given up after this.
    """

    def __init__(self, url: str, link: Link, *, timeout_s: float, attempt_timeout_s: float) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self._link = link
        self._attempt_s = attempt_timeout_s
        self._shunned: dict[str, float] = {}

    async def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        shortcut: Shortcut | None = None,
        headers: dict[str, str] | None = None,
        repeats: bool = True,
        timeout_s: float | None = None,
        start_wait_s: float | None = None,
    ) -> Any:
        """One call with its repeats: the decoded answer.

        Args:
            method: Of HTTP.
            path: With the query.
            body: Sent as JSON.
            shortcut: Past the controller, as long as it works.
            headers: Sent with it.
            repeats: It may be sent again although it may have been carried out.
            timeout_s: Deadline with all repeats.
            start_wait_s: It is a start: its repeats say so, and it is refused for good after so long without a slot.

        Raises:
            InfrastructureError: no usable answer within the deadline; the last reason is in it.
            AgentBenchError: the other side refused it.
        """
        loop = asyncio.get_running_loop()
        allowed = timeout_s or self.timeout_s
        began = loop.time()
        deadline = began + allowed
        raw = None if body is None else encode(body)
        attempt = 0
        told: AgentBenchError | None = None
        while True:
            base, extra = self._way(shortcut)
            left = deadline - loop.time()
            try:
                return await self._link.call(
                    method,
                    base + path,
                    raw,
                    timeout_s=max(0.001, min(left, self._attempt_s)),
                    headers={**(headers or {}), **extra},
                )
            except NoAnswer as error:
                last: AgentBenchError = error
                if base != self.url:
                    self._shunned[base] = loop.time() + SHUNNED_S
                    attempt -= attempt == 0  # the way through the controller is tried at once
                if error.sent and not repeats:
                    raise InfrastructureError(
                        f"{error} The turn may have been played; it was sent unnumbered."
                    ) from error
            except InfrastructureError as error:
                full = start_wait_s is not None and isinstance(error, Unavailable)
                if not error.retryable or (full and loop.time() - began >= (start_wait_s or 0.0)):
                    raise
                last = told = error
            except NotFound as error:
                if base == self.url:
                    raise
                # Another process has taken the worker's address: the controller knows what became of it.
                self._shunned[base] = loop.time() + SHUNNED_S
                last = error
            attempt += 1
            gap = RETRY_GAPS_S[min(attempt, len(RETRY_GAPS_S)) - 1] * random.uniform(0.5, 1.0) if attempt else 0.0
            if loop.time() + gap >= deadline:
                raise InfrastructureError(
                    f"no usable answer within {allowed:g} s, {attempt} attempts: {told or last} [{self.url}]."
                ) from last
            await asyncio.sleep(gap)
            if start_wait_s is not None and body is not None and not body.get("retry"):
                body = body | {"retry": True}
                raw = encode(body)

    def _way(self, shortcut: Shortcut | None) -> tuple[str, dict[str, str]]:
        """Where a call goes: straight to the worker, or to the controller."""
        if shortcut is None:
            return self.url, {}
        until = self._shunned.get(shortcut.address)
        if until is not None:
            if asyncio.get_running_loop().time() < until:
                return self.url, {}
            del self._shunned[shortcut.address]
        return shortcut.address, {"Authorization": f"Session {shortcut.token}"}
