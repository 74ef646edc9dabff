"""What a hostile or clumsy model does to its box: it stays inside, and the box, its neighbours and the host go on."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from os_boxes import backend, engine, until  # noqa: F401

from agentbench_fc.tasks.os.sandbox import ExecResult, Limits, Sandbox, SandboxBackend, SandboxSpent, ShellResult
from agentbench_fc.tasks.os.sandbox.box import GRACE_S
from agentbench_fc.tasks.os.sandbox.cgroups import PREFIX, hierarchies
from agentbench_fc.tasks.os.sandbox.docker import DockerBackend
from agentbench_fc.tasks.os.sandbox.owner import Owner

LIMITS = Limits(memory_mib=256, pids=64, cpus=1, disk_mib=96, inodes=20_000)


@pytest.fixture(scope="module")
def neighbour(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    with backend.create("default", LIMITS) as box:
        yield box


@pytest.fixture
def box(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    """A box for one crime."""
    with backend.create("default", LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def shared(backend: SandboxBackend) -> Iterator[Sandbox]:  # noqa: F811
    """A box for what must not leave a trace anyway."""
    with backend.create("default", LIMITS) as made:
        made.exec(["useradd", "-m", "-s", "/bin/bash", "jack"]).check()
        yield made


def is_usable(box: Sandbox) -> bool:
    return box.exec(["echo", "fine"]).stdout == b"fine\n" and box.shell("echo fine").output == b"fine\n"


@contextlib.contextmanager
def docker_may_end_it(box: Sandbox, why: str) -> Iterator[None]:
    """Docker bounds a disk by ending the sandbox that fills it; oci by an error of the program alone."""
    try:
        yield
        assert box.backend == "oci"
    except SandboxSpent as error:
        if box.backend == "oci" or why not in str(error):
            raise


def spent_or(box: Sandbox, script: str, seconds: float = 10) -> ShellResult | None:
    """What a script did; None: the sandbox is spent, and says so from now on."""
    try:
        return box.shell(script, timeout_s=seconds)
    except SandboxSpent:
        return None


def use_up(box: Sandbox) -> None:
    """Ends the shell until none can be started any more."""
    for _ in range(3):
        box.shell("exit")


def test_a_fork_bomb_is_bounded_and_ended(box: Sandbox, neighbour: Sandbox) -> None:
    result = spent_or(box, ":(){ :|:& };:; while :; do :; done", seconds=1)
    assert is_usable(neighbour)
    if result is not None:
        assert is_usable(box)
        assert until(10, lambda: len(box.exec(["ps", "-e"]).stdout.splitlines()) < 10)


def test_a_fork_bomb_in_the_background_does_not_spread(box: Sandbox, neighbour: Sandbox) -> None:
    spent_or(box, "(:(){ :|:& };: &) >/dev/null 2>&1", seconds=5)
    with contextlib.suppress(SandboxSpent):
        for _ in range(3):
            box.exec(["true"], timeout_s=3)
            box.shell("echo x", timeout_s=3)
    assert is_usable(neighbour)
    box.close()
    assert is_usable(neighbour)


def test_a_memory_bomb_ends_alone(box: Sandbox) -> None:
    result = box.exec(["python3", "-c", "x = bytearray(1500 << 20)"])
    assert result.code in (1, 137)
    assert is_usable(box)
    assert box.shell("python3 -c 'x = [bytearray(1 << 20) for _ in range(2000)]'; echo $?").output.endswith(b"137\n")
    assert is_usable(box)


def test_memory_that_many_processes_eat_is_bounded(box: Sandbox, neighbour: Sandbox) -> None:
    spent_or(
        box,
        "for i in $(seq 20); do python3 -c 'x = bytearray(200 << 20); import time; time.sleep(9)' & done; wait",
        seconds=4,
    )
    assert is_usable(neighbour)


def test_a_full_disk_is_an_error_of_the_program(box: Sandbox) -> None:
    with contextlib.suppress(SandboxSpent) if box.backend == "docker" else contextlib.nullcontext():
        result = box.shell("dd if=/dev/zero of=/root/big bs=1M count=1500 2>&1; stat -c %s /root/big; rm -f /root/big")
        assert b"1500+0" not in result.output
        assert max(int(line) for line in result.output.split() if line.isdigit()) <= 97 << 20
        assert is_usable(box)


def test_a_disk_filled_with_many_files_is_bounded(box: Sandbox) -> None:
    began = time.monotonic()
    with docker_may_end_it(box, "more than its 96 MiB"):
        box.shell("for i in $(seq 40); do head -c 10000000 /dev/zero > /root/f$i || break; done", timeout_s=30)
        settle(box)
        assert b"No space left" in box.shell("echo x > /root/more && head -c 20000000 /dev/zero > /root/most").output
        assert box.shell("rm /root/f*; echo ok").output == b"ok\n"
        assert is_usable(box)
    assert time.monotonic() - began < 30 + GRACE_S


def test_too_many_files_are_bounded(box: Sandbox) -> None:
    script = "import os\nos.mkdir('/root/d')\nfor i in range(60000): open(f'/root/d/{i}', 'w').close()"
    with docker_may_end_it(box, "over 20000 files"):
        result = box.exec(["python3", "-c", script], timeout_s=60)
        settle(box)
        assert b"No space left" in result.stderr
        assert is_usable(box)


def settle(box: Sandbox) -> None:
    """Waits until Docker's disk watch has seen it, which ends the sandbox."""
    for _ in range(150 if box.backend == "docker" else 0):
        box.exec(["sleep", "0.2"])


