"""Process 1 of every sandbox: runs commands for the host, keeps the persistent bash, reaps what is left behind.

Its source comes over its own standard input, so that an image needs nothing but python3 and the two sides always fit.
Everything is imported at the start, for `rm -rf /` may follow. One request, one answer; the end of the input ends the
sandbox.

Not here: processes and messages (processes.py); the shell (shell.py).
"""

import _ctypes  # without the rest of ctypes, which takes longer than all else here
import _signal as signal  # type: ignore[import-not-found]
import binascii
import errno
import os
import select
import time
from collections.abc import Iterable

try:
    from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:  # Python 3.12
    from _sha2 import sha256  # type: ignore[import-not-found]

from agentbench_fc.tasks.os.sandbox.inside.processes import (
    BASE_ENV,
    CHUNK,
    HEAD,
    MAGIC,
    Children,
    Output,
    Young,
    all_processes,
    number,
    pack,
    send,
    unpack,
    write_all,
)
from agentbench_fc.tasks.os.sandbox.inside.shell import LOST, Shell

PR_SET_DUMPABLE = 4
LEFTOVER_BYTES = 64 << 20
"""What a background process may still write to a pipe whose call is over; then it gets SIGPIPE."""


class Agent:
    """Serves requests until the input ends."""

    def __init__(self, wire_in: int, wire_out: int) -> None:
        self._wire_in, self._wire_out = wire_in, wire_out
        self._buffer = b""
        self._leftovers: dict[int, int] = {}
        self._shell: Shell | None = None
        self._children = Children()
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Answers requests."""
        write_all(self._wire_out, pack([b"hello", b"1"]))
        while True:
            name, op, *rest = self._request()
            try:
                fields = getattr(self, "do_" + op.decode())(*rest)
            except OSError as error:
                fields = [b"error", number(error.errno or 0), str(error).encode(errors="replace")]
            write_all(self._wire_out, pack([name, *fields]))

    def _request(self) -> "list[bytes]":
        while True:
            if len(self._buffer) >= HEAD:
                end = HEAD + int.from_bytes(self._buffer[2:6], "big")
                if len(self._buffer) >= end:
                    body, check = self._buffer[HEAD:end], self._buffer[6:HEAD]
                    if self._buffer[:2] != MAGIC or binascii.crc32(body).to_bytes(4, "big") != check:
                        os._exit(70)
                    self._buffer = self._buffer[end:]
                    return unpack(body)
            ready = self._wait(self._shell.open if self._shell else (), None)
            if self._shell:
                self._shell.idle(ready)

    def _wait(self, fds: "Iterable[int]", seconds: "float | None", writer: "int | None" = None) -> "set[int]":
        """The descriptors of `fds` that can be read, and `writer` if it can be written, after at most `seconds`.

        Whatever happens, children are reaped, leftovers drained and requests received on the way.
        """
        poll = select.poll()
        for fd in (self._wire_in, self._wake, *fds, *self._leftovers):
            poll.register(fd, select.POLLIN)
        if writer is not None:
            poll.register(writer, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1))}
        if self._wake in ready:
            os.read(self._wake, 4096)
        self._children.reap()
        for fd in [fd for fd in self._leftovers if fd in ready]:
            data = os.read(fd, CHUNK)
            self._leftovers[fd] -= len(data)
            if not data or self._leftovers[fd] <= 0:
                os.close(fd)
                del self._leftovers[fd]
        if self._wire_in in ready:
            data = os.read(self._wire_in, CHUNK)
            if not data:
                os._exit(0)  # the host is gone, and with this process all of the sandbox goes
            self._buffer += data
        return ready

    def do_put(self, path: bytes, mode: bytes, data: bytes) -> "list[bytes]":
        """Writes a file, in the place of whatever is there."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path) and not os.path.isdir(path):
            os.unlink(path)  # a link may lead to our own descriptors, a pipe to nobody
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(handle, int(mode))
            write_all(handle, data)
        finally:
            os.close(handle)
        return [b"ok"]

    def do_look(self, seconds: bytes, cap: bytes, content: bytes, digest: bytes, *paths: bytes) -> "list[bytes]":
        """Answers ok, then per path the number of its fields and the fields. A child looks, for it may take long."""
        source, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            tell_of(paths, int(content), digest == b"1", out)
        os.close(out)
        self._children.adopt(pid)
        output = Output(int(cap))
        done = self._run(pid, None, b"", {source: output}, time.monotonic() + float(seconds))
        if not done:
            send([pid], signal.SIGKILL)
            self._run(pid, None, b"", {source: output}, time.monotonic() + 2)
        output.drain(source)
        os.close(source)
        if self._children.take(pid) != 0 or output.dropped:
            raise OSError(errno.EFBIG if output.dropped else errno.ETIMEDOUT, "the look took too long or saw too much")
        data = output.data
        fields: list[bytes] = []
        while data:
            end = HEAD + int.from_bytes(data[2:6], "big")
            fields += unpack(data[HEAD:end])
            data = data[end:]
        return [b"ok", *fields]

    def do_exec(
        self, seconds: bytes, cap: bytes, cwd: bytes, stdin: bytes, env_size: bytes, *words: bytes
    ) -> "list[bytes]":
        """Answers ok, status, whether it timed out, dropped bytes, stdout, stderr."""
        env = dict(BASE_ENV)
        for pair in words[: int(env_size)]:
            key, _, value = pair.partition(b"=")
            env[key] = value
        young = Young(self._children)
        source, feed = os.pipe()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        os.set_blocking(feed, False)
        fds = {0: source, 1: out_end, 2: err_end}
        try:
            pid = self._children.spawn(list(words[int(env_size) :]), env, cwd, fds)
        except OSError:
            for each in (feed, out, err):
                os.close(each)
            raise
        finally:
            for each in fds.values():
                os.close(each)
        kept = {out: Output(int(cap)), err: Output(int(cap))}
        done = self._run(pid, feed, stdin, kept, time.monotonic() + float(seconds))
        if not done:
            young.kill(set())
            self._run(pid, None, b"", kept, time.monotonic() + 2)
        for fd, output in kept.items():
            output.drain(fd)
            self._leftovers[fd] = LEFTOVER_BYTES
        status = self._children.take(pid)
        dropped = kept[out].dropped + kept[err].dropped
        numbers = (status if done else 124, not done, dropped)
        return [b"ok", *map(number, numbers), kept[out].data, kept[err].data]

    def _run(self, pid: int, feed: "int | None", stdin: bytes, kept: "dict[int, Output]", deadline: float) -> bool:
        """Moves a process's input and output until it ends; False at the deadline."""
        view = memoryview(stdin)
        live = set(kept)
        try:
            while not self._children.has_ended(pid):
                if feed is not None and not view:
                    os.close(feed)
                    feed = None
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = self._wait(live, left, feed)
                if feed is not None and feed in ready:
                    try:
                        view = view[os.write(feed, view[:CHUNK]) :]
                    except BlockingIOError:
                        pass
                    except OSError:
                        view = view[:0]  # nobody reads it
                for fd in live & ready:
                    data = os.read(fd, CHUNK)
                    kept[fd].add(data)
                    if not data:
                        live = live - {fd}
            return True
        finally:
            if feed is not None:
                os.close(feed)

    def do_warm(self) -> "list[bytes]":
        """Starts the shell ahead of its first script."""
        self._living_shell()
        return [b"ok"]

    def do_shell(self, seconds: bytes, cap: bytes, opens: bytes, script: bytes) -> "list[bytes]":
        """Answers ok, how it went, status, status of a shell that ended or -1, dropped bytes, depth, output."""
        end, before = time.monotonic() + float(seconds), -1
        while True:
            shell, output = self._living_shell(), Output(int(cap))
            told = shell.run(script, opens == b"1", output, max(0.01, end - time.monotonic()))
            if told.how != b"ended" and told.ended != LOST:
                break
            unread = shell.untouched
            self._shell = None
            self._leftovers[shell.output] = LEFTOVER_BYTES
            told.code = told.ended = shell.end()
            shell = self._living_shell()
            if before >= 0 or not unread:
                break
            before = told.ended  # the call before had taken the shell's input away: this one has not begun
        ended = told.ended if told.ended >= 0 else before
        return [b"ok", told.how, *map(number, (told.code, ended, output.dropped, len(shell.outer))), output.data]

    def do_expose(self) -> "list[bytes]":
        """Lets this process be looked into from now on."""
        shield(closed=False)
        return [b"ok"]

    def do_state(self) -> "list[bytes]":
        """Answers ok and the shell's state as a script, or no where a copy would not be faithful."""
        shell = self._shell
        if all_processes() - {1, shell.pid if shell else 1}:
            return [b"no", b""]
        state = shell.state() if shell else b""
        return [b"no", b""] if state is None else [b"ok", state]

    def _living_shell(self) -> Shell:
        if self._shell is None:
            shell = Shell(self._children, self._wait)
            shell.greet()
            self._shell = shell
        return self._shell


