"""Killed owners, restarted engines, full disks and full pools: nothing is left, and nobody waits for ever."""

import contextlib
import gc
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from os_boxes import ENGINE_SCRIPT, backend, engine, open_backend, until  # noqa: F401

from agentbench_fc.errors import InfrastructureError, Unavailable
from agentbench_fc.tasks.os.sandbox import Limits, Sandbox, SandboxBackend, SandboxLost, SandboxUnavailable, cgroups
from agentbench_fc.tasks.os.sandbox.docker import OWNER_LABEL, DockerBackend
from agentbench_fc.tasks.os.sandbox.images import Images
from agentbench_fc.tasks.os.sandbox.oci import OciBackend
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.pool import Sandboxes

COUNT = 20
OWNER = """
import sys, threading
from agentbench_fc.tasks.os.sandbox.choose import make
from agentbench_fc.tasks.os.sandbox.owner import Owner
made = make(sys.argv[1])
boxes = []
def start():
    box = made.create("default")
    busy = "(while :; do :; done) &" if not boxes else ""
    box.shell(f"setsid sleep {sys.argv[3]} & {busy} echo started")
    boxes.append(box)
for _ in range(int(sys.argv[2]) // 4):
    threads = [threading.Thread(target=start) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(Owner.me().name, len(boxes), flush=True)
sys.stdin.read()
"""


class Running(NamedTuple):
    """Another process that owns busy sandboxes, each with a `sleep` of a length by which this owner's are told."""

    process: "subprocess.Popen[str]"
    seconds: int

    def told(self) -> tuple[str, int]:
        """Its name as an owner and how many sandboxes it has, once they all run."""
        assert self.process.stdout is not None
        name, count = self.process.stdout.readline().split()
        return name, int(count)


@contextlib.contextmanager
def running(backend: SandboxBackend, count: int) -> Iterator[Running]:  # noqa: F811
    env = dict(os.environ)
    if isinstance(backend, DockerBackend):
        env["DOCKER_HOST"] = backend.address
    seconds = 10**6 + secrets.randbelow(10**6)
    command = [sys.executable, "-c", OWNER, backend.name, str(count), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield Running(process, seconds)
        finally:
            process.kill()


@pytest.fixture
def owner(backend: SandboxBackend) -> Iterator[Running]:  # noqa: F811
    with running(backend, COUNT) as made:
        yield made


def processes_of(owner: Running) -> list[str]:
    """The processes in an owner's sandboxes; those of another one's tests, which run beside these, are none."""
    found, wanted = [], b"sleep\0%d\0" % owner.seconds
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                found.append(f"process {entry.name}")
    return found


def left_over(backend: SandboxBackend, name: str, owner: Running) -> list[str]:  # noqa: F811
    """What of an owner there still is: processes, control groups, mounts, containers."""
    found = [f"group {each}" for each in cgroups.sandboxes(name)]
    found += [f"group {name}"] if name in cgroups.owners() else []
    found += processes_of(owner)
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if "/run/sb" in line]
    if isinstance(backend, DockerBackend):
        with backend.engine() as client:
            rows = client.containers(all=True, filters={"label": f"{OWNER_LABEL}={name}"})
            found += [f"container {row['Id'][:12]} {row['Status']}" for row in rows]
    return found


def test_nothing_is_left_one_sweep_after_the_owner_was_killed(
    backend: SandboxBackend,  # noqa: F811
    owner: Running,
) -> None:
    name, count = owner.told()
    assert count == COUNT
    assert until(20, lambda: len(processes_of(owner)) == COUNT)
    assert len(left_over(backend, name, owner)) >= 2 * COUNT
    owner.process.kill()
    owner.process.wait()
    assert until(60, lambda: not processes_of(owner))
    backend.reap()
    # a sweep by the tests beside these may have been quicker with some, and be at it still
    assert until(60, lambda: left_over(backend, name, owner) == []), left_over(backend, name, owner)


def test_nothing_is_left_when_the_keeper_of_oci_is_killed_with_its_owner(request: pytest.FixtureRequest) -> None:
    with contextlib.closing(open_backend("oci", request)) as made, running(made, 4) as owner:
        name, _ = owner.told()
        wardens = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and f"PPid:\t{owner.process.pid}\n" in _status(entry)
        ]
        assert wardens
        assert until(20, lambda: len(processes_of(owner)) == 4)
        for each in (*wardens, owner.process.pid):
            os.kill(each, signal.SIGKILL)
        owner.process.wait()
        assert until(60, lambda: not processes_of(owner))
        made.reap()
        assert until(60, lambda: left_over(made, name, owner) == []), left_over(made, name, owner)