def test_infinite_output_is_drained_and_ended(box: Sandbox) -> None:
    for result in (box.shell("yes", timeout_s=1, cap_bytes=1000), box.exec(["yes"], timeout_s=1, cap_bytes=1000)):
        assert (result.timed_out, result.truncated) == (True, True)
    assert box.exec(["pgrep", "yes"]).stdout == b""
    box.shell("yes & yes >&2 & echo started")
    assert b"ok\n" in box.exec(["bash", "-c", "echo ok; yes &"]).stdout
    assert box.exec(["echo", "fine"]).stdout == b"fine\n"
    assert not box.shell("pkill yes; echo fine").timed_out
    assert is_usable(box)


def test_daemons_cost_no_time_and_go_with_the_box(box: Sandbox) -> None:
    script = "for i in 1 2 3; do setsid nohup sleep 1000 & done; disown -a; (setsid sleep 1000 &)"
    result = box.shell(script, timeout_s=100)
    assert (result.timed_out, result.ended) == (False, None)
    assert until(30, lambda: box.exec(["pgrep", "-cx", "sleep"]).stdout == b"4\n")
    took = []
    for _ in range(3):  # the quickest of three: one may have had to wait for a CPU
        began = time.monotonic()
        box.shell("(setsid sleep 1000 &)")
        took.append(time.monotonic() - began)
    assert min(took) < 1.5
    began = time.monotonic()
    box.close()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 -1",
        "/bin/kill -9 -1",
        "kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1; kill -CHLD 1; pkill -9 .; true",
        "killall5 -9; true",
    ],
)
def test_killing_everything_does_not_end_the_box(box: Sandbox, script: str) -> None:
    box.shell("sleep 100 &")
    result = box.shell(script, timeout_s=5)
    assert not result.timed_out
    assert is_usable(box)


def test_a_deleted_system_is_told_and_closes(box: Sandbox, neighbour: Sandbox) -> None:
    spent_or(box, "rm -rf --no-preserve-root /bin /usr/bin /usr/lib /lib* / 2>/dev/null", seconds=90)
    result = box.exec(["/bin/echo", "x"])
    assert result.code == 127
    outcome = spent_or(box, "exit 1")
    assert outcome is None or outcome.ended is not None
    with pytest.raises(SandboxSpent, match="shell"):
        use_up(box)
    box.close()
    assert is_usable(neighbour)
    assert Path("/bin/sh").exists()


@pytest.mark.parametrize(
    "script",
    [
        "echo evil > /proc/sys/kernel/hostname",
        "echo 1 > /proc/sys/vm/drop_caches",
        "sysctl -w kernel.panic=1",
        "echo b > /proc/sysrq-trigger",
        "head -c 10 /proc/kcore | grep -q .",
        "dmesg",
        "mount -t tmpfs none /mnt",
        "mount --bind /etc /mnt",
        "umount /proc",
        "mknod /tmp/sda b 8 0",
        "mknod /tmp/kmsg c 1 11",
        "unshare -U true",
        "unshare -m true",
        "nsenter -t 1 -m true",
        "chroot / true",
        "ip link add dummy0 type dummy",
        "iptables -L",
        "hostname other",
        "date -s 2000-01-01",
        "python3 -c 'import ctypes; exit(1 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) else 0)'",
        "python3 -c 'import ctypes; exit(1 if ctypes.CDLL(None).syscall(321, 0, 0, 0) < 0 else 0)'",
        "head -c 1 /proc/1/mem",
        "cat /proc/1/environ | grep -q .",
        "ls -l /proc/1/fd/0 | grep -q '[-]>'",
        "echo forged > /proc/1/fd/1",
        "cat < /proc/1/fd/0",
        "ls /proc/1/root/",
        "ls /sys/kernel/debug | grep -q .",
        "echo 1 > /sys/kernel/mm/ksm/run",
        "ls /dev/sd* /dev/vd* /dev/nvme* /dev/mem",
        "echo 1 > /proc/self/oom_score_adj; echo -1000 > /proc/1/oom_score_adj",
        "renice -n -20 -p $$",
        "ulimit -Hn 2000000",
        "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)'",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "ping -c 1 -W 1 127.0.0.1",
        "ls /var/run/docker.sock /run/docker.sock",
    ],
)
def test_the_way_out_is_shut(shared: Sandbox, script: str) -> None:
    for result in (shared.shell(f"( {script} ) 2>/dev/null", timeout_s=10),):
        assert result.timed_out or result.code != 0
    assert shared.exec(["true"]).ok


