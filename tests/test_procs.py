"""Child processes: deadlines that kill, deaths that are reported, nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, Unavailable
from agentbench_fc.procs import Child, ChildPool, ChildRaised

TARGET = "served:Served"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(TARGET, {"begin": 1}) as child:
        yield child


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while exists(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not exists(pid)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_calls_come_back_and_state_stays(child: Child) -> None:
    assert child.call("add", {"number": 2}, timeout_s=10) == 3
    assert child.call("add", {"number": 2}, timeout_s=10) == 5
    assert child.call("pid", timeout_s=10) == child.pid != os.getpid()
    big = {"text": "é" * 3_000_000, "deep": [[[None, 1.5, True]]]}
    assert child.call("echo", {"value": big}, timeout_s=30) == big
    assert child.calls == 4


def test_errors_are_answers_and_the_child_lives_on(child: Child) -> None:
    with pytest.raises(NotFound, match="no entity m.0"):
        child.call("raises", {"ours": True}, timeout_s=10)
    with pytest.raises(ChildRaised, match=r"KeyError: 'm\.0'") as caught:
        child.call("raises", {"ours": False}, timeout_s=10)
    assert "served.py" in caught.value.trace
    with pytest.raises(ChildRaised, match="not JSON serializable"):
        child.call("unfit", timeout_s=10)
    with pytest.raises(ChildRaised, match="unexpected keyword argument"):
        child.call("add", {"count": 1}, timeout_s=10)
    for name in ("fly", "_private", "__class__", "total"):
        with pytest.raises(CallerError, match="no method"):
            child.call(name, timeout_s=10)
    with pytest.raises(CallerError, match="not JSON"):
        child.call("echo", {"value": object()}, timeout_s=10)
    assert child.call("add", {"number": 1}, timeout_s=10) == 2


def test_what_the_served_code_prints_or_reads_does_not_touch_the_answers(child: Child) -> None:
    assert child.call("prints", {"text": "hello"}, timeout_s=10) == "printed"
    assert child.call("add", {"number": 1}, timeout_s=10) == 2


@pytest.mark.parametrize("method", ["hangs", "holds_the_gil"])
def test_at_the_deadline_the_process_dies_and_the_error_says_why(child: Child, method: str) -> None:
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=rf"{method} took over 1\.5 s.*exit code -9") as caught:
        child.call(method, timeout_s=1.5)
    assert time.monotonic() - began < 5
    assert ("about to hang" in str(caught.value)) == (method == "hangs")
    assert not exists(child.pid)
    assert not child.alive
    with pytest.raises(InfrastructureError, match="not alive any more"):
        child.call("add", {"number": 1}, timeout_s=10)


def test_a_crash_is_reported_at_once_with_the_last_words(child: Child) -> None:
    with pytest.raises(InfrastructureError, match="died during dies.*exit code -9.*last words"):
        child.call("dies", timeout_s=10)


def test_an_exit_is_a_death(child: Child) -> None:
    with pytest.raises(InfrastructureError, match="exit code 5"):
        child.call("exits", timeout_s=10)


def test_a_kill_from_outside_ends_the_call_that_runs(child: Child) -> None:
    threading.Timer(0.7, os.kill, (child.pid, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="died during hangs"):
        child.call("hangs", timeout_s=50)
    assert time.monotonic() - began < 10


def test_a_stopped_child_is_killed_at_the_deadline(child: Child) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(InfrastructureError, match="was killed"):
        child.call("echo", {"value": "x" * 1_000_000}, timeout_s=0.3)  # more than the pipe takes: the write blocks
    assert wait_until_gone(child.pid)


@pytest.mark.parametrize(
    ("target", "arguments", "error", "text"),
    [
        (TARGET, {"fail": "raise"}, ChildRaised, "no such graph"),
        (TARGET, {"fail": "hang"}, InfrastructureError, r"its start took over 1\.5 s"),
        (TARGET, {"colour": 1}, ChildRaised, "colour"),
        ("served:Missing", {}, CallerError, "cannot be found"),
        ("no_such_module:x", {}, CallerError, "cannot be found"),
        ("served", {}, CallerError, "package.module:callable"),
    ],
)
def test_a_start_that_fails_leaves_nothing(
    target: str, arguments: dict[str, object], error: type[Exception], text: str
) -> None:
    files = open_files()
    timeout = 1.5 if arguments.get("fail") == "hang" else 60
    with pytest.raises(error, match=text):
        Child(target, arguments, start_timeout_s=timeout)
    assert open_files() <= files


def test_closing_is_idempotent_quick_and_leaves_no_process_and_no_file() -> None:
    files = open_files()
    child = Child(TARGET)
    began = time.monotonic()
    child.close()
    child.close()
    assert time.monotonic() - began < 1.5
    assert not exists(child.pid)
    with pytest.raises(InfrastructureError):
        child.call("pid", timeout_s=1)
    assert open_files() == files
    assert child.pid not in {int(p) for p in os.listdir("/proc") if p.isdigit()}  # not even as a zombie


def test_closing_during_a_call_kills_and_the_caller_hears_of_it() -> None:
    child = Child(TARGET)
    heard: list[Exception] = []

    def call() -> None:
        try:
            child.call("hangs", timeout_s=30)
        except InfrastructureError as error:
            heard.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.2)
    child.close()
    thread.join(25)
    assert len(heard) == 1
    assert not exists(child.pid)


def test_a_forgotten_child_ends() -> None:
    child = Child(TARGET)
    pid = child.pid
    del child
    gc.collect()
    assert wait_until_gone(pid)


def test_a_process_left_by_the_child_does_not_keep_its_death_hidden(child: Child) -> None:
    left = child.call("leaves_a_process", timeout_s=10)
    group = child.call("leaves_one_in_the_group", timeout_s=10)
    try:
        with pytest.raises(InfrastructureError, match="exit code -9"):
            child.call("dies", timeout_s=10)
        child.close()
        assert not exists(child.pid)
    finally:
        for pid in (left, group):
            os.kill(pid, signal.SIGKILL)


def test_the_deadline_kills_the_whole_group(child: Child) -> None:
    pid = child.call("leaves_one_in_the_group", timeout_s=10)
    with pytest.raises(InfrastructureError):
        child.call("hangs", timeout_s=0.2)
    assert wait_until_gone(pid)


def test_callers_wait_for_each_other_within_their_own_deadlines(child: Child) -> None:
    thread = threading.Thread(target=lambda: child.call("echo", {"value": "x" * 100}, timeout_s=10))
    with child._process.turn:
        with pytest.raises(Unavailable, match="busy"):
            child.call("pid", timeout_s=0.1)
        thread.start()
    thread.join(10)
    assert child.alive


def test_many_threads_share_a_child(child: Child) -> None:
    threads = [
        threading.Thread(target=child.call, args=("add", {"number": 1}), kwargs={"timeout_s": 20}) for _ in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert child.call("add", {"number": 0}, timeout_s=10) == 33


def test_a_forked_process_neither_uses_nor_ends_its_parents_child(child: Child) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child.call("pid", timeout_s=5)
        except InfrastructureError:
            child.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert child.call("add", {"number": 1}, timeout_s=10) == 2


# the pool


def test_the_pool_starts_what_it_needs_and_no_more() -> None:
    with ChildPool(TARGET, 2) as pool:
        assert len({pool.call("pid", timeout_s=20) for _ in range(4)}) == 1
        first, second = pool.pin(timeout_s=20), pool.pin(timeout_s=20)
        assert first.pid != second.pid
        with pytest.raises(Unavailable, match="no child was free"):
            pool.call("pid", timeout_s=0.1)
        third = pool.pin(timeout_s=20)
        assert third in {first, second}
        for child in (first, second, third):
            pool.unpin(child)
        assert pool.call("pid", timeout_s=20) in {first.pid, second.pid}
    assert not exists(first.pid)
    assert not exists(second.pid)
    with pytest.raises(CallerError, match="closed"):
        pool.call("pid", timeout_s=1)


def test_a_death_in_the_pool_costs_its_own_call_only() -> None:
    with ChildPool(TARGET, 1) as pool:
        before = pool.call("pid", timeout_s=20)
        with pytest.raises(InfrastructureError):
            pool.call("dies", timeout_s=20)
        with pytest.raises(InfrastructureError):
            pool.call("hangs", timeout_s=1.5)
        assert pool.call("pid", timeout_s=20) != before


def test_a_pinned_child_that_died_is_replaced_for_others() -> None:
    with ChildPool(TARGET, 1) as pool:
        mine = pool.pin(timeout_s=20)
        os.kill(mine.pid, signal.SIGKILL)
        assert mine._process.gone.wait(10)
        with pytest.raises(InfrastructureError):
            mine.call("pid", timeout_s=5)
        assert pool.call("pid", timeout_s=20) != mine.pid
        pool.unpin(mine)
        assert pool.call("add", {"number": 4}, timeout_s=20) == 4


@pytest.mark.parametrize("bounds", [{"max_calls": 2}, {"max_rss_bytes": 2**20}])
def test_a_worn_child_is_replaced_when_nobody_uses_it(bounds: dict[str, int]) -> None:
    with ChildPool(TARGET, 1, **bounds) as pool:  # type: ignore[arg-type]
        child = pool.pin(timeout_s=20)
        for _ in range(3):
            assert child.call("pid", timeout_s=10) == child.pid
        pool.unpin(child)
        assert not exists(child.pid)
        assert pool.recycled == 1
        assert pool.call("pid", timeout_s=20) != child.pid


def test_a_worn_child_keeps_its_users_and_gets_no_new_ones() -> None:
    with ChildPool(TARGET, 1, max_users=2) as pool:
        first, second = pool.pin(timeout_s=20), pool.pin(timeout_s=20)
        assert first is second
        third, fourth = pool.pin(timeout_s=20), pool.pin(timeout_s=20)
        assert third is fourth is not first
        assert first.call("add", {"number": 1}, timeout_s=20) == 1
        fifth = pool.pin(timeout_s=20)  # both are worn: rather one of them than a third process
        assert fifth in {first, third}
        for child in (first, second, third, fourth, fifth):
            pool.unpin(child)
        assert not exists(first.pid)
        assert not exists(third.pid)
        assert pool.recycled == 2


def test_a_child_can_be_shared_by_choice() -> None:
    with ChildPool(TARGET, 2) as pool:
        first, second = pool.pin(timeout_s=20), pool.pin(timeout_s=20)
        assert pool.share(first) is first
        pool.unpin(first)
        assert pool.pin(timeout_s=20) in {first, second}
        os.kill(first.pid, signal.SIGKILL)
        assert first._process.gone.wait(10)
        with pytest.raises(InfrastructureError, match="not alive"):
            pool.share(first)


def test_memory_is_seen(child: Child) -> None:
    before = child.rss_bytes
    child.call("grows", timeout_s=20)
    assert child.rss_bytes - before > 30 * 2**20


# the parent's death, and its kinds

PARENT = """
import threading, time
from agentbench_fc.procs import Child
children = []
def start():
    children.append(Child("served:Served"))
