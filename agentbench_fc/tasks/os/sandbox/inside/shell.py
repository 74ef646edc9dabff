"""The persistent bash inside a sandbox, and the conversation with it.

An interactive login bash without a terminal. A script is fed as `eval '…' </dev/null`; the line after it prints a fresh
nonce and `$?` to a descriptor of its own by means of `((` alone, which no alias, function or PATH can shadow. In a
nested shell, and when a script closed that descriptor, the mark comes in the output instead.

At a timeout every process that is younger than the call dies, and the shell is interrupted as by Ctrl-C; only one that
does not let go is replaced.

Not here: which scripts open a nested shell, and checks of their syntax (the host's script.py).
"""

import _signal as signal  # type: ignore[import-not-found]
import binascii
import errno
import os
import time
from collections.abc import Callable, Iterable

from agentbench_fc.tasks.os.sandbox.inside.processes import (
    BASE_ENV,
    CHUNK,
    Children,
    Output,
    Young,
    descendants,
    pending,
    send,
)

MARK_FD = 197
SETUP = b"PS1= PS2= PROMPT_COMMAND=; unset HISTFILE MAILCHECK; set +o history; shopt -u checkwinsize\n"
BASH = [b"/bin/bash", b"--noediting", b"--login", b"-i", b"+H"]
TRIES = 6
LOST = -2
"""A shell that must be replaced."""
HELD = 128
"""Bytes at the end of the output that are looked at again with what follows: a mark may come in two pieces."""


def fresh() -> bytes:
    """A nonce: 56 random bits, so that it is a number to bash as well."""
    return binascii.hexlify(os.urandom(7))


def plain_mark(nonce: bytes) -> bytes:
    """The line that marks an end in the output."""
    return b"\\printf '\\n%%s %%d\\n' %s \"$?\"\n" % nonce


def split(data: bytes, nonce: bytes) -> "tuple[bytes, int, bytes] | None":
    """What stands before a plain mark, its status, and the rest; None: it is not there."""
    before, sign, rest = data.partition(b"\n" + nonce + b" ")
    status, end, rest = rest.partition(b"\n")
    return (before, int(status), rest) if sign and end and status.isdigit() else None


def without_complaint(data: bytes) -> bytes:
    """Without bash's last lines about the missing descriptor of the marks."""
    while (text := data.rstrip(b"\n")).endswith(b": %d: Bad file descriptor" % MARK_FD):
        data = text[: text.rfind(b"\n") + 1]
    return data


class Told:
    """How a conversation went."""

    def __init__(self, how: bytes, code: int, ended: int = -1) -> None:
        self.how = how
        """done, ended (the shell is no more) or timeout."""
        self.code = code
        """Status of the last command."""
        self.ended = ended
        """Status of a shell that ended, the outermost or a nested one; -1: none did."""


