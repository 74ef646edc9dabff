"""How actions are listed for a player, and how a player's action is understood.

>>> print(listed(("go to bed 1", "go to desk 1", "go to desk 2", "go to desk 3", "help", "look"), "grouped"))
go to _: bed 1, desk 1-3
help
look
>>> nearest("pick up the mug 1 from desk 1", ["go to desk 1", "take mug 1 from desk 1"])
'take mug 1 from desk 1'

Not here: what an action does (engine.py).
Source: BLEU-4 is Papineni et al. 2002, its smoothing method 4 of Chen and Cherry 2014, as AgentBench uses them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

ListMode = Literal["full", "grouped"]
LIST_MODES: tuple[str, ...] = get_args(ListMode)
LEAST_BLEU = 0.01
"""AgentBench replaces an action only by one that is nearer than this."""
_FORMS = (
    re.compile(r"(?P<before>(?:take|put) )(?P<thing>.+?)(?P<after> from .+| in/on .+)"),
    re.compile(r"(?P<before>(?:go to|open|close|examine|use) )(?P<thing>.+)(?P<after>)"),
)
"""Commands that are listed in groups: the ones that come in numbers. What is held at a time is one thing only."""
_GROUP = re.compile(r"(?P<before>.*)_(?P<after>.*?): (?P<things>.+)")
_RUN = re.compile(r"(?P<kind>.+ )(?P<first>\d{1,4})-(?P<last>\d{1,4})")
_VERBS = re.compile(
    r"(?:help|inventory|look|(?:go to|open|close|take|put|move|examine|use|heat|cool|clean|slice) \S.*)"
)


def listed(commands: Sequence[str], mode: ListMode) -> str:
    """The commands, one per line; in groups, those that differ in one thing share a line, `1-3` being 1, 2 and 3."""
    if mode == "full":
        return "\n".join(commands)
    groups: dict[tuple[str, str], list[str]] = {}
    for command in commands:
        found = next((match for form in _FORMS if (match := form.fullmatch(command))), None)
        key, thing = ((found["before"], found["after"]), found["thing"]) if found else ((command, ""), "")
        groups.setdefault(key, []).append(thing)
    return "\n".join(
        f"{before}_{after}: {', '.join(_runs(things))}" if len(things) > 1 else f"{before}{things[0]}{after}"
        for (before, after), things in groups.items()
    )


def _runs(things: Sequence[str]) -> Iterator[str]:
    """Things in order; three or more of a kind with numbers in a row are one."""
    numbers: dict[str, list[int]] = {}
    for thing in things:
        kind, _, number = thing.rpartition(" ")
        if not (kind and number.isascii() and number.isdigit()):
            yield thing
        else:
            numbers.setdefault(kind, []).append(int(number))
    for kind, known in numbers.items():
        known.sort()
        while known:
            length = next((n for n in range(1, len(known)) if known[n] != known[0] + n), len(known))
            run, known = known[:length], known[length:]
            if length >= 3:
                yield f"{kind} {run[0]}-{run[-1]}"
            else:
                yield from (f"{kind} {number}" for number in run)


def _things(listed_things: str) -> Iterator[str]:
    for thing in listed_things.split(", "):
        if run := _RUN.fullmatch(thing):
            yield from (f"{run['kind']}{number}" for number in range(int(run["first"]), int(run["last"]) + 1))
        else:
            yield thing


def read_actions(text: str) -> list[str]:
    r"""The commands at the end of a message, whichever way they are listed.

    >>> read_actions("You see a bed 1.\n\nPossible actions:\ngo to _: bed 1, bed 2\nlook")
    ['go to bed 1', 'go to bed 2', 'look']
    """
    commands: list[str] = []
    for line in reversed(text.rpartition("AVAILABLE ACTIONS: ")[2].splitlines()):
        group = _GROUP.fullmatch(line)
        found = [f"{group['before']}{thing}{group['after']}" for thing in _things(group["things"])] if group else [line]
        if not all(_VERBS.fullmatch(command) for command in found):
            break
        commands[:0] = found
    return commands


def nearest(action: str, commands: Sequence[str]) -> str | None:
    """The command that is nearest to an action by BLEU; None: none is near."""
    words, known = action.split(), [command.split() for command in commands]
    # a share of matches is at most two lengths of the command by the action's, less 3; so an endless text costs nothing
    if len(words) - 3 > 2 * max(map(len, known), default=0) / LEAST_BLEU:
        return None
    scores = [bleu(command, words) for command in known]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return commands[best] if best is not None and scores[best] > LEAST_BLEU else None


def bleu(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """BLEU-4 of a candidate against one reference, smoothed by method 4 with k = 5; both are words.

    >>> bleu("go to desk 1".split(), "go to desk 1".split()), bleu(["look"], ["jump"])
    (1.0, 0.0)
    """
    length = len(candidate)
    logs = []
    smoothed = 0
    for n in range(1, 5):
        own, other = _ngrams(candidate, n), _ngrams(reference, n)
        matches = sum(min(count, other[gram]) for gram, count in own.items())
        total = max(1, sum(own.values()))
        if n == 1 and not matches:
            return 0.0
        precision = matches / total
        if not matches and length > 1:  # a short candidate has few n-grams; they count by its length
            smoothed += 1
            precision = math.log(length) / (2**smoothed * 5) / total
        if precision > 0:
            logs.append(0.25 * math.log(precision))
    brevity = 1.0 if length > len(reference) else math.exp(1 - len(reference) / length)
    return brevity * math.exp(math.fsum(logs))


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
