"""What is installed here, which backend each task will use, and the command that mends what is missing.

Looks without importing what it looks for, starts nothing and waits for nothing longer than two seconds.

Not here: the tasks' own checks of their backends (tasks/).
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agentbench_fc.errors import AgentBenchError
from agentbench_fc.registry import available_built_ins, entry_points

State = Literal["ok", "missing", "optional", "not yet"]
"""missing: something here cannot run; optional: there is another way; not yet: not in this version."""

ENGINE_IMAGE = "agentbench-fc/os-default"
"""What `docker build` is told to call the OS task's image; an engine that has it needs none from the cache."""
ENGINE_WAIT_S = 2.0
LEAST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for."""

    area: str
    name: str
    state: State
    detail: str
    mend: str = ""
    """The command, or the sentence, that mends it; empty when nothing needs mending."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """What keeps something from running."""
        return tuple(each for each in self.findings if each.state == "missing")

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON values."""
        return {"ok": not self.missing, "findings": [asdict(each) for each in self.findings]}

    def to_text(self, *, only_missing: bool = False) -> str:
        """The findings, one line each, with what mends them below; or only those that something can be done about."""
        marks = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional", "not yet": "not yet "}
        width = max(len(each.name) for each in self.findings)
        lines: list[str] = []
        area = ""
        for each in self.findings:
            if only_missing and not (each.state == "missing" or (each.state == "optional" and each.mend)):
                continue
            if each.area != area:
                area = each.area
                lines += ["", area] if lines else [area]
            lines.append(f"  {marks[each.state]}  {each.name:<{width}}  {each.detail}")
            if each.mend:
                lines.append(f"  {'':8}  {'':{width}}  -> {each.mend}")
        return "\n".join(lines)


def diagnose(url: str | None = None) -> Diagnosis:
    """Looks at this machine and this Python, and at the service at `url` where one is given."""
    findings = [*_base(), *_tasks(), *_optional_parts()]
    if url is not None:
        from agentbench_fc.serve.doctor import look

        findings += look(url)
    return Diagnosis(tuple(findings))


def _base() -> list[Finding]:
    area = "base"
    python = platform.python_version()
    enough = sys.version_info[:2] >= LEAST_PYTHON
    found = [
        Finding(area, "python", "ok", python)
        if enough
        else Finding(area, "python", "missing", f"{python}, 3.11 or later is needed", "install Python 3.11 or later")
    ]
    for requirement in _core_requirements():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        version = _version(name)
        found.append(
            Finding(area, name, "ok", version)
            if version
            else Finding(area, name, "missing", "not installed", f"pip install '{requirement}'")
        )
    return [*found, _cache()]


def _core_requirements() -> list[str]:
    """What the package itself demands, from its own metadata; nothing when it runs uninstalled from a checkout."""
    try:
        listed = importlib.metadata.requires("agentbench-fc") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [each for each in listed if "extra ==" not in each]


def _cache() -> Finding:
    from agentbench_fc.cache import cache_dir
    from agentbench_fc.errors import InfrastructureError

    try:
        folder = cache_dir()
    except InfrastructureError as error:
        return Finding("base", "cache", "missing", str(error), "export AGENTBENCH_FC_CACHE=/a/writable/folder")
    free = shutil.disk_usage(folder).free / 1e9
    if not os.access(folder, os.W_OK):
        return Finding(
            "base", "cache", "missing", f"{folder} is read-only", "export AGENTBENCH_FC_CACHE=/a/writable/folder"
        )
    return Finding("base", "cache", "ok", f"{folder}, {free:.0f} GB free")


def _tasks() -> list[Finding]:
    here = available_built_ins()
    looks: dict[str, Callable[[], list[Finding]]] = {
        "os": _os,
        "db": _db,
        "kg": _kg,
        "alfworld": _alfworld,
        "webshop": lambda: [Finding("tasks", "webshop", "ok", "embedded, no Java and no spaCy needed")],
    }
    found: list[Finding] = []
    for name, look in looks.items():
        found += look() if name in here else [Finding("tasks", name, "not yet", "not in this version")]
    for name, point in sorted(entry_points().items()):
        package = point.dist.name if point.dist is not None else "unknown package"
        found.append(Finding("tasks", name, "ok", f"from {package} ({point.value})"))
    return found


def _db() -> list[Finding]:
    area = "tasks"
    found = [Finding(area, "db", "ok", "backend sqlite, embedded (the default; an approximation of MySQL)")]
    server = _first_on_path("mariadbd")
    driver = _version("PyMySQL")
    lacks = [text for text, there in (("a MariaDB server", server), ("PyMySQL", driver)) if not there]
    mends = [
        "apt-get install -y mariadb-server-core" if not server else "",
        "pip install 'agentbench-fc[db]'" if not driver else "",
    ]
    found.append(_choice(area, "db, MariaDB", f"backend='mariadb' starts {server}: AgentBench's scores", lacks, mends))
    address = "AGENTBENCH_FC_DSN is set" if os.environ.get("AGENTBENCH_FC_DSN") else "set AGENTBENCH_FC_DSN"
    found.append(_choice(area, "db, server", f"backend='dsn': {address}", lacks[-1:] if not driver else [], mends[-1:]))
    return found


