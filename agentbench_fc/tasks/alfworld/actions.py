r"""Lists of actions as text, one a line or grouped by verb, and read back.

>>> print(grouped(["go to bed 1", "go to desk 1", "take pen 1 from bed 1", "help", "look"]))
go to: bed 1, desk 1
take: pen 1 from bed 1
help, look
>>> read_actions("You see a bed 1.\n\nPossible actions:\n" + grouped(["open drawer 2", "look", "go to bed 1"]))
['go to bed 1', 'open drawer 2', 'look']

Not here: which actions are possible (engine.py).
"""

import re
from collections.abc import Sequence

VERBS = ("go to", "open", "close", "take", "move", "put", "use", "clean", "heat", "cool", "slice", "examine")
"""Those that take something; in the order of a grouped list."""
ALONE = ("inventory", "look", "help")
LABELS = ("possible actions:", "available actions:")
_ACTION = re.compile(rf"(?:{'|'.join(VERBS)}) [a-z]+ \d+(?: [a-z/ ]+ [a-z]+ \d+)?")
_GROUP = re.compile(rf"({'|'.join(VERBS)}): (.+)")


def grouped(actions: Sequence[str]) -> str:
    """The actions with each verb once: shorter, and to be read as `verb thing`."""
    lines = []
    for verb in VERBS:
        whats = [action.removeprefix(f"{verb} ") for action in actions if action.startswith(f"{verb} ")]
        if whats:
            lines.append(f"{verb}: {', '.join(whats)}")
    rest = [action for action in actions if not any(action.startswith(f"{verb} ") for verb in VERBS)]
    return "\n".join([*lines, *([", ".join(rest)] if rest else [])])


def read_actions(text: str) -> list[str]:
    """The actions that a message lists, in either form, with or without a label before them."""
    for label in LABELS:
        _, found, after = text.lower().rpartition(label)
        if found:
            text = after
            break
    actions: list[str] = []
    for line in text.lower().splitlines():
        line = line.strip()
        words = line.split(", ")
        if group := _GROUP.fullmatch(line):
            actions += [f"{group[1]} {what}" for what in group[2].split(", ")]
        elif _ACTION.fullmatch(line):
            actions.append(line)
        elif all(word in ALONE for word in words):
            actions += words
    return actions
