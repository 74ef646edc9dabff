r"""What makes an answer right, and what makes the state of a sandbox right: pure functions, nothing is run here.

Answers: AgentBench's stock checkers under its own rules and under ours, and its `match`. States: our generated samples
say in data what must hold (this mode, that content, no such process); the facts come from outside the agent's reach.

>>> answer_passes("integer-match", " 42 ", "42\n"), answer_passes("integer-match", "4_2", "42")
(True, False)
>>> answer_passes("integer-match", "4_2", "42", agentbench=True)
True

Not here: getting a reference's output or a file's mode (grading.py, look.py).
Source: the checkers' behaviour is AgentBench's, data/os_interaction at 578c5e9.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_ANSWER = 100_000
"""Characters of an answer that are looked at."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{0,10})?)\s*([A-Za-z]*)")
_UNITS = {"": 0, "B": 0} | {f"{u}{b}": n for n, u in enumerate("KMGTP", start=1) for b in ("", "B", "IB")}


def match_passes(match: Mapping[str, Any], answer: str | None, *, agentbench: bool = False) -> bool:
    """Whether an answer fits a sample's `match`: equal to a text, or found by a pattern of the sample's author."""
    if answer is None or len(answer) > MAX_ANSWER:
        return False
    text = answer.strip() if match["strip"] else answer
    if "regex" in match:
        return re.search(match["regex"], text) is not None
    wanted = str(match["answer"])
    if agentbench:
        return text == wanted
    return text == (wanted.strip() if match["strip"] else wanted)


def answer_passes(name: str, answer: str, reference: str, *, agentbench: bool = False) -> bool:
    """Whether a stock checker accepts an answer, given the reference's output.

    Args:
        name: One of `STOCK`.
        answer: The agent's.
        reference: What the sample's own script printed.
        agentbench: Its rules; ours accept no empty answer, no number but a plain one, and sizes such as `8.0K`.
    """
    if len(answer) > MAX_ANSWER:
        return False
    if agentbench:
        return _AGENTBENCH[name](answer, reference)
    return bool(answer.strip()) and _DEFAULT[name](answer, reference)


def _int_like_python(answer: str, reference: str) -> bool:
    try:
        return int(answer) == int(reference)
    except ValueError:
        return False


def _integer(answer: str, reference: str) -> bool:
    left, right = answer.strip(), reference.strip()
    return bool(_INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)) and int(left) == int(right)


def _text(answer: str, reference: str) -> bool:
    return _lines(answer) == _lines(reference)


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _whole_size(answer: str, reference: str) -> bool:
    left, right = _size(answer), _size(reference)
    return left is not None and left == right and not {"."} & {*answer, *reference}


def _any_size(answer: str, reference: str) -> bool:
    left, right = _size(answer), _size(reference)
    return left is not None and left == right


def _size(text: str) -> float | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        return None
    return float(match[1]) * 1024.0 ** _UNITS[match[2].upper()]


_AGENTBENCH: dict[str, Callable[[str, str], bool]] = {
    "integer-match": _int_like_python,
    "string-match": _text,
    "containing": lambda answer, reference: reference in answer,
    "in": lambda answer, reference: answer in reference,
    "size-match": _whole_size,
}
_DEFAULT: dict[str, Callable[[str, str], bool]] = {
    "integer-match": _integer,
    "string-match": _text,
    "containing": lambda answer, reference: bool(reference.strip()) and reference.strip() in answer,
    "in": lambda answer, reference: answer.strip() in reference,
    "size-match": _any_size,
}
STOCK = tuple(_DEFAULT)
"""AgentBench's checkers for answers, by the name of their file."""
