"""Answers: AgentBench's checkers under both sets of rules, and `match`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.tasks.os.checks import MAX_ANSWER, STOCK, answer_passes, match_passes

BOTH, OURS, THEIRS, NONE = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("name", "answer", "reference", "expected"),
    [
        ("integer-match", "42", "42\n", BOTH),
        ("integer-match", " +42 ", "0042", BOTH),
        ("integer-match", "-0", "0", BOTH),
        ("integer-match", "4_2", "42", THEIRS),
        ("integer-match", "٤٢", "42", THEIRS),
        ("integer-match", "42.0", "42", NONE),
        ("integer-match", "42 files", "42", NONE),
        ("integer-match", "", "", NONE),
        ("integer-match", "12", "12\n7", NONE),
        ("integer-match", "1" * 5000, "1" * 5000, NONE),
        ("string-match", "a\r\nb", "a\nb\n", BOTH),
        ("string-match", "  a  ", "a", BOTH),
        ("string-match", "A", "a", NONE),
        ("string-match", "", "\n", THEIRS),
        ("containing", "it is 7, I think", "7", BOTH),
        ("containing", "it is 7", "7\n", OURS),
        ("containing", "anything", "", THEIRS),
        ("containing", "six", "7", NONE),
        ("in", "two", "one two three", BOTH),
        ("in", " two ", "(two)", OURS),
        ("in", "", "one", THEIRS),
        ("in", "four", "one", NONE),
        ("size-match", "8K", "8192", BOTH),
        ("size-match", "1 MB", "1024KiB", BOTH),
        ("size-match", "8.0K", "8.0K", OURS),
        ("size-match", "8K", "8.0K", OURS),
        ("size-match", "8k", "9K", NONE),
        ("size-match", "8 bananas", "8", NONE),
        ("size-match", "", "", NONE),
    ],
)
def test_a_stock_checker(name: str, answer: str, reference: str, expected: tuple[bool, bool]) -> None:
    found = tuple(answer_passes(name, answer, reference, agentbench=theirs) for theirs in (False, True))
    assert found == expected


@pytest.mark.parametrize(
    ("match", "answer", "expected"),
    [
        ({"answer": "yes", "strip": True}, " yes\n", BOTH),
        ({"answer": "yes", "strip": False}, " yes", NONE),
        ({"answer": "yes ", "strip": True}, "yes", OURS),
        ({"answer": "yes", "strip": True}, "Yes", NONE),
        ({"answer": "yes", "strip": True}, None, NONE),
        ({"regex": "^[0-9]+$", "strip": True}, " 12 ", BOTH),
        ({"regex": "b.d", "strip": True}, "a bad day", BOTH),
        ({"regex": "^b.d$", "strip": True}, "a bad day", NONE),
        ({"regex": "", "strip": True}, None, NONE),
    ],
)
def test_a_match(match: dict[str, Any], answer: str | None, expected: tuple[bool, bool]) -> None:
    assert tuple(match_passes(match, answer, agentbench=theirs) for theirs in (False, True)) == expected


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_pass_exactly_when_they_are_equal(left: int, right: int) -> None:
    assert answer_passes("integer-match", str(left), f" {right}\n") == (left == right)


@given(st.sampled_from(STOCK), st.text(), st.text(), st.booleans())
def test_no_text_of_an_agent_raises(name: str, answer: str, reference: str, agentbench: bool) -> None:
    assert answer_passes(name, answer, reference, agentbench=agentbench) in {True, False}


@given(st.sampled_from(STOCK), st.text(alphabet=" \t\r\n\x0b"), st.text())
def test_no_blank_answer_is_ever_right(name: str, answer: str, reference: str) -> None:
    assert not answer_passes(name, answer, reference)


def test_an_endless_answer_is_wrong() -> None:
    text = "x" * (MAX_ANSWER + 1)
    assert not match_passes({"answer": text, "strip": True}, text)
    assert not any(answer_passes(name, text, text, agentbench=theirs) for name in STOCK for theirs in (False, True))
