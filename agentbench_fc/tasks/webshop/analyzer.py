"""Text -> index terms, as Lucene's EnglishAnalyzer does: word breaks, possessives, case, stop words, Porter's stems.

>>> analyze("The Women's running-shoes, size 10.5!")
['women', 'run', 'shoe', 'size', '10.5']

Source: Unicode UAX #29 word boundaries and UTS #51 pictographs; M. Porter, "An algorithm for suffix stripping", 1980
(stemmer.py). Checked against Lucene's own rankings in the tests.
"""

import re
import unicodedata
from functools import lru_cache

from agentbench_fc.tasks.webshop.stemmer import stem

STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()
)
MAX_TOKEN = 255
"""Lucene cuts longer runs into pieces of this length."""

_IDEOGRAPH = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
# Numbers that Python counts as word characters and UAX #29 does not: superscripts, fractions, circled digits.
_OTHER_NUMBER = (
    "\xb2\xb3\xb9\xbc-\xbe\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
    "\u3192-\u3195\u3220-\u3229\u3248-\u324f\u3251-\u325f\u3280-\u3289\u32b1-\u32bf"
)
_PICTOGRAPH = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714"
    "\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1"
    "\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff"
    "\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a"
    "\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
    "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff"
)
_JOINER = "_\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
_MID_BOTH = "'.\u2018\u2019\u2024\ufe52\uff07\uff0e"
_MID_WORD = _MID_BOTH + ":\xb7\u0387\u05f4\u2027\ufe13\ufe55\uff1a"
_MID_NUMBER = _MID_BOTH + ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"


@lru_cache(maxsize=1)
def _tokens() -> re.Pattern[str]:
    """The word-break rules as one pattern, compiled on first use."""
    extend = f"[{_marks()}\U000e0020-\U000e007f\U000e0100-\U000e01ef\U0001f3fb-\U0001f3ff]*"
    letter = f"(?:(?![{_IDEOGRAPH}{_HIRAGANA}{_KATAKANA}{_OTHER_NUMBER}])[^\\W\\d_]|[\u24b6-\u24e9])"
    digit = "\\d"
    word = f"{letter}{extend}(?:[{_MID_WORD}]{extend}(?={letter}))?"
    number = f"{digit}{extend}(?:[{_MID_NUMBER}]{extend}(?={digit}))?"
    kana = f"[{_KATAKANA}]{extend}"
    joiners = f"(?:[{_JOINER}]{extend})*"
    run = f"{joiners}(?:{word}|{number}|{kana})(?:{word}|{number}|{kana}|[{_JOINER}]{extend})*"
    emoji = f"[{_PICTOGRAPH}]{extend}(?:(?<=\u200d)[{_PICTOGRAPH}]{extend})*"  # a joiner is one of the marks
    single = f"[{_IDEOGRAPH}{_HIRAGANA}]{extend}"
    words = f"[0-9#*]\ufe0f?\u20e3|{run}|[\U0001f1e6-\U0001f1ff]{{2}}|{emoji}|{single}"
    # Joiners without a word are eaten in one piece: tried again from each of them, a long run would take for ever.
    return re.compile(f"({words})|(?:[{_JOINER}]{extend})+")


def _marks() -> str:
    """Combining and format characters, which belong to the character before them, as ranges."""
    codes = [c for c in range(0x10000) if unicodedata.category(chr(c)) in {"Mn", "Me", "Mc", "Cf"} and c != 0x200B]
    starts = [c for c, before in zip(codes, [-2, *codes], strict=False) if c != before + 1]
    ends = [c for c, after in zip(codes, [*codes[1:], -2], strict=True) if after != c + 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


def tokenize(text: str) -> list[str]:
    """The words of a text, unchanged."""
    found = [token for token in _tokens().findall(text) if token]
    if all(len(token) <= MAX_TOKEN for token in found):
        return found
    return [token[i : i + MAX_TOKEN] for token in found for i in range(0, len(token), MAX_TOKEN)]


def analyze(text: str) -> list[str]:
    """The index terms of a text, in order, repeats kept."""
    return [term for token in tokenize(text) if (term := _term(token))]


@lru_cache(maxsize=200_000)
def _term(token: str) -> str:
    if len(token) >= 2 and token[-2] in "'\u2019\uff07" and token[-1] in "sS":
        token = token[:-2]
    token = token.lower()
    return "" if token in STOP_WORDS else stem(token)
