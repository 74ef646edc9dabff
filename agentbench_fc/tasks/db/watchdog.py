"""Ends statements that take too long or fill the disk, from outside: one thread for all sessions of a process.

    with watchdog.watch(thread_id, 10.0) as watch:
        run_the_statement()
    if watch.killed: ...

Not here: what `kill` does (server.py); what the model is told (mysql.py).
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

GRACE_S = 1.0
"""From `KILL QUERY` to `KILL CONNECTION`."""
LOOK_S = 0.2
"""How often the size of a database is looked at while a statement runs."""


class Kill(Protocol):
    """Ends the statement of a server's thread, or the thread."""

    def __call__(self, thread: int, *, connection: bool = False) -> None:
        """One that is gone is fine."""
        ...


class Watch:
    """One statement under watch."""

    def __init__(self, owner: "Watchdog", thread: int, seconds: float, quota: tuple[Path, int] | None) -> None:
        self.killed: Literal["late", "full"] | None = None
        """Why the statement was ended; None: it was not."""
        self.cut = False
        """Whether its connection was ended as well."""
        self._owner = owner
        self._thread = thread
        self._deadline = time.monotonic() + seconds
        self._quota = quota
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Self:
        self._owner.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.remove(self)
        with self._lock:  # a kill under way ends before the connection is used again
            self._over = True

    def next_look(self) -> float:
        """The moment at which there is something to decide."""
        moment = self._deadline
        return min(moment, time.monotonic() + LOOK_S) if self._quota and not self.killed else moment

    def look(self, kill: Callable[..., None]) -> None:
        """Ends the statement if it is time."""
        late = time.monotonic() >= self._deadline
        full = not late and not self.killed and self._quota is not None and size_of(self._quota[0]) > self._quota[1]
        if not late and not full:
            return
        with self._lock:
            if self._over:
                return
            if self.killed is None:
                self.killed = "late" if late else "full"
                kill(self._thread)
            else:
                self.cut = True
                kill(self._thread, connection=True)
            self._deadline = time.monotonic() + GRACE_S


class Watchdog:
    """The thread that looks; it starts with the first statement."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._asleep = False
        """The thread waits without end; else it comes to a new watch within LOOK_S by itself."""

    def watch(self, thread: int, seconds: float, quota: tuple[Path, int] | None = None) -> Watch:
        """A watch over the statement that the server's `thread` is about to run.

        Args:
            thread: The id of the connection at the server.
            seconds: After so long it is ended.
            quota: A folder, and the bytes that it may hold; None: no quota.
        """
        return Watch(self, thread, seconds, quota)

    def add(self, watch: Watch) -> None:
        """Starts to watch."""
        with self._changed:
            self._watches.add(watch)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="agentbench-fc-db-watchdog", daemon=True)
                self._thread.start()
            elif self._asleep:
                self._changed.notify()

    def remove(self, watch: Watch) -> None:
        """Ends the watch."""
        with self._changed:
            self._watches.discard(watch)

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                due = min((watch.next_look() for watch in self._watches), default=None)
                self._asleep = due is None
                self._changed.wait(None if due is None else min(LOOK_S, max(0.0, due - time.monotonic())))
                self._asleep = False
                watches = list(self._watches)
            for watch in watches:
                watch.look(self._kill)


def size_of(folder: Path) -> int:
    """Bytes of the files of a database."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_size
    except OSError:  # a file or the folder went away meanwhile
        pass
    return total
