"""Sandboxes by runc alone, without a daemon: for root on a Linux machine.

A sandbox has namespaces of its own for users, processes, mounts, network, host name and IPC; root inside is an
ordinary user outside. Its files are an overlay: below the image, above a tmpfs of limited size. All of them live below
one keeper process (oci_keeper.py), which ends with its owner.

Not here: the configuration (spec.py); images (images.py).
"""

import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.os.sandbox import cgroups
from agentbench_fc.tasks.os.sandbox.base import (
    CROWD,
    CROWDED,
    BackendName,
    Change,
    Feature,
    Limits,
    Probe,
    Sandbox,
    SandboxLost,
    SandboxUnavailable,
    reason,
)
from agentbench_fc.tasks.os.sandbox.box import Box
from agentbench_fc.tasks.os.sandbox.images import Images
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.spec import FIRST_ID, runtime_spec
from agentbench_fc.tasks.os.sandbox.wire import SocketStream, Wire

logger = logging.getLogger(__name__)

KEEPER = Path(__file__).with_name("oci_keeper.py")
FEATURES: frozenset[Feature] = frozenset({"users", "disk_limit", "seccomp", "cgroup", "network_off", "fork", "changes"})
REQUEST_TIMEOUT_S = 60.0
INSTALL = "apt-get install -y runc"


