"""Episodes in a real sandbox: what the agent sees, how it ends, and what no agent can do to the scales."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from os_boxes import engine  # noqa: F401
from os_task_kinds import kind  # noqa: F401

from agentbench_fc.episode import Task, Turn
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
from agentbench_fc.tasks.os import boxes

INTEGER = {"language": "python", "file": "check/integer-match.py"}
TEXT = {"language": "python", "file": "check/string-match.py"}
PROBLEMS: dict[str, dict[str, Any]] = {
    "count": {
        "create": {"init": "mkdir /srv/d && touch /srv/d/{a,b,c}"},
        "evaluation": {"check": [None, INTEGER], "example": "ls /srv/d | wc -l"},
    },
    "processes": {"evaluation": {"check": [None, INTEGER], "example": 'n=$(ps -A); wc -l <<< "$n"'}},
    "moments": {"evaluation": {"check": [None, INTEGER], "example": "pgrep x; echo >> /srv/n; wc -l < /srv/n"}},
    "mode": {
        "create": {"init": "echo x > /srv/f && chmod 600 /srv/f"},
        "evaluation": {"check": {"code": "[ $(stat -c %a /srv/f) = 640 ]"}, "example": {"code": "chmod 640 /srv/f"}},
    },
    "setuid": {
        "create": {"init": "chmod u+s /usr/bin/find"},
        "evaluation": {
            "check": {"code": "[ ! -u $(command -v find) ]"},
            "example": {"code": "chmod u-s /usr/bin/find"},
        },
    },
    "variable": {"start": "var=3.14", "evaluation": {"match": "3.14", "example": "echo $var"}},
    "jack": {
        "start": "useradd -m -s /bin/bash jack && echo 'echo love' > /home/jack/test && su - jack",
        "evaluation": {"match": "love", "example": "bash ~/test"},
    },
    "arguments": {
        "evaluation": {
            "check": [
                {"language": "python", "code": "import sys; print(sys.argv[1], end='!')"},
                {"code": '[ "$2" = "$1!" ]'},
            ]
        }
    },
    "failing init": {"create": {"init": "echo broken >&2; exit 3"}, "evaluation": {"match": "x"}},
    "failing reference": {"evaluation": {"check": [None, TEXT], "example": "exit 9"}},
    "slow daemon": {
        "create": {
            "init": "echo '(for i in $(seq 60000); do :; done); echo yes > /srv/at_rest; exec sleep 999' > /srv/slow;"
            "setsid bash /srv/slow </dev/null >/dev/null 2>&1 &"
        },
        "evaluation": {"match": "yes"},
    },
    "busy daemon": {
        "create": {
            "init": "echo 'while :; do :; done' > /srv/busy; setsid bash /srv/busy </dev/null >/dev/null 2>&1 &"
        },
        "evaluation": {"match": "yes"},
    },
    "worker": {
        "create": {
            "init": "setsid tail -f /dev/null </dev/null >/dev/null 2>&1 & until pgrep -x tail; do sleep 0.01; done"
        },
        "evaluation": {"match": "yes"},
    },
}
NAMES = list(PROBLEMS)


@pytest.fixture(scope="module")
def load(
    kind: str,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Task]]:
    path = tmp_path_factory.mktemp("os") / "data" / "mine.json"
    path.parent.mkdir()
    path.write_text(json.dumps([{"description": name} | PROBLEMS[name] for name in NAMES]), encoding="utf-8")
    made: dict[str, Task] = {}

    def load(profile: str = "default", **options: Any) -> Task:
        key = repr((profile, options))
        if key not in made:
            made[key] = load_task("os", profile=profile, backend=kind, data=path, **options)
        return made[key]

    yield load
    for task in made.values():
        task.close()


class Played:
    """A session, driven by the names of tools."""

    def __init__(self, task: Task, problem: str) -> None:
        self.session = Session(task, task.samples("mine")[NAMES.index(problem)])
        self.first = self.session.start()

    def __call__(self, name: str, **arguments: Any) -> Turn:
        return self.session.interact([assistant(None, [ToolCall("c1", name, json.dumps(arguments))])])

    def bash(self, script: str) -> str:
        return str(self("bash_action", script=script).messages[0]["content"])

    def answer(self, text: str) -> float | None:
        return self("answer_action", answer=text).reward

    def finish(self) -> Turn:
        return self("finish_action", thought="Done.")


@pytest.fixture
def begin(load: Callable[..., Task]) -> Iterator[Callable[..., Played]]:
    opened: list[Played] = []

    def begin(problem: str, profile: str = "default", **options: Any) -> Played:
        opened.append(Played(load(profile, **options), problem))
        return opened[-1]

    yield begin
    for played in opened:
        played.session.close()


Begin = Callable[..., Played]


def test_the_shell_keeps_its_state_and_says_what_went_wrong(begin: Begin) -> None:
    played = begin("count", max_turns=30)
    assert played.bash("cd /srv/d; x=5") == "[no output]"
    assert played.bash("pwd; echo $x; ls nothing") == (
        "/srv/d\n5\nls: cannot access 'nothing': No such file or directory\n[exit code 2]"
    )
    assert played.bash("printf '\\033[31mred\\033[0m\\nend'") == "red\nend"
    assert played.bash("printf 'a\\377b\\0c'") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    long = played.bash("seq 5000")
    assert long.startswith("1\n2\n")
    assert long.endswith("4999\n5000")
    assert "characters left out" in long
    assert len(long) < 4200
    assert "[the shell ended with exit code 3" in played.bash("exit 3")
    assert played.bash("echo alive") == "alive"
    assert "unexpected" in played.bash("echo 'open")
    assert played.bash("read line; echo got $line") == "got"
    assert "here" in played.bash("cat <<EOF\nhere")
    assert played.bash("echo alive") == "alive"
    assert played.answer("3") == 1.0


def test_a_command_past_its_time_is_stopped_and_the_shell_lives(begin: Begin) -> None:
    played = begin("count", command_timeout_s=1.5)
    shown = played.bash("x=7; echo before; sleep 60; echo after")
    assert shown == "before\n[the command was stopped after 1.5 seconds]"
    assert played.bash("echo $x") == "7"
    turn = played.finish()
    assert (turn.reward, turn.metrics["timeouts_in_shell"], turn.metrics["commands"]) == (0.0, 1, 2)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("bash_action", {}),
        ("bash_action", {"script": 7}),
        ("bash_action", {"script": "ls", "cwd": "/"}),
        ("bash_action", {"cmd": "ls"}),
        ("answer_action", {"answer": ["3"]}),
        ("answer_action", {"answer": None}),
        ("finish_action", {}),
        ("reboot_action", {}),
    ],
)
def test_a_bad_call_costs_a_turn_not_the_episode(begin: Begin, tool: str, arguments: dict[str, Any]) -> None:
    played = begin("count")
    turn = played(tool, **arguments)
    assert str(turn.messages[0]["content"]).startswith("Error: ")
    assert (turn.finish, turn.reward) == (False, None)
    assert played.answer("3") == 1.0


def test_only_the_first_call_of_a_turn_is_run(begin: Begin) -> None:
    played = begin("count")
    calls = [
        ToolCall(f"c{n}", "bash_action", json.dumps({"script": f"echo {n} >> /srv/n; cat /srv/n"})) for n in (1, 2)
    ]
    turn = played.session.interact([assistant(None, calls)])
    assert [m["content"] for m in turn.messages] == [
        "1",
        "Not run: only the first call of a turn is run. Send one call per turn.",
    ]


def test_eight_turns_and_no_more(begin: Begin) -> None:
    played = begin("count")
    turns = [played("bash_action", script="true") for _ in range(8)]
    assert [turn.finish for turn in turns] == [False] * 7 + [True]
    assert (turns[-1].status, turns[-1].reward) == ("task limit reached", 0.0)


def test_a_script_that_is_too_long_is_refused(begin: Begin) -> None:
    played = begin("count")
    assert played.bash("#" * 1_000_000).startswith("Error: the arguments of bash_action are longer")
    assert played.bash("#" * 900_000 + "\necho fine") == "fine"


def test_a_question_needs_an_answer(begin: Begin) -> None:
    assert begin("count").answer("4") == 0.0
    assert begin("count").answer("") == 0.0
    turn = begin("count").finish()
    assert (turn.finish, turn.reward, turn.success, turn.metrics["reference"]) == (True, 0.0, False, "pristine")


def test_the_reference_is_computed_where_the_agent_has_not_been(begin: Begin) -> None:
    played = begin("count")
    played.bash("rm /srv/d/*")
    assert played.answer("0") == 0.0
    played = begin("count")
    played.bash("rm /srv/d/*")
    assert played.answer("3") == 1.0
    played = begin("count", "agentbench")
    played.bash("rm /srv/d/*")
    assert played.answer("0") == 1.0  # AgentBench counts after the agent


def test_a_volatile_reference_is_computed_in_place(begin: Begin) -> None:
    played = begin("processes")
    played.bash("setsid sleep 500 </dev/null >/dev/null 2>&1 &")
    counted = played.bash("bash -c 'n=$(ps -A); wc -l <<< \"$n\"'")  # a pipe's other end may or may not be there yet
    turn = played("answer_action", answer=counted)
    assert (turn.reward, turn.metrics["reference"]) == (1.0, "in place")  # elsewhere there is no such sleep


@pytest.mark.parametrize(("answer", "reward"), [("1", 1.0), ("3", 1.0), ("4", 0.0), ("", 0.0)])
def test_an_answer_that_was_right_at_one_of_three_moments_is_right(begin: Begin, answer: str, reward: float) -> None:
    played = begin("moments")
    assert played.answer(answer) == reward


def test_a_volatile_reference_is_not_computed_by_programs_of_the_agents(begin: Begin) -> None:
    played = begin("processes")
    played.bash("printf '#!/bin/sh\\necho 1\\n' > /usr/bin/ps")
    turn = played("answer_action", answer="1")
    assert (turn.reward, turn.metrics["tampered"]) == (0.0, ["/usr/bin/ps"])


def test_a_state_is_checked_by_the_samples_own_script(begin: Begin) -> None:
    assert begin("mode").finish().reward == 0.0
    played = begin("mode")
    played.bash("chmod 640 /srv/f")
    assert played.finish().reward == 1.0
    played = begin("setuid")
    assert played.finish().reward == 0.0
    played = begin("setuid")
    played.bash("chmod u-s /usr/bin/find")
    assert played.finish().reward == 1.0


@pytest.mark.parametrize(
    "trick",
    [
        "printf '#!/bin/sh\\necho 640\\n' > /usr/local/bin/stat; chmod 755 /usr/local/bin/stat",
        "printf '#!/bin/sh\\necho 640\\n' > /usr/bin/stat",
        "cp /bin/true /usr/bin/bash",
        "ln -sf /bin/true /usr/bin/stat",
        "stat() { echo 640; }; export -f stat",
        "echo 'stat() { echo 640; }' >> /etc/profile; cp /etc/profile /etc/bash.bashrc; cp /etc/profile ~/.bashrc",
        "export BASH_ENV=/tmp/env; echo 'stat() { echo 640; }' > /tmp/env",
        "export PATH=/tmp:$PATH; printf '#!/bin/sh\\necho 640\\n' > /tmp/stat; chmod 755 /tmp/stat; hash -r",
        "echo /tmp/lib.so > /etc/ld.so.preload",
    ],
)
def test_no_trick_moves_a_check(begin: Begin, trick: str) -> None:
    played = begin("mode")
    played.bash(trick)
    turn = played.finish()
    assert (turn.finish, turn.reward) == (True, 0.0)


def test_tampering_is_told_in_the_metrics(begin: Begin) -> None:
    played = begin("mode")
    played.bash("chmod 640 /srv/f; printf '#!/bin/sh\\necho 640\\n' > /usr/bin/stat")
    turn = played.finish()
    assert (turn.reward, turn.metrics["tampered"]) == (0.0, ["/usr/bin/stat"])


def test_a_check_chain_hands_outputs_on(begin: Begin) -> None:
    for profile in ("default", "agentbench"):
        assert begin("arguments", profile).answer("it's; $(x)") == 1.0


def test_start_is_typed_into_the_agents_shell(begin: Begin) -> None:
    played = begin("variable")
    assert played.bash("echo $var") == "3.14"
    played = begin("jack")
    assert played.bash("whoami; bash ~/test").startswith("jack\nlove")
    assert played.answer("love") == 1.0


def test_a_sample_that_cannot_start_says_so(begin: Begin) -> None:
    turn = begin("failing init").first
    assert (turn.finish, turn.status, turn.reward) == (True, "env init failed", None)
    assert "init script 1 ended with status 3: broken" in turn.metrics["reason"]


def test_a_reference_that_fails_is_the_tasks_fault(begin: Begin) -> None:
    turn = begin("failing reference").first
    assert (turn.finish, turn.status, turn.metrics["fault"]) == (True, "env init failed", "task")
    assert "the reference script ended with status 9" in turn.metrics["reason"]
    assert begin("failing reference", "agentbench").answer("x") == 0.0  # AgentBench scores it


def test_no_session_waits_for_a_second_sandbox(load: Callable[..., Task]) -> None:
    task = load(max_open=1)
    for problem in ("count", "processes", "mode"):
        played = Played(task, problem)
        played.bash("printf '#!/bin/sh\\n' > /usr/bin/stat")
        assert played.answer("3").__class__ is float
        played.session.close()


def test_the_form_of_agentbench(begin: Begin) -> None:
    played = begin("count", "agentbench")
    assert [message["role"] for message in played.first.messages] == ["system", "user"]
    assert str(played.first.messages[1]["content"]).endswith("\n\ncount")
    assert played.bash("true") == "The output of the OS is empty."
    assert played.bash("echo one; ls /nothing | cat").startswith("The output of the OS:\n\none\nls: ")
    cut = played.bash("printf 'x%.0s' $(seq 801)")
    assert cut.startswith("The output of the OS:\n\n" + "x" * 780 + "\n")
    assert played.bash("printf 'x%.0s' $(seq 800)") == "The output of the OS:\n\n" + "x" * 800
    assert "no text" in played.bash("printf '\\377\\376'")
    assert played("finish_action", thought="3").reward == 1.0  # a thought counts as the answer there


def test_a_sandbox_that_the_agent_breaks_ends_the_episode(begin: Begin) -> None:
    played = begin("mode")
    played.bash("chmod 640 /srv/f")
    played.bash("rm -rf --no-preserve-root / 2>/dev/null; true")
    turn = played.session.last
    if not turn.finish:
        turn = played.finish()
    assert (turn.finish, turn.reward, turn.success) == (True, 0.0, False)
    assert turn.status == "completed"


def test_killing_everything_costs_only_what_was_killed(begin: Begin) -> None:
    played = begin("count")
    played.bash("kill -9 -1")
    assert played.bash("echo alive") == "alive"
    assert played.answer("3") == 1.0


def test_a_fork_goes_its_own_way(begin: Begin) -> None:
    played = begin("count")
    played.bash("cd /srv/d; x=9; touch four")
    child = played.session.fork()
    played.bash("touch five; x=10")
    other = Played.__new__(Played)
    other.session = child
    assert other.bash("pwd; echo $x; ls") == "/srv/d\n9\na\nb\nc\nfour"
    assert played.bash("echo $x; ls | wc -l") == "10\n5"
    assert (other.answer("3"), played.answer("3")) == (1.0, 1.0)


def test_an_episode_begins_when_what_its_scripts_left_has_come_to_rest(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "REST_S", 100.0)
    assert begin("slow daemon").bash("cat /srv/at_rest; pgrep -cx sleep") == "yes\n1"
    monkeypatch.setattr(boxes, "REST_S", 0.3)
    played = begin("busy daemon")  # one that never rests holds nobody up
    assert (played.first.finish, played.bash("pgrep -cf /srv/busy")) == (False, "1")


def test_what_runs_in_the_background_is_replayed(begin: Begin) -> None:
    played = begin("worker")
    assert played.bash("pgrep -cx tail") == "1"
    child = played.session.fork()
    other = Played.__new__(Played)
    other.session = child
    played.bash("pkill -x tail")
    assert other.bash("pgrep -cx tail") == "1"
    child.close()


def test_the_same_calls_give_the_same_episode(begin: Begin) -> None:
    talks = []
    for _ in range(2):
        played = begin("count")
        played.bash("cd /srv; ls -R | head; id; echo $HOME $PWD $SHELL; umask; ls -ld /srv/d/a | cut -c 1-20")
        talks.append([turn.turn.messages for turn in played.session.log])
    assert talks[0] == talks[1]
