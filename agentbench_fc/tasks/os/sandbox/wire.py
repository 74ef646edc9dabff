"""The host's side of the channel to a sandbox's agent: framed requests and answers with deadlines over one socket.

A message cannot be cut or mixed up unnoticed: it has a length and a checksum, and each answer names its request. What
does not fit is `SandboxLost`, never an answer.

Not here: the other side (inside/); who makes the socket (docker.py, oci.py).
"""

import binascii
import functools
import importlib.util
import itertools
import marshal
import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from agentbench_fc.tasks.os.sandbox.base import SandboxLost

INSIDE = Path(__file__).with_name("inside")
MODULES = ("processes", "shell", "agent")
BOOT = "import os;exec(os.read(0,999))"
"""What process 1 is started with: it takes its program from the host, which is the only one that can write there."""
LOADER = b"""
def take(n):
    data = b""
    while len(data) < n:
        part = os.read(0, n - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
import marshal, _frozen_importlib_external as files
magic, code, source = (take(int(take(8))) for _ in range(3))
code = marshal.loads(code) if magic == files.MAGIC_NUMBER else compile(source, "agent", "exec")
exec(code, {"__name__": "__main__"})
"""
"""Takes the program compiled, which saves a third of the start, or as source where its Python is another one."""
COMMAND = ("python3", "-I", "-S", "-B", "-c", BOOT)
MAGIC = b"\xfa\xfc"
HEAD = 10
MAX_BODY = 256 << 20
_OWN_IMPORT = re.compile(r"^from agentbench_fc[\w.]* import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)


class Stream(Protocol):
    """A two-way stream of bytes; docker's has frames of its own around ours."""

    def fileno(self) -> int:
        """To wait on."""
        ...

    def recv(self) -> bytes:
        """Some bytes; none at the end. Never blocks for long once the stream is readable."""
        ...

    def send(self, data: memoryview) -> int:
        """Writes some of `data`."""
        ...

    def close(self) -> None:
        """Closes it; safe to repeat."""
        ...


class SocketStream:
    """A plain socket."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        link.setblocking(False)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._link.fileno()

    def recv(self) -> bytes:
        """What has arrived."""
        return self._link.recv(1 << 18)

    def send(self, data: memoryview) -> int:
        """As much as fits."""
        return self._link.send(data)

    def close(self) -> None:
        """Closes the socket."""
        self._link.close()


def pack(fields: Sequence[bytes]) -> bytes:
    """A message of byte strings.

    >>> unpack(pack([b"one", b""])[HEAD:])
    [b'one', b'']
    """
    body = b"".join(part for each in fields for part in (len(each).to_bytes(4, "big"), each))
    return MAGIC + len(body).to_bytes(4, "big") + binascii.crc32(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """The fields of a message's body.

    Raises:
        ValueError: the lengths do not add up.
    """
    fields, at = [], 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        if end > len(body):
            raise ValueError("a field is longer than its message")
        fields.append(body[at + 4 : end])
        at = end
    return fields


def program() -> bytes:
    """The agent in one piece: its modules, without their imports of each other."""
    source = "\n".join((INSIDE / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
    return _OWN_IMPORT.sub("", source).encode()


@functools.cache
def parcel() -> bytes:
    """What the loader takes: the version of compiled code, the program compiled, and its source."""
    source = program()
    code = marshal.dumps(compile(source, "agent", "exec", dont_inherit=True))
    return b"".join(b"%08d" % len(part) + part for part in (importlib.util.MAGIC_NUMBER, code, source))


class Wire:
    """Requests to one agent, one at a time; not for several threads at once."""

    def __init__(self, stream: Stream, sandbox: str) -> None:
        self._stream = stream
        self._sandbox = sandbox
        self._buffer = bytearray()
        self._numbers: Iterator[int] = itertools.count(1)
        self.broken = ""
        """Why nothing more can be asked; empty while all is well."""

    def boot(self, timeout_s: float) -> None:
        """Sends the agent its program and waits until it greets.

        Raises:
            SandboxLost: it does not.
        """
        deadline = time.monotonic() + timeout_s
        self._send(LOADER.ljust(999), deadline)
        self._send(parcel(), deadline)
        if self._receive(deadline)[:1] != [b"hello"]:
            raise self._break("the agent in the sandbox does not greet as expected")

    def ask(self, op: bytes, *fields: bytes, timeout_s: float) -> list[bytes]:
        """One request; the fields of its answer, without the request's number.

        Raises:
            SandboxLost: no whole answer came within `timeout_s` seconds; the wire is of no more use.
        """
        if self.broken:
            raise SandboxLost(f"{self.broken} [sandbox {self._sandbox}]. Start the episode again.")
        number = b"%d" % next(self._numbers)
        deadline = time.monotonic() + timeout_s
        self._send(pack([number, op, *fields]), deadline)
        answer = self._receive(deadline)
        if answer[:1] != [number] or len(answer) < 2:
            raise self._break("the agent's answer is not that of the question")
        return answer[1:]

    @property
    def alive(self) -> bool:
        """Whether the other side, which speaks only when it is asked, has neither hung up nor said something."""
        if self.broken:
            return False
        poll = select.poll()
        try:
            poll.register(self._stream.fileno(), select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Closes the stream, which ends the agent."""
        self.broken = self.broken or "it is closed"
        self._stream.close()

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT, deadline)
            try:
                view = view[self._stream.send(view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._break(f"the channel is closed ({error})") from error

    def _receive(self, deadline: float) -> list[bytes]:
        while True:
            if len(self._buffer) >= HEAD:
                size = int.from_bytes(self._buffer[2:6], "big")
                if self._buffer[:2] != MAGIC or size > MAX_BODY:
                    raise self._break("what came over the channel is no message")
                if len(self._buffer) >= HEAD + size:
                    body = bytes(self._buffer[HEAD : HEAD + size])
                    if binascii.crc32(body) != int.from_bytes(self._buffer[6:HEAD], "big"):
                        raise self._break("a message came with a wrong checksum")
                    del self._buffer[: HEAD + size]
                    try:
                        return unpack(body)
                    except ValueError as error:
                        raise self._break(f"a message is damaged ({error})") from error
            self._wait(select.POLLIN, deadline)
            try:
                data = self._stream.recv()
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._break(f"the channel broke ({error})") from error
            if not data:
                raise self._break("the sandbox ended")
            self._buffer += data

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        try:
            poll.register(self._stream.fileno(), event)
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        except (OSError, ValueError) as error:
            raise self._break("the channel was closed meanwhile") from error
        if not ready:
            raise self._break("the sandbox does not answer in time")

    def _break(self, why: str) -> SandboxLost:
        self.broken = self.broken or why
        return SandboxLost(f"{why} [sandbox {self._sandbox}]. Start the episode again.")
