r"""What must be known of a script before a persistent bash may run it: its syntax, and where it opens a nested shell.

>>> opens_shell("useradd jack && su - jack"), opens_shell("bash -c ls"), opens_shell("su - jack -c id")
(True, False, False)
>>> [(part.text, part.opens) for part in parts("cd /tmp\nsu - jack\nwhoami")]
[('cd /tmp', False), ('su - jack', True), ('whoami', False)]

A command that opens a shell of its own must share the persistent shell's input, which all others must not touch. Such
a command is told by its words: it stands last in its line, and the lines before it are complete.

Not here: running them (inside/shell.py).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_WORD = r"[A-Za-z0-9_.][\w.-]*"
_SHELL = r"(?:/usr)?(?:/bin/)?(?:bash|sh|dash|rbash)(?:\s+(?:-l|-i|-li|-il|--login|--noprofile|--norc))*"
_SU = rf"(?:/usr)?(?:/bin/)?su(?!.*\s(?:-\w*c\b|--command|--session-command))(?:\s+(?:-[\w-]*|{_WORD}|/[\w/.-]+))*"
_SUDO = rf"sudo(?:\s+-u\s+{_WORD})?\s+(?:-i|-s|{_SHELL}|{_SU})"
_OPENER = re.compile(
    rf"(?:^|&&|\|\||;)\s*(?:exec\s+)?(?:{_SHELL}|{_SU}|{_SUDO}|newgrp(?:\s+{_WORD})?)\s*;?\s*(?:#.*)?$"
)
_SIMPLE = re.compile(rb"[\w./=:,@%+~*? \t-]*")
_KEYWORDS = frozenset(b"if then else elif fi case esac for select while until do done in function time coproc".split())


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that are fed in one go."""

    text: str
    opens: bool


def opens_shell(line: str) -> bool:
    """Whether a line ends by opening a shell that reads further commands."""
    return _OPENER.search(line) is not None


def parts(script: str, complete: Callable[[str], bool] = lambda _: True) -> list[Part]:
    """The script, cut before and after each line that opens a shell.

    Args:
        script: Of any length.
        complete: Whether some lines are complete in themselves, so that the next one is a line of its own.
    """
    if not any(map(opens_shell, script.split("\n"))):
        return [Part(script, False)]
    found: list[Part] = []
    lines: list[str] = []
    for line in script.split("\n"):
        if opens_shell(line) and (not lines or complete("\n".join(lines))) and complete(line):
            if "\n".join(lines).strip():
                found.append(Part("\n".join(lines), False))
            found.append(Part(line, True))
            lines = []
        else:
            lines.append(line)
    if "\n".join(lines).strip():
        found.append(Part("\n".join(lines), False))
    return found


def needs_check(script: bytes) -> bool:
    """Whether a script can be incomplete at all: then it would swallow the line after it, or damage bash's memory."""
    if not _SIMPLE.fullmatch(script):
        return True
    words = script.split(maxsplit=1)
    return bool(words) and words[0] in _KEYWORDS
