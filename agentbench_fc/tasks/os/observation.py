r"""What the agent sees of a script's output, and how a plan reads it back.

>>> shown = render(ShellResult(output=b"one\n\x1b[31mtwo\x1b[0m\n", code=3))
>>> print(shown)
one
two
[exit code 3]
>>> read(shown)
'one\ntwo'

Not here: running the script (sandbox/).
"""

import re

from agentbench_fc.tasks.os.sandbox.base import ShellResult

MAX_CHARS = 4_000
"""Longer outputs lose their middle: beginnings say what it is, ends how it went."""
AGENTBENCH_CHARS = 800
AGENTBENCH_KEPT = 780

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOTE = re.compile(
    r"(?:\n|^)\[(?:exit code \d+|no output|the command was stopped|the shell|in a nested shell|cut:)[^\n]*\]"
)
_LEAD = "The output of the OS:\n\n"
_EMPTY = "The output of the OS is empty."


def render(result: ShellResult, timeout_s: float = 0.0) -> str:
    """The output as text, and notes in brackets, one a line, on what it does not say."""
    text = _cut(_plain(result.output).strip("\n"))
    notes = []
    if result.dropped:
        notes.append(f"cut: {result.dropped:,} more bytes were not kept")
    if result.timed_out:
        notes.append(f"the command was stopped after {timeout_s:g} seconds")
    elif result.code and result.ended is None:
        notes.append(f"exit code {result.code}")
    if result.ended is not None:
        notes.append(f"the shell ended with exit code {result.ended}; another one has taken its place")
    if result.depth:
        notes.append("in a nested shell now; `exit` leaves it")
    if not text and not notes:
        notes.append("no output")
    return "\n".join([*([text] if text else []), *(f"[{note}]" for note in notes)])


def render_agentbench(result: ShellResult, timeout_s: float = 0.0) -> str:
    """AgentBench's form: a lead-in, at most 800 characters, a sentence of its own for no output and for no text."""
    try:
        text = _plain(result.output, errors="strict")
    except UnicodeDecodeError:
        return f"{_LEAD}The output is no text and cannot be shown."
    text = text.strip()
    if result.timed_out:
        text = f"{text}\n[the command was stopped after {timeout_s:g} seconds]".strip()
    if len(text) > AGENTBENCH_CHARS:
        text = f"{text[:AGENTBENCH_KEPT]}\n[the output is longer and was cut here]"
    return f"{_LEAD}{text}" if text else _EMPTY


def read(shown: str) -> str:
    """What a command printed, from what was shown of it; the end of a long output, cut or not, stays as shown."""
    if shown == _EMPTY:
        return ""
    text = shown.removeprefix(_LEAD)
    while (stripped := _NOTE.sub("", text).rstrip("\n")) != text:
        text = stripped
    return text


def _plain(output: bytes, errors: str = "replace") -> str:
    text = output.decode("utf-8", errors).replace("\r\n", "\n")
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text))


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    head, tail = MAX_CHARS * 2 // 3, MAX_CHARS // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"