class Shell:
    """One bash."""

    def __init__(self, children: Children, wait: "Callable[..., set[int]]") -> None:
        """Starts it; `greet` must follow.

        Raises:
            OSError: it cannot be started.
        """
        self._children = children
        self._wait = wait
        command, self._input = os.pipe()
        self.output, out = os.pipe()
        self._marks, mark = os.pipe()
        os.set_blocking(self._input, False)
        env = {**BASE_ENV, b"PS1": b"", b"PS2": b""}
        try:
            self.pid = children.spawn(BASH, env, b"/root", {0: command, 1: out, 2: out, MARK_FD: mark})
        except OSError:
            for each in (self._input, self.output, self._marks):
                os.close(each)
            raise
        finally:
            for each in (command, out, mark):
                os.close(each)
        self.open = {self.output, self._marks}
        """Those at whose other end somebody still is."""
        self.outer: list[bytes] = []
        """The nonces that are printed when a nested shell ends, innermost last."""
        self.status = 0
        self._fed = 0
        self.plain = False
        """The script closed the descriptor of the marks."""

    def greet(self) -> None:
        """Waits until it is ready.

        Raises:
            OSError: it is not, for 20 s.
        """
        nonce = fresh()
        if self._talk([SETUP + self._mark(nonce)], nonce, Output(0), time.monotonic() + 20).how != b"done":
            self.end()
            raise OSError(errno.ENOEXEC, "the shell does not start")

    def end(self) -> int:
        """Ends it and what is nested in it; its status. Its output is still open, for whoever it left behind."""
        if not self._children.has_ended(self.pid):
            send([*descendants(self.pid), self.pid], signal.SIGKILL)
        os.close(self._input)
        os.close(self._marks)
        until = time.monotonic() + 5
        while not self._children.has_ended(self.pid) and time.monotonic() < until:
            self._wait((), 0.05)
        return self._children.take(self.pid)

    def idle(self, ready: "Iterable[int]") -> None:
        """Drops what is printed between two calls: it belongs to neither."""
        for fd in self.open & set(ready):
            if not os.read(fd, CHUNK):
                self.open.discard(fd)

    def run(self, script: bytes, opens: bool, output: Output, seconds: float) -> Told:
        """Runs a script; one that `opens` a nested shell shares the shell's input with it."""
        for fd in self.open:
            Output(0).drain(fd)
        young, nonce = Young(self._children), fresh()
        if opens:
            self.outer.append(fresh())
            texts = [self._line(script, opens), self._mark(nonce)]
        else:
            texts = [self._line(script, opens) + self._mark(nonce)]
        told = self._talk(texts, nonce, output, time.monotonic() + seconds)
        if told.how == b"timeout":
            told = Told(b"timeout", 130, self._interrupt(young, nonce))
        elif opens and told.ended >= 0 and told.how == b"done":
            told = Told(b"done", told.ended)  # it did not open, or ended at once
        self.status = told.code
        return told

    def state(self) -> "bytes | None":
        """The shell's state as a script, after a line with the last status; None: it is not fit to be copied."""
        if self.outer or self.plain:
            return None
        nonce, output, status = fresh(), Output(1 << 20), self.status
        script = b"\n".join(STATE)
        told = self._talk([self._line(script, False) + self._mark(nonce)], nonce, output, time.monotonic() + 5)
        if told.how != b"done" or told.code != 0 or output.dropped:
            return None
        lines = [line for line in output.data.split(b"\n") if not line.startswith(BASH_OWN)]
        self.status = status
        return b"%d\n" % status + b"\n".join(lines)

    def _line(self, script: bytes, opens: bool) -> bytes:
        quoted = b"\\eval '" + script.replace(b"'", b"'\\''") + b"'"
        if opens:
            return quoted + b"; " + plain_mark(self.outer[-1])
        if self.outer:
            return quoted + b" </dev/null\n"
        last = self.status % 256
        restored = b"(( 0 )) && (( 1 )); " if last == 1 else b"(exit %d); " % last if last else b""
        return b"{ PS1= PS2= PROMPT_COMMAND=; } 2>/dev/null\n" + restored + quoted + b" </dev/null\n"

    def _mark(self, nonce: bytes) -> bytes:
        """The lines that tell the end of what came before. `((` is no word: nothing can take its place."""
        if self.outer or self.plain:
            return plain_mark(nonce)
        gone = b"(( 1 )) 2>&%d || %s" % (MARK_FD, plain_mark(nonce))
        return b"(( $? , 0x%s / 0 )) 2>&%d || (( 1 ))\n" % (nonce, MARK_FD) + gone

    @property
    def untouched(self) -> bool:
        """Whether it read nothing of what it was fed last: it ended before this call's script."""
        return pending(self._input) == self._fed

    def _interrupt(self, young: Young, nonce: bytes) -> int:
        """Ends a script and what it started; LOST: the shell does not let go, or has gone with it, else -1."""
        for attempt in range(TRIES):
            if not self.outer:
                send([self.pid], signal.SIGINT)  # first: bash looks whether its child died of the same
                send([pid for pid, _ in young.alive({self.pid})], signal.SIGINT)
                if attempt == 0 and self._is_done(nonce, 0.05):
                    break
            young.kill({self.pid})
            if self._is_done(nonce, 0.05 * (attempt + 1)):
                break
        ended = self._children.has_ended(self.pid)
        young.kill({self.pid})
        return LOST if ended or attempt == TRIES - 1 else -1

    def _is_done(self, nonce: bytes, seconds: float) -> bool:
        return self._talk([], nonce, Output(0), time.monotonic() + seconds).how != b"timeout"

    def _talk(self, texts: "list[bytes]", nonce: bytes, output: Output, deadline: float) -> Told:
        """Feeds the shell and reads what it prints until the nonce, the end of the shell, or the deadline.

        Bash reads ahead: a text for a nested shell must wait until the one before it has been taken.
        """
        texts = list(texts)
        self._fed = 0
        view = memoryview(texts.pop(0) if texts else b"")
        marks, held = b"", b""
        ended, again = -1, 0.0
        while True:
            now = time.monotonic()
            if now >= deadline:
                output.add(held)
                return Told(b"timeout", 130, ended)
            if again and now >= again:
                again, view = 0.0, memoryview(self._mark(nonce))  # the nested shell had read its line ahead
            if texts and not view and not pending(self._input):
                view = memoryview(texts.pop(0))
            soon = 0.001 if texts else min(deadline, again or deadline) - now
            ready = self._wait(self.open, soon, self._input if view else None)
            view = self._write(view) if self._input in ready else view
            if self._marks in ready and self._marks in self.open:
                data = os.read(self._marks, CHUNK)
                marks = (marks + data)[-65536:]
                if not data:
                    self.open.discard(self._marks)
            status, gone = self._marked(marks, nonce), self._children.has_ended(self.pid)
            held += self._read(ready, status is not None or gone)
            while self.outer and (found := split(held, self.outer[-1])):
                self.outer.pop()
                output.add(found[0])
                held, ended, again = found[2], found[1], time.monotonic() + 0.2
            if found := split(held, nonce):
                before, code, _ = found
                if not self.outer and not self.plain and ended < 0:
                    self.plain, code, before = True, 0, without_complaint(before)
                output.add(before)
                return Told(b"done", code if ended < 0 else ended, ended)
            if status is not None or gone:
                output.add(held)
                return Told(b"done", status, ended) if status is not None else Told(b"ended", 0, ended)
            output.add(held[:-HELD])
            held = held[-HELD:]

    def _write(self, view: memoryview) -> memoryview:
        try:
            size = os.write(self._input, view[:CHUNK])
            self._fed += size
            return view[size:]
        except BlockingIOError:
            return view
        except OSError:
            return view[:0]  # it is about to end

    def _read(self, ready: "set[int]", all_there: bool) -> bytes:
        """What was printed; all that there will be when the end is known."""
        if self.output not in self.open:
            return b""
        if all_there:
            rest = Output(1 << 30)
            rest.drain(self.output)
            return rest.data
        if self.output not in ready:
            return b""
        data = os.read(self.output, CHUNK)
        if not data:
            self.open.discard(self.output)
        return data

    def _marked(self, marks: bytes, nonce: bytes) -> "int | None":
        """The status in what came over the descriptor of the marks; None: nothing yet."""
        for line in marks.split(b"\n"):
            if b"((: " in line and nonce in line:
                return int(line.rpartition(b"((: ")[2].split(b",")[0])
        return None


