"""A TCP proxy with bad manners: it loses answers, doubles requests, delays, and refuses connections."""

import asyncio
import random
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes one HTTP request after the other on; knows where a request ends, and which answers to hold back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._kind = "nothing"
        self._share = 0.0
        self._random = random.Random(0)
        self._serving: set[asyncio.Task[None]] = set()
        self.faults = 0

    @classmethod
    async def before(cls, url: str) -> Self:
        proxy = cls(urlsplit(url).port or 80)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        return proxy

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def misbehave(self, kind: str, share: float = 0.0, seed: int = 0) -> None:
        self._kind, self._share, self._random = kind, share, random.Random(seed)

    async def aclose(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass_on(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._strikes("refused"):
                return
            while (request := await _message(reader)) is not None:
                if self._strikes("delays"):
                    await asyncio.sleep(self._random.uniform(0.1, 0.5))
                doubled = self._strikes("doubled requests")
                answers = await asyncio.gather(*(self._forward(request) for _ in range(1 + doubled)))
                if self._strikes("lost answers") or answers[0] is None:
                    return
                writer.write(answers[0])
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one side has gone
        finally:
            writer.close()

    async def _forward(self, request: bytes) -> bytes | None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return None
        try:
            writer.write(request)
            return await _message(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        finally:
            writer.close()

    def _strikes(self, kind: str) -> bool:
        strikes = self._kind == kind and self._random.random() < self._share
        self.faults += strikes
        return strikes


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    """One HTTP message with a content length."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head + await reader.readexactly(length)
