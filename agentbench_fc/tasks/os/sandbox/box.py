"""A sandbox as its users see it, whatever made it: calls of the agent inside, turned into results and errors.

Not here: what is special to a kind of sandbox, its `Backing` (docker.py, oci.py).
"""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.os.sandbox.base import (
    CAP_BYTES,
    EXEC_TIMEOUT_S,
    LOOK_BYTES,
    BackendName,
    Change,
    Entry,
    ExecResult,
    Sandbox,
    SandboxLost,
    SandboxSpent,
    ShellResult,
)
from agentbench_fc.tasks.os.sandbox.script import needs_check, parts
from agentbench_fc.tasks.os.sandbox.wire import Wire

logger = logging.getLogger(__name__)

GRACE_S = 15.0
"""For the agent to kill what timed out, and to answer on a busy machine."""
SYNTAX_TIMEOUT_S = 5.0
MAX_SCRIPT = 16 << 20
PREFIX_TRIES = 24
_NO_TERMINAL = re.compile(rb"^\S*bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n", re.MULTILINE)
"""What an interactive bash without a terminal says when a signal ended a command."""


class Backing(Protocol):
    """What a backend keeps of one sandbox."""

    def spent(self) -> str:
        """What the sandbox did to itself, e.g. ran out of memory; empty when it is not to blame."""
        ...

    def changes(self) -> list[Change]:
        """See `Sandbox.changes`."""
        ...

    def copy(self, state: bytes) -> Sandbox | None:
        """A sandbox with the same files, whose shell has taken `state`; None: this backend cannot."""
        ...

    def destroy(self) -> None:
        """Ends and removes all; safe to repeat, never raises."""
        ...


