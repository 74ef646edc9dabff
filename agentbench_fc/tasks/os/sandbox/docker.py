"""Sandboxes by a container engine: Docker, or Podman through its Docker-compatible socket in `DOCKER_HOST`.

A container has no network, few capabilities, no new privileges, and limits on memory, processes and CPU. Its process 1
is our agent, reached over the attached standard input and output, so that a command costs no `docker exec`, is killed
at its deadline and cannot lose output unnoticed. Most engines cannot limit what a container writes: a watch ends one
that writes too much (disk.py).

Not here: images (images.py); the calls into a sandbox (box.py).
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import resource
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.os.sandbox.attached import AttachedStream, attach
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
    SandboxSpent,
    SandboxUnavailable,
    reason,
)
from agentbench_fc.tasks.os.sandbox.box import Box
from agentbench_fc.tasks.os.sandbox.disk import DiskWatch
from agentbench_fc.tasks.os.sandbox.images import STAGES, Images
from agentbench_fc.tasks.os.sandbox.owner import Owner
from agentbench_fc.tasks.os.sandbox.seccomp import profile
from agentbench_fc.tasks.os.sandbox.spec import CAPABILITIES, HOSTNAME, NOFILE
from agentbench_fc.tasks.os.sandbox.wire import COMMAND, Wire

logger = logging.getLogger(__name__)

Client: TypeAlias = Any
"""A `docker.APIClient`; the package has no types."""

OWNER_LABEL = "agentbench_fc.owner"
CREATED_LABEL = "agentbench_fc.created"
FEATURES: frozenset[Feature] = frozenset({"users", "seccomp", "cgroup", "network_off", "changes"})
API_TIMEOUT_S = 60
NPROC = 32_768
"""Processes of one user; what binds is `Limits.pids`. Podman may hold itself to so many, and can set no more then."""
MAX_AGE_S = 86_400.0
"""After this a container is removed even when its owner, on another host, may live."""
INSTALL = "apt-get install -y docker.io && systemctl start docker"
SOCKET = "unix:///var/run/docker.sock"
KINDS = ("modified", "added", "deleted")
ENGINES_OWN = "/etc"
"""Where an engine puts files of its own; Podman says from the start that the folder has changed."""


@dataclass(slots=True)
class DockerBacking:
    """One container."""

    backend: "DockerBackend"
    container: str
    name: str
    stream: AttachedStream
    limits: Limits
    overrun: str = ""
    """What the disk watch ended it for."""
    gone: bool = field(default=False)

    def spent(self) -> str:
        """Too much on the disk, or out of memory or CPU time as the engine tells."""
        if self.overrun:
            return self.overrun
        with contextlib.suppress(InfrastructureError), self.backend.engine() as client:
            state = client.inspect_container(self.container)["State"]
            if state.get("OOMKilled"):
                return f"it ran out of its {self.limits.memory_mib} MiB of memory"
            if state.get("Running"):
                states = [row[-1] for row in client.top(self.container, "-eo pid,stat")["Processes"]]
                if sum(each.startswith("R") for each in states) >= CROWD:
                    return CROWDED
        return ""

    def changes(self) -> list[Change]:
        """What the engine finds different from the image."""
        try:
            with self.backend.engine() as client:
                found = {row["Path"]: row["Kind"] for row in client.diff(self.container) or ()}
        except InfrastructureError as error:
            if why := self.overrun or ("its folders are too deep to list" if "name too long" in str(error) else ""):
                raise SandboxSpent(f"{why} [sandbox {self.name}]. End the episode.") from error
            raise SandboxLost(str(error)) from error
        holders = {str(parent) for path in found for parent in Path(path).parents}
        return [
            Change(path, KINDS[kind])  # type: ignore[arg-type]
            for path, kind in sorted(found.items())
            if not (kind == 0 and (path in holders or path == ENGINES_OWN))
        ]

    def copy(self, state: bytes) -> Sandbox | None:
        """Not here: an engine copies files only by way of a new image, which takes longer than a replay."""
        return None

    def destroy(self) -> None:
        """Removes the container with its volumes."""
        if self.gone:
            return
        self.gone = True
        self.backend.forgotten(self)
        for pause_s in (0.05, 0.2, 1.0, 0.0):
            why = self._remove()
            if "state improper" not in why:  # Podman refuses for a moment when a container is just ending by itself
                break
            time.sleep(pause_s)
        if why and "404" not in why and "in progress" not in why:
            logger.warning("a container is left for the next sweep: %s [%s]", why, self.name)

    def _remove(self) -> str:
        """Why the engine does not remove the container: a text, for an error would keep frames and a socket."""
        try:
            with self.backend.engine() as client:
                client.remove_container(self.container, force=True, v=True)
        except InfrastructureError as error:
            return str(error)
        return ""


class _ImageGone(InfrastructureError):
    """The engine does not have an image that it had."""


class DockerBackend:
    """Makes sandboxes by a container engine; safe to share between threads and to be found in a forked process."""

    name: BackendName = "docker"

    def __init__(self, images: Images | None = None, *, host: str | None = None) -> None:
        """`host` is the engine's address; by default what `DOCKER_HOST` says, or the system's socket."""
        self._images = images or Images()
        self._host = host
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client: Client = None
        self._series = secrets.token_hex(3)
        """Tells this backend's containers from those of another one in the same process."""
        self._numbers = itertools.count(1)
        self._owner = Owner.me()
        self._open: dict[str, tuple[DockerBacking, Box]] = {}
        self._references: dict[str, str] = {}
        self._filter_text: str | None = None
        self._podman = False
        self._watch = DiskWatch()

    @property
    def address(self) -> str:
        """Where the engine is."""
        return self._host or os.environ.get("DOCKER_HOST") or SOCKET

    @property
    def _cure(self) -> str:
        """What makes an engine answer: at an address that somebody chose, that is for them to know."""
        if self.address == SOCKET:
            return INSTALL
        if self.address.startswith("ssh:"):
            return "pip install paramiko, and see that the host lets you in; or unset DOCKER_HOST"
        return f"start the engine at {self.address}, or set DOCKER_HOST to one that runs; none at all: {INSTALL}"

    @contextlib.contextmanager
    def engine(self) -> Iterator[Client]:
        """The engine's client.

        Raises:
            SandboxUnavailable: the docker package is missing, or no engine answers.
            InfrastructureError: the engine refused or failed.
        """
        try:
            import docker
            import requests
        except ImportError as error:
            raise SandboxUnavailable(
                "the package docker is not installed [sandbox backend docker]. pip install 'agentbench-fc[os]'"
            ) from error
        if self._pid != os.getpid():
            self._reset()
        try:
            with self._lock:
                if self._client is None:
                    self._client = _connect(self.address)
                client = self._client
            yield client
        except docker.errors.APIError as error:
            text = f"{error.status_code} {error.explanation or error}"
            raise InfrastructureError(f"the engine says {text} [{self.address}]. Look at the engine.") from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise SandboxUnavailable(
                f"no container engine answers ({_brief(error)}) [{self.address}]. {self._cure}"
            ) from error

    def probe(self, image: str = "default") -> Probe:
        """Starts a sandbox and looks whether root is root inside."""
        mend = "pip install 'agentbench-fc[os]'"
        try:
            with self.engine() as client:
                version = client.version()
            mend = "agentbench-fc sandbox build"
            with self.create(image) as sandbox:
                sandbox.exec(["sh", "-c", "id -u"]).check()
        except InfrastructureError as error:
            text = str(error)
            if "no container engine answers" in text:
                mend = self._cure
            elif "not built" not in text and "not installed" not in text:
                mend = f"look at the engine at {self.address}"
            return Probe(backend=self.name, ok=False, detail=reason(text), mend=mend)
        detail = f"engine {version.get('Version')} at {self.address}"
        return Probe(backend=self.name, ok=True, detail=detail, features=FEATURES)

    def create(self, image: str = "default", limits: Limits | None = None, *, timeout_s: float = 60.0) -> Box:
        """See `SandboxBackend.create`."""
        limits = limits or Limits()
        name = f"agentbench-fc-{self._owner.name}-{self._series}-{next(self._numbers)}"
        try:
            container, stream = self._start(name, self._reference(image), limits)
        except _ImageGone:  # the engine lost it since it was asked last
            self._references.pop(image, None)
            container, stream = self._start(name, self._reference(image), limits)
        wire = Wire(stream, name)
        backing = DockerBacking(self, container, name, stream, limits)
        box = Box(name=name, backend=self.name, image=image, wire=wire, backing=backing)
        try:
            wire.boot(timeout_s)
        except SandboxLost as error:
            box.close()
            words = bytes(stream.stderr).decode(errors="replace").strip()[-300:]
            raise InfrastructureError(f"{error} It said: {words or 'nothing'}.") from error
        except BaseException:
            box.close()
            raise
        with self._lock:
            self._open[container] = backing, box
        self._watch.add(container, self._upper(container), limits, lambda why: self._stop(backing, why))
        return box

    def forgotten(self, backing: DockerBacking) -> None:
        """A sandbox has ended."""
        self._watch.drop(backing.container)
        with self._lock:
            self._open.pop(backing.container, None)

    def reap(self) -> int:
        """Removes containers of owners that are no more, or that are older than a day and of another host."""
        removed = 0
        with self.engine() as client:
            rows = client.containers(all=True, filters={"label": OWNER_LABEL})
            for row in rows:
                owner = Owner.parse(row["Labels"].get(OWNER_LABEL, ""))
                age = time.time() - float(row.get("Created") or time.time())
                if owner is None or not (owner.is_gone or (owner.host != self._owner.host and age > MAX_AGE_S)):
                    continue
                try:
                    client.remove_container(row["Id"], force=True, v=True)
                    removed += 1
                except Exception as error:  # another process may be sweeping: the next one goes on
                    logger.info("a leftover container could not be removed now: %s", error)
        return removed

    def close(self) -> None:
        """See `SandboxBackend.close`."""
        if self._pid != os.getpid():
            return
        self._watch.close()
        with self._lock:
            boxes = [box for _, box in self._open.values()]
        for box in boxes:
            box.close()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _reference(self, image: str) -> str:
        """The engine's name for an image, which is imported or pulled when it is not there yet."""
        if (known := self._references.get(image)) is not None:
            return known
        with self.engine() as client:
            if image not in STAGES:
                if not client.images(name=image):
                    client.pull(image)
                reference = image
            elif (built := self._images.find(image)) is not None:
                reference = built.tag
                if not client.images(name=reference):
                    _import(client, self._images.folder / built.archive, reference)
            elif client.images(name=f"agentbench-fc/os-{image}"):
                reference = f"agentbench-fc/os-{image}"
            else:
                self._images.get(image)  # says what to do
                raise InfrastructureError(f"the image {image!r} vanished [sandbox images]. Try again.")
        self._references[image] = reference
        return reference

    def _start(self, name: str, reference: str, limits: Limits) -> tuple[str, AttachedStream]:
        with self.engine() as client:
            stream: AttachedStream | None = None
            try:
                container = client.create_container(**self._settings(client, reference, name, limits))["Id"]
                stream = attach(client, container)
                client.start(container)
            except BaseException as error:
                if stream is not None:
                    stream.close()
                with contextlib.suppress(Exception):  # by name: it may exist although no answer came
                    client.remove_container(name, force=True, v=True)
                if "No such image" in str(error):
                    raise _ImageGone(f"the engine has no image {reference} [{self.address}]. Build it anew.") from error
                raise
            return container, stream

    def _settings(self, client: Client, reference: str, name: str, limits: Limits) -> dict[str, Any]:
        nofile = min(NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        nproc = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        nproc = nproc if 0 < nproc < NPROC else NPROC
        memory = limits.memory_mib * 2**20
        disk = limits.disk_mib * 2**20
        host = client.create_host_config(
            network_mode="none",
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=limits.pids,
            cpu_period=100_000,
            cpu_quota=int(limits.cpus * 100_000),
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=["no-new-privileges", *self._filter(client)],
            ulimits=[
                {"Name": "nofile", "Soft": nofile, "Hard": nofile},
                {"Name": "nproc", "Soft": nproc, "Hard": nproc},  # Podman's default may be above what it may set
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": disk, "Hard": disk},
            ],
            log_config={"Type": "none", "Config": {}},
            shm_size=16 * 2**20,
        )
        return {
            "image": reference,
            "command": list(COMMAND),
            "entrypoint": [],
            "name": name,
            "hostname": HOSTNAME,
            "user": "0:0",
            "working_dir": "/",
            "stdin_open": True,
            "tty": False,
            "network_disabled": True,
            "environment": {"HOME": "/root"},
            "labels": {OWNER_LABEL: self._owner.name, CREATED_LABEL: f"{time.time():.0f}"},
            "host_config": host,
        }

    def _filter(self, client: Client) -> list[str]:
        """Our list of system calls as a security option; Podman reads it from a file, so one elsewhere has its own."""
        if self._filter_text is None:
            version, info = client.version(), client.info()
            self._podman = any(str(part.get("Name")).startswith("Podman") for part in version.get("Components") or ())
            fits = any("name=seccomp" in str(each) for each in info.get("SecurityOptions") or ())
            fits = fits and (not self._podman or self.address.startswith("unix:"))
            machine = str(version.get("Arch") or "")
            machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
            self._filter_text = json.dumps(profile(machine)) if fits else ""
        if not self._filter_text:
            return []
        if self._podman:
            return [f"seccomp={_kept_in(self._images.folder, self._filter_text)}"]
        return [f"seccomp={self._filter_text}"]

    def _upper(self, container: str) -> Path | None:
        """Where what a container writes is on this host; None: the engine does not say, or is elsewhere."""
        with self.engine() as client:
            data = (client.inspect_container(container).get("GraphDriver") or {}).get("Data") or {}
        path = Path(data.get("UpperDir") or "/nonexistent")
        return path if os.access(path, os.R_OK | os.X_OK) else None

    def _stop(self, backing: DockerBacking, why: str) -> None:
        backing.overrun = why
        with self.engine() as client:
            client.kill(backing.container)


def _connect(address: str) -> Client:
    """A client that speaks the newest version which both sides know; one that cannot connect leaves nothing open."""
    import docker

    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(API_TIMEOUT_S)
            link.connect(address.removeprefix("unix://"))
    first = docker.APIClient(
        base_url=address, version=docker.constants.DEFAULT_DOCKER_API_VERSION, timeout=API_TIMEOUT_S
    )
    with contextlib.closing(first):
        its = str(first.version(api_version=False)["ApiVersion"])
    mine = docker.constants.DEFAULT_DOCKER_API_VERSION
    older = min(its, mine, key=lambda version: [int(part) for part in version.split(".")])
    return docker.APIClient(base_url=address, version=older, timeout=API_TIMEOUT_S, max_pool_size=64)


def _kept_in(folder: Path, text: str) -> Path:
    """A file that holds a filter; written again where somebody removed it."""
    path = folder / f"seccomp-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{secrets.token_hex(4)}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    return path


def _import(client: Client, archive: Path, reference: str) -> None:
    name, _, tag = reference.partition(":")
    answer = client.import_image_from_file(str(archive), repository=name, tag=tag, changes=['CMD ["bash"]'])
    for line in str(answer).splitlines():
        if "error" in (message := json.loads(line)):
            raise InfrastructureError(
                f"the image cannot be imported: {message['error']} [{archive}]. Look at the engine."
            )
        if str(message.get("status")).startswith("sha256:"):
            client.tag(message["status"], name, tag)  # Podman's import takes no tag


def _brief(error: BaseException) -> str:
    """The innermost reason, in one line: a client wraps it several times."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return " ".join(str(error).split())[:200]
