"""Ctrl-C and SIGTERM as one exception in the main thread, held back where it would tear something in two.

Not here: what a run does when it is interrupted (run.py).
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The run was asked to end. Not an `Exception`, so that no library takes it for a failure and goes on."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
        """What a shell expects of a process that a signal ended."""


class Interrupts:
    """Installed while entered; the first signal raises `Interrupted`, a second one ends the process at once."""

    def __init__(self) -> None:
        self._depth = 0
        self._pending: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in SIGNALS:
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Gives the signals back to their former handlers; safe to repeat."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()

    def hold(self) -> None:
        """From here a signal waits for `release`: an optimizer step or a checkpoint is under way. Nests."""
        self._depth += 1

    def release(self) -> None:
        """Ends one `hold`; a signal that waited is raised now."""
        self._depth -= 1
        if self._depth == 0 and self._pending is not None:
            signum, self._pending = self._pending, None
            raise Interrupted(signum)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """`hold` and `release` around a block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        for other in SIGNALS:  # whoever repeats it means it
            signal.signal(other, signal.SIG_DFL)
        if self._depth:
            self._pending = signum
            return
        raise Interrupted(signum)
