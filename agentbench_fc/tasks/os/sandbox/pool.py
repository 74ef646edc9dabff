"""Sandboxes for many sessions at once: a few are kept ready, all are used once, and none outlives this process.

    with Sandboxes("auto", warm=4) as sandboxes:
        with sandboxes.open("default", timeout_s=30) as sandbox: ...

Opening waits in a queue of limited length with a deadline of its own, so that a busy machine costs waiting time, never
a command's time. A thread makes what is missing, sweeps what killed processes left every 30 s, and ends when closed.

Not here: how one is made (docker.py, oci.py); which backend (choose.py).
"""

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from agentbench_fc.errors import CallerError, InfrastructureError, Unavailable
from agentbench_fc.tasks.os.sandbox.base import Limits, Sandbox, SandboxBackend, SandboxUnavailable

logger = logging.getLogger(__name__)

SWEEP_S = 30.0
MAX_WAITING = 256
IDLE_RETRY_S = 5.0
"""After a failed start in the background; whoever opens one tries at once."""


@dataclass(slots=True)
class _Shelf:
    """The ready sandboxes of one image."""

    ready: deque[Sandbox] = field(default_factory=deque)
    making: int = 0
    not_before: float = 0.0


class Sandboxes:
    """The sandboxes of one process; safe to share between threads."""

    def __init__(
        self,
        backend: str | SandboxBackend = "auto",
        *,
        warm: int = 0,
        limits: Limits | None = None,
        max_open: int | None = None,
        max_waiting: int = MAX_WAITING,
        creating: int | None = None,
    ) -> None:
        """Nothing is started before the first `open`.

        Args:
            backend: auto, docker, oci, or an object that makes sandboxes.
            warm: So many are kept ready of each image that was asked for.
            limits: Of each sandbox.
            max_open: In use at once; more wait. None: no bound.
            max_waiting: So many callers may wait; one more is turned away at once.
            creating: Starts at once; None: twice the number of CPUs.
        """
        if (
            warm < 0
            or max_waiting < 0
            or (max_open is not None and max_open < 1)
            or (creating is not None and creating < 1)
        ):
            raise CallerError("warm, max_open, max_waiting or creating is too small [sandboxes]. Use 1 or more.")
        self._wanted = backend
        self._warm = warm
        self._limits = limits or Limits()
        self._max_open = max_open
        self._max_waiting = max_waiting
        self._creating = creating or 2 * (os.cpu_count() or 1)
        self._backend: SandboxBackend | None = None
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._state = threading.Condition()
        self._choosing = threading.Lock()
        self._starts = threading.BoundedSemaphore(self._creating)
        self._shelves: dict[str, _Shelf] = {}
        self._open = 0
        self._waiting = 0
        self._closed = False
        self._worker: threading.Thread | None = None

    @property
    def backend(self) -> SandboxBackend:
        """The backend; the first use chooses it.

        Raises:
            SandboxUnavailable: none works here.
        """
        from agentbench_fc.tasks.os.sandbox.choose import choose

        with self._choosing:
            if self._backend is None:
                self._backend = choose(self._wanted) if isinstance(self._wanted, str) else self._wanted
                self._sweep()
            return self._backend

    def open(self, image: str = "default", *, timeout_s: float = 60.0) -> Sandbox:
        """A sandbox that nobody used before; close it after use.

        Raises:
            SandboxUnavailable: no backend works here, or the image is not built.
            Unavailable: too many wait already, or none became free within `timeout_s` seconds.
            InfrastructureError: it could not be started.
        """
        if self._pid != os.getpid():
            self._reset()
        deadline = time.monotonic() + timeout_s
        backend = self.backend
        self._take_place(deadline, timeout_s)
        try:
            sandbox = self._ready(image) or self._make(backend, image, deadline, timeout_s)
        except BaseException:
            self._give_back()
            raise
        sandbox.on_close(self._give_back)
        return sandbox

    @property
    def waiting(self) -> int:
        """Callers that wait now."""
        return self._waiting

    def ready(self, image: str) -> int:
        """Sandboxes of an image that wait to be used."""
        with self._state:
            return len(self._shelves[image].ready) if image in self._shelves else 0

    def close(self) -> None:
        """Closes all sandboxes, also those in use; safe to repeat."""
        if self._pid != os.getpid():
            return
        with self._state:
            if self._closed:
                return
            self._closed = True
            ready = [sandbox for shelf in self._shelves.values() for sandbox in shelf.ready]
            self._shelves.clear()
            worker = self._worker
            self._state.notify_all()
        if worker is not None:
            worker.join(120)
        for sandbox in ready:
            sandbox.close()
        if self._backend is not None:
            self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _take_place(self, deadline: float, timeout_s: float) -> None:
        with self._state:
            if self._is_full() and self._waiting >= self._max_waiting:
                raise Unavailable(f"{self._waiting} already wait for a sandbox [sandboxes]. Try again later.")
            self._waiting += 1
            try:
                while self._is_full():
                    left = deadline - time.monotonic()
                    if left <= 0 or self._closed:
                        break
                    self._state.wait(left)
                if self._closed:
                    raise Unavailable("they are closed [sandboxes]. Open the task anew.")
                if self._is_full():
                    raise Unavailable(
                        f"all {self._max_open} sandboxes are in use, for {timeout_s:g} s [sandboxes]. "
                        "Try again later, or raise max_open."
                    )
                self._open += 1
            finally:
                self._waiting -= 1

    def _is_full(self) -> bool:
        return self._max_open is not None and self._open >= self._max_open

    def _give_back(self) -> None:
        with self._state:
            self._open = max(0, self._open - 1)
            self._state.notify_all()

    def _ready(self, image: str) -> Sandbox | None:
        """One from the shelf that still answers; the shelf is filled up again."""
        while True:
            with self._state:
                shelf = self._shelves.setdefault(image, _Shelf())
                sandbox = shelf.ready.popleft() if shelf.ready else None
                if self._worker is None and not self._closed:
                    self._worker = threading.Thread(target=self._work, name="agentbench-fc-sandboxes", daemon=True)
                    self._worker.start()
                self._state.notify_all()
            if sandbox is None or sandbox.alive:
                return sandbox
            sandbox.close()

    def _make(self, backend: SandboxBackend, image: str, deadline: float, timeout_s: float) -> Sandbox:
        if not self._starts.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(
                f"no start began within {timeout_s:g} s [sandboxes]. Try again later: the machine is busy."
            )
        try:
            return backend.create(image, self._limits, timeout_s=max(1.0, deadline - time.monotonic()))
        finally:
            self._starts.release()

    def _work(self) -> None:
        """Fills the shelves and sweeps, until closed."""
        sweep_at = time.monotonic() + SWEEP_S
        while True:
            with self._state:
                image = self._lacking()
                while image is None and not self._closed and time.monotonic() < sweep_at:
                    self._state.wait(max(0.01, min([sweep_at, *self._retries()]) - time.monotonic()))
                    image = self._lacking()
                if self._closed:
                    return
                if image is not None:
                    self._shelves[image].making += 1
            if image is not None:
                self._fill(image)
            if time.monotonic() >= sweep_at:
                self._sweep()
                sweep_at = time.monotonic() + SWEEP_S

    def _lacking(self) -> str | None:
        """An image of which more should be ready."""
        now = time.monotonic()
        for image, shelf in self._shelves.items():
            if len(shelf.ready) + shelf.making < self._warm and now >= shelf.not_before:
                return image
        return None

    def _retries(self) -> list[float]:
        """When images whose start failed are tried again."""
        return [shelf.not_before for shelf in self._shelves.values() if shelf.not_before > time.monotonic()]

    def _fill(self, image: str) -> None:
        sandbox: Sandbox | None = None
        try:
            sandbox = self._make(self.backend, image, time.monotonic() + 60, 60)
            sandbox.warm()
        except InfrastructureError as error:
            logger.warning("no sandbox could be made ready: %s", error)
            if sandbox is not None:
                sandbox.close()
                sandbox = None
        with self._state:
            shelf = self._shelves.get(image)
            if shelf is not None:
                shelf.making -= 1
                if sandbox is None:
                    shelf.not_before = time.monotonic() + IDLE_RETRY_S
                elif not self._closed:
                    shelf.ready.append(sandbox)
                    return
        if sandbox is not None:
            sandbox.close()

    def _sweep(self) -> None:
        if self._backend is None:
            return
        try:
            if removed := self._backend.reap():
                logger.info("removed %d sandboxes of processes that are no more", removed)
        except (SandboxUnavailable, InfrastructureError) as error:
            logger.warning("what killed processes left cannot be swept now: %s", error)
