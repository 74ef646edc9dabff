"""A bounded pool of daemon threads that answers with futures.

>>> pool = Pool(4, "demo")
>>> pool.submit(lambda: 1 + 1).result(timeout=5)
2
>>> pool.close()

Unlike `concurrent.futures.ThreadPoolExecutor`, a stuck job does not keep the interpreter from ending.

Not here: deadlines of single calls (deadlines.py), work that can be killed (procs.py).
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from agentbench_fc.errors import CallerError

T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Pool:
    """At most `size` threads, made when needed; jobs beyond wait in order of arrival."""

    def __init__(self, size: int, name: str) -> None:
        if size < 1:
            raise CallerError(f"a pool of {size} threads cannot work [{name}]. Use 1 or more.")
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._waiting = 0  # threads without a job, less the jobs on their way to them
        self._closed = False

    def submit(self, fn: Callable[[], T]) -> "Future[T]":
        """Queues a job; its future can be cancelled as long as it waits.

        Raises:
            CallerError: the pool is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise CallerError(f"the client was closed [{self._name}]. Make another one.")
            self._waiting -= 1
            if self._waiting < 0 and self._threads < self._size:
                self._threads += 1
                self._waiting += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=_serve, args=(self._jobs, self._idle), name=name, daemon=True).start()
            self._jobs.put((future, fn))
        return future

    def _idle(self) -> None:
        with self._lock:
            self._waiting += 1

    def close(self) -> None:
        """Takes no further job, fails those that wait, and lets the threads end; safe to repeat."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pending = []
            while not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    pending.append(job)
            for _ in range(self._threads):
                self._jobs.put(None)
        for future, _fn in pending:
            if future.set_running_or_notify_cancel():
                future.set_exception(CallerError(f"the client was closed [{self._name}]. Make another one."))


def _serve(jobs: "queue.SimpleQueue[_Job | None]", idle: Callable[[], None]) -> None:
    while (job := jobs.get()) is not None:
        future, fn = job
        if future.set_running_or_notify_cancel():
            try:
                result = fn()
            except BaseException as error:  # the future's reader decides
                idle()
                future.set_exception(error)
                del error
            else:
                idle()
                future.set_result(result)
                del result
        else:
            idle()
        del job, future, fn  # a waiting thread must not keep the last session alive
