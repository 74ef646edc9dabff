"""The parts of a sandbox that need no sandbox: messages, scripts, owners, limits, configuration, choice, images."""

import json
import os
import platform
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError, InfrastructureError, Unavailable
from agentbench_fc.tasks.os.sandbox import ExecResult, Limits, SandboxLost, SandboxSpent, SandboxUnavailable, cgroups
from agentbench_fc.tasks.os.sandbox.base import Probe, SandboxBackend, reason
from agentbench_fc.tasks.os.sandbox.choose import choose, make
from agentbench_fc.tasks.os.sandbox.disk import DiskWatch, measure
from agentbench_fc.tasks.os.sandbox.docker import AttachedStream, DockerBackend
from agentbench_fc.tasks.os.sandbox.images import Images, recipe_folder, shift_owners
from agentbench_fc.tasks.os.sandbox.inside import processes
from agentbench_fc.tasks.os.sandbox.oci import OciBackend
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.pool import Sandboxes
from agentbench_fc.tasks.os.sandbox.script import needs_check, opens_shell, parts
from agentbench_fc.tasks.os.sandbox.seccomp import ALLOWED, profile
from agentbench_fc.tasks.os.sandbox.spec import CAPABILITIES, runtime_spec
from agentbench_fc.tasks.os.sandbox.wire import HEAD, SocketStream, Wire, pack, program, unpack


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300)))
def test_both_sides_read_and_write_the_same_messages(fields: list[bytes]) -> None:
    assert processes.pack(fields) == pack(fields)
    assert unpack(pack(fields)[HEAD:]) == processes.unpack(pack(fields)[HEAD:]) == fields


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60))
def test_no_noise_reads_as_a_message_that_does_not_add_up(noise: bytes) -> None:
    try:
        fields = unpack(noise)
    except ValueError:
        return
    assert pack(fields)[HEAD:] == noise or len(noise) % 4


def answering(*answers: bytes) -> tuple[Wire, socket.socket]:
    """A wire at whose other end these bytes come, whatever is asked."""
    mine, its = socket.socketpair()
    for each in answers:
        its.sendall(each)
    return Wire(SocketStream(mine), "box"), its


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"garbage that is longer than a head", "no message"),
        (pack([b"1", b"ok"])[:-1] + b"X", "wrong checksum"),
        (pack([b"2", b"ok"]), "not that of the question"),
        (pack([b"1"]), "not that of the question"),
        (b"\xfa\xfc\xff\xff\xff\xff0000", "no message"),
        (processes.MAGIC + b"\0\0\0\x08" + b"\x2c\xc1\x6d\x15" + b"\0\0\0\x63abcd", "checksum|damaged"),
    ],
)
def test_a_damaged_answer_is_a_lost_sandbox_never_an_answer(bad: bytes, why: str) -> None:
    wire, its = answering(bad)
    with its:
        with pytest.raises(SandboxLost, match=why):
            wire.ask(b"exec", timeout_s=5)
        with pytest.raises(SandboxLost, match="sandbox box"):
            wire.ask(b"exec", timeout_s=5)
        wire.close()


@pytest.mark.parametrize("cut", [0, 1, HEAD - 1, HEAD, HEAD + 3])
def test_a_cut_answer_is_a_lost_sandbox(cut: int) -> None:
    wire, its = answering(pack([b"1", b"ok", b"output"])[:cut])
    its.shutdown(socket.SHUT_WR)
    with its, pytest.raises(SandboxLost, match="ended"):
        wire.ask(b"exec", timeout_s=5)
    wire.close()


def test_no_answer_is_a_lost_sandbox_in_time() -> None:
    wire, its = answering()
    began = time.monotonic()
    with its, pytest.raises(SandboxLost, match="in time"):
        wire.ask(b"exec", timeout_s=0.2)
    assert time.monotonic() - began < 2
    wire.close()


def test_an_answer_in_small_pieces_is_put_together() -> None:
    wire, its = answering()
    data = pack([b"1", b"ok", b"x" * 100_000])

    def drip() -> None:
        for at in range(0, len(data), 997):
            its.sendall(data[at : at + 997])

    thread = threading.Thread(target=drip)
    thread.start()
    assert wire.ask(b"exec", timeout_s=10) == [b"ok", b"x" * 100_000]
    thread.join()
    its.close()
    wire.close()


