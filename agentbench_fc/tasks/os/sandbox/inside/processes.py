"""Messages, output and processes: the tools of the agent inside a sandbox.

A message is MAGIC, length, CRC-32, then fields, each with its length.

Not here: the persistent shell (shell.py); requests (agent.py).
"""

import _signal as signal  # type: ignore[import-not-found]  # without the enums: a third of the start
import binascii
import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterable

MAGIC = b"\xfa\xfc"
HEAD = 10
FIONREAD = 0x541B
CHUNK = 1 << 18
BASE_ENV = {
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    b"HOME": b"/root",
    b"TERM": b"dumb",
    b"PAGER": b"cat",
    b"EDITOR": b"true",
    b"VISUAL": b"true",
    b"GIT_TERMINAL_PROMPT": b"0",
    b"DEBIAN_FRONTEND": b"noninteractive",
}
TICKS = os.sysconf("SC_CLK_TCK")
KILL_S = 1.0
"""So long at most it is waited for what was killed: to end, too, a process needs a CPU."""


def pack(fields: "Iterable[bytes]") -> bytes:
    """A message of byte strings."""
    body = b"".join(len(each).to_bytes(4, "big") + each for each in fields)
    return MAGIC + len(body).to_bytes(4, "big") + binascii.crc32(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> "list[bytes]":
    """The fields of a message's body."""
    fields, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        fields.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


def number(value: int) -> bytes:
    """An integer as a field."""
    return b"%d" % value


def write_all(fd: int, data: bytes) -> None:
    """Writes everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pending(fd: int) -> int:
    """Bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, FIONREAD, b"\0\0\0\0"), sys.byteorder)


class Output:
    """What one call printed: the first `cap` bytes, and how many more there were."""

    def __init__(self, cap: int) -> None:
        self._kept: list[bytes] = []
        self._room = cap
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Takes what came."""
        part = data[: self._room]
        if part:
            self._kept.append(part)
            self._room -= len(part)
        self.dropped += len(data) - len(part)

    def drain(self, fd: int) -> None:
        """Takes what waits in a pipe now, and no more: somebody in the background may write on and on."""
        left = pending(fd)
        while left > 0:
            data = os.read(fd, left)
            self.add(data)
            left = left - len(data) if data else 0

    @property
    def data(self) -> bytes:
        """What was kept."""
        return b"".join(self._kept)


def all_processes() -> "set[int]":
    """The ids of all processes of the sandbox."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def facts_of(pid: int) -> "tuple[bytes, int, int] | None":
    """State, parent and start (clock ticks) of a process; None: it is no more, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else (fields[0], int(fields[1]), int(fields[19]))


def descendants(pid: int) -> "set[int]":
    """The processes below a process."""
    parents = {each: facts[1] for each in all_processes() for facts in [facts_of(each)] if facts}
    level = {pid}
    found: set[int] = set()
    while level:
        level = {each for each, parent in parents.items() if parent in level} - found
        found |= level
    return found


def send(pids: "Iterable[int]", what: int) -> None:
    """Signals processes; those that have ended are fine."""
    for pid in pids:
        try:
            os.kill(pid, what)
        except OSError:
            pass


class Children:
    """The processes that we started, and the orphans that process 1 inherits."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._statuses: dict[int, int] = {}

    def reap(self) -> None:
        """Collects all that have ended; statuses of our own are kept."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._ours:
                self._ours.discard(pid)
                self._statuses[pid] = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def has_ended(self, pid: int) -> bool:
        """Whether its status is there."""
        return pid in self._statuses

    def take(self, pid: int, otherwise: int = 137) -> int:
        """Its status, as bash tells it; it can be asked for once."""
        return self._statuses.pop(pid, otherwise)

    def adopt(self, pid: int) -> None:
        """Keeps the status of a forked process."""
        self._ours.add(pid)

    def spawn(self, argv: "list[bytes]", env: "dict[bytes, bytes]", cwd: bytes, fds: "dict[int, int]") -> int:
        """Starts a process in a session of its own with the descriptors `fds`: number in the child to number here.

        Raises:
            OSError: no process can be made, or the program cannot be run.
        """
        told, tell = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(told)
            os.close(tell)
            raise
        if pid == 0:
            become(argv, env, cwd, fds, tell)
        os.close(tell)
        self._ours.add(pid)
        failed = b""
        while part := os.read(told, 16):
            failed += part
        os.close(told)
        if failed:
            while not self.has_ended(pid):
                self.reap()
                time.sleep(0.001)
            self.take(pid)
            raise OSError(int(failed), os.strerror(int(failed)))
        return pid


def become(argv: "list[bytes]", env: "dict[bytes, bytes]", cwd: bytes, fds: "dict[int, int]", tell: int) -> None:
    """In a forked process: becomes a program, or tells the error's number and ends."""
    try:
        os.setsid()
        tell = fcntl.fcntl(tell, fcntl.F_DUPFD_CLOEXEC, 300)
        high = {child: fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, 300) for child, here in fds.items()}
        for child, here in high.items():
            os.dup2(here, child)  # all others close at the exec: Python marks what it opens
        for each in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        try:
            with open("/proc/self/oom_score_adj", "wb") as file:
                file.write(b"1000")
        except OSError:
            pass  # then the kernel goes by size, and what fills the memory is larger than the agent
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir("/")
        if b"/" in argv[0]:
            os.execve(argv[0], argv, env)
        for folder in BASE_ENV[b"PATH"].split(b":"):
            try:
                os.execve(folder + b"/" + argv[0], argv, env)
            except (FileNotFoundError, NotADirectoryError):
                pass
        raise FileNotFoundError(errno.ENOENT, "no such program")
    except BaseException as error:  # whatever it was, this copy of the agent must not go on
        os.write(tell, number(getattr(error, "errno", None) or errno.EINVAL))
    finally:
        os._exit(127)


class Young:
    """The processes that began after this object was made: those of one call."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
        self._before = all_processes()

    def alive(self, spared: "set[int]") -> "list[tuple[int, bytes]]":
        """Their ids and states."""
        found = []
        for pid in all_processes() - spared - {1}:
            facts = facts_of(pid)
            if facts and (pid not in self._before or facts[2] > self._tick):
                found.append((pid, facts[0]))
        return found

    def kill(self, spared: "set[int]") -> None:
        """Ends them all. Stopped first, a fork bomb fills its own limit and cannot grow again while it is killed."""
        for _ in range(50):
            running = [pid for pid, state in self.alive(spared) if state not in b"Tt"]
            if not running:
                break
            send(running, signal.SIGSTOP)
        until = time.monotonic() + KILL_S
        while time.monotonic() < until:
            young = [pid for pid, _ in self.alive(spared)]
            if not young:
                return
            send(young, signal.SIGKILL)
            self._children.reap()
            time.sleep(0.002)