def tell_of(paths: "Iterable[bytes]", content: int, digest: bool, out: int) -> None:
    """In a forked process: writes what there is at each path, and ends."""
    status = 1
    try:
        for path in paths:
            try:
                fields = look(path, content, digest)
            except (FileNotFoundError, ProcessLookupError):
                fields = []  # it went while we looked, as processes do
            except OSError as error:
                fields = [b"error", number(error.errno or 0)]
            write_all(out, pack([number(len(fields)), *fields]))
        status = 0
    finally:
        os._exit(status)


def look(path: bytes, content: int, digest: bool) -> "list[bytes]":
    """What there is at a path, as fields; none when there is nothing."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return []
    kind = {0o100000: b"file", 0o040000: b"dir", 0o120000: b"link"}.get(facts.st_mode & 0o170000, b"other")
    target, names, head, check = b"", b"", b"", b""
    if kind == b"link":
        target = os.readlink(path)
    elif kind == b"dir":
        names = b"\0".join(sorted(os.listdir(path)))
    elif kind == b"file" and (content or digest):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            total = sha256()
            while digest or len(head) < content:
                part = os.read(handle, CHUNK)
                if not part:
                    break
                head += part[: max(0, content - len(head))]
                total.update(part)
            check = total.hexdigest().encode() if digest else b""
        finally:
            os.close(handle)
    numbers = (facts.st_mode & 0o7777, facts.st_uid, facts.st_gid, facts.st_size)
    return [kind, *map(number, numbers), target, names, head, check]


def disguise() -> None:
    """Shows process 1 as `init`: problems list, count and search processes."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(b"init\0".ljust(end - start, b"\0"))
        with open("/proc/self/comm", "wb") as comm:
            comm.write(b"init")
    except OSError:
        pass  # then it is seen as what it is


def shield(closed: bool = True) -> None:
    """Closes this process to all others, root's too: its memory, descriptors and everything else that tracing opens.

    What judges an agent's work must not be in the agent's reach; and nobody here has the privilege to trace regardless.

    Raises:
        OSError: the kernel refuses.
    """
    program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(program, "prctl")
    if _ctypes.call_function(prctl, (PR_SET_DUMPABLE, int(not closed), 0, 0, 0)) != 0:
        raise OSError(errno.EPERM, "process 1 cannot be closed to the others")


if __name__ == "__main__":
    disguise()
    shield()
    Agent(0, 1).serve()
