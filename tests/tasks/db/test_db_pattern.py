"""LIKE and REGEXP against `re` on small alphabets, and against the clock on hostile ones."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.tasks.db.pattern import PatternError, Regexp, like

TEXTS = st.text("ab_%", max_size=8)


@given(st.text("ab_%", max_size=6), TEXTS)
def test_like_is_its_regular_expression(pattern: str, text: str) -> None:
    translated = "".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern)
    assert like(pattern, text) is (re.fullmatch(translated, text) is not None)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "c"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counted = st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?"]))
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        counted.map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


@given(st.recursive(ATOMS, _grow, max_leaves=6), st.text("abc1", max_size=6), st.sampled_from(["", "^"]), st.booleans())
def test_regexp_agrees_with_re(body: str, text: str, start: str, to_end: bool) -> None:
    pattern = f"{start}({body}){'$' if to_end else ''}"
    assert Regexp(pattern).search(text) is (re.search(pattern.replace("$", r"\Z"), text, re.I) is not None)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("[[:alpha:]]+[[:space:]]", "Ab c", True),
        ("[a-c-]", "-", True),
        ("[]a]", "]", True),
        (r"\bcat\b", "a cat sat", True),
        (r"\bcat\b", "concat", False),
        (r"\Bcat", "concat", True),
        (r"[\d.]+\s\w", "1.5 x", True),
        (r"a\.b", "axb", False),
        ("^$", "", True),
        ("", "anything", True),
        ("a{0}b", "b", True),
        ("(?:ab){2}", "ABAB", True),
        ("[^x-z]", "Y", False),
        ("É", "é", True),
    ],
)
def test_regexp_knows(pattern: str, text: str, found: bool) -> None:
    assert Regexp(pattern).search(text) is found


WRONG = ["(", ")", "a)", "[a", "*a", "a{", "a{2,1}", "a{999}", "\\", r"(a)\1", "(?=a)", "[[:x:]]", "[z-a]"]


@pytest.mark.parametrize("pattern", [*WRONG, "(" * 200 + ")" * 200, "((a{200}){200}){200}"])
def test_a_wrong_pattern_says_so(pattern: str) -> None:
    with pytest.raises(PatternError):
        Regexp(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*c", "(.*)(.*)(.*)(.*)x", "a{100}b"])
def test_time_is_linear_in_the_text(pattern: str) -> None:
    started = time.process_time()
    assert not Regexp(pattern).search("a" * 1_000 + "!")
    assert time.process_time() - started < 2


def test_like_with_many_wildcards_ends() -> None:
    started = time.process_time()
    assert not like("%a" * 300 + "b", "a" * 3_000)
    assert time.process_time() - started < 2
