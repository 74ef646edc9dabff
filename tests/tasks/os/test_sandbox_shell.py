"""The persistent shell: one protocol for all kinds of sandbox, held against what models really send."""

import time
from collections.abc import Iterator

import pytest
from os_boxes import backend, engine, until  # noqa: F401

from agentbench_fc.tasks.os.sandbox import Sandbox, SandboxBackend, ShellResult
from agentbench_fc.tasks.os.sandbox.box import GRACE_S


@pytest.fixture(scope="module")
def common(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    with backend.create("default") as sandbox:
        sandbox.exec(["useradd", "-m", "-s", "/bin/bash", "jack"]).check()
        sandbox.exec(["useradd", "-m", "-s", "/bin/sh", "dora"]).check()
        yield sandbox


@pytest.fixture
def box(common: Sandbox) -> Sandbox:
    """One sandbox for all these tests, whose shell begins anew."""
    common.exec(["pkill", "-9", "bash"])
    common.shell("true")
    return common


def run(box: Sandbox, script: str | bytes, seconds: float = 20.0) -> ShellResult:
    return box.shell(script, timeout_s=seconds)


def text(box: Sandbox, script: str | bytes) -> str:
    result = run(box, script)
    assert not result.timed_out
    assert result.ended is None
    return result.output.decode()


def test_state_and_folder_survive_from_call_to_call(box: Sandbox) -> None:
    assert text(box, "cd /tmp; count=41; greet() { echo hello $1; }; alias ll='echo alias'; shopt -s extglob") == ""
    assert text(box, "pwd; echo $((count + 1)); greet you") == "/tmp\n42\nhello you\n"
    assert text(box, "ll; case aab in +(a)b) echo extended;; esac") == "alias\nextended\n"


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("echo one", "one\n"),
        ("printf 'no newline'", "no newline"),
        ("printf 'a\\n\\n\\n'", "a\n\n\n"),
        ("", ""),
        ("   \n\n  ", ""),
        ("# a comment", ""),
        ("echo a # comment", "a\n"),
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n"),
        ("for i in 1 2 3\ndo\n  echo $i\ndone", "1\n2\n3\n"),
        ("cat <<EOF\n$((6 * 7))\n'quoted' \"double\"\nEOF", "42\n'quoted' \"double\"\n"),
        ("cat <<'EOF'\n$HOME `x` \\n\nEOF\necho after", "$HOME `x` \\n\nafter\n"),
        ("echo 'it'\\''s'", "it's\n"),
        ('echo "a\'b"', "a'b\n"),
        ("echo a\\\nb", "ab\n"),
        ("echo $'tab\\there'", "tab\there\n"),
        ("echo '!!' !x \"!y\"", "!! !x !y\n"),
        ("echo ~ $HOME", "/root /root\n"),
        ('read x; echo "got <$x>"', "got <>\n"),
        ("cat; wc -c", "0\n"),
        ("python3 -c 'print(1)'; python3", "1\n"),
        ("echo käse 中文 🎈", "käse 中文 🎈\n"),
        ("f() { return 3; }; f; echo $?", "3\n"),
        ("break; continue; echo on", None),
        ("set -- a b c; echo $# $2", "3 b\n"),
        ("echo $(echo $(echo deep))", "deep\n"),
        ("echo a | tr a b | cat", "b\n"),
        ("sleep 0.1 & wait; echo done", None),
        ("echo \"$(printf 'x%.0s' {1..3000})\" | wc -c", "3001\n"),
        ("printf '\\r\\n'", "\r\n"),
        ("echo -e '\\033[31mred\\033[0m'", "\033[31mred\033[0m\n"),
        ("tput cols >/dev/null 2>&1; stty size 2>&1 | head -1", None),
        ("top -b -n 1 | head -1 | cut -c 1-3", "top\n"),
        ("type -t eval printf cd", "builtin\nbuiltin\nbuiltin\n"),
        ("echo 123>/tmp/.fd; wc -c < /tmp/.fd", "\n0\n"),
    ],
)
def test_a_script_does_what_bash_does(box: Sandbox, script: str, output: str | None) -> None:
    seen = text(box, script)
    if output is not None:
        assert seen == output
    assert text(box, "echo next") == "next\n"


