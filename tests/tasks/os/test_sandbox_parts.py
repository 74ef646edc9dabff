"""The parts of a sandbox that need no sandbox: limits, configuration, owners, choice of a backend, disk.

Not here: messages (test_sandbox_wire.py), scripts (test_sandbox_script.py), images (test_sandbox_images.py).
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import missing

from agentbench_fc.errors import CallerError, InfrastructureError, Unavailable
from agentbench_fc.tasks.os.sandbox import ExecResult, Limits, SandboxSpent, SandboxUnavailable, cgroups, oci_keeper
from agentbench_fc.tasks.os.sandbox.base import Probe, SandboxBackend, reason
from agentbench_fc.tasks.os.sandbox.choose import choose, make
from agentbench_fc.tasks.os.sandbox.disk import DiskWatch, measure
from agentbench_fc.tasks.os.sandbox.docker import DockerBackend
from agentbench_fc.tasks.os.sandbox.images import Images
from agentbench_fc.tasks.os.sandbox.oci import OciBackend
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.pool import Sandboxes
from agentbench_fc.tasks.os.sandbox.seccomp import ALLOWED, profile
from agentbench_fc.tasks.os.sandbox.spec import CAPABILITIES, runtime_spec


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


def test_two_sweeps_at_a_time_are_in_nobodys_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    for _ in range(20):
        for number in range(20):
            (tmp_path / f"{cgroups.PREFIX}gone" / f"sb{number}" / "below").mkdir(parents=True)
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(cgroups.remove, ["gone", "gone"])) == [True, True]
        assert cgroups.owners() == set()


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


class Engine:
    """What an engine says of itself; the answers are those of Docker 20.10 and of Podman 4.3.1."""

    def __init__(self, name: str) -> None:
        self._name = name

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": self._name}], "Arch": "amd64"}

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": ["name=seccomp,profile=default"]}


def test_a_filter_is_told_as_each_engine_takes_it(tmp_path: Path) -> None:
    ours = profile("x86_64")
    (option,) = DockerBackend(Images(tmp_path))._filter(Engine("Engine"))
    assert json.loads(option.removeprefix("seccomp=")) == ours

    podman = DockerBackend(Images(tmp_path / "images"), host="unix:///run/podman.sock")
    (option,) = podman._filter(Engine("Podman Engine"))
    file = Path(option.removeprefix("seccomp="))
    assert json.loads(file.read_text()) == ours
    file.unlink()
    assert podman._filter(Engine("Podman Engine")) == [option]
    assert file.exists(), "it was removed by somebody who made room"
    assert DockerBackend(Images(tmp_path), host="tcp://127.0.0.1:1")._filter(Engine("Podman Engine")) == []


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


def test_the_way_into_ones_own_control_group_is_found_and_changes_nothing() -> None:
    if os.geteuid() != 0 or cgroups.why_not():
        missing("control groups cannot be written")
    before = Path("/proc/self/cgroup").read_text()
    entry = oci_keeper.entry_of([f"{root}/{cgroups.PREFIX}owner" for root in cgroups.hierarchies()])
    assert entry is not None
    assert str(os.getpid()) in entry.read_text().split()
    entry.write_text("0")
    assert Path("/proc/self/cgroup").read_text() == before
    assert oci_keeper.entry_of([]) is None
