"""Child processes for work that must be killable: a call has a deadline, and at the deadline its process dies.

    child = Child("agentbench_fc.tasks.kg.store:Store", {"path": "graph.nt"})
    rows = child.call("query", {"text": "SELECT …"}, timeout_s=10)
    child.close()

The target is a callable; the child imports it, calls it once with the start arguments, and serves the public methods of
what it returns, one call at a time. Arguments and results are JSON. A child is a fresh interpreter that runs a file of
ours, never the user's script again: a script without a `__main__` guard and an interactive interpreter can use it. It
shares no memory and no open files with its parent, and never outlives it.

Frames on the child's stdin and stdout: four bytes of length, big-endian, then JSON. What the served code prints goes to
stderr, whose end is kept for error messages.

Not here: the child's side of the pipe (procs_child.py); threads with deadlines, for work that returns (deadlines.py).
"""

import collections
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentbench_fc import errors
from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError, Unavailable

MAX_FRAME = 256 * 2**20
"""A longer frame is a broken one."""
TAIL_CHARS = 2000
"""So much of the child's stderr stands in an error message."""
GRACE_S = 2.0
"""A child that is asked to end has so long before it is killed."""

CHILD = Path(__file__).with_name("procs_child.py")
"""Run as a file rather than by `-m`, which would import the whole package before the target is known."""
HEADER = struct.Struct(">I")


class ChildRaised(Exception):
    """The served code raised an ordinary exception: its type and text; `trace` is its traceback."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class _Process:
    """The process and its pipes, apart from `Child` so that a keeper thread does not keep a forgotten child alive."""

    def __init__(self, command: list[str], env: Mapping[str, str], timeout_s: float) -> None:
        self.owner = os.getpid()
        self.turn = threading.Lock()
        """Held during a call."""
        self.lock = threading.Lock()
        self.started = threading.Event()
        self.gone = threading.Event()
        self.failure: Exception | None = None
        self.tail: collections.deque[bytes] = collections.deque(maxlen=32)
        self.popen: subprocess.Popen[bytes] | None = None
        # The thread that starts a process must outlive it: Linux sends the death signal when that thread ends.
        threading.Thread(target=self._keep, args=(command, env), name="agentbench-fc-keeper", daemon=True).start()
        if not self.started.wait(timeout_s):
            self.failure = TimeoutError(f"the system did not start it within {timeout_s:g} s")

    def _keep(self, command: list[str], env: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, bufsize=0, start_new_session=True
            )
        except OSError as error:
            self.failure = error
            self.gone.set()
            self.started.set()
            return
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self.popen = process
        self.started.set()
        if self.failure is not None:
            self.kill()  # nobody waits for it any more
        with process.stderr as stderr:
            self._keep_words(stderr.fileno(), process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:  # from here on the number may belong to another process
            process.wait()
            self.gone.set()

    def _keep_words(self, stderr: int, pid: int) -> None:
        """Keeps the end of stderr until the process ends; what it started may hold the pipe open for longer."""
        os.set_blocking(stderr, False)
        try:
            ended = os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old kernel, or not Linux: then the end of the pipe has to do
            ended = None
        poll = select.poll()
        for handle in (stderr, ended):
            if handle is not None:
                poll.register(handle, select.POLLIN)
        try:
            while True:
                events = poll.poll()
                try:
                    while chunk := os.read(stderr, 4096):
                        self.tail.append(chunk)
                    return  # the pipe was closed
                except BlockingIOError:
                    if any(handle == ended for handle, _ in events):
                        return
        finally:
            if ended is not None:
                os.close(ended)

    def kill(self) -> None:
        """Kills the process and what it started in its group; safe to repeat."""
        with self.lock:
            if self.popen is not None and not self.gone.is_set():
                try:
                    os.killpg(self.popen.pid, signal.SIGKILL)
                except ProcessLookupError:
                    self.popen.kill()  # its group is not there yet, or no longer

    def end(self) -> None:
        """Lets an idle child end, kills any other, and waits a bounded time until it is gone."""
        if os.getpid() != self.owner:
            return  # a forked process must not end what belongs to its parent
        idle = self.turn.acquire(blocking=False)
        if not idle:
            self.kill()
            idle = self.turn.acquire(timeout=GRACE_S)
        if idle and self.popen is not None:  # never closed under a call: it might read another file of that number
            for pipe in (self.popen.stdin, self.popen.stdout):
                if pipe is not None:
                    pipe.close()
        if not self.gone.wait(GRACE_S):
            self.kill()
            self.gone.wait(GRACE_S)
        if idle:
            self.turn.release()

    def last_words(self) -> str:
        """The end of the child's stderr."""
        return b"".join(self.tail).decode("utf-8", "replace")[-TAIL_CHARS:].strip()


