"""Work that is done once per key, however often it is asked for.

A repeat while the work runs waits for it; a repeat after it gets the stored result; work that failed may be tried
again. A caller that goes away does not stop the work.

Not here: what a key is (the request id of a start or a turn).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Remembers the results of the newest `keep` keys that `forget` was not called for.

    Args:
        keep: Results remembered.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._running: dict[str, asyncio.Task[T]] = {}
        self._results: OrderedDict[str, T] = OrderedDict()

    async def run(self, key: str | None, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work of this key; without a key it is simply done."""
        if key is None:
            return await work()
        if key in self._results:
            return self._results[key]
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(self._do(key, work))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiters, if any, raise it
        return await asyncio.shield(task)

    async def _do(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        try:
            result = self._results[key] = await work()
        finally:
            self._running.pop(key, None)
        while len(self._results) > self._keep:
            self._results.popitem(last=False)
        return result

    def running(self, key: str) -> bool:
        """Whether the work of this key is under way."""
        return key in self._running

    def result(self, key: str) -> T | None:
        """The stored result."""
        return self._results.get(key)

    def put(self, key: str, result: T) -> None:
        """Stores a result that came about elsewhere."""
        self._results[key] = result

    def forget(self, key: str) -> None:
        """Drops a result."""
        self._results.pop(key, None)
