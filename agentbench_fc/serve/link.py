"""HTTP between our own processes: one aiohttp session, bounded waits, errors as exceptions.

Not here: retries (calls.py for users, controller.py for forwarding).
"""

import asyncio
import json
from typing import Any

from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.serve.faults import from_wire


class NoAnswer(InfrastructureError):
    """The other side did not answer; `sent` tells whether it may have got the request."""

    fault = "worker"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Link:
    """Calls to any number of addresses, on kept-alive connections.

    Args:
        token: Sent as a bearer token.
        connections: Most open connections; 0: no bound.
        headers: Sent with every call.
    """

    def __init__(
        self, *, token: str | None = None, connections: int = 0, headers: dict[str, str] | None = None
    ) -> None:
        self._headers = dict(headers or {})
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connections = connections
        self._session: Any = None
        self._closed = False

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One exchange: status and body.

        Raises:
            NoAnswer: no connection, a broken one, or no answer in time.
            CallerError: the link was closed.
        """
        import aiohttp

        if self._closed:
            raise CallerError("the client was closed [http]. Make another one.")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._connections, ttl_dns_cache=60, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        connected = False
        all_headers = {"Content-Type": "application/json", **self._headers, **(headers or {})}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    method, url, data=body, headers=all_headers, allow_redirects=False
                ) as reply:
                    connected = True
                    return reply.status, await reply.read()
        except aiohttp.ClientConnectorError as error:
            raise NoAnswer(f"no connection: {error.strerror or error} [{url}].", sent=False) from error
        except TimeoutError as error:  # before OSError, of which it is one
            what = "the answer broke off" if connected else "no answer"
            raise NoAnswer(f"{what} within {timeout_s or 0:g} s [{url}].", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"the connection broke: {error!r} [{url}].", sent=True) from error

    async def call(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One exchange: the decoded body of a good answer.

        Raises:
            NoAnswer: as in `send`.
            AgentBenchError: the other side answered with an error.
        """
        status, raw = await self.send(method, url, body, timeout_s=timeout_s, headers=headers)
        try:
            value = json.loads(raw)
        except ValueError as error:
            if status < 400:
                raise NoAnswer(f"the answer is not JSON [{url}]. Is it an agentbench-fc server?", sent=True) from error
            value = None
        if status >= 400:
            raise from_wire(status, value)
        return value

    async def aclose(self) -> None:
        """Closes the connections, and opens no further one; safe to repeat."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
