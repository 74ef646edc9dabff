"""The last warnings of a process's log, kept for error messages and the controller's list of workers.

Not here: where logs are written (the CLI).
"""

import collections
import logging

MAX_CHARS = 300


class LogTail(logging.Handler):
    """Keeps the newest warnings, one line each."""

    def __init__(self, size: int = 20) -> None:
        super().__init__(logging.WARNING)
        self._lines: collections.deque[str] = collections.deque(maxlen=size)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        try:
            text = " ".join(record.getMessage().split())
        except (TypeError, ValueError):  # a wrong format string of some library must not reach its caller
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self._lines.append(f"{record.name}: {text}"[:MAX_CHARS])

    def lines(self, last: int = 5, about: str = "") -> list[str]:
        """The newest lines; of those that name `about`, where any does."""
        lines = list(self._lines)
        return ([line for line in lines if about in line] or lines)[-last:]
