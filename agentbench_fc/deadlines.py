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
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from agentbench_fc.errors import InfrastructureError

logger = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
"""An unused helper thread ends after this."""


class Escaped(Exception):
    """SystemExit or the like out of a call: on a helper thread it concerns nobody but the caller."""


class DeadlinePassed(Exception):
    """The deadline, not the code that was called, says so: a tool's own TimeoutError is the tool's answer."""


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

    def outcome(self) -> Any:
        """The result of a call that is done; its error is raised. What is no `Exception` comes as `Escaped`."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:
            raise Escaped(f"{type(self.error).__name__}: {self.error}") from self.error
        return self.result

    def execute(self, ready: Callable[[], None]) -> bool:
        """Runs the call on the present thread; whether it had been abandoned.

        `ready` is called before the waiting thread hears of the end, so that its next call finds this thread.
        """
        try:
            self.result = self._fn()
        except BaseException as error:  # handed to the waiting thread, which decides
            self.error = error
        with self._lock:
            abandoned = self._abandoned
            if not abandoned:
                ready()
            self._done.release()
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
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
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
        call = self.begin(fn, on_late)
        self.finish(call, timeout_s)
        return call

    def begin(self, fn: Callable[[], Any], on_late: Callable[[Any], None] | None = None) -> Call:
        """Starts a call; `finish` must follow.

        Raises:
            InfrastructureError: too many abandoned calls still run.
        """
        if self._pid != os.getpid():
            self._reset()  # in a forked process: the threads stayed in the parent
        if self._abandoned >= self._max_abandoned:
            raise InfrastructureError(
                f"{self._abandoned} calls ran past their deadline and still run [helper threads]. "
                "Restart this process, and look at the backend that hangs."
            )
        call = Call(fn, on_late)
        self._hand_over(call)
        return call

    def finish(self, call: Call, timeout_s: float) -> bool:
        """Waits for a call, at most `timeout_s` seconds; False: it was abandoned. A wait broken off abandons too."""
        done = False
        try:
            done = call.wait(timeout_s)
        finally:
            if not done and call.abandon():
                with self._lock:
                    self._abandoned += 1
        return done or call.wait(0)

    def _hand_over(self, call: Call) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="agentbench-fc-call", daemon=True).start()
        inbox.put(call)

    def _serve(self, inbox: "queue.SimpleQueue[Call]") -> None:
        def ready() -> None:
            with self._lock:
                self._idle.append(inbox)

        while True:
            try:
                call = inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox not in self._idle:
                        continue  # a call is just being put into this inbox
                    self._idle.remove(inbox)
                return
            if call.execute(ready):
                with self._lock:
                    self._abandoned -= 1
                ready()
            del call  # an idle thread must not keep the last episode alive


class OneThread(CallThreads):
    """Runs all calls on one thread, in order, for what is tied to the thread that made it. Close it after use."""

    def _reset(self) -> None:
        super()._reset()
        self._inbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Lets the thread end after the calls that wait; safe to repeat."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._inbox.put(None)

    def _hand_over(self, call: Call) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agentbench-fc-affine", daemon=True)
                self._thread.start()
        self._inbox.put(call)

    def _work(self) -> None:
        while (call := self._inbox.get()) is not None:
            if call.execute(lambda: None):
                with self._lock:
                    self._abandoned -= 1
            del call
