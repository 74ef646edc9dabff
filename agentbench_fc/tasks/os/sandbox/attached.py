"""The standard input and output of a container, as a container engine's API gives them: one socket, with frames.

Not here: what goes over it (wire.py); the container (docker.py).
Source: Docker Engine API, ContainerAttach, "Stream format".
"""

import contextlib
import socket
from typing import Any


class AttachedStream:
    """The standard input and output of a container: an engine sends frames of a kind, a length, and bytes."""

    def __init__(self, holder: Any, link: socket.socket) -> None:
        self._holder = holder  # the HTTP response that owns the socket
        self._link = link
        self._raw = bytearray()
        self.stderr = bytearray()
        """The end of what process 1 complained about: a traceback of the agent, or that there is no python3."""
        link.setblocking(False)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._link.fileno()

    def recv(self) -> bytes:
        """The bytes of the whole frames that have arrived.

        Raises:
            BlockingIOError: there are none yet.
        """
        data = self._link.recv(1 << 18)
        if not data:
            return b""
        self._raw += data
        out = bytearray()
        while len(self._raw) >= 8:
            size = int.from_bytes(self._raw[4:8], "big")
            if len(self._raw) < 8 + size:
                break
            if self._raw[0] == 2:
                self.stderr = (self.stderr + self._raw[8 : 8 + size])[-2000:]
            else:
                out += self._raw[8 : 8 + size]
            del self._raw[: 8 + size]
        if not out:
            raise BlockingIOError
        return bytes(out)

    def send(self, data: memoryview) -> int:
        """As much as fits."""
        return self._link.send(data)

    def close(self) -> None:
        """Hangs up, which ends the agent."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        response = getattr(self._holder, "_response", self._holder)
        with contextlib.suppress(ValueError):  # it flushes what is closed already
            response.close()
        self._holder.close()
        self._link.close()


def attach(client: Any, container: str) -> AttachedStream:
    """The streams of a container that may not have been started yet; `client` is a `docker.APIClient`."""
    holder = client.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    return AttachedStream(holder, getattr(holder, "_sock", holder))
