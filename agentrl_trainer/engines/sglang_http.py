"""One SGLang server over HTTP: JSON in, JSON out, every fault as one of our errors.

Not here: what the answers mean (sglang.py); who is asked (pool.py, router.py).
Source: routes and error bodies of SGLang 0.5.23.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import ContextFull

RELEASE = "0.5.23"
"""The release whose wire this client was written for."""
BACKOFF_S = 0.2
BUSY = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses after which the same request may go well."""
_CONTEXT = re.compile(r"context length|maximum context|longer than the model", re.IGNORECASE)


class ServerGone(InfrastructureError):
    """Nobody answers at the address, or the connection broke."""


class SGLangServer:
    """Calls of one server. Any number at once; one event loop."""

    def __init__(self, url: str, *, key: str = "") -> None:
        """Describes the server; connections are made with the first call.

        Args:
            url: `http://host:port`.
            key: What the server was started with as `--api-key`.
        """
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._jitter = random.Random()
        self._http: aiohttp.ClientSession | None = None

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """The JSON at `path`; None for an empty answer."""
        return await self._call("GET", path, None, timeout_s)

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float, retries: int = 0) -> Any:
        """Sends `body` and returns the JSON that comes back; None for an empty answer.

        Args:
            path: The route.
            body: Of the request.
            timeout_s: For all tries together.
            retries: Further tries after a broken connection or while the server is busy; for what is safe to repeat.

        Raises:
            ContextFull: the server says that the tokens exceed its context.
            CallerError: the server refuses the request.
            InfrastructureError: no answer in all tries or in time; ServerGone: nobody is there.
        """
        end = time.monotonic() + timeout_s
        for left in reversed(range(retries + 1)):
            try:
                return await self._call("POST", path, body, end - time.monotonic())
            except InfrastructureError:
                pause = BACKOFF_S * 2.0 ** (retries - left) * self._jitter.uniform(0.5, 1.5)
                if not left or time.monotonic() + pause >= end:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    async def aclose(self) -> None:
        """Closes the connections; safe to repeat."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        if self._http is None:
            # the pool's callers bound their number themselves; a limit here would queue them out of sight
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.request(method, self.url + path, json=body, allow_redirects=False) as response,
            ):
                raw, status = await response.read(), response.status
        except TimeoutError:
            raise InfrastructureError(
                f"no answer to {path} within {timeout_s:.3g} s [{self.url}]. Repeat it on another engine."
            ) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise CallerError(f"{self.url!r} is no address [engines]. Use http://host:port.") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ServerGone(
                f"no connection: {type(error).__name__}: {error} [{self.url}{path}]. "
                "Start the server, or mend engines.fresh_urls and engines.stale_urls."
            ) from error
        if status != 200:
            raise self._refusal(path, status, raw)
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError:
            if path in _TEXT_ROUTES:
                return None
            raise InfrastructureError(f"no JSON came: {raw[:120]!r} [{self.url}{path}]. Is this SGLang?") from None

    def _refusal(self, path: str, status: int, raw: bytes) -> Exception:
        said = " ".join(raw[:2000].decode("utf-8", "replace").split())[:400]
        where = f"HTTP {status}: {said} [{self.url}{path}]."
        if status in {401, 403}:
            return CallerError(f"the server refuses the key, {where} Name its variable in engines.api_key_env.")
        if status in BUSY or status >= 500:
            return InfrastructureError(f"the server cannot answer, {where} Look at its log.")
        if path == "/generate" and _CONTEXT.search(said):
            return ContextFull(f"the server's context is full, {where} End the session as `agent context limit`.")
        if status == 404:
            return CallerError(f"no such route, {where} The server must be SGLang, {RELEASE} or of the same wire.")
        return CallerError(f"the server refuses the request, {where} Read what it says.")


_TEXT_ROUTES = frozenset({"/flush_cache", "/health"})
