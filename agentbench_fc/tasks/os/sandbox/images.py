"""The images of the OS task: built once, cached by content, and given to either kind of sandbox.

One archive per stage (`default`, `packages`, `ubuntu`) is the content for both: Docker imports it, oci unpacks it with
shifted owners. It is made without a registry, by debootstrap, or from an image that an engine has or can pull.

    folder/default-<recipe>.tar, .json     the archive; when, from what and with which hash it was made
    folder/default-<hash>-<first id>/      unpacked for oci

Not here: what is installed (containers/os/install.sh); the command line (cli.py).
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import agentbench_fc
from agentbench_fc.cache import cache_dir, only_one
from agentbench_fc.errors import CallerError, InfrastructureError, did_you_mean
from agentbench_fc.tasks.os.sandbox.base import SandboxUnavailable

STAGES = ("ubuntu", "default", "packages")
"""Each is built on the one before it."""
SUITE = "bookworm"
BUILD_TIMEOUT_S = 1800.0
UNPACK_TIMEOUT_S = 600.0
_ALONE = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
)
"""Runs what follows so that all it starts and mounts ends with it, and it with us, whatever kills us."""
MIND = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An archive in the cache."""

    stage: str
    archive: str
    sha256: str
    base: str
    """What it was built on, e.g. `debootstrap bookworm`."""
    machine: str
    made: str

    @property
    def tag(self) -> str:
        """The name that it has in an engine."""
        return f"agentbench-fc/os-{self.stage}:{self.sha256[:12]}"


def recipe_folder() -> Path:
    """Where Dockerfile and install.sh are: in a checkout, or inside the installed package."""
    package = Path(agentbench_fc.__file__).parent
    for folder in (package.parent / "containers" / "os", package / "_containers" / "os"):
        if (folder / "install.sh").is_file():
            return folder
    raise InfrastructureError("containers/os/install.sh is missing [sandbox images]. Reinstall the package.")