def _status(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return (entry / "status").read_text()
    return ""


def test_a_sweep_spares_the_living_and_the_unknown(backend: SandboxBackend) -> None:  # noqa: F811
    with backend.create("default") as box:
        backend.reap()
        assert box.exec(["true"]).ok
    assert not Owner.me().is_gone
    assert not Owner("another", 1, 1).is_gone
    assert Owner(Owner.me().host, 4_000_000, 1).is_gone
    assert Owner(Owner.me().host, os.getpid(), 1).is_gone


def test_a_lost_keeper_is_an_infrastructure_error_and_the_next_start_makes_another(
    request: pytest.FixtureRequest,
) -> None:
    made = open_backend("oci", request)
    assert isinstance(made, OciBackend)
    try:
        box = made.create("default")
        keeper = made._keeper
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            box.exec(["sleep", "100"], timeout_s=110)
        with pytest.raises(SandboxLost):
            box.shell("echo x")
        box.close()
        assert until(30, lambda: not keeper.alive)
        with made.create("default") as another:
            assert another.exec(["true"]).ok
    finally:
        made.close()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_an_engine_that_restarts_mid_session_is_an_infrastructure_error(
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue("engine")  # an engine can run here at all
    home = Path(tempfile.mkdtemp(prefix="afc-"))  # a short path: sockets lie below it
    try:
        _restart_mid_session(home)
    finally:
        _engine("stop", home)
        gc.collect()  # docker SDK 7.2 leaves the socket of a failed connect to the collector: here, not in another test
    assert not home.exists()


def _restart_mid_session(home: Path) -> None:
    _engine("start", home)
    made = DockerBackend(host=f"unix://{home}/docker.sock")
    box = made.create("default")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            box.shell("sleep 60")
        except InfrastructureError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1)
    pid = int((home / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(20, lambda: not Path(f"/proc/{pid}").exists())
    thread.join(30)
    assert [type(failure) for failure in failures] == [SandboxLost]
    with pytest.raises(InfrastructureError):
        made.create("default")
    box.close()
    _engine("start", home)
    with made.create("default") as another:
        assert another.exec(["echo", "back"]).stdout == b"back\n"
    made.close()
    with DockerBackend(host=f"unix://{home}/docker.sock").engine() as client:
        for row in client.containers(all=True):
            client.remove_container(row["Id"], force=True)
        client.close()


def _engine(action: str, home: Path) -> None:
    subprocess.run([ENGINE_SCRIPT, action, home], check=True, timeout=120, capture_output=True)


def test_a_full_cache_folder_is_named(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The disk that is full is a tmpfs of a megabyte, where the image would be unpacked."""
    open_backend("oci", request).close()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=True)
    try:
        real = Images().get("default")
        for path in (Images().folder / real.archive, (Images().folder / real.archive).with_suffix(".json")):
            (small / path.name).symlink_to(path)
        made = OciBackend(Images(small))
        with pytest.raises(InfrastructureError, match="No space left|cannot"):
            made.create("default")
        made.close()
        assert not [path for path in small.iterdir() if path.name.startswith("tmp-")]
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_exhausted_pool_answers_in_time_and_serves_who_waits(backend: SandboxBackend) -> None:  # noqa: F811
    pool = Sandboxes(_Borrowed(backend), max_open=1, max_waiting=1)
    try:
        first = pool.open("default")
        got: list[Sandbox] = []
        waiter = threading.Thread(target=lambda: got.append(pool.open("default", timeout_s=120)))
        waiter.start()
        assert until(30, lambda: pool.waiting == 1)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="already wait"):
            pool.open("default", timeout_s=60)
        assert time.monotonic() - began < 30, "turned away, without the wait for a place"
        first.close()
        waiter.join(60)
        assert got[0].exec(["true"]).ok
        began = time.monotonic()
        with pytest.raises(Unavailable, match="in use"):
            pool.open("default", timeout_s=0.3)
        assert 0.2 < time.monotonic() - began < 10
        got[0].close()
    finally:
        pool.close()


def test_who_waits_when_the_pool_closes_is_told(backend: SandboxBackend) -> None:  # noqa: F811
    pool = Sandboxes(_Borrowed(backend), max_open=1)
    pool.open("default")
    told: list[BaseException] = []

    def wait() -> None:
        try:
            pool.open("default", timeout_s=120)
        except Unavailable as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert until(30, lambda: pool.waiting == 1)
    pool.close()
    waiter.join(60)
    assert "closed" in str(told[0])


def test_warm_sandboxes_are_ready_at_once_used_once_and_made_again(backend: SandboxBackend) -> None:  # noqa: F811
    with Sandboxes(_Borrowed(backend), warm=2, limits=Limits(memory_mib=256, disk_mib=96)) as pool:
        names = set()
        pool.open("default").close()
        for _ in range(4):
            assert until(60, lambda: pool.ready("default") == 2)
            ready = {each.id for each in pool._shelves["default"].ready}
            with pool.open("default") as box:
                assert box.id in ready, "one that was there, not one that had to be started"
                assert box.exec(["ls", "/root/mark"]).code == 2
                box.shell("touch /root/mark")
                names.add(box.id)
        assert len(names) == 4


def test_a_dead_sandbox_on_the_shelf_is_not_handed_out(backend: SandboxBackend) -> None:  # noqa: F811
    with Sandboxes(_Borrowed(backend), warm=1) as pool:
        pool.open("default").close()
        assert until(60, lambda: pool.ready("default") == 1)
        pool._shelves["default"].ready[0].close()
        with pool.open("default") as box:
            assert box.exec(["true"]).ok


def test_an_image_that_is_not_built_names_the_command(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    open_backend("oci", request).close()
    made = OciBackend(Images(tmp_path))
    with pytest.raises(SandboxUnavailable, match="agentbench-fc sandbox build --stage default"):
        made.create("default")
    probe = made.probe()
    assert not probe.ok
    assert probe.mend == "agentbench-fc sandbox build"
    made.close()


class _Borrowed:
    """A backend that a closing pool does not close: other tests still need it."""

    def __init__(self, real: SandboxBackend) -> None:
        self._real = real
        self.name = real.name
        self.probe, self.create, self.reap = real.probe, real.create, real.reap

    def close(self) -> None:
        pass
