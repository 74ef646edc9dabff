"""An asyncio loop whose clock jumps from timer to timer: hours of waiting take as long as their events cost to run.

>>> async def nap() -> float:
...     await asyncio.sleep(3600)
...     return asyncio.get_running_loop().time()
>>> run(nap())
3600.0

Not here: what is simulated (async_sim.py).
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Instead of waiting for input it moves the clock by as long as it was to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(f"nothing will ever happen again after {self.now:g} virtual seconds: a deadlock")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Knows timers and callbacks, no files and no threads."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jump.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in virtual time; equal programs take equal times."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
