"""Ends a container that writes more than it may, where the engine has no limit of its own for that.

Docker limits a container's disk only on XFS with project quotas. Elsewhere two things together bound it: no file can
grow beyond the limit (RLIMIT_FSIZE), and this watch measures what each container has written, twice a second.

Not here: oci, whose disk is a tmpfs of limited size.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.os.sandbox.base import Limits

logger = logging.getLogger(__name__)

EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class _Watched:
    folder: Path
    limits: Limits
    stop: Callable[[str], None]


class DiskWatch:
    """Measures folders on one thread, which runs while there is something to measure."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._change = threading.Condition()
        self._watched: dict[str, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, name: str, folder: Path | None, limits: Limits, stop: Callable[[str], None]) -> None:
        """Watches a folder until `drop`; `stop` is told why, once, when it holds too much."""
        if folder is None:
            return
        with self._change:
            self._watched[name] = _Watched(folder, limits, stop)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="agentbench-fc-disk", daemon=True)
                self._thread.start()

    def drop(self, name: str) -> None:
        """Watches it no longer."""
        with self._change:
            self._watched.pop(name, None)

    def close(self) -> None:
        """Ends the thread."""
        with self._change:
            self._closed = True
            self._watched.clear()
            thread, self._thread = self._thread, None
            self._change.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait(self._every_s)
                if self._closed:
                    return
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched.items())
            for name, each in watched:
                most = each.limits.disk_mib * 2**20
                size, files = measure(each.folder, most, each.limits.inodes)
                if size <= most and files <= each.limits.inodes:
                    continue
                what = (
                    f"more than its {each.limits.disk_mib} MiB"
                    if size > most
                    else f"over {each.limits.inodes} files, or folders too deep to count"
                )
                self.drop(name)
                try:
                    each.stop(f"it wrote {what} to its disk")
                except InfrastructureError as error:
                    logger.warning("a container that writes too much could not be stopped: %s", error)


def measure(folder: Path, most: int, files: int) -> tuple[int, int]:
    """Bytes and number of files below a folder; counting ends beyond `most` or `files`.

    A path of over 4,096 bytes counts as too many files: folders get there only when each is made inside the one before.
    """
    size = count = 0
    waiting = [str(folder)]
    while waiting and size <= most and count <= files:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if size > most or count > files:
                        break
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return size, files + 1  # so deep that nothing below it can be counted from here
            continue  # it was deleted meanwhile
    return size, count