def test_frames_of_an_engine_are_taken_apart_wherever_they_are_cut() -> None:
    mine, its = socket.socketpair()

    class Holder:
        def close(self) -> None:
            pass

    stream = AttachedStream(Holder(), mine)
    pieces = ((1, b"one"), (2, b"bad"), (1, b""), (1, b"two"))
    frames = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in pieces)
    seen = b""
    for at in range(len(frames)):
        its.sendall(frames[at : at + 1])
        try:
            seen += stream.recv()
        except BlockingIOError:
            continue
    assert (seen, bytes(stream.stderr)) == (b"onetwo", b"bad")
    its.close()
    assert stream.recv() == b""
    stream.close()


def test_the_agents_program_stands_alone(tmp_path: Path) -> None:
    source = program().decode()
    assert "agentbench_fc" not in re.sub(r'"""[\s\S]*?"""', "", source)
    file = tmp_path / "agent.py"
    file.write_text(source.replace("disguise()\n    Agent(0, 1).serve()", "pass"))
    subprocess.run([sys.executable, "-I", "-S", str(file)], check=True, timeout=30)


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


def test_limits_are_checked_where_they_are_made() -> None:
    for wrong in (
        {"memory_mib": 1},
        {"pids": 0},
        {"cpus": 0},
        {"disk_mib": 0},
        {"inodes": 1},
        {"pids": True},
        {"cpus": "1"},
    ):
        with pytest.raises(CallerError, match="sandbox limits"):
            Limits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="disk_mib is 512 and memory_mib 256"):
        Limits(memory_mib=256, disk_mib=512)


def test_the_configuration_gives_no_more_than_is_needed() -> None:
    spec = runtime_spec("/root", "/agentbench-fc/x/y", Limits(memory_mib=300, pids=77, cpus=0.5))
    process, linux = spec["process"], spec["linux"]
    assert json.loads(json.dumps(spec)) == spec
    assert process["noNewPrivileges"]
    assert set(process["capabilities"]["bounding"]) == {f"CAP_{name}" for name in CAPABILITIES}
    assert not {"SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "NET_RAW", "MKNOD", "SYS_CHROOT", "SYS_MODULE"} & set(
        CAPABILITIES
    )
    assert {each["type"] for each in linux["namespaces"]} == {"pid", "network", "ipc", "uts", "mount", "user"}
    assert linux["resources"]["memory"]["limit"] == 300 << 20
    assert linux["resources"]["pids"]["limit"] == 77
    assert linux["resources"]["cpu"] == {"period": 100_000, "quota": 50_000}
    assert linux["resources"]["devices"] == [{"allow": False, "access": "rwm"}]
    assert linux["uidMappings"][0]["hostID"] > 100_000
    assert "/proc/sys" in linux["readonlyPaths"]
    assert "/proc/kcore" in linux["maskedPaths"]
    assert not any(mount["type"] == "sysfs" for mount in spec["mounts"])