def _kg() -> list[Finding]:
    area = "tasks"
    found = [Finding(area, "kg", "ok", f"backend pyoxigraph {_version('pyoxigraph') or ''}, embedded (the default)")]
    wrapper = _version("SPARQLWrapper")
    server = _first_on_path("virtuoso-t")
    here = f"; {server} is here to serve a graph" if server else ""
    found.append(
        _choice(
            area,
            "kg, endpoint",
            f"backend endpoint: any SPARQL 1.1 server, by SPARQLWrapper {wrapper}{here}",
            [] if wrapper else ["SPARQLWrapper"],
            ["pip install 'agentbench-fc[kg]'"],
        )
    )
    return found


def _os() -> list[Finding]:
    area = "tasks"
    docker = _engine()
    if docker:
        return [Finding(area, "os", "ok", f"backend docker: {docker}"), _os_image(engine=True)]
    runc = shutil.which("runc")
    if runc and os.geteuid() == 0:
        return [Finding(area, "os", "ok", f"backend oci: {runc}, as root, no daemon needed"), _os_image()]
    detail = "runc is there, but needs root" if runc else "no container engine answers, and no runc is there"
    return [
        Finding(area, "os", "missing", detail, "apt-get install docker.io, or apt-get install runc and run as root")
    ]


def _os_image(*, engine: bool = False) -> Finding:
    from agentbench_fc.tasks.os.sandbox.images import Images

    area, name = "tasks", "os, image"
    mend = "agentbench-fc sandbox build"
    images = Images()
    try:
        image = images.find("default")
    except AgentBenchError as error:
        return Finding(area, name, "missing", str(error), mend)
    if image is None and engine and _engine(f"/images/{ENGINE_IMAGE}/json"):
        return Finding(area, name, "ok", f"{ENGINE_IMAGE}, in the engine")
    if image is None:
        return Finding(area, name, "missing", f"no image is built in {images.folder}", mend)
    return Finding(area, name, "ok", f"{image.base}, {images.folder / image.archive}")


def _alfworld() -> list[Finding]:
    area = "tasks"
    lacks = [name for name in ("alfworld", "textworld", "fast-downward-textworld") if not _version(name)]
    if lacks:
        return [
            Finding(
                area,
                "alfworld",
                "missing",
                f"{', '.join(lacks)} not installed",
                "pip install 'agentbench-fc[alfworld]'",
            )
        ]
    data = os.environ.get("ALFWORLD_DATA")
    return [
        Finding(area, "alfworld", "ok", f"games from {data}" if data else "generated games (ALFWORLD_DATA is not set)")
    ]


def _optional_parts() -> list[Finding]:
    area = "further parts"
    found = [
        _extra(area, "serve", "environments over HTTP", ("uvicorn", "prometheus-client")),
        _extra(area, "train", "the trainer", ("torch", "trl", "accelerate")),
    ]
    if version := _version("sglang"):
        note = "; do not install the trainer beside it" if _version("torch") and not _version("trl") else ""
        found.append(Finding(area, "sglang", "ok", f"{version}{note}"))
    else:
        detail = "not here: its pins cannot be combined with the trainer's, it wants an environment of its own"
        mend = "python3 -m venv sglang-env && sglang-env/bin/pip install 'agentbench-fc[sglang]'"
        found.append(Finding(area, "sglang", "optional", detail, mend))
    data = os.environ.get("AGENTBENCH_DATA")
    if data and not Path(data).expanduser().is_dir():
        found.append(Finding(area, "AGENTBENCH_DATA", "missing", f"no such folder: {data}", "unset AGENTBENCH_DATA"))
    else:
        found.append(
            Finding(
                area, "AGENTBENCH_DATA", "ok" if data else "optional", data or "not set; `data=agentbench` needs it"
            )
        )
    return found


def _extra(area: str, extra: str, what: str, packages: tuple[str, ...]) -> Finding:
    versions = {name: _version(name) for name in packages}
    lacks = [name for name, version in versions.items() if not version]
    detail = ", ".join(f"{name} {version}" for name, version in versions.items())
    return _choice(area, extra, f"{what}: {detail}", lacks, [f"pip install 'agentbench-fc[{extra}]'"])


def _choice(area: str, name: str, detail: str, lacks: list[str], mends: list[str]) -> Finding:
    """A finding about something that one may do without."""
    if not lacks:
        return Finding(area, name, "ok", detail)
    return Finding(area, name, "optional", f"{', '.join(lacks)} not here", " && ".join(filter(None, mends)))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_on_path(*names: str) -> str:
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return next((path for name in names if (path := shutil.which(name, path=folders))), "")


def _engine(path: str = "/_ping") -> str:
    """The address of a container engine that says yes, or nothing. Asked over its socket: its client may hang."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    parts = urlsplit(address)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(ENGINE_WAIT_S)
                link.connect(parts.path)
                return address if _agrees(link, path) else ""
        with socket.create_connection((parts.hostname or "", parts.port or 2375), ENGINE_WAIT_S) as link:
            return address if _agrees(link, path) else ""
    except (OSError, ValueError):
        return ""


def _agrees(link: socket.socket, path: str) -> bool:
    link.sendall(f"GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
    return b" 200 " in link.recv(64)