class Child:
    """One child process. Once dead it stays dead: what state it had is lost, and a call says so.

    Safe to use from several threads; calls wait for each other, each within its own deadline.

    Args:
        target: `package.module:callable`.
        arguments: Keyword arguments of the target; JSON.
        start_timeout_s: Deadline of the process's start, its imports and the target, in seconds.

    Raises:
        InfrastructureError: it did not start.
        CallerError: the target is not there, or does not take the arguments.
    """

    def __init__(
        self, target: str, arguments: Mapping[str, Any] | None = None, *, start_timeout_s: float = 60.0
    ) -> None:
        module, _, attribute = target.partition(":")
        if not module or not attribute:
            raise CallerError(f"the target is {target!r} [child process]. Give 'package.module:callable'.")
        if not sys.executable:
            raise InfrastructureError("Python does not know its own path [child process]. Set sys.executable.")
        self.target = target
        self.calls = 0
        """Calls answered so far."""
        self.users = 0
        """Users that a pool has given it to so far."""
        paths = [path or os.getcwd() for path in sys.path]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-P", str(CHILD), target, str(os.getpid())]
        self._next = 0
        self._process = _Process(command, env, start_timeout_s)
        self._finalizer = weakref.finalize(self, self._process.end)
        if self._process.failure is not None:
            raise InfrastructureError(f"no child process: {self._process.failure} [{target}]. Free some memory.")
        try:
            self.call("", arguments or {}, timeout_s=start_timeout_s)
        except BaseException:
            self.close()
            raise
        self.calls = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.popen is not None
        return self._process.popen.pid

    @property
    def alive(self) -> bool:
        """Whether it takes calls."""
        return self._finalizer.alive and not self._process.gone.is_set() and self._process.owner == os.getpid()

    @property
    def rss_bytes(self) -> int:
        """Its resident memory; 0 where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float) -> Any:
        """Calls a public method of the served object.

        Args:
            method: Its name.
            params: Its keyword arguments; JSON.
            timeout_s: Seconds from now, the wait for another call included. At the deadline of a running call the
                process is killed.

        Returns:
            What the method returned, after JSON.

        Raises:
            InfrastructureError: the process died, or was killed at the deadline; with the end of its stderr.
            Unavailable: another call did not end in time; nothing was done.
            ChildRaised: the method raised an ordinary exception. This package's errors come as they are.
        """
        deadline = time.monotonic() + timeout_s
        if not self._process.turn.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise Unavailable(f"the child was busy for {timeout_s:g} s [{self.target}]. Try again, or start another.")
        try:
            if not self.alive:
                raise self._died("is not alive any more")
            self._next += 1
            request = self._encode({"id": self._next, "method": method, "params": dict(params or {})})
            try:
                self._write(request, deadline)
                reply = self._read(deadline)
                if reply["id"] != self._next:
                    raise ValueError("an answer to another call")
            except TimeoutError:
                self._process.kill()
                self._process.gone.wait(GRACE_S)
                raise self._died(f"was killed: {method or 'its start'} took over {timeout_s:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                self._process.gone.wait(GRACE_S / 4)  # so that the exit code is its own
                self._process.kill()
                self._process.gone.wait(GRACE_S)
                raise self._died(f"died during {method or 'its start'}") from error
            except BaseException:  # Ctrl-C within a frame: the pipes are out of step
                self._process.kill()
                raise
            self.calls += 1
        finally:
            self._process.turn.release()
        if "error" in reply:
            raise _remote_error(reply["error"])
        return reply["result"]

    def close(self) -> None:
        """Ends the process: at once when it is idle, by force after a moment otherwise. Safe to repeat."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, request: Mapping[str, Any]) -> bytes:
        try:
            body = json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CallerError(f"the parameters are not JSON: {error} [{self.target}]. Send plain values.") from error
        if len(body) > MAX_FRAME:
            raise CallerError(f"the parameters take {len(body)} bytes [{self.target}]. Send a path instead.")
        return HEADER.pack(len(body)) + body

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process.popen is not None
        assert self._process.popen.stdin is not None
        handle = self._process.popen.stdin.fileno()
        view = memoryview(data)
        while view:
            _wait_for(handle, select.POLLOUT, deadline)
            view = view[os.write(handle, view[:65536]) :]

    def _read(self, deadline: float) -> Any:
        (size,) = HEADER.unpack(self._read_exactly(HEADER.size, deadline))
        if size > MAX_FRAME:
            raise ValueError("a frame is too long")
        return json.loads(self._read_exactly(size, deadline))

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        assert self._process.popen is not None
        assert self._process.popen.stdout is not None
        handle = self._process.popen.stdout.fileno()
        parts: list[bytes] = []
        while size:
            _wait_for(handle, select.POLLIN, deadline)
            part = os.read(handle, min(size, 2**20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _died(self, what: str) -> InfrastructureError:
        popen = self._process.popen
        code = popen.returncode if popen is not None and self._process.gone.is_set() else None
        words = self._process.last_words()
        end = f"; its last output: {words}" if words else ""
        return InfrastructureError(f"the child process {what} [{self.target}, exit code {code}{end}]. Start another.")


def _wait_for(handle: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(handle, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError


def _remote_error(error: Mapping[str, Any]) -> Exception:
    kind = getattr(errors, error["type"], None) if error["ours"] else None
    if isinstance(kind, type) and issubclass(kind, AgentBenchError):
        return kind(error["text"])
    return ChildRaised(f"{error['type']}: {error['text']}", error["trace"])


class ChildPool:
    """A bounded number of children of one kind, started when needed and replaced when they die or grow.

    Two ways to use it: `call`, when any child will do; `pin` and `unpin`, when several calls must meet the same one.

    Args:
        target: As in `Child`.
        size: Most processes at once; as many again may be worn but still in use, beyond that they take users too.
        arguments: As in `Child`.
        max_calls: A child that answered so many takes no new users and ends with its last; None: never.
        max_rss_bytes: So does one whose memory grew beyond; None: no bound.
        max_users: So does one that had so many users; None: no bound.
        start_timeout_s: As in `Child`.
    """

    def __init__(
        self,
        target: str,
        size: int,
        arguments: Mapping[str, Any] | None = None,
        *,
        max_calls: int | None = None,
        max_rss_bytes: int | None = None,
        max_users: int | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        if size < 1:
            raise CallerError(f"a pool of {size} processes cannot work [{target}]. Use 1 or more.")
        self.target = target
        self._size = size
        self._max_calls = max_calls
        self._max_rss = max_rss_bytes
        self._max_users = max_users
        self._make: Callable[[], Child] = lambda: Child(target, arguments, start_timeout_s=start_timeout_s)
        self._changed = threading.Condition()
        self._users: dict[Child, int] = {}
        self._starting = 0
        self._closed = False
        self.recycled = 0
        """Children replaced because of their calls, users or memory."""

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float) -> Any:
        """A call on a child that nobody else uses meanwhile; see `Child.call`.

        Raises:
            Unavailable: no child was free in time.
        """
        deadline = time.monotonic() + timeout_s
        child = self._take(1, deadline, timeout_s)
        try:
            return child.call(method, params, timeout_s=max(deadline - time.monotonic(), 0.001))
        finally:
            self.unpin(child)

    def pin(self, *, timeout_s: float, per_child: int = 1_000_000) -> Child:
        """The child with the fewest users; give it back by `unpin`. It is not replaced meanwhile, unless it dies.

        Args:
            timeout_s: Longest wait, in seconds.
            per_child: A child has at most so many users.

        Raises:
            Unavailable: all children had their users for all that time.
        """
        return self._take(per_child, time.monotonic() + timeout_s, timeout_s)

    def share(self, child: Child) -> Child:
        """One more user for a child in use, to be given back by `unpin`; an InfrastructureError: it died meanwhile."""
        with self._changed:
            if child not in self._users or not child.alive:
                raise InfrastructureError(f"the child process is not alive any more [{self.target}]. Start another.")
            self._users[child] += 1
            child.users += 1
        return child

    def unpin(self, child: Child) -> None:
        """Gives a child back."""
        with self._changed:
            left = max(self._users.get(child, 0) - 1, 0)
            worn = not left and self._worn(child)
            keep = child.alive and not worn and not self._closed
            if keep:
                self._users[child] = left
            else:
                self._users.pop(child, None)
                self.recycled += worn and child.alive
            self._changed.notify_all()
        if not keep:
            child.close()

    def close(self) -> None:
        """Ends all children, also those in use; safe to repeat."""
        with self._changed:
            self._closed = True
            children = list(self._users)
            self._users.clear()
            self._changed.notify_all()
        for child in children:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _worn(self, child: Child) -> bool:
        if self._max_calls is not None and child.calls >= self._max_calls:
            return True
        if self._max_users is not None and child.users >= self._max_users:
            return True
        return self._max_rss is not None and child.rss_bytes > self._max_rss

    def _take(self, per_child: int, deadline: float, timeout_s: float) -> Child:
        with self._changed:
            while True:
                if self._closed:
                    raise CallerError(f"the pool was closed [{self.target}]. Make another one.")
                for dead in [child for child in self._users if not child.alive]:
                    del self._users[dead]
                full = len(self._users) + self._starting >= 2 * self._size
                serving = [c for c, users in self._users.items() if full or not (users and self._worn(c))]
                free = [c for c in serving if self._users[c] < per_child]
                room = not full and len(serving) + self._starting < self._size
                best = min(free, key=self._users.__getitem__, default=None)
                if best is not None and (self._users[best] == 0 or not room):
                    self._users[best] += 1
                    best.users += 1
                    return best
                if room:
                    self._starting += 1
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Unavailable(f"no child was free for {timeout_s:g} s [{self.target}]. Try again.")
                self._changed.wait(left)
        return self._start()

    def _start(self) -> Child:
        child: Child | None = None
        try:
            child = self._make()  # outside of the lock: others may use what is there
        finally:
            with self._changed:
                self._starting -= 1
                if child is not None and not self._closed:
                    self._users[child] = 1
                    child.users += 1
                self._changed.notify_all()
        if self._closed:
            child.close()
            raise CallerError(f"the pool was closed [{self.target}]. Make another one.")
        return child