def test_the_filter_of_system_calls_is_a_list_of_what_is_allowed() -> None:
    names = set(ALLOWED.split())
    assert profile()["defaultAction"] == "SCMP_ACT_ERRNO"
    assert len(names) == len(ALLOWED.split()) > 250
    forbidden = (
        "mount umount2 ptrace process_vm_readv process_vm_writev bpf keyctl add_key init_module unshare setns reboot "
    )
    forbidden += (
        "pivot_root kexec_load open_by_handle_at perf_event_open userfaultfd io_uring_setup swapon settimeofday clone3"
    )
    assert not names & set(forbidden.split())
    assert {"read", "write", "execve", "fork", "openat", "mknodat", "wait4", "rt_sigaction"} <= names
    assert "architectures" not in profile("riscv64")


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ("", "no control groups"),
        ("cgroup2 {root}/none cgroup2 rw 0 0\n", "cannot be written"),
        ("cgroup {root}/memory cgroup rw 0 0\ncgroup {root}/pids cgroup rw 0 0\n", "no control of cpu"),
        (
            "cgroup {root}/memory cgroup rw\ncgroup {root}/pids cgroup rw\ncgroup {root}/cpu,cpuacct cgroup rw\n",
            "",
        ),
        ("cgroup2 {root}/unified cgroup2 rw 0 0\n", ""),
    ],
)
def test_both_versions_of_control_groups_are_recognized(tmp_path: Path, mounts: str, why: str) -> None:
    for name in ("memory", "pids", "cpu,cpuacct", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    file = tmp_path / "mounts"
    file.write_text(mounts.format(root=tmp_path))
    seen = cgroups.why_not(cgroups.hierarchies(file))
    assert seen.startswith(why) if not why else why in seen


def test_an_owners_name_tells_whether_it_lives() -> None:
    me = Owner.me()
    assert Owner.parse(me.name) == me
    assert not me.is_gone
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    other = Owner(me.host, child.pid, int(fields[19]))
    assert not other.is_gone
    child.kill()
    child.communicate()
    assert other.is_gone
    for text in ("", "x", "a-b-c", "a-1", "a-1-", "-1-2", "agentbench"):
        assert Owner.parse(text) is None


def test_a_result_that_failed_says_so() -> None:
    ok = ExecResult(code=0, stdout=b"x", stderr=b"")
    assert ok.check() is ok
    with pytest.raises(SandboxSpent, match="timed out: nothing on stderr"):
        ExecResult(code=124, stdout=b"", stderr=b"", timed_out=True).check()


class Fake:
    """A backend that says of itself whether it works."""

    def __init__(self, name: str, ok: bool) -> None:
        self.name = name
        self.ok = ok
        self.closed = False

    def probe(self, image: str = "default") -> Probe:
        return Probe(backend=self.name, ok=self.ok, detail=f"{self.name} is away", mend=f"install {self.name}")  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("works", "chosen"), [({"docker", "oci"}, "docker"), ({"oci"}, "oci"), ({"docker"}, "docker")])
def test_docker_comes_before_oci_and_each_is_tried(works: set[str], chosen: str) -> None:
    made: list[Fake] = []
    assert choose("auto", maker=_maker(made, works)).name == chosen
    assert all(fake.closed for fake in made if fake.name != chosen)


def test_without_any_kind_all_reasons_and_cures_are_named() -> None:
    made: list[Fake] = []
    with pytest.raises(SandboxUnavailable) as caught:
        choose("auto", maker=_maker(made, set()))
    for text in ("docker is away", "install docker", "oci is away", "install oci"):
        assert text in str(caught.value)
    assert isinstance(caught.value, InfrastructureError)
    with pytest.raises(CallerError, match="Did you mean 'docker'"):
        make("dokcer")


def _maker(made: list[Fake], works: set[str]) -> Callable[[str], SandboxBackend]:
    def maker(name: str) -> SandboxBackend:
        made.append(Fake(name, name in works))
        return made[-1]  # type: ignore[return-value]

    return maker


def test_an_engine_that_is_not_there_is_named_with_the_cure(tmp_path: Path) -> None:
    made = DockerBackend(host=f"unix://{tmp_path}/none.sock")
    probe = made.probe()
    assert not probe.ok
    assert "no container engine answers" in probe.detail
    assert "apt-get install -y docker.io" in probe.mend
    with pytest.raises(SandboxUnavailable):
        made.reap()
    made.close()


def test_a_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    made = OciBackend()
    assert not made.probe().ok
    assert "only root" in made.probe().detail
    with pytest.raises(SandboxUnavailable, match="only root"):
        made.create("default")


def test_a_machine_without_runc_is_told_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    probe = OciBackend(runc="").probe() if not OciBackend()._runc else _without_runc(monkeypatch).probe()
    assert probe.detail == "runc is not installed"
    assert probe.mend == "apt-get install -y runc"


def _without_runc(monkeypatch: pytest.MonkeyPatch) -> OciBackend:
    import shutil

    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    return OciBackend()


def test_a_pool_without_a_backend_fails_as_a_whole() -> None:
    pool = Sandboxes(Fake("oci", False))  # type: ignore[arg-type]
    pool.close()
    pool.close()
    with pytest.raises((Unavailable, AttributeError)):
        pool.open()
    for wrong in ({"warm": -1}, {"max_open": 0}, {"creating": 0}, {"max_waiting": -1}):
        with pytest.raises(CallerError, match="sandboxes"):
            Sandboxes("oci", **wrong)


