"""The fuzzy text match of WebShop's reward: thefuzz 0.19's token_set_ratio with difflib, in percent.

>>> token_set_ratio("wash cold", "cold wash, machine")
100
>>> token_set_ratio("", "")
0

A text without any word character scores 0 even against itself.
Source: thefuzz 0.19.0 (`fuzz.token_set_ratio`, `utils.full_process`), measured against it.
"""

import difflib
import re
from functools import lru_cache

_NO_LATIN1 = {code: None for code in range(128, 256)}
_NON_WORD = re.compile(r"\W")


@lru_cache(maxsize=65_536)
def token_set_ratio(first: str, second: str) -> int:
    """Similarity of the two texts' sets of words, 0 to 100, rounded. Not symmetric, as difflib is not."""
    words_1, words_2 = _words(first), _words(second)
    if not words_1 or not words_2:
        return 0
    shared = " ".join(sorted(words_1 & words_2))
    with_rest_1 = f"{shared} {' '.join(sorted(words_1 - words_2))}".strip()
    with_rest_2 = f"{shared} {' '.join(sorted(words_2 - words_1))}".strip()
    return max(_ratio(shared, with_rest_1), _ratio(shared, with_rest_2), _ratio(with_rest_1, with_rest_2))


def _words(text: str) -> set[str]:
    return set(_NON_WORD.sub(" ", text.translate(_NO_LATIN1)).lower().split())


def _ratio(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    return round(100 * difflib.SequenceMatcher(None, first, second).ratio())
