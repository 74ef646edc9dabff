r"""What must be known of a script before a persistent bash may run it: its syntax, and where it opens a nested shell.

>>> opens_shell("useradd jack && su - jack"), opens_shell("bash -c ls"), opens_shell("su - jack -c id")
(True, False, False)
>>> [(part.text, part.opens) for part in parts("cd /tmp\nsu - jack\nwhoami")]
[('cd /tmp', False), ('su - jack', True), ('whoami', False)]

A command that opens a shell of its own must share the persistent shell's input, which all others must not touch. Such
a command is told by its words: it stands last in its line, and the lines before it are complete.

Not here: running them (inside/shell.py).
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

_WORD = r"[A-Za-z0-9_.][\w.-]*"
_SHELL = r"(?:/usr)?(?:/bin/)?(?:bash|sh|dash|rbash)(?: (?:-l|-i|-li|-il|--login|--noprofile|--norc))*"
_SU = rf"(?:/usr)?(?:/bin/)?su(?!.* (?:-\w*c\b|--command|--session-command))(?: (?:-[\w-]*|{_WORD}|/[\w/.-]+))*"
_SUDO = rf"sudo(?: -u {_WORD})? (?:-i|-s|{_SHELL}|{_SU})"
_OPENER = re.compile(rf"(?:exec )?(?:{_SHELL}|{_SU}|{_SUDO}|newgrp(?: {_WORD})?)")
"""A command whose words stand one space apart: on what an agent wrote, a pattern with runs of blanks takes hours."""
_BETWEEN = re.compile(r"&&|\|\||;")
_COMMENT = re.compile(r"(?<![^\s;])#")
MAX_OPENER = 300
"""Characters of a command that may open a shell."""
MAX_TRIES = 32
"""Such commands, and places where a comment may begin, that are looked into."""
_SIMPLE = re.compile(rb"[\w./=:,@%+~*? \t-]*")
_KEYWORDS = frozenset(b"if then else elif fi case esac for select while until do done in function time coproc".split())


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that are fed in one go."""

    text: str
    opens: bool


def opens_shell(line: str) -> bool:
    """Whether a line ends by opening a shell that reads further commands."""
    ends = [len(line), *itertools.islice((mark.start() for mark in _COMMENT.finditer(line)), MAX_TRIES)]
    return any(_is_opener(line[:end]) for end in ends)


def _is_opener(line: str) -> bool:
    """Whether the last command of a line without a comment opens a shell."""
    text = line.rstrip().removesuffix(";")
    *before, last = _BETWEEN.split(text[-MAX_OPENER * 4 :])
    if not before and len(text) > MAX_OPENER * 4:
        return False
    command = " ".join(last.split())
    return len(command) <= MAX_OPENER and _OPENER.fullmatch(command) is not None


def parts(script: str, complete: Callable[[str], bool] = lambda _: True) -> list[Part]:
    """The script, cut before and after each line that opens a shell.

    Args:
        script: Of any length.
        complete: Whether some lines are complete in themselves, so that the next one is a line of its own.
    """
    openers = [number for number, line in enumerate(script.split("\n")) if opens_shell(line)][:MAX_TRIES]
    if not openers:
        return [Part(script, False)]
    found: list[Part] = []
    lines: list[str] = []
    for number, line in enumerate(script.split("\n")):
        if number in openers and (not lines or complete("\n".join(lines))) and complete(line):
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