class Keeper:
    """The owner's side of the keeper process; serves any number of threads."""

    def __init__(self, runc: str, owner: Owner, series: str) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        groups = [str(root / f"{cgroups.PREFIX}{owner.name}") for root in cgroups.hierarchies()]
        with its:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), runc, series, *groups],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        self._link = mine
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._why = ""
        threading.Thread(target=self._receive, name="agentbench-fc-oci", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return not self._why

    @property
    def pid(self) -> int:
        """The warden's process id."""
        return self._process.pid

    def ask(self, op: str, *args: Any, descriptor: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """One request.

        Raises:
            InfrastructureError: it failed, or there is no answer in time.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._why:
                raise InfrastructureError(f"{self._why} [sandbox backend oci]. Open the sandboxes anew.")
            number = next(self._numbers)
            self._waiting[number] = future
            packet = json.dumps({"number": number, "op": op, "args": args}).encode()
            try:
                socket.send_fds(self._link, [packet], [] if descriptor is None else [descriptor])
            except OSError as error:
                del self._waiting[number]
                raise InfrastructureError(
                    f"the keeper of the sandboxes is gone ({error}) [sandbox backend oci]. Open the sandboxes anew."
                ) from error
        try:
            return future.result(timeout_s)
        except FutureTimeout as error:
            raise InfrastructureError(
                f"no answer to {op} within {timeout_s:g} s [sandbox backend oci]. Look at this machine's load."
            ) from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def close(self, timeout_s: float = 15.0) -> None:
        """Ends the keeper and with it all sandboxes; waits until nothing is left."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)
        self._link.close()

    def forget(self) -> None:
        """In a forked process: lets go of what is the parent's."""
        self._link.close()
        self._process.returncode = 0

    def _receive(self) -> None:
        why, said = "the keeper of the sandboxes has ended", b""
        while True:
            try:
                packet = self._link.recv(1 << 20)
            except OSError:
                packet = b""
            if not packet:
                break
            said += packet[1:]
            if packet[:1] == b"+":
                continue
            reply, said = json.loads(said), b""
            if reply["number"] == 0:
                why = str(reply["error"])
                break
            with self._lock:
                future = self._waiting.get(reply["number"])
            if future is None:
                continue
            if "error" in reply:
                future.set_exception(
                    InfrastructureError(f"{reply['error']} [sandbox backend oci]. Look at this machine, and try again.")
                )
            else:
                future.set_result(reply["result"])
        with self._lock:
            self._why = why
            waiting, self._waiting = dict(self._waiting), {}
        for future in waiting.values():
            future.set_exception(InfrastructureError(f"{why} [sandbox backend oci]. Open the sandboxes anew."))


@dataclass(frozen=True, slots=True)
class OciBacking:
    """One sandbox below a keeper."""

    backend: "OciBackend"
    keeper: Keeper
    name: str
    image: str
    limits: Limits
    group: str

    def spent(self) -> str:
        """Out of memory or of CPU time, as its control group tells."""
        if cgroups.oom_kills(self.group):
            return f"it ran out of its {self.limits.memory_mib} MiB of memory"
        return CROWDED if cgroups.running(self.group) >= CROWD else ""

    def changes(self) -> list[Change]:
        """What the overlay's upper folder holds."""
        try:
            return sorted(
                (Change(path, kind) for path, kind in self.keeper.ask("changes", self.name)),
                key=lambda change: change.path,
            )
        except InfrastructureError as error:
            raise SandboxLost(str(error)) from error

    def copy(self, state: bytes) -> Sandbox | None:
        """A sandbox whose upper folder is a copy of this one's."""
        box = self.backend.start(self.image, self.limits, source=self.name)
        box.restore(state)
        return box

    def destroy(self) -> None:
        """Ends it; the control groups go at once, or with their owner."""
        try:
            if self.keeper.alive:
                self.keeper.ask("destroy", self.name)
            if not cgroups.remove(self.group):
                logger.warning("control groups of an ended sandbox are left for later [sandbox %s]", self.name)
        except InfrastructureError as error:
            logger.warning("a sandbox was not ended in order: %s", error)
        finally:
            self.backend.forgotten(self.name)


class OciBackend:
    """Makes sandboxes by runc; safe to share between threads and to be found in a forked process."""

    name: BackendName = "oci"

    def __init__(self, images: Images | None = None, *, runc: str | None = None) -> None:
        self._images = images or Images()
        self._runc = runc or shutil.which("runc", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") or ""
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._keeper: Keeper | None = None
        self._series = f"sb{secrets.token_hex(3)}-"
        """Tells this backend's control groups from those of another one in the same process."""
        self._numbers = itertools.count(1)
        self._owner = Owner.me()
        self._open: dict[str, Box] = {}

    def why_not(self) -> tuple[str, str]:
        """Why this cannot work here, found without starting anything, and what mends it; empty when it may."""
        if sys.platform != "linux":
            return "this is not Linux", "use Docker"
        if os.geteuid() != 0:
            return "only root can use it, and this is another user", "run as root, or start Docker"
        if not self._runc:
            return "runc is not installed", INSTALL
        if why := cgroups.why_not():
            return why, "mount /sys/fs/cgroup writable, e.g. run outside a container, or start Docker"
        return "", ""

    def probe(self, image: str = "default") -> Probe:
        """Starts a sandbox and looks whether root is root inside and the network is off."""
        why, mend = self.why_not()
        if why:
            return Probe(backend=self.name, ok=False, detail=why, mend=mend)
        try:
            with self.create(image) as sandbox:
                seen = sandbox.exec(["sh", "-c", "id -u && ls /sys/class/net 2>/dev/null; uname -r"]).check()
        except InfrastructureError as error:
            text = str(error)
            return Probe(backend=self.name, ok=False, detail=reason(text), mend=_mend(text))
        version = seen.stdout.decode(errors="replace").split()[-1]
        return Probe(backend=self.name, ok=True, detail=f"{self._runc}, kernel {version}", features=FEATURES)

    def create(self, image: str = "default", limits: Limits | None = None, *, timeout_s: float = 60.0) -> Box:
        """See `SandboxBackend.create`."""
        return self.start(image, limits or Limits(), timeout_s=timeout_s)

    def start(self, image: str, limits: Limits, *, source: str = "", timeout_s: float = 60.0) -> Box:
        """A new sandbox, with a copy of the files of the sandbox `source` when it is given."""
        why, mend = self.why_not()
        if why:
            raise SandboxUnavailable(f"{why} [sandbox backend oci]. {mend}.")
        rootfs = self._images.rootfs(image, FIRST_ID)
        keeper = self._running()
        name = f"{self._series}{next(self._numbers)}"
        group = f"{self._owner.name}/{name}"
        spec = runtime_spec("", f"/{cgroups.PREFIX}{group}", limits)
        disk = [limits.disk_mib * 2**20, limits.inodes, FIRST_ID]
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with its:
                keeper.ask(
                    "create", name, spec, str(rootfs), disk, source, descriptor=its.fileno(), timeout_s=timeout_s
                )
        except BaseException:
            mine.close()
            cgroups.remove(group, kill=True)
            raise
        wire = Wire(SocketStream(mine), name)
        backing = OciBacking(self, keeper, name, image, limits, group)
        box = Box(name=name, backend=self.name, image=image, wire=wire, backing=backing)
        try:
            wire.boot(timeout_s)
        except BaseException:
            box.close()
            raise
        with self._lock:
            self._open[name] = box
        return box

    def forgotten(self, name: str) -> None:
        """A sandbox has ended."""
        with self._lock:
            self._open.pop(name, None)

    def reap(self) -> int:
        """Removes the control groups of owners that are no more, with whatever still runs in them."""
        removed = 0
        for name in cgroups.owners():
            owner = Owner.parse(name)
            if owner is not None and owner.is_gone:
                removed += len(cgroups.sandboxes(name))
                if not cgroups.remove(name, kill=True):
                    logger.warning("control groups of a killed process cannot be removed [%s]", name)
        return removed

    def close(self) -> None:
        """See `SandboxBackend.close`."""
        if self._pid != os.getpid():
            return
        with self._lock:
            keeper, self._keeper = self._keeper, None
            boxes: Sequence[Box] = list(self._open.values())
        if keeper is not None:
            keeper.close()
        for box in boxes:
            box.close()

    def _running(self) -> Keeper:
        if self._pid != os.getpid():
            inherited = self._keeper
            self._reset()
            if inherited is not None:
                inherited.forget()
        with self._lock:
            if self._keeper is not None and not self._keeper.alive:
                self._keeper.close()  # it has ended; its warden may still be removing control groups
                self._keeper = None
            if self._keeper is None:
                self._keeper = Keeper(self._runc, self._owner, self._series)
            return self._keeper


def _mend(text: str) -> str:
    if "image" in text:
        return "agentbench-fc sandbox build"
    if "unshare" in text or "mount" in text:
        return "run outside a container, or start Docker"
    return "see the message of runc; or start Docker"