def test_what_a_folder_holds_is_measured_and_the_watch_tells_once(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(bytes(3 << 20))
    size, files = measure(tmp_path, 1 << 40, 1 << 20)
    assert 3 << 20 <= size < 4 << 20
    assert files == 3
    assert measure(tmp_path, 1 << 20, 1 << 20)[0] > 1 << 20
    assert measure(tmp_path / "none", 1, 1) == (0, 0)
    watch, told = DiskWatch(every_s=0.02), []
    twice = threading.Event()

    def tell(why: str) -> None:
        told.append(why)
        twice.set()

    watch.add("a", tmp_path, Limits(disk_mib=2), tell)
    watch.add("b", tmp_path, Limits(disk_mib=200), tell)
    assert twice.wait(10)
    time.sleep(0.1)
    watch.close()
    assert told == ["it wrote more than its 2 MiB to its disk"]


def test_reasons_are_cut_from_messages() -> None:
    assert reason("it failed [here]. Do that.") == "it failed [here]"
    assert reason("plain") == "plain"


def test_owners_are_shifted_and_rights_kept(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # only root can give files away
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "f"
    file.write_text("x")
    os.chown(file, 5, 6)
    file.chmod(0o6755)
    (tmp_path / "l").symlink_to("/etc/passwd")
    before = os.stat("/etc/passwd")
    shift_owners(tmp_path, 1000)
    shift_owners(tmp_path, 1000)
    facts = file.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1005, 1006, 0o6755)
    assert (tmp_path / "l").lstat().st_uid == 1000
    assert (before.st_uid, before.st_mode) == (os.stat("/etc/passwd").st_uid, os.stat("/etc/passwd").st_mode)


def test_images_are_found_by_recipe_and_pruned(tmp_path: Path) -> None:
    images = Images(tmp_path)
    assert images.find("default") is None
    with pytest.raises(SandboxUnavailable, match="sandbox build --stage packages"):
        images.get("packages")
    with pytest.raises(CallerError, match="Did you mean 'default'"):
        images.find("defalt")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    made = images._pack(root, "default", "debootstrap bookworm")
    assert images.find("default") == made
    assert made.machine == platform.machine()
    assert made.tag == f"agentbench-fc/os-default:{made.sha256[:12]}"
    assert images._pack(root, "default", "debootstrap bookworm").sha256 == made.sha256
    (tmp_path / "default-old.tar").write_bytes(b"x" * 100)
    (tmp_path / "tmp-under-way").mkdir()
    assert images.prune() >= 100
    assert (tmp_path / "tmp-under-way").is_dir()
    assert images.find("default") == made
    for wrong in ("none", "docker:", "debootstrap sid"):
        with pytest.raises(CallerError, match="sandbox build"):
            images.build("default", base=wrong)


def test_the_recipe_has_every_stage_and_needs_no_buildkit() -> None:
    dockerfile = (recipe_folder() / "Dockerfile").read_text()
    assert re.findall(r"AS (\w+)", dockerfile) == ["ubuntu", "default", "packages"]
    assert "ARG BASE_IMAGE" in dockerfile
    assert "--mount" not in dockerfile
    subprocess.run(["sh", "-n", recipe_folder() / "install.sh"], check=True, timeout=10)


def run_cli(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    from agentbench_fc.tasks.os.sandbox.cli import app

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_the_command_line_says_what_is_built_and_tidies_up(tmp_path: Path) -> None:
    images = Images(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    made = images._pack(root, "packages", "debootstrap bookworm")
    code, text = run_cli("build", "--stage", "packages", "--cache", str(tmp_path))
    assert code == 0
    assert f"image packages is there already: 0 MiB, from debootstrap bookworm [{tmp_path / made.archive}]" in text
    code, text = run_cli("build", "--stage", "packages", "--cache", str(tmp_path), "--json")
    assert json.loads(text) | {"tag": made.tag, "built": False} == json.loads(text)
    (tmp_path / "default-old.tar").write_bytes(bytes(3 << 20))
    code, text = run_cli("prune", "--cache", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(text)["bytes"] >= 3 << 20
    assert set(json.loads(text)["sandboxes"]) == {"docker", "oci"}
    assert images.find("packages") == made


def test_a_probe_names_each_kind_and_fails_where_none_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    code, text = run_cli("probe")
    assert code == 4
    assert "docker: does not work: no container engine answers" in text
    assert "oci: does not work: " in text
    assert text.count("mend it: ") == 2
    code, text = run_cli("probe", "--backend", "docker", "--json")
    assert (code, json.loads(text)[0]["ok"]) == (4, False)
