"""Sockets and the HTTP server: uvicorn with the settings that both worker and controller use.

Not here: the application (http.py); processes (tree.py).
"""

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agentbench_fc.errors import CallerError, InfrastructureError

logger = logging.getLogger(__name__)

START_WAIT_S = 15.0
STOP_WAIT_S = 5.0
MAX_HEAD = 64 * 2**10
"""A connection whose request line and headers do not end within so many bytes is closed."""
HEAD_WAIT_S = 30.0
"""So does one whose next head, once begun, is not whole by then; between two requests the server's own time counts."""


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """A bound socket; port 0 lets the system choose.

    Raises:
        CallerError: the address is reachable from other machines and there is no token.
        InfrastructureError: the port is taken, or the address is not this machine's.
    """
    if token is not None and len(token) < 8:
        raise CallerError("the token is shorter than 8 characters [token]. Use a long random one.")
    if token is None and not _is_loopback(host):
        raise CallerError(
            f"{host} can be reached from other machines and there is no token [--host]. "
            "Set AGENTBENCH_FC_TOKEN, or bind 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, for asyncio's own loop sends small answers at once only where it reads TCP: else each waits for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InfrastructureError(f"cannot listen: {reason} [{host}:{port}]. Choose another --port.") from error
    return sock


def address_of(sock: socket.socket) -> str:
    """The address of a bound socket as a URL.

    Raises:
        InfrastructureError: it listens on every address, and this machine does not know one of its own.
    """
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        name = socket.gethostname()
        try:
            host = socket.gethostbyname(name)
        except OSError as error:
            raise InfrastructureError(
                f"this machine's name has no address: {error.strerror or error} [{name}]. "
                "Listen on one address by --host, or tell a worker its own by --advertise."
            ) from error
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_installed() -> None:
    """Looks for the extra before any process is started.

    Raises:
        CallerError: it is not installed.
    """
    for name in ("uvicorn", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise CallerError(f"{name} is not installed [serve]. pip install 'agentbench-fc[serve]'.")


@contextlib.asynccontextmanager
async def serving(app: Any, sock: socket.socket) -> AsyncIterator[None]:
    """Serves within the block; leaving it stops taking connections and waits a moment for open ones.

    Raises:
        InfrastructureError: the server does not start.
    """
    check_installed()
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are the process's business (worker_main, tree)

    config = uvicorn.Config(
        app,
        http=_protocol(),
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        backlog=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(STOP_WAIT_S),
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http-server")
    try:
        deadline = time.monotonic() + START_WAIT_S
        while not server.started and not task.done():  # uvicorn has no event for it
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the HTTP server did not start within {START_WAIT_S:g} s [serve]. Try again."
                )
            await asyncio.sleep(0.005)
        if task.done():
            await task
        yield
    finally:
        server.should_exit = True
        done, _ = await asyncio.wait([task], timeout=2 * STOP_WAIT_S)
        if not done:
            task.cancel()
            logger.warning("the HTTP server did not stop within %g s", 2 * STOP_WAIT_S)
        sock.close()


def _protocol() -> Any:
    """Httptools where it is installed, with bounds on the head's size and time; else h11, which bounds the size."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Closes a connection whose head does not end, or does not come."""

        _head: int = 0
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(HEAD_WAIT_S, self._hang_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._in_time()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._head += len(data)
            super().data_received(data)
            if self._head > MAX_HEAD:
                self._hang_up()
            elif self._head > 0 and self._late is None:
                self._late = self.loop.call_later(HEAD_WAIT_S, self._hang_up)

        def _hang_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

        def _in_time(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def on_headers_complete(self) -> None:
            self._head = -(2**62)  # the body has its own limits
            self._in_time()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._head = 0
            super().on_message_complete()

    return Bounded
