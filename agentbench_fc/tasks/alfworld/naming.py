"""The names that a player reads for the ids of a game: `fridge_bar_01` is "fridge 1".

>>> display_names(["fridge_bar_01", "egg_bar_02", "egg_bar_01", "agent1"])["egg_bar_01"]
'egg 2'

An id is a class, `_bar_`, and a position. Within a class the ids are numbered against their alphabetical order, so that
the last one is number 1. Whoever writes a game or its walkthrough needs this rule too.

Source: ALFWorld's `Demangler` gives the same names, which the parity tests hold.
"""

from collections import Counter
from collections.abc import Iterable

SEPARATOR = "_bar_"


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Id -> name, for all ids of one game. An id of another form keeps its text, followed by a blank.

    >>> display_names(["sink_bar_01_bar_sinkbasin", "apple"])
    {'apple': 'apple ', 'sink_bar_01_bar_sinkbasin': 'sinkbasin 1'}
    """
    ordered = sorted(ids)
    left = Counter(kind for name in ordered if (kind := _kind(name)) is not None)
    names = {}
    for name in ordered:
        kind = _kind(name)
        if kind is None:
            names[name] = f"{_plain(name)} "
        else:
            names[name] = f"{_plain(kind)} {left[kind]}"
            left[kind] -= 1
    return names


def _kind(name: str) -> str | None:
    kind, bar, _ = name.partition(SEPARATOR)
    if not bar:
        return None
    return f"{kind}basin" if "basin" in name else kind


def _plain(text: str) -> str:
    return text.replace("_minus_", "-").replace("_plus_", "+").replace("_dot_", ".").replace("_comma_", ",")