class Images:
    """The cached images; safe to share between threads and processes."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is `os-images` in the cache folder by default."""
        self._folder = folder
        self._lock = threading.Lock()
        self._unpacked: dict[tuple[str, int], Path] = {}

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._folder or cache_dir() / "os-images"

    def find(self, stage: str) -> Image | None:
        """The cached image of a stage; None: it is not built.

        Raises:
            CallerError: no such stage.
        """
        meta = self._archive(stage).with_suffix(".json")
        try:
            image = Image(**json.loads(meta.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None  # in the second case, whoever makes one will be told
        except (OSError, ValueError, TypeError) as error:
            raise InfrastructureError(f"it cannot be read: {error} [{meta}]. Delete it, and build again.") from error
        return image if (self.folder / image.archive).is_file() else None

    def get(self, stage: str) -> Image:
        """The cached image of a stage.

        Raises:
            SandboxUnavailable: it is not built.
        """
        image = self.find(stage)
        if image is None:
            raise SandboxUnavailable(
                f"the image {stage!r} is not built [{self.folder}]. Run: agentbench-fc sandbox build --stage {stage}"
            )
        return image

    def rootfs(self, stage: str, first_id: int) -> Path:
        """The unpacked files of a stage, whose owners are shifted by `first_id`; the first call unpacks them.

        Raises:
            SandboxUnavailable: it is not built.
            InfrastructureError: no room, or no right to do it.
        """
        with self._lock:
            known = self._unpacked.get((stage, first_id))
            if known is None or not known.is_dir():
                known = self._unpacked[stage, first_id] = self._unpack(self.get(stage), first_id)
            return known

    def _unpack(self, image: Image, first_id: int) -> Path:
        target = self.folder / f"{image.stage}-{image.sha256[:12]}-{first_id}"
        if target.is_dir():
            return target
        with only_one(self.folder / f".{target.name}.lock", UNPACK_TIMEOUT_S):
            if target.is_dir():
                return target
            with _scratch(self.folder) as scratch:
                _run(["tar", "-C", str(scratch), "--numeric-owner", "-xpf", str(self.folder / image.archive)])
                shift_owners(scratch, first_id)
                scratch.chmod(0o755)
                os.rename(scratch, target)
        return target

    def build(self, stage: str = "default", *, base: str = "auto", mind: MIND = lambda _: None) -> Image:
        """Makes the archive of a stage, and those below it that are missing.

        Args:
            stage: Which one.
            base: `debootstrap` (Debian, without an engine or registry), `docker:<image>` (an engine pulls and exports
                it), or `auto`: debootstrap where it is installed, else docker:ubuntu:22.04.
            mind: Is told what is being done.

        Raises:
            SandboxUnavailable: not possible here; the message says what is missing.
            InfrastructureError: a step failed.
        """
        archive = self._archive(stage)
        base = _base(base)
        with only_one(self.folder / f".{archive.stem}.lock", BUILD_TIMEOUT_S), _scratch(self.folder) as scratch:
            below = STAGES.index(stage) - 1
            if below < 0:
                mind(f"base system: {base}")
                _make_base(base, scratch)
                source = base
            else:
                lower = self.find(STAGES[below])
                if lower is None or (base != lower.base and base != "debootstrap " + SUITE):
                    lower = self.build(STAGES[below], base=base, mind=mind)
                _run(["tar", "-C", str(scratch), "--numeric-owner", "-xpf", str(self.folder / lower.archive)])
                source = lower.base
            mind(f"stage {stage}: packages")
            _install(scratch, stage)
            mind(f"stage {stage}: archive")
            return self._pack(scratch, stage, source)

    def prune(self) -> int:
        """Deletes archives and unpacked files that no present recipe leads to; bytes that were freed."""
        kept = {
            path.name for stage in STAGES for path in (self._archive(stage), self._archive(stage).with_suffix(".json"))
        }
        kept |= {f"{image.stage}-{image.sha256[:12]}" for stage in STAGES if (image := self.find(stage))}
        freed = 0
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else []:
            if path.name in kept or path.name.rpartition("-")[0] in kept or path.suffix == ".lock":
                continue
            if path.name.startswith("tmp-") and time.time() - path.lstat().st_mtime < BUILD_TIMEOUT_S:
                continue  # a build under way
            freed += _size(path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return freed

    def _pack(self, root: Path, stage: str, base: str) -> Image:
        archive = self._archive(stage)
        partial = archive.with_suffix(".part")
        _run(["tar", "-C", str(root), "--numeric-owner", "--sort=name", "-cpf", str(partial), "."])
        digest = hashlib.sha256()
        with partial.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        image = Image(
            stage=stage,
            archive=archive.name,
            sha256=digest.hexdigest(),
            base=base,
            machine=platform.machine(),
            made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        os.replace(partial, archive)
        meta = archive.with_suffix(".json.part")
        meta.write_text(json.dumps(asdict(image), indent=1), encoding="utf-8")
        os.replace(meta, archive.with_suffix(".json"))
        return image

    def _archive(self, stage: str) -> Path:
        if stage not in STAGES:
            raise CallerError(f"no image {stage!r} [sandbox images]. {did_you_mean(stage, STAGES)}")
        recipe = (recipe_folder() / "install.sh").read_bytes()
        key = hashlib.sha256(recipe + platform.machine().encode()).hexdigest()[:12]
        return self.folder / f"{stage}-{key}.tar"


def shift_owners(root: Path, first_id: int) -> None:
    """Adds `first_id` to every owner and group below `root`, keeping the bits that a change of owner clears."""
    for folder, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            path = os.path.join(folder, name) if name != "." else folder
            facts = os.lstat(path)
            if facts.st_uid >= first_id:
                continue
            os.lchown(path, facts.st_uid + first_id, facts.st_gid + first_id)
            if facts.st_mode & 0o6000 and facts.st_mode & 0o170000 != 0o120000:
                os.chmod(path, facts.st_mode & 0o7777)


def _base(wanted: str) -> str:
    if wanted == "auto":
        wanted = "debootstrap" if shutil.which("debootstrap", path=_path()) else "docker:ubuntu:22.04"
    if wanted == "debootstrap":
        if not shutil.which("debootstrap", path=_path()):
            raise SandboxUnavailable("debootstrap is not installed [sandbox build]. apt-get install -y debootstrap")
        return f"debootstrap {SUITE}"
    if wanted == f"debootstrap {SUITE}" or (wanted.startswith("docker:") and len(wanted) > 7):
        return wanted
    raise CallerError(f"no base {wanted!r} [sandbox build]. Use auto, debootstrap or docker:<image>.")


def _make_base(base: str, root: Path) -> None:
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            "only root can make a base system [sandbox build]. Run as root, or build with Docker: "
            f"docker build --target default -t agentbench-fc/os-default {recipe_folder()}"
        )
    if base.startswith("docker:"):
        name = base.removeprefix("docker:")
        made = _run(["docker", "create", name, "true"]).strip()
        try:
            with subprocess.Popen(["docker", "export", made], stdout=subprocess.PIPE) as export:
                _run(["tar", "-C", str(root), "--numeric-owner", "-xpf", "-"], stdin=export.stdout)
        finally:
            _run(["docker", "rm", "-v", made])
        return
    _run([*_ALONE, "debootstrap", "--variant=minbase", SUITE, str(root)])
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True, exist_ok=True)


def _install(root: Path, stage: str) -> None:
    """Runs install.sh inside."""
    (root / "opt/agentbench-fc").mkdir(parents=True, exist_ok=True)
    shutil.copy2(recipe_folder() / "install.sh", root / "opt/agentbench-fc/install.sh")
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    shutil.copyfile("/etc/resolv.conf", resolver)
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    inner = (
        'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && '
        'exec env -i PATH="$PATH" HOME=/root chroot "$1" /bin/sh /opt/agentbench-fc/install.sh "$2"'
    )
    try:
        _run(
            [
                *_ALONE,
                *("sh", "-c", inner, "sh", str(root), stage),
            ]
        )
    finally:
        policy.unlink(missing_ok=True)
    resolver.write_text("")
    (root / "etc/hosts").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost\n")
    (root / "etc/hostname").write_text("localhost\n")


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _run(command: list[str], stdin: object = subprocess.DEVNULL) -> str:
    """Runs a program to its end.

    Raises:
        SandboxUnavailable: it is not installed.
        InfrastructureError: it failed.
    """
    alone = command[: len(_ALONE)] == list(_ALONE)
    name = command[len(_ALONE)] if alone else command[0]
    try:
        done = subprocess.run(
            command,
            stdin=stdin,  # type: ignore[call-overload]
            capture_output=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
            env={**os.environ, "PATH": _path()},
        )
    except FileNotFoundError as error:
        raise SandboxUnavailable(f"{command[0]} is not installed [sandbox build]. Install it.") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{name} took longer than {BUILD_TIMEOUT_S:g} s [sandbox build].") from error
    if done.returncode != 0:
        text = (done.stderr or done.stdout)[-800:].decode(errors="replace").strip()
        raise InfrastructureError(f"{name} failed with {done.returncode}: {text} [sandbox build]. See the message.")
    return str(done.stdout.decode(errors="replace"))


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the results, removed at the end if it is still there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix="tmp-"))
    except OSError as error:
        raise InfrastructureError(
            f"no folder can be made: {error} [{folder}]. Free space or move the cache."
        ) from error
    try:
        yield scratch
    finally:
        if scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)


def _size(path: Path) -> int:
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(folder, file)).st_size for folder, _, files in os.walk(path) for file in files)
