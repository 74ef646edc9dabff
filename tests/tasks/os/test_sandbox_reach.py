"""What a hostile model tries to reach: process 1, the host's common goods, and the scales by which it is judged."""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from os_boxes import backend, engine  # noqa: F401

from agentbench_fc.tasks.os.grading import _changed_tools
from agentbench_fc.tasks.os.sandbox import Limits, Sandbox, SandboxBackend, SandboxSpent
from agentbench_fc.tasks.os.sandbox import box as boxes
from agentbench_fc.tasks.os.sandbox.cgroups import running
from agentbench_fc.tasks.os.sandbox.disk import measure
from agentbench_fc.tasks.os.sandbox.script import MAX_TRIES, opens_shell, parts

LIMITS = Limits(memory_mib=256, pids=64, cpus=1, disk_mib=96, inodes=20_000)


@pytest.fixture
def box(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    with backend.create("default", LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def shared(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    with backend.create("default", LIMITS) as made:
        yield made


def test_process_1_is_closed_to_every_process_of_its_sandbox(shared: Sandbox) -> None:
    pry = (
        "cd /proc/1; cat mem maps environ >/dev/null; echo x >fd/1; readlink fd/0 exe cwd ns/pid; "
        "prlimit --pid 1 --nofile=4:4"
    )
    for said in (shared.exec(["sh", "-c", pry]).stderr, shared.shell(pry).output):
        assert said.count(b"ermission denied") >= 4
        assert b"Operation not permitted" in said
    ptrace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert shared.exec(["python3", "-c", ptrace], timeout_s=5).stdout == b"-1\n"
    assert shared.look(["/proc/1"])["/proc/1"] is not None


EVIL = b"""#!/usr/bin/python3
import os, sys
try:
    loot = open("/proc/1/mem", "rb") and "all"
except OSError as error:
    loot = error.strerror
open("/root/loot", "a").write(loot + ";")
os.execv("/root/bash", ["bash", *sys.argv[1:]])
"""


def test_a_program_that_starts_the_shell_gets_no_nearer_to_process_1(box: Sandbox) -> None:
    box.put("/root/evil", EVIL, 0o755)
    box.shell(
        "cp /usr/bin/bash /root; for each in setpriv bash; do cp --remove-destination evil /usr/bin/$each; done; exit"
    )
    assert b"Permission denied;" in box.shell("cat /root/loot").output


def test_process_1_can_be_laid_open_for_those_who_do_not_rely_on_it(box: Sandbox) -> None:
    search = ["find", "/proc/1", "-name", "nothing"]
    assert box.exec(search).code == 1
    box.expose()
    assert box.exec(search).code == 0


def test_the_hosts_common_goods_are_out_of_reach(shared: Sandbox) -> None:
    take = "import ctypes, time; print(ctypes.CDLL(None).inotify_init(), flush=True); time.sleep(1)"
    assert shared.exec(["python3", "-c", f"for _ in range(3): exec({take!r})"]).stdout == b"-1\n" * 3
    if shared.backend == "oci":  # docker mounts its terminals itself, without a bound
        many = "import os\nn = 0\ntry:\n  while True: os.openpty(); n += 1\nexcept OSError: print(n)"
        assert int(shared.exec(["python3", "-c", many]).stdout) <= 64
    for call in (425, 101, 250, 321, 298, 323):  # io_uring, ptrace, keyctl, bpf, perf, userfaultfd
        if os.uname().machine == "x86_64":
            code = f"c = ctypes.CDLL(None, use_errno=True); print(c.syscall({call}, 0, 0, 0), ctypes.get_errno())"
            assert shared.exec(["python3", "-c", "import ctypes; " + code]).stdout == b"-1 1\n", call


def test_a_sandbox_that_starves_its_process_1_has_itself_to_blame(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "GRACE_S", 1.0)
    crowd = "renice 19 -p 1; chrt -i -p 0 1; for i in $(seq 50); do (while :; do :; done) & done; echo started"
    with contextlib.suppress(SandboxSpent):  # and not SandboxLost, for which nobody would be scored
        for script in (crowd, "echo x", "echo x"):
            box.shell(script, timeout_s=2)


def test_running_processes_of_a_group_are_counted() -> None:
    assert running("no-such-owner/no-such-sandbox") == 0


def test_what_is_put_replaces_whatever_is_there(shared: Sandbox) -> None:
    shared.shell("mkdir /srv/p && cd /srv/p && ln -s /proc/self/fd/1 a && mkfifo b && ln -s /etc/passwd c && echo x >d")
    for name in "abcd":
        shared.put(f"/srv/p/{name}", b"mine", 0o640)
        entry = shared.look([f"/srv/p/{name}"], content=9)[f"/srv/p/{name}"]
        assert entry is not None
        assert (entry.kind, entry.content, entry.mode) == ("file", b"mine", 0o640)
    assert shared.exec(["grep", "-c", "^root:", "/etc/passwd"]).stdout == b"1\n"


def test_processes_that_come_and_go_are_no_fault_of_a_look(shared: Sandbox) -> None:
    shared.shell("(while :; do /bin/true; done) >/dev/null 2>&1 &")
    began = time.monotonic()
    while time.monotonic() - began < 2:
        names = shared.look(["/proc"])["/proc"]
        assert names is not None
        shared.look([f"/proc/{name}/cmdline" for name in names.names if name.isdigit()], content=100)
    shared.shell("kill %1")


def test_changes_are_told_however_many_and_while_they_happen(box: Sandbox) -> None:
    if box.backend == "oci":
        box.shell("mkdir /srv/m && cd /srv/m && touch $(seq -f some-rather-long-name-of-a-file-%g 9000)")
    deep = "import os\nfor _ in range(17): os.mkdir('d' * 250); os.chdir('d' * 250)\nopen('f' * 250, 'w')"
    with contextlib.suppress(SandboxSpent):  # docker's watch ends what is so deep
        box.exec(["python3", "-c", deep]).check()
        box.shell("(cd /tmp; while :; do touch x y z; rm x y z; done) >/dev/null 2>&1 &")
        for _ in range(5):
            found = {change.path for change in box.changes()}
        assert box.backend == "docker" or len(found) > 9_000


def test_folders_too_deep_to_count_are_too_many(tmp_path: Path) -> None:
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        assert measure(tmp_path, 1 << 20, 100)[1] == 101
    finally:
        os.fchdir(before)
        os.close(before)


LIB, PYTHON = "/usr/lib/x86_64-linux-gnu", "lib/python3.11"
ATTACKS = (
    "cp /bin/true /usr/sbin/stat",
    "ln -sf /bin/true /etc/alternatives/awk",
    f"mkdir -p {LIB}/glibc-hwcaps/x86-64-v2 && touch {LIB}/glibc-hwcaps/x86-64-v2/libc.so.6",
    f"mkdir -p /usr/local/{PYTHON}/dist-packages && touch /usr/local/{PYTHON}/dist-packages/a.pth",
    f"mkdir -p ~/.local/{PYTHON}/site-packages && touch ~/.local/{PYTHON}/site-packages/usercustomize.py",
    "echo x >> /etc/nsswitch.conf",
    "echo exit >> /etc/profile",
    "touch /usr/lib/python311.zip",
    "mv /usr/bin/find /usr/bin/found",
    "echo /tmp/x.so > /etc/ld.so.preload",
)


def test_what_takes_a_programs_place_is_seen(box: Sandbox) -> None:
    box.shell("apt install -y sudo; mkdir -p /usr/lib/mine; touch /usr/lib/mine/a /usr/bin/mine /usr/local/bin/ls")
    box.shell("useradd -m ann; python3 -O -c 'import timeit'")
    assert box.exec(["sudo", "whoami"]).stdout == b"root\n"
    seen = _changed_tools(box)
    assert not seen
    for attack in ATTACKS:
        box.exec(["bash", "-c", attack]).check()
        before, seen = seen, _changed_tools(box)
        assert seen > before, attack


@pytest.mark.parametrize(
    "line", ["su" + " " * 200_000 + "!", ";su" * 100_000 + "!", "newgrp" + " " * 200_000 + "!", "su #" + " #" * 100_000]
)
def test_no_line_keeps_this_process_busy(line: str) -> None:
    began = time.process_time()
    assert opens_shell(line) == line.startswith("su #")
    assert time.process_time() - began < 2


def test_a_script_full_of_shells_is_looked_into_a_bounded_number_of_times() -> None:
    asked: list[str] = []

    def is_complete(text: str) -> bool:
        asked.append(text)
        return False

    began = time.process_time()
    parts("echo '" + "\nbash" * 100_000, is_complete)
    assert len(asked) <= 2 * MAX_TRIES
    assert time.process_time() - began < 2


def test_a_line_that_is_cut_is_not_taken_for_its_end() -> None:
    assert not opens_shell("echo" + " " * 5_000 + "su - jack")
    assert opens_shell("echo" + " " * 5_000 + "&& su - jack;  # now jack; not root")
    assert opens_shell("exec /bin/bash --login")
    assert not opens_shell("su - jack -c id")


def test_a_script_without_end_ends_at_its_time(shared: Sandbox) -> None:
    began = time.monotonic()
    shared.shell("echo '" + "\nbash" * 20_000, timeout_s=2)
    shared.shell("echo $(( " * 40 + "\n)" * 30, timeout_s=2)
    assert time.monotonic() - began < 25


def test_this_host_still_has_its_watches() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init()
    assert handle >= 0
    os.close(handle)