class Box:
    """A sandbox with our agent in it."""

    def __init__(self, *, name: str, backend: BackendName, image: str, wire: Wire, backing: Backing) -> None:
        self.id = name
        self.backend: BackendName = backend
        self.image = image
        self._wire = wire
        self._backing = backing
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._closed = False
        self._told: list[Callable[[], None]] = []
        self._ended: SandboxSpent | SandboxLost | None = None

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        timeout_s: float = EXEC_TIMEOUT_S,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        cap_bytes: int = CAP_BYTES,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        words = [word if isinstance(word, bytes) else word.encode(errors="surrogateescape") for word in argv]
        pairs = [f"{key}={value}".encode(errors="surrogateescape") for key, value in (env or {}).items()]
        if not words or any(b"\0" in each for each in (*words, *pairs, cwd.encode())):
            raise CallerError(
                "the arguments are empty or hold a NUL byte [sandbox exec]. Pass a program and plain text."
            )
        with self._turn(timeout_s):
            return self._exec(words, pairs, timeout_s, stdin, cwd, cap_bytes)

    def shell(
        self, script: str | bytes, *, timeout_s: float = EXEC_TIMEOUT_S, cap_bytes: int = CAP_BYTES
    ) -> ShellResult:
        """See `Sandbox.shell`."""
        text = script if isinstance(script, str) else script.decode(errors="surrogateescape")
        if len(text) > MAX_SCRIPT:
            raise CallerError(f"the script has {len(text):,} characters [sandbox shell]. Send at most {MAX_SCRIPT:,}.")
        text = text.replace("\0", "")
        deadline = time.monotonic() + timeout_s
        with self._turn(timeout_s):
            results: list[ShellResult] = []
            for part in parts(text, lambda lines: time.monotonic() < deadline and self._is_complete(lines)):
                room = cap_bytes - sum(len(each.output) for each in results)
                run = self._open if part.opens else self._run
                results.append(run(part.text.encode(errors="surrogateescape"), deadline, max(0, room)))
                if results[-1].timed_out or results[-1].ended is not None:
                    break
            return _joined(results)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox.put`."""
        if not path.startswith("/") or "\0" in path:
            raise CallerError(f"{path!r} is no absolute path [sandbox put]. Begin it with a slash.")
        with self._turn(EXEC_TIMEOUT_S):
            name = path.encode(errors="surrogateescape")
            answer = self._ask(b"put", name, b"%d" % mode, data, timeout_s=EXEC_TIMEOUT_S)
            if answer[0] != b"ok":
                raise SandboxSpent(
                    f"{path} cannot be written: {_text(answer[-1])} [sandbox {self.id}]. See what ran before."
                )

    def warm(self, timeout_s: float = EXEC_TIMEOUT_S) -> None:
        """Starts the shell ahead of its first script."""
        with self._turn(timeout_s):
            self._shell_answer(self._ask(b"warm", timeout_s=timeout_s))

    def look(
        self, paths: Sequence[str], *, content: int = 0, digest: bool = False, timeout_s: float = EXEC_TIMEOUT_S
    ) -> dict[str, Entry | None]:
        """See `Sandbox.look`."""
        names = [os.fsencode(path) for path in paths]
        if any(not name.startswith(b"/") or b"\0" in name for name in names):
            raise CallerError("a path is not absolute [sandbox look]. Begin each with a slash.")
        fields = (b"%.3f" % timeout_s, b"%d" % LOOK_BYTES, b"%d" % content, b"%d" % digest)
        with self._turn(timeout_s):
            answer = self._ask(b"look", *fields, *names, timeout_s=timeout_s)
        found: dict[str, Entry | None] = {}
        if answer[0] == b"ok":
            rest = iter(answer[1:])
            for path in paths:
                entry = [next(rest) for _ in range(int(next(rest)))]
                if len(entry) == 2:
                    raise SandboxSpent(f"{path}: {os.strerror(int(entry[1]))} [sandbox look, {self.id}].")
                found[path] = _entry(entry) if entry else None
            return found
        raise SandboxSpent(f"{_text(answer[-1])} [sandbox look, {self.id}]. Look at fewer or smaller files.")

    def changes(self) -> list[Change]:
        """See `Sandbox.changes`."""
        with self._turn(EXEC_TIMEOUT_S):
            return self._backing.changes()

    def expose(self) -> None:
        """See `Sandbox.expose`."""
        with self._turn(EXEC_TIMEOUT_S):
            self._ask(b"expose", timeout_s=EXEC_TIMEOUT_S)

    def fork(self) -> Sandbox | None:
        """See `Sandbox.fork`."""
        with self._turn(EXEC_TIMEOUT_S):
            answer = self._ask(b"state", timeout_s=EXEC_TIMEOUT_S)
            return self._backing.copy(answer[1]) if answer[0] == b"ok" else None

    def restore(self, state: bytes) -> None:
        """Gives the shell the state that another one's agent told."""
        status, _, script = state.partition(b"\n")
        if script:
            with self._turn(EXEC_TIMEOUT_S):
                quiet = b"{ " + script.replace(b"\0", b"") + b"\n} 2>/dev/null; (exit " + status + b")"
                self._feed(quiet, time.monotonic() + EXEC_TIMEOUT_S, 0, opens=False)

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
        try:
            self._wire.close()
            self._backing.destroy()
        finally:
            for told in self._told:
                told()

    @property
    def alive(self) -> bool:
        """See `Sandbox.alive`."""
        return not self._closed and self._ended is None and self._wire.alive

    def on_close(self, told: Callable[[], None]) -> None:
        """See `Sandbox.on_close`."""
        self._told.append(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _turn(self, timeout_s: float) -> "_Turn":
        return _Turn(self._lock, self.id, timeout_s + GRACE_S)

    def _ask(self, op: bytes, *fields: bytes, timeout_s: float) -> list[bytes]:
        """One request; a channel that ends is the sandbox's deed or the machines' failure."""
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))
        try:
            return self._wire.ask(op, *fields, timeout_s=timeout_s + GRACE_S)
        except SandboxLost as error:
            why = "" if self._closed else self._backing.spent()
            if not why:
                self._ended = error
                raise
            self._ended = SandboxSpent(f"{why} [sandbox {self.id}]. End the episode: this sandbox is beyond use.")
            raise self._ended from error

    def _exec(
        self, words: list[bytes], pairs: list[bytes], timeout_s: float, stdin: bytes, cwd: str, cap: int
    ) -> ExecResult:
        fields = (b"%.3f" % timeout_s, b"%d" % cap, cwd.encode(), stdin, b"%d" % len(pairs), *pairs, *words)
        answer = self._ask(b"exec", *fields, timeout_s=timeout_s)
        if answer[0] == b"ok":
            _, code, timed_out, dropped, out, err = answer
            return ExecResult(
                code=int(code), stdout=out, stderr=err, timed_out=timed_out == b"1", truncated=int(dropped) > 0
            )
        number, message = int(answer[1]), answer[2]
        if number in (errno.EAGAIN, errno.ENOMEM):
            raise SandboxSpent(
                f"no further process can be started: {_text(message)} [sandbox {self.id}]. End the episode."
            )
        return ExecResult(
            code=126 if number == errno.EACCES else 127, stdout=b"", stderr=words[0] + b": " + message + b"\n"
        )

    def _syntax(self, script: bytes) -> bytes:
        """Bash's complaint about a script; empty where there is none, or none can be had."""
        complaint = b""
        for options in ((), ("-O", "extglob")):
            words = [b"/bin/bash", *(option.encode() for option in options), b"-n"]
            try:
                result = self._exec(words, [], SYNTAX_TIMEOUT_S, script + b"\n", "/", CAP_BYTES)
            except SandboxSpent:
                if self._ended is not None:
                    raise
                return b""  # no room for the check: the shell will say so itself
            if result.ok or result.timed_out or result.code in (126, 127, 137):
                return b""
            complaint = complaint or result.stderr.replace(b"/bin/bash: ", b"bash: ") or b"bash: syntax error\n"
        return complaint

    def _is_complete(self, text: str) -> bool:
        script = text.encode(errors="surrogateescape")
        if not needs_check(script):
            return True
        result = self._exec([b"/bin/bash", b"-n"], [], SYNTAX_TIMEOUT_S, script + b"\n", "/", CAP_BYTES)
        return result.ok and not result.stderr

    def _run(self, script: bytes, deadline: float, cap: int) -> ShellResult:
        """A script without openers; as bash does with a file, a broken one runs up to the fault."""
        complaint = self._syntax(script) if needs_check(script) else b""
        if not complaint:
            return self._feed(script, deadline, cap, opens=False)
        done = ShellResult(output=b"", code=0)
        if prefix := self._sound_prefix(script, deadline):
            done = self._feed(prefix, deadline, cap, opens=False)
            if done.timed_out or done.ended is not None:
                return done
        output = done.output + complaint
        return ShellResult(
            output=output[:cap],
            code=2,
            truncated=done.truncated or len(output) > cap,
            dropped=done.dropped + max(0, len(output) - cap),
            depth=done.depth,
        )

    def _open(self, line: bytes, deadline: float, cap: int) -> ShellResult:
        return self._feed(line, deadline, cap, opens=True)

    def _sound_prefix(self, script: bytes, deadline: float) -> bytes:
        """The longest run of whole lines before a syntax error, of the few lengths that are tried."""
        lines = script.split(b"\n")
        for size in range(len(lines) - 1, max(0, len(lines) - 1 - PREFIX_TRIES), -1):
            if time.monotonic() >= deadline:
                break
            prefix = b"\n".join(lines[:size])
            if self._is_complete(prefix.decode(errors="surrogateescape")):
                return prefix if prefix.strip() else b""
        return b""

    def _feed(self, script: bytes, deadline: float, cap: int, *, opens: bool) -> ShellResult:
        left = max(0.01, deadline - time.monotonic())
        answer = self._ask(b"shell", b"%.3f" % left, b"%d" % cap, b"%d" % opens, script, timeout_s=left)
        _, how, code, ended, dropped, depth, output = self._shell_answer(answer)
        return ShellResult(
            output=_NO_TERMINAL.sub(b"", output),
            code=None if how == b"timeout" else int(code),
            timed_out=how == b"timeout",
            truncated=int(dropped) > 0,
            dropped=int(dropped),
            ended=int(ended) if int(ended) >= 0 else None,
            depth=int(depth),
        )

    def _shell_answer(self, answer: list[bytes]) -> list[bytes]:
        if answer[0] != b"ok":
            self._ended = SandboxSpent(
                f"no shell can be started: {_text(answer[-1])} [sandbox {self.id}]. End the episode."
            )
            raise self._ended
        return answer


class _Turn:
    """Calls into a sandbox take turns; waiting for one has a deadline too."""

    def __init__(self, lock: threading.Lock, name: str, timeout_s: float) -> None:
        self._lock = lock
        self._name = name
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise SandboxLost(
                f"another call has held it for {self._timeout_s:g} s [sandbox {self._name}]. Start the episode again."
            )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def _joined(results: list[ShellResult]) -> ShellResult:
    """One result of several parts."""
    if not results:
        return ShellResult(output=b"", code=0)
    last = results[-1]
    return ShellResult(
        output=b"".join(each.output for each in results),
        code=last.code,
        timed_out=last.timed_out,
        truncated=any(each.truncated for each in results),
        dropped=sum(each.dropped for each in results),
        ended=last.ended,
        depth=last.depth,
    )


def _entry(fields: list[bytes]) -> Entry:
    kind, mode, uid, gid, size, target, names, content, digest = fields
    return Entry(
        kind=kind.decode(),  # type: ignore[arg-type]
        mode=int(mode),
        uid=int(uid),
        gid=int(gid),
        size=int(size),
        target=os.fsdecode(target),
        names=tuple(os.fsdecode(name) for name in names.split(b"\0") if name),
        content=content,
        sha256=digest.decode(),
    )


def _text(message: bytes) -> str:
    return message.decode(errors="replace")
