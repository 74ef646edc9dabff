"""The processes: a worker's and a controller's main coroutine, signals, drain and restart.

A worker that is told to stop (SIGTERM, SIGINT) takes no further session, lets the open ones go on for a while, says
goodbye to its controller and ends; a second signal ends it at once. One whose helper threads hang does the same and
then replaces itself: threads cannot be killed, a process can.

Not here: several processes as one (tree.py).
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from agentbench_fc.errors import CallerError
from agentbench_fc.serve.config import ControllerConfig, WorkerConfig
from agentbench_fc.serve.controller import Controller
from agentbench_fc.serve.heartbeat import Heart
from agentbench_fc.serve.server import address_of, bind, serving
from agentbench_fc.serve.worker import Worker

logger = logging.getLogger(__name__)

CLOSE_WAIT_S = 15.0
LINGER_S = 0.5
"""After the last session ended: an answer that was lost can still be asked for."""


async def run_worker(
    config: WorkerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    controller: str | None = None,
    advertise: str | None = None,
    ready_file: Path | None = None,
) -> bool:
    """Runs a worker until it is told to stop.

    Args:
        config: Its settings.
        host: Where it listens.
        port: 0: a free one.
        controller: URL of its controller; None: it stands alone.
        advertise: How others reach it, where that is not the address that it listens on.
        ready_file: Its address is written there when it serves.

    Returns:
        Whether it should be started again.
    """
    with contextlib.closing(bind(host, port, config.token)) as sock:
        worker = Worker(config, address=(advertise or address_of(sock)).rstrip("/"))
        logging.getLogger().addHandler(worker.tail)
        try:
            with _signals(worker.stop):
                try:
                    await worker.open()
                    async with serving(worker.app, sock):
                        heart = Heart(worker, controller) if controller is not None else None
                        beating = asyncio.create_task(heart.run(), name="heart") if heart is not None else None
                        _tell(ready_file, worker.address)
                        served = ", ".join(hosted.name for hosted in worker.hosted)
                        print(f"worker {worker.worker_id} serves {served} [{worker.address}]", flush=True)
                        await worker.stopping.wait()
                        await worker.drain()
                        await asyncio.sleep(LINGER_S)
                        if heart is not None and beating is not None:
                            beating.cancel()
                            await heart.leave()
                finally:
                    await _close(worker)  # also what was loaded before a start that failed
        finally:
            logging.getLogger().removeHandler(worker.tail)
    return worker.restart


async def _close(worker: Worker) -> None:
    try:
        async with asyncio.timeout(CLOSE_WAIT_S):
            await worker.aclose()
    except TimeoutError:
        logger.warning("the worker did not close within %g s", CLOSE_WAIT_S)


async def run_controller(
    config: ControllerConfig, *, host: str = "127.0.0.1", port: int, ready_file: Path | None = None
) -> None:
    """Runs a controller until it is told to stop."""
    controller = Controller(config)
    stopping = asyncio.Event()
    with contextlib.closing(bind(host, port, config.token)) as sock, _signals(stopping.set):
        address = address_of(sock)
        async with serving(controller.app, sock):
            watch = asyncio.create_task(controller.run(), name="watch")
            _tell(ready_file, address)
            print(f"controller {controller.id} [{address}]", flush=True)
            await stopping.wait()
            watch.cancel()
        await controller.aclose()


def start_again() -> None:
    """Replaces this process by a fresh one of the same command line; hanging threads end with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def loop_factory() -> asyncio.AbstractEventLoop:
    """Uvloop's loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextlib.contextmanager
def _signals(stop: "object") -> Iterator[None]:
    """The first SIGTERM or SIGINT asks to stop, the second ends the process."""
    loop = asyncio.get_running_loop()
    assert callable(stop)
    handlers = (signal.SIGTERM, signal.SIGINT)

    def first() -> None:
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: os._exit(130))
        stop()

    for number in handlers:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _tell(ready_file: Path | None, address: str) -> None:
    if ready_file is None:
        return
    part = ready_file.with_name(ready_file.name + ".part")
    try:
        part.write_text(address, encoding="ascii")
        part.replace(ready_file)
    except OSError as error:
        raise CallerError(f"the ready file cannot be written: {error.strerror} [{ready_file}].") from error
