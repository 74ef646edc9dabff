r"""LIKE and REGEXP in time linear in the text: a model writes the patterns, and `re` can be made to hang.

>>> like("a_c%", "ABCdef"), like(r"50\%", "50%"), like("a", "ab")
(True, True, False)
>>> Regexp("^(a|bc)+[0-9]{2}$").search("ABCa42"), Regexp("(a+)+$").search("a" * 5000 + "b")
(True, False)

A regular expression is compiled to a small non-deterministic automaton (Thompson 1968) that is run on all its states
at once, without backtracking; `re` would hold the interpreter lock for as long as a hostile pattern wants.

Not here: collations (collation.py). No back references, no look-around: they are errors.
Source: the syntax is the common part of MySQL's regular expressions (POSIX classes, `\d \w \s \b`).
"""

from collections.abc import Callable
from dataclasses import dataclass

MAX_STATES = 2_000
_CLASSES: dict[str, Callable[[str], bool]] = {
    "alpha": str.isalpha,
    "digit": str.isdigit,
    "alnum": str.isalnum,
    "space": str.isspace,
    "upper": str.isalpha,  # matching ignores case
    "lower": str.isalpha,
    "punct": lambda c: not c.isalnum() and not c.isspace() and c.isprintable(),
    "blank": lambda c: c in " \t",
    "cntrl": lambda c: not c.isprintable(),
    "print": str.isprintable,
    "graph": lambda c: c.isprintable() and not c.isspace(),
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_ESCAPES: dict[str, Callable[[str], bool]] = {
    "d": str.isdigit,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_Part = tuple[int, list[int]]
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


class PatternError(ValueError):
    """The pattern is not a regular expression of the supported kind; the text is for the model."""


def like(pattern: str, text: str, escape: str = "\\", *, exact: bool = False) -> bool:
    """MySQL's LIKE: `%` any run, `_` one character, case ignored unless `exact`."""
    seen: Callable[[str], str] = str if exact else str.casefold
    tokens: list[tuple[str, str]] = []
    i = 0
    folded = seen(pattern)
    while i < len(folded):
        char = folded[i]
        if escape and char == seen(escape) and i + 1 < len(folded):
            i += 1
            tokens.append(("c", folded[i]))
        elif char == "%":
            if not tokens or tokens[-1][0] != "%":
                tokens.append(("%", ""))
        else:
            tokens.append(("_", "") if char == "_" else ("c", char))
        i += 1
    subject = seen(text)
    at = token = 0
    star, resume = -1, 0  # the last %, and where its run would have to grow from: never look further back
    while at < len(subject):
        if token < len(tokens) and tokens[token][0] == "%":
            star, resume, token = token, at, token + 1
        elif token < len(tokens) and (tokens[token][0] == "_" or tokens[token][1] == subject[at]):
            at, token = at + 1, token + 1
        elif star >= 0:
            resume += 1
            at, token = resume, star + 1
        else:
            return False
    return all(kind == "%" for kind, _ in tokens[token:])


@dataclass(slots=True)
class _State:
    """One state: a test for a character, an empty move to `next` states, or an assertion."""

    test: Callable[[str], bool] | None = None
    assertion: str = ""
    next: tuple[int, ...] = ()


class Regexp:
    """A compiled regular expression; matching ignores case."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._states: list[_State] = []
        start, ends = self._alternatives()
        if self._at < len(pattern):
            raise PatternError("unbalanced ')' in the regular expression")
        self._accept = self._add(_State())
        self._patch(ends, self._accept)
        self._start = start

    def search(self, text: str) -> bool:
        """Whether the expression matches anywhere in the text."""
        current: set[int] = set()
        for at in range(len(text) + 1):
            current.add(self._start)
            current = self._close(current, text, at)
            if self._accept in current:
                return True
            if at == len(text):
                break
            char = text[at]
            current = {
                target
                for number in current
                if (test := self._states[number].test) is not None and test(char)
                for target in self._states[number].next
            }
        return False

    def _close(self, states: set[int], text: str, at: int) -> set[int]:
        seen = set(states)
        pending = list(states)
        while pending:
            state = self._states[pending.pop()]
            if state.test is not None or (state.assertion and not _holds(state.assertion, text, at)):
                continue
            for target in state.next:
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return seen

    # Parsing: each part gives its first state and the open ends that the next part is hung on.

    def _alternatives(self, depth: int = 0) -> _Part:
        if depth > 50:
            raise PatternError("the regular expression is nested too deeply")
        start, ends = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            other, other_ends = self._sequence(depth)
            start = self._add(_State(next=(start, other)))
            ends = ends + other_ends
        return start, ends

    def _sequence(self, depth: int) -> _Part:
        start = self._add(_State())
        ends = [start]
        while (char := self._peek()) is not None and char not in "|)":
            begin = self._at
            part = self._atom(depth)
            after = self._at
            low, high = self._count()
            resume = self._at
            if (low, high) == (1, 1):
                self._patch(ends, part[0])
                ends = part[1]
                continue
            if high == 0:
                continue
            ends = self._repeat(part, ends, low, high, depth, begin, after)
            self._at = resume
        return start, ends

    def _repeat(
        self,
        part: _Part,
        ends: list[int],
        low: int,
        high: int | None,
        depth: int,
        begin: int,
        after: int,
    ) -> list[int]:
        skips: list[int] = []
        copies = max(low, 1) if high is None else high
        for copy in range(copies):
            if copy:  # each copy is read again from the pattern: states cannot be shared between copies
                self._at = begin
                part = self._atom(depth)
                self._at = after
            entry = part[0]
            if copy >= low:
                entry = self._add(_State(next=(part[0],)))
                skips.append(entry)
            self._patch(ends, entry)
            ends = part[1]
            if high is None and copy == copies - 1:
                loop = self._add(_State(next=(part[0],)))
                self._patch(ends, loop)
                ends = [loop]
        return ends + skips

    def _count(self) -> tuple[int, int | None]:
        char = self._peek()
        if char is not None and char in "*+?":
            self._at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif char == "{":
            end = self._pattern.find("}", self._at)
            text = self._pattern[self._at + 1 : end]
            first, comma, last = text.partition(",")
            if end < 0 or not first.isdecimal() or not (last.isdecimal() or not last):
                raise PatternError("a repetition in the regular expression is not {n}, {n,} or {n,m}")
            self._at = end + 1
            low, high = int(first), (int(last) if last else None) if comma else int(first)
            if low > 255 or (high or 0) > 255 or (high is not None and high < low):
                raise PatternError("a repetition count in the regular expression is out of range")
        else:
            return 1, 1
        if self._peek() == "?":  # a lazy repetition finds the same texts
            self._at += 1
        return low, high

    def _atom(self, depth: int) -> _Part:
        char = self._pattern[self._at]
        self._at += 1
        if char == "(":
            if self._pattern.startswith("?:", self._at):
                self._at += 2
            elif self._peek() == "?":
                raise PatternError("look-around is not supported in regular expressions here")
            inner = self._alternatives(depth + 1)
            if self._peek() != ")":
                raise PatternError("missing ')' in the regular expression")
            self._at += 1
            return inner
        if char in "^$":
            return self._leaf(_State(assertion=char))
        if char == ".":
            return self._leaf(_State(test=lambda c: c != "\n"))
        if char == "[":
            return self._leaf(_State(test=self._set()))
        if char == "\\":
            return self._leaf(self._escape())
        if char in "*+?":
            raise PatternError(f"nothing to repeat before {char!r} in the regular expression")
        return self._leaf(_State(test=_one(char)))

    def _escape(self) -> _State:
        char = self._peek()
        if char is None:
            raise PatternError("the regular expression ends with a lone backslash")
        self._at += 1
        if char in _ESCAPES:
            return _State(test=_ESCAPES[char])
        if char.lower() in _ESCAPES:
            return _State(test=_negated(_ESCAPES[char.lower()]))
        if char in "bB":
            return _State(assertion=char)
        if char.isdigit():
            raise PatternError("back references are not supported in regular expressions here")
        return _State(test=_one(_CONTROLS.get(char, char)))

    def _set(self) -> Callable[[str], bool]:
        negative = self._peek() == "^"
        self._at += negative
        tests: list[Callable[[str], bool]] = []
        first = True
        while first or self._peek() != "]":
            char = self._peek()
            if char is None:
                raise PatternError("missing ']' in the regular expression")
            first = False
            if char == "[" and self._pattern.startswith("[:", self._at):
                end = self._pattern.find(":]", self._at)
                name = self._pattern[self._at + 2 : end]
                if end < 0 or name not in _CLASSES:
                    raise PatternError("unknown character class in the regular expression")
                tests.append(_CLASSES[name])
                self._at = end + 2
                continue
            self._at += 1
            if char == "\\" and self._peek() is not None:
                char = self._pattern[self._at]
                self._at += 1
                if char in _ESCAPES:
                    tests.append(_ESCAPES[char])
                    continue
                char = _CONTROLS.get(char, char)
            following = self._pattern[self._at + 1 : self._at + 2]
            if self._peek() == "-" and following not in {"", "]"}:
                self._at += 2
                if following < char:
                    raise PatternError("a range in the regular expression runs backwards")
                tests.append(_between(char, following))
            else:
                tests.append(_one(char))
        self._at += 1
        return lambda c: any(test(c) for test in tests) is not negative

    def _leaf(self, state: _State) -> _Part:
        number = self._add(state)
        return number, [number]

    def _peek(self) -> str | None:
        return self._pattern[self._at] if self._at < len(self._pattern) else None

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError("the regular expression is too large")
        self._states.append(state)
        return len(self._states) - 1

    def _patch(self, ends: list[int], target: int) -> None:
        for end in ends:
            self._states[end].next += (target,)


def _holds(assertion: str, text: str, at: int) -> bool:
    if assertion == "^":
        return at == 0
    if assertion == "$":
        return at == len(text)
    before = at > 0 and _ESCAPES["w"](text[at - 1])
    after = at < len(text) and _ESCAPES["w"](text[at])
    return (before != after) is (assertion == "b")


def _one(char: str) -> Callable[[str], bool]:
    folded = char.casefold()
    return lambda c: c.casefold() == folded


def _between(low: str, high: str) -> Callable[[str], bool]:
    return lambda c: low <= c <= high or low <= c.lower() <= high or low <= c.upper() <= high


def _negated(test: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda c: not test(c)