STATE = (
    b"declare -p",
    b"declare -f",
    b"alias -p",
    b"shopt -p",
    b"trap -p",
    b'printf \'umask %s\\ncd -- %q\\n\' "$(umask)" "$PWD"',
    b"set +o",
)
BASH_OWN = (
    *(
        b"declare -%s %s=" % (flags, name)
        for flags, names in (
            (b"r", b"BASHOPTS SHELLOPTS"),
            (b"ir", b"EUID PPID UID"),
            (b"ar", b"BASH_VERSINFO"),
            (b"a", b"BASH_ARGC BASH_ARGV BASH_LINENO BASH_SOURCE DIRSTACK FUNCNAME GROUPS PIPESTATUS"),
            (b"A", b"BASH_ALIASES BASH_CMDS"),
            (b"-", b"BASH BASH_ARGV0 BASH_COMMAND BASH_SUBSHELL BASH_MONOSECONDS COMP_WORDBREAKS EPOCHREALTIME"),
            (b"-", b"EPOCHSECONDS HISTCMD LINENO OPTIND RANDOM SECONDS SRANDOM _"),
            (b"i", b"BASHPID HISTCMD LINENO OPTIND RANDOM SECONDS SRANDOM EPOCHSECONDS"),
            (b"x", b"_"),
        )
        for name in names.split()
    ),
    *(b"set +o " + name for name in b"onecmd ignoreeof monitor noexec emacs vi".split()),
    b"shopt -s login_shell",
    b"shopt -u restricted_shell",
)
"""Lines of a shell's state that are bash's own; some cannot be set, and the attempt would end the script."""
