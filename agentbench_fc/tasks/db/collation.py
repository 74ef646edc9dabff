"""Texts as MySQL's default collation sees them: case, accents and trailing spaces do not count.

>>> compare("Été ", "ETE"), compare("a", "B")
(0, -1)

Source: the rules of utf8mb4_general_ci. NFD, not NFKD: compatibility forms such as a no-break space stay distinct.
"""

import unicodedata

from agentbench_fc.tasks.db.pattern import like


def fold(text: str) -> str:
    """The form of a text that decides equality and order."""
    if text.isascii():
        return text.rstrip(" ").lower()
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c)).rstrip(" ").casefold()


def compare(left: str, right: str) -> int:
    """-1, 0 or 1, as a database's sort wants it."""
    a, b = fold(left), fold(right)
    return (a > b) - (a < b)


def matches(pattern: str, text: str, escape: str = "\\") -> bool:
    """LIKE under the collation: neither case nor accents count."""
    return like(_folded(pattern), _folded(text), escape)


def _folded(text: str) -> str:
    return text if text.isascii() else fold(text + "\0")[:-1]  # the mark keeps the trailing spaces, which LIKE counts
