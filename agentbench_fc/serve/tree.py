"""`agentbench-fc serve`: a controller and workers as one process tree.

A child that dies is started again, at most once a second; all children end with the parent, whatever ends it: by its
signal, and by the kernel's death signal where the parent was killed.

Not here: what the children do (processes.py).
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
RESTART_GAP_S = 1.0
POLL_S = 0.1
GRACE_S = 25.0
"""Beyond the workers' own time to drain: what they take to say goodbye and to close; then children are killed."""
KILL_WAIT_S = 5.0
CLI = "agentbench_fc.cli"


@dataclass(slots=True)
class _Child:
    name: str
    arguments: list[str]
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0


class Tree:
    """Keeps children running.

    Args:
        commands: Name -> arguments of `agentbench-fc`.
        env: Added to the children's environment; secrets go here, never into arguments.
        drain_s: What workers may take to end.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]], *, env: Mapping[str, str], drain_s: float) -> None:
        self._env = {**os.environ, **env, "AGENTBENCH_FC_PARENT": str(os.getpid())}
        self._drain_s = drain_s
        self._stopping = threading.Event()
        self._children = [
            _Child(name, list(arguments), self._start(list(arguments)), time.monotonic())
            for name, arguments in commands.items()
        ]

    def run(self) -> None:
        """Watches the children until `stop`; then ends them all. Call it on the main thread, which starts them too."""
        try:
            while not self._stopping.wait(POLL_S):
                for child in self._children:
                    if child.process.poll() is not None and time.monotonic() - child.started >= RESTART_GAP_S:
                        logger.warning(
                            "%s ended with code %s and is started again", child.name, child.process.returncode
                        )
                        child.started = time.monotonic()
                        try:
                            child.process = self._start(child.arguments)
                            child.restarts += 1
                        except OSError:  # no process or no memory just now: the others go on, and it is tried again
                            logger.exception("%s could not be started", child.name)
        finally:
            self._end()

    def stop(self) -> None:
        """Ends `run`; safe in a signal handler."""
        self._stopping.set()

    def pids(self) -> dict[str, int]:
        """Name -> process id."""
        return {child.name: child.process.pid for child in self._children}

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", CLI, *arguments]
        return subprocess.Popen(command, env=self._env, stdin=subprocess.DEVNULL, start_new_session=True)

    def _end(self) -> None:
        """Workers first, so that they can say goodbye; what does not end in time is killed."""
        for children, wait in ((self._children[1:], self._drain_s + GRACE_S), (self._children[:1], GRACE_S)):
            for child in children:
                if child.process.poll() is None:
                    child.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + wait
            for child in children:
                try:
                    child.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    logger.warning("%s did not end and is killed", child.name)
                    child.process.kill()
                    try:
                        child.process.wait(KILL_WAIT_S)
                    except subprocess.TimeoutExpired:  # stuck in the kernel, e.g. on a dead network disk
                        logger.warning("%s could not be killed [pid %d]", child.name, child.process.pid)


def end_with_parent() -> None:
    """In a child of a tree: the kernel ends this process when the parent dies."""
    parent = os.environ.get("AGENTBENCH_FC_PARENT")
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != parent:
        os._exit(1)  # it died before we asked