def test_the_host_is_not_seen_and_not_touched(shared: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("alive")
    assert shared.exec(["ls", str(canary)]).code != 0
    assert shared.exec(["ls", "-d", str(Path(__file__).parent)]).code != 0
    assert len(shared.exec(["ps", "-e"]).stdout.splitlines()) < 12
    assert shared.exec(["pgrep", "-f", "pytest"]).stdout == b""
    assert shared.exec(["hostname"]).stdout == b"localhost\n"
    seen = shared.exec(["env"]).stdout.decode()
    assert not any(name in seen for name in ("AGENTBENCH", "DOCKER", "VIRTUAL_ENV", "PYTEST"))
    assert canary.read_text() == "alive"


def test_no_network_reaches_not_even_the_hosts_loopback(shared: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached = threading.Event()

        def listen() -> None:
            server.settimeout(4)
            try:
                server.accept()[0].close()
                reached.set()
            except OSError:
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert shared.exec(["python3", "-c", script]).code == 1
        thread.join()
        assert not reached.is_set()
    assert shared.exec(["sh", "-c", "ls /sys/class/net 2>/dev/null || ip -o link | cut -d: -f2"]).stdout.split() in (
        [b"lo"],
        [],
    )
    assert shared.exec(["curl", "-sm", "3", "http://example.com"]).code != 0
    mine = "\0agentbench-fc-test"
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(mine + str(os.getpid()))
        local.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0agentbench-fc-test{os.getpid()}')"
        assert shared.exec(["python3", "-c", script]).code == 1


def test_set_user_id_programs_give_no_rights(shared: Sandbox) -> None:
    shared.exec(["sh", "-c", "cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id"]).check()
    assert b"euid=0" not in shared.exec(["su", "jack", "-c", "/tmp/id"]).stdout
    assert shared.exec(["su", "jack", "-c", "kill -9 1 2>/dev/null; cat /etc/shadow"]).code != 0


def test_root_inside_is_nobody_outside(shared: Sandbox) -> None:
    inside, outside, _ = shared.exec(["cat", "/proc/self/uid_map"]).stdout.split()
    # Docker maps users only when its daemon is told so (userns-remap)
    assert (inside, outside) == (b"0", b"1879048192") or shared.backend == "docker"


def test_a_stopped_or_traced_shell_is_replaced(shared: Sandbox) -> None:
    result = shared.shell("kill -STOP $$", timeout_s=1)
    assert result.timed_out
    assert is_usable(shared)


def test_shadowed_programs_do_not_reach_a_fresh_process(box: Sandbox) -> None:
    box.shell(
        "mkdir -p /root/bin; printf '#!/bin/sh\\necho 42\\n' | tee /root/bin/python3 /root/bin/ls /root/ls > /dev/null;"
        "chmod +x /root/bin/* /root/ls; export PATH=/root/bin:.:$PATH; alias wc='echo 42';"
        "printf 'echo 42; exit 0\\n' > /root/.bashrc; cp /root/.bashrc /root/.profile;"
        "cp /root/.profile /root/.bash_login;"
        "printf 'print(42)\\n' > /root/json.py; export PYTHONPATH=/root PYTHONSTARTUP=/root/json.py"
    )
    clean: list[ExecResult] = [
        box.exec(["bash", "-c", "ls -d /etc | wc -l"]),
        box.exec(["python3", "-I", "-c", "import json; print(len(json.dumps(1)))"]),
    ]
    assert [each.stdout for each in clean] == [b"1\n", b"1\n"]


def test_editors_and_pagers_do_not_hang_for_ever(shared: Sandbox) -> None:
    for script in (
        "vi /tmp/x",
        "less /etc/passwd | head -1",
        "git log",
        "man ls",
        "python3 -c 'input()'",
        "su jack -c 'read x'",
    ):
        began = time.monotonic()
        shared.shell(script, timeout_s=2)
        assert time.monotonic() - began < 2 + GRACE_S
        assert is_usable(shared)


def test_a_session_of_crimes_leaves_the_host_as_it_was(backend: SandboxBackend) -> None:  # noqa: F811
    names = []
    for script in (":(){ :|:& };:", "rm -rf --no-preserve-root /", "kill -9 -1", "setsid sleep 1000 &"):
        with backend.create("default", LIMITS) as made:
            names.append(made.id)
            spent_or(made, script, seconds=1)
    # counting mounts would count those that come and go beside this test
    mine = [line for line in Path("/proc/mounts").read_text().splitlines() if any(name in line for name in names)]
    groups = [root / f"{PREFIX}{Owner.me().name}" / name for root in hierarchies() for name in names]
    assert (mine, [each for each in groups if each.exists()]) == ([], [])
    if backend.name == "docker":
        assert isinstance(backend, DockerBackend)
        with backend.engine() as client:
            left = {name for row in client.containers(all=True) for name in row["Names"]}
        assert not left & {f"/{name}" for name in names}
