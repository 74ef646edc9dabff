"""Frames between our processes: a JSON header and raw bytes behind it, over a stream socket. No pickle.

A frame is two lengths (header, body; 8 bytes each, big-endian), the header, the body. One side of a connection may be
asyncio and the other blocking.

Not here: what the headers say (process.py, rollout/messages.py).
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError, TaskError
from agentrl_trainer.engines.base import ContextFull

_LENGTHS = struct.Struct(">QQ")
_MOST = 1 << 31
"""A longer part than 2 GiB is not a frame of ours."""
_ERRORS: tuple[type[AgentBenchError], ...] = (ContextFull, CallerError, TaskError, InfrastructureError)
"""Those that keep their class, the most special first."""


class Frame(NamedTuple):
    """One message."""

    head: dict[str, Any]
    body: bytes = b""


class FrameWriter:
    """Writes frames to an asyncio stream, one after the other whoever sends them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._turn = asyncio.Lock()

    async def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Sends one frame; waits while the other side does not read.

        Raises:
            InfrastructureError: the other side is gone.
        """
        async with self._turn:
            try:
                self._writer.write(_packed(head, body))
                await self._writer.drain()
            except OSError as error:
                raise InfrastructureError(f"the other process is gone: {error!r} [wire]. See its log.") from error

    async def aclose(self) -> None:
        """Closes the stream."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None: the other side has closed, or was cut off within a frame."""
    try:
        lengths = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        _check(lengths)
        head = await reader.readexactly(lengths[0])
        return Frame(json.loads(head), await reader.readexactly(lengths[1]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def send_frame(sock: socket.socket, head: Mapping[str, Any], body: bytes = b"") -> None:
    """Sends one frame on a blocking socket."""
    sock.sendall(_packed(head, body))


def receive_frame(sock: socket.socket) -> Frame | None:
    """The next frame of a blocking socket; None: the other side has closed, or was cut off within a frame."""
    lengths = _receive(sock, _LENGTHS.size)
    if lengths is None:
        return None
    sizes = _LENGTHS.unpack(lengths)
    _check(sizes)
    head, body = _receive(sock, sizes[0]), _receive(sock, sizes[1])
    return None if head is None or body is None else Frame(json.loads(head), body)


def error_to_dict(error: AgentBenchError) -> dict[str, str]:
    """An error of ours as plain data."""
    kind = next((cls.__name__ for cls in _ERRORS if isinstance(error, cls)), "TaskError")
    return {"kind": kind, "message": str(error)}


def error_from_dict(data: Mapping[str, Any]) -> AgentBenchError:
    """The error that another process met."""
    kinds = {cls.__name__: cls for cls in _ERRORS}
    return kinds.get(str(data.get("kind")), InfrastructureError)(str(data.get("message")))


def _packed(head: Mapping[str, Any], body: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(body)), text, body))


def _check(lengths: tuple[int, ...]) -> None:
    if max(lengths) > _MOST:
        raise InfrastructureError(f"a frame of {lengths} bytes [wire]. Both sides must be of the same release.")


def _receive(sock: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = sock.recv(min(count - len(parts), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
