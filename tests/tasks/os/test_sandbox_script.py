"""Scripts before they reach the shell: which commands open another shell, and which may be incomplete."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.tasks.os.sandbox.script import needs_check, opens_shell, parts

OPENERS = [
    "su - jack",
    "su jack",
    "su",
    "su -",
    "su -l jack",
    "su - jack -s /bin/sh",
    "bash",
    "  bash  ",
    "bash --login",
    "/bin/sh",
    "exec bash",
    "exec su - hansen",
    "useradd x && su - x",
    "cd /tmp; bash",
    "false || sh",
    "su - jack # now",
    "sudo -i",
    "sudo su -",
    "newgrp staff",
]

OTHERS = [
    "su - jack -c id",
    "su jack --command=id",
    "bash -c ls",
    "bash script.sh",
    "echo bash",
    "bash <<EOF",
    "echo x | bash",
    "bash < file",
    "which sh",
    "sudo ls",
    "sum",
    "sh x && ls",
    "bash &",
    "(bash)",
    "# su - jack",
    "subash",
]


@pytest.mark.parametrize("line", OPENERS)
def test_commands_that_open_a_shell(line: str) -> None:
    assert opens_shell(line)


@pytest.mark.parametrize("line", OTHERS)
def test_commands_that_only_mention_a_shell(line: str) -> None:
    assert not opens_shell(line)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ls", "su - jack", "bash", "", "echo 'a", "b'", "  ", "cat <<E"]), max_size=8))
def test_cutting_a_script_loses_no_line(lines: list[str]) -> None:
    script = "\n".join(lines)
    found = parts(script, lambda text: text.count("'") % 2 == 0 and "<<" not in text)
    assert [line for part in found for line in part.text.split("\n") if line.strip()] == [
        line for line in lines if line.strip()
    ]
    assert all(opens_shell(part.text) for part in found if part.opens)


@pytest.mark.parametrize("script", [b"ls -la /tmp", b"echo a b c", b"", b"cd ..", b"grep -c x /etc/passwd"])
def test_plain_commands_need_no_syntax_check(script: bytes) -> None:
    assert not needs_check(script)


@pytest.mark.parametrize(
    "script",
    [b"if true", b"echo $(ls", b"echo 'a", b"[[ a", b"a &&", b"a |", b"a\\", b"for x in", b"{ a", b"a\nb", b"\xff"],
)
def test_what_may_be_incomplete_is_checked(script: bytes) -> None:
    assert needs_check(script)
