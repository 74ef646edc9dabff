"""Our child processes: `python -m module` with one end of a socket pair, a log file, and an end when the parent ends.

A child notices its parent's end by the closed socket, and on Linux by a signal too, so that even a parent that was
killed leaves nobody behind. It has a session of its own: Ctrl-C reaches the parent alone, which then ends it.

Not here: what is said over the socket (wire.py); children of the environments (agentbench_fc.procs).
"""

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
LOG_LINES = 15
KILL_WAIT_S = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """A started child, our end of its socket, and its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    socket: socket.socket
    log: Path

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def death(self) -> str:
        """What is known of its end, in one text: exit code and the last lines of the log."""
        code = self.process.poll()
        if code is None:
            how = "does not answer"
        elif code < 0:
            how = f"was ended by signal {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        return f"process {self.process.pid} {how} [{self.name}]. Its log {self.log} ends:\n{self.log_tail()}"

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
        except OSError as error:
            return f"(no log: {error})"

    def end(self, wait_s: float = KILL_WAIT_S) -> None:
        """Closes the socket, waits, then kills it with everything in its session. Safe to repeat."""
        self.socket.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it and its group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_WAIT_S)  # a process in uninterruptible sleep is nobody's to wait for


def start_child(
    module: str, *, name: str, log: Path, threads: int = 1, arguments: Sequence[str] = (), env: Mapping[str, str] = {}
) -> Child:
    """Starts `python -m module --socket FD --parent PID …`; output and errors go to `log`.

    Args:
        module: What to run; its main calls `join_parent`.
        name: In messages.
        log: A file; it is overwritten, its folder made.
        threads: Threads that numeric libraries may use.
        arguments: Further command-line arguments.
        env: Environment variables to add.
    """
    ours, theirs = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    # the kernel signals the child when the thread that made it ends: only the main thread lives as long as we do
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONFAULTHANDLER": "1"}
    with theirs, log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--socket", str(theirs.fileno()), "--parent", str(parent), *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **quiet, **variables, **env},
        )
    return Child(name, process, ours, log)


def leave(code: int) -> NoReturn:
    """In the child: ends at once, without tearing down modules, which takes torch seconds."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join_parent(socket_fd: int, parent: int, *, on_death: signal.Signals = signal.SIGKILL) -> socket.socket:
    """In the child: its end of the socket; arranges `on_death` for when the parent ends."""
    if parent and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: the closed socket tells us too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(on_death))
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)
    return socket.socket(fileno=socket_fd)