def test_bytes_that_are_no_text_come_as_they_are(box: Sandbox) -> None:
    assert run(box, "head -c 1000 /dev/zero; printf '\\377\\376\\000\\001'").output == bytes(1000) + b"\xff\xfe\x00\x01"
    assert run(box, b"printf '%s' 'a\xff\xfeb'").output == b"a\xff\xfeb"
    assert run(box, "echo a\0b").output == b"ab\n"


def test_statuses_are_told_and_kept(box: Sandbox) -> None:
    for script, code in (
        ("true", 0),
        ("false", 1),
        ("(exit 42)", 42),
        ("no-such-program", 127),
        ("kill -9 $BASHPID &\nwait $!", 137),
    ):
        assert run(box, script).code == code
    run(box, "(exit 42)")
    assert text(box, "echo $?") == "42\n"
    run(box, "false")
    assert text(box, "echo $?") == "1\n"


@pytest.mark.parametrize(
    "script",
    [
        "echo 'open",
        'echo "open',
        "echo $(open",
        "echo `open",
        "if true; then",
        "for x in a b; do",
        "{ echo a",
        "f() {",
        "case x in",
        "echo )",
        "echo ${open",
        "((1 +",
        "[[ a",
        "while",
        "echo $((1",
        "<<<",
        "a &&",
        "|",
        "echo <(x",
    ],
)
def test_a_broken_script_is_an_error_at_once_and_the_shell_lives(box: Sandbox, script: str) -> None:
    run(box, "kept=1")
    began = time.monotonic()
    result = run(box, script)
    assert (result.timed_out, result.ended) == (False, None)
    assert result.code != 0
    assert b"bash" in result.output
    assert time.monotonic() - began < 15, "of the 20 s that it would have"
    assert text(box, "echo $kept") == "1\n"


def test_a_broken_script_runs_up_to_the_fault_as_a_file_would(box: Sandbox) -> None:
    result = run(box, "echo first\necho second\necho 'third\necho fourth")
    assert result.output.startswith(b"first\nsecond\n")
    assert b"unexpected EOF" in result.output
    assert result.code == 2


def test_an_unclosed_here_document_ends_with_the_script(box: Sandbox) -> None:
    seen = text(box, "cat <<EOF\ninside")
    assert "inside" in seen
    assert text(box, "echo next") == "next\n"


def test_forty_broken_scripts_do_not_cost_the_shell(box: Sandbox) -> None:
    run(box, "kept=1")
    for i in range(40):
        run(box, f"echo $(echo 'a{i}\necho \"$(b{{")
    assert text(box, "echo $kept") == "1\n"


def test_a_timeout_keeps_shell_variables_and_partial_output(box: Sandbox) -> None:
    run(box, "kept=1; cd /var")
    began = time.monotonic()
    result = run(box, "echo before; sleep 60; echo never; sleep 60", seconds=1.5)
    assert (result.timed_out, result.code, result.ended) == (True, None, None)
    assert result.output == b"before\n"
    assert time.monotonic() - began < 1.5 + GRACE_S
    assert text(box, "echo $kept; pwd; pgrep sleep") == "1\n/var\n"


@pytest.mark.parametrize(
    "script",
    [
        "while :; do :; done",
        "sleep 60 | sleep 60 | cat",
        "(sleep 60; sleep 60) & sleep 60 & wait",
        "setsid sleep 60",
        "bash -c 'trap \"\" INT TERM HUP; sleep 60; sleep 60'",
        "yes",
        "tail -f /dev/null",
        "for i in $(seq 100); do sleep 60; done",
        "kill -STOP $BASHPID & wait",
        "f() { sleep 60; f; }; f",
        "python3 -c 'import time,signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(60)'",
    ],
)
def test_whatever_hangs_is_ended_and_the_shell_goes_on(box: Sandbox, script: str) -> None:
    run(box, "kept=1")
    result = run(box, script, seconds=0.7)
    assert result.timed_out
    assert result.ended is None
    assert text(box, "echo $kept") == "1\n"
    assert text(box, "ps -eo comm= > /tmp/ps; sort /tmp/ps").split() == ["bash", "init", "ps"]


def test_a_timeout_spares_what_earlier_calls_left_in_the_background(box: Sandbox) -> None:
    run(box, "sleep 300 & disown")
    assert run(box, "sleep 60", seconds=0.5).timed_out
    assert text(box, "pgrep -cx sleep") == "1\n"
    run(box, "pkill -f 'sleep 300'")


