"""Blocking calls with a deadline, on helper threads that are reused.

>>> threads = CallThreads()
>>> threads.run(lambda: 1 + 1, timeout_s=5).result
2

Python cannot stop a thread. A call past its deadline is abandoned: it runs on, its result goes to `on_late` so that
whatever it opened is closed, and its thread serves again when it returns. Too many abandoned calls are an
`InfrastructureError`, so that a broken backend cannot eat the machine thread by thread.

Not here: work that must really be killed (procs.py).
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from agentbench_fc.errors import InfrastructureError

logger = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
"""An unused helper thread ends after this."""


class Call:
    """One call under way, or done."""

    __slots__ = ("_abandoned", "_done", "_fn", "_lock", "_on_late", "error", "result")

    def __init__(self, fn: Callable[[], Any], on_late: Callable[[Any], None] | None) -> None:
        self._fn = fn
        self._on_late = on_late
        self._lock = threading.Lock()
        self._done = threading.Lock()  # held until the call is done: the lightest event there is
        self._done.acquire()
        self._abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether the call is done, after at most `timeout_s` seconds."""
        if self._done.acquire(timeout=timeout_s):
            self._done.release()
            return True
        return False

    def abandon(self) -> bool:
        """Gives the call up; False: it was done in the last moment, and its result stands."""
        with self._lock:
            if not self._done.locked():
                return False
            self._abandoned = True
            return True

    def execute(self) -> bool:
        """Runs the call on the present thread; whether it had been abandoned."""
        try:
            self.result = self._fn()
        except BaseException as error:  # handed to the waiting thread, which decides
            self.error = error
        with self._lock:
            self._done.release()
            abandoned = self._abandoned
        if abandoned and self.error is None and self._on_late is not None:
            try:
                self._on_late(self.result)
            except Exception:  # nobody waits for this call any more: the log is the only place left
                logger.exception("cleaning up after an abandoned call failed")
        return abandoned


class CallThreads:
    """A pool of helper threads that grows with need and shrinks when idle. Safe to share between threads."""

    def __init__(self, *, max_abandoned: int = 32) -> None:
        self._max_abandoned = max_abandoned
        self._abandoned = 0
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Call]] = []

    @property
    def abandoned(self) -> int:
        """Calls past their deadline that still run."""
        return self._abandoned

    def run(self, fn: Callable[[], Any], timeout_s: float, on_late: Callable[[Any], None] | None = None) -> Call:
        """Runs `fn` and waits for it, at most `timeout_s` seconds.

        Returns:
            The call; when `wait(0)` is false it was abandoned. An error of `fn` is in `error`, not raised.

        Raises:
            InfrastructureError: too many abandoned calls still run.
        """
        if self._abandoned >= self._max_abandoned:
            raise InfrastructureError(
                f"{self._abandoned} calls ran past their deadline and still run [helper threads]. "
                "Restart this process, and look at the backend that hangs."
            )
        call = Call(fn, on_late)
        self._hand_over(call)
        if not call.wait(timeout_s) and call.abandon():
            with self._lock:
                self._abandoned += 1
        return call

    def _hand_over(self, call: Call) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="agentbench-fc-call", daemon=True).start()
        inbox.put(call)

    def _serve(self, inbox: "queue.SimpleQueue[Call]") -> None:
        while True:
            try:
                call = inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox not in self._idle:
                        continue  # a call is just being put into this inbox
                    self._idle.remove(inbox)
                return
            abandoned = call.execute()
            del call  # an idle thread must not keep the last episode alive
            with self._lock:
                self._abandoned -= abandoned
                self._idle.append(inbox)