thread = threading.Thread(target=start)  # a thread that ends at once: the child must not die with it
thread.start(); thread.join()
time.sleep(0.3)
assert children[0].call("add", {"number": 1}, timeout_s=20) == 1
print(children[0].pid, flush=True)
"""


def run(code: str, tmp_path: Path, *, interactive: bool = False) -> "subprocess.Popen[str]":
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    if interactive:
        process = subprocess.Popen([sys.executable, "-i", "-q"], stdin=-1, stdout=-1, stderr=-1, text=True, env=env)
        assert process.stdin is not None
        process.stdin.write(code)
        process.stdin.flush()
        return process
    script = tmp_path / "user_script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.Popen([sys.executable, str(script)], stdout=-1, stderr=-1, text=True, env=env)


@pytest.mark.parametrize("busy", [False, True])
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path, busy: bool) -> None:
    call = 'children[0].call("holds_the_gil", timeout_s=60)' if busy else "time.sleep(60)"
    with run(PARENT + call, tmp_path) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert exists(pid)
        parent.kill()
        parent.communicate()
    assert wait_until_gone(pid)


def test_a_script_without_a_main_guard_and_without_a_close_ends_clean(tmp_path: Path) -> None:
    with run(PARENT, tmp_path) as parent:
        out, err = parent.communicate(timeout=60)
    assert (parent.returncode, err) == (0, "")
    assert wait_until_gone(int(out))


def test_it_works_in_an_interactive_interpreter(tmp_path: Path) -> None:
    lines = ["from agentbench_fc.procs import Child", 'child = Child("served:Served")']
    code = "\n".join([*lines, 'print(child.call("pid", timeout_s=20))', "exit()", ""])
    with run(code, tmp_path, interactive=True) as parent:
        out, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0
    assert wait_until_gone(int(out.split()[-1]))
