"""What is shown of a script's output, under both profiles, and what a plan reads back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.tasks.os.observation import MAX_CHARS, read, render, render_agentbench
from agentbench_fc.tasks.os.sandbox.base import ShellResult


def result(output: bytes = b"", code: int | None = 0, **more: Any) -> ShellResult:
    return ShellResult(output=output, code=code, **more)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (result(b"a\n"), "a"),
        (result(b"\n\na\n\nb\n\n"), "a\n\nb"),
        (result(), "[no output]"),
        (result(b"", 1), "[exit code 1]"),
        (result(b"a", 130), "a\n[exit code 130]"),
        (result(b"a\r\nb\r\n"), "a\nb"),
        (result(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1bMup"), "red x up"),
        (result(b"\x00\x07\x08tab\there"), "\ufffd\ufffd\ufffdtab\there"),
        (result("grün €".encode()), "grün €"),
        (result(b"caf\xe9"), "caf\ufffd"),
        (result(b"part", None, timed_out=True), "part\n[the command was stopped after 30 seconds]"),
        (result(b"x", None, ended=4), "x\n[the shell ended with exit code 4; another one has taken its place]"),
        (result(b"x", depth=1), "x\n[in a nested shell now; `exit` leaves it]"),
        (result(b"x", dropped=12345), "x\n[cut: 12,345 more bytes were not kept]"),
    ],
)
def test_the_default_form(given: ShellResult, shown: str) -> None:
    assert render(given, 30.0) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (result(b"a\n"), "The output of the OS:\n\na"),
        (result(b" \n"), "The output of the OS is empty."),
        (result(b"", 1), "The output of the OS is empty."),
        (result(b"x" * 800), "The output of the OS:\n\n" + "x" * 800),
        (result(b"x" * 801), "The output of the OS:\n\n" + "x" * 780 + "\n[the output is longer and was cut here]"),
        (result(b"caf\xe9"), "The output of the OS:\n\nThe output is no text and cannot be shown."),
        (result(b"", None, timed_out=True), "The output of the OS:\n\n[the command was stopped after 30 seconds]"),
    ],
)
def test_agentbenchs_form(given: ShellResult, shown: str) -> None:
    assert render_agentbench(given, 30.0) == shown


def test_a_long_output_keeps_both_ends() -> None:
    shown = render(result(b"begin " + b"x" * 9000 + b" end"))
    assert shown.startswith("begin xxx")
    assert shown.endswith("xxx end")
    assert "[… 5,011 characters left out …]" in shown
    assert len(shown) < MAX_CHARS + 60


@given(
    st.text(alphabet=st.characters(exclude_categories=["C"], include_characters="\n\t"), max_size=300),
    st.integers(0, 255),
)
def test_a_plan_reads_what_was_printed(text: str, code: int) -> None:
    printed = text.strip("\n")
    notes = ("[exit code", "[no output", "[the command was", "[the shell", "[in a nested", "[cut:")
    if not any(note in text for note in notes):
        assert read(render(result(text.encode(), code))) == printed
        if len(text) < 200:
            assert read(render_agentbench(result(text.encode(), code))) == text.strip()


@given(st.binary(max_size=2000), st.booleans(), st.integers(0, 3))
def test_no_output_raises(output: bytes, timed_out: bool, depth: int) -> None:
    given = result(output, None if timed_out else 0, timed_out=timed_out, depth=depth)
    for shown in (render(given, 1.0), render_agentbench(given, 1.0)):
        assert shown
        shown.encode()