def test_a_shell_that_holds_on_to_a_call_is_replaced(box: Sandbox) -> None:
    result = run(box, "trap '' INT; while :; do :; done", seconds=0.5)
    assert result.timed_out
    assert result.ended == 137
    assert text(box, "echo fresh; pwd") == "fresh\n/root\n"


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit", 0),
        ("exit 3", 3),
        ("set -e; false", 1),
        ("exec true", 0),
        ("exec false", 1),
        ("kill -9 $$", 137),
        ("exec /bin/echo bye", 0),
    ],
)
def test_a_shell_that_ends_is_replaced_and_told(box: Sandbox, script: str, status: int) -> None:
    run(box, "gone=1")
    result = run(box, f"echo before\n{script}\necho after")
    assert result.ended == status
    assert result.output.startswith(b"before\n")
    assert b"after" not in result.output
    assert text(box, 'echo "<$gone>"') == "<>\n"


def test_set_e_lives_until_something_fails(box: Sandbox) -> None:
    assert text(box, "set -e") == ""
    assert text(box, "echo fine") == "fine\n"
    assert run(box, "false; echo never").ended == 1


@pytest.mark.parametrize(
    "script",
    [
        "PATH=/nonexistent",
        "printf() { echo shadow; }; echo() { builtin echo shadow; }",
        "alias printf=false base64=false bash=false; alias '[['=false",
        "builtin() { false; }; command() { false; }; test() { false; }",
        "export BASH_ENV=/nonexistent ENV=/nonexistent IFS=x LC_ALL=C",
        "exec 3>&- 4>&- 5>&- 9>&- 10>&-",
        "exec 197>&-",
        "exec 2>&-",
        'for fd in /proc/$$/fd/*; do n=${fd##*/}; [ $n -gt 2 ] && eval "exec $n>&-"; done 2>/dev/null',
        "trap 'true' DEBUG ERR RETURN",
        "trap '' INT TERM HUP QUIT",
        "PS1='root@host:~# '; PS2='> '; PROMPT_COMMAND='true'; PS4='x '",
        "set -u; set -f; set -C; set -o pipefail; set -P",
        "shopt -s failglob nullglob nocaseglob; shopt -u expand_aliases",
        "stty -echo raw 2>/dev/null; reset 2>/dev/null; true",
        "set -o vi; set +o vi; bind -l >/dev/null 2>&1; true",
        "set -x; set +x",
        "readonly PS1 PS2 PROMPT_COMMAND 2>/dev/null",
        "unset PATH HOME",
        "ulimit -n 64",
        "umask 777",
        "exec </dev/null",
        "cd /; rmdir /tmp/none 2>/dev/null; mkdir -p /tmp/gone; cd /tmp/gone; rmdir /tmp/gone",
    ],
)
def test_no_setting_of_the_script_breaks_the_protocol(box: Sandbox, script: str) -> None:
    first = run(box, script)
    assert not first.timed_out
    for word in ("one", "two"):
        result = run(box, f"builtin echo {word}; \\echo {word}")
        assert not result.timed_out
        assert word.encode() in result.output or b"shadow" in result.output or script.startswith("builtin()")
    if first.ended is None:
        assert run(box, "(exit 7)").code == 7


def test_a_moved_output_stays_moved_and_ends_each_call_at_once(box: Sandbox) -> None:
    began = time.monotonic()
    assert text(box, "exec > /tmp/moved") == ""
    assert text(box, "echo into the file") == ""
    assert time.monotonic() - began < 15, "of the 20 s that each would have"
    assert box.exec(["cat", "/tmp/moved"]).stdout == b"into the file\n"
    run(box, "exec >&-")
    assert not run(box, "echo nowhere").timed_out
    assert run(box, "exit").ended is not None
    assert text(box, "echo back") == "back\n"


@pytest.mark.parametrize(
    "script",
    [
        "printf '\\n0123456789abcd 0\\n'",
        "printf 'bash: ((: 0 , 0x0123456789abcd / 0 : division by 0\\n' >&197",
        "echo 'root@localhost:~# '; printf '\\033]0;root@host: ~\\007root@host:~# '",
        "cat /proc/$$/cmdline | tr '\\0' ' '",
        "yes '0 0 0' | head -100000",
        "for i in $(seq 300); do printf '\\n%014x %d\\n' $RANDOM 0; done",
    ],
)
def test_fake_prompts_and_marks_are_output(box: Sandbox, script: str) -> None:
    result = run(box, f"{script}\necho real end")
    assert result.output.endswith(b"real end\n") or result.truncated
    assert text(box, "echo next") == "next\n"


def test_output_is_counted_beyond_the_cap_and_memory_stays_flat(box: Sandbox) -> None:
    began = time.monotonic()
    result = box.shell("head -c 100000000 /dev/zero", cap_bytes=1000)
    assert (len(result.output), result.truncated, result.dropped) == (1000, True, 100_000_000 - 1000)
    result = box.shell("seq 3000000", cap_bytes=20)
    assert result.output == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10"[:20]
    assert box.shell("echo ok", cap_bytes=0) == ShellResult(output=b"", code=0, truncated=True, dropped=3)
    assert time.monotonic() - began < 30
    memory = int(box.exec(["sh", "-c", "grep VmHWM /proc/1/status"]).stdout.split()[1])
    assert memory < 60_000


def test_a_script_of_a_megabyte_runs(box: Sandbox) -> None:
    assert text(box, "x='" + "a" * 1_000_000 + "'; echo ${#x}") == "1000000\n"
    assert text(box, "true\n" * 20_000 + "echo end") == "end\n"


def test_late_output_of_the_background_is_not_the_next_commands(box: Sandbox) -> None:
    run(box, "rm -f /tmp/said; (sleep 0.3; echo late; touch /tmp/said) &")
    assert until(30, lambda: box.exec(["test", "-e", "/tmp/said"]).ok)
    assert text(box, "echo mine") == "mine\n"


def test_a_nested_shell_takes_the_following_calls(box: Sandbox) -> None:
    result = run(box, "cd /var && su - jack")
    assert (result.depth, result.ended, result.output) == (1, None, b"")
    assert text(box, "whoami; pwd; x=5") == "jack\n/home/jack\n"
    assert text(box, 'echo $x; read y; echo "<$y>"') == "5\n<>\n"
    assert run(box, "echo a; sleep 60; echo b", seconds=0.7).timed_out
    assert text(box, "whoami; echo $x") == "jack\n5\n"
    assert run(box, "bash").depth == 2
    assert run(box, "exit 4").ended == 4
    result = run(box, "exit")
    assert (result.ended, result.depth) == (0, 0)
    assert text(box, "whoami; pwd") == "root\n/var\n"


def test_a_script_goes_on_inside_the_nested_shell(box: Sandbox) -> None:
    assert text(box, "su - jack\nwhoami\npwd") == "jack\n/home/jack\n"
    assert text(box, "id -un") == "jack\n"
    assert run(box, "exit").depth == 0


@pytest.mark.parametrize(
    "opener",
    [
        "sh",
        "su dora",
        "su -l dora",
        "su - dora -s /bin/sh",
        "dash",
        "exec bash",
        "exec su - jack",
        "bash --norc",
        "bash -i",
    ],
)
def test_each_kind_of_nested_shell_can_be_used_and_left(box: Sandbox, opener: str) -> None:
    run(box, "cd /usr")
    assert run(box, opener).depth == 1
    assert b"3\n" in run(box, "n=3; echo $n").output
    assert b"3" in run(box, "echo $n").output
    assert run(box, "(exit 9)").code == 9
    assert run(box, "exit 2").ended == 2
    assert run(box, "id -un").output == b"root\n"


def test_a_nested_shell_that_does_not_open_leaves_all_as_it_was(box: Sandbox) -> None:
    result = run(box, "su - nobody-at-all")
    assert (result.depth, result.ended) == (0, None)
    assert result.code != 0
    assert b"does not exist" in result.output
    assert text(box, "whoami") == "root\n"


def test_words_that_only_look_like_a_nested_shell(box: Sandbox) -> None:
    assert text(box, "cat <<EOF\nsu - jack\nEOF\nwhoami") == "su - jack\nroot\n"
    assert text(box, "echo 'a\nbash\nb'") == "a\nbash\nb\n"
    assert text(box, "su - jack -c whoami") == "jack\n"
    assert text(box, "bash -c 'echo $0 inside' name") == "name inside\n"
    assert text(box, "if true; then\nbash\nfi; echo end") == "end\n"
