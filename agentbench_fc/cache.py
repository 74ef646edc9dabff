"""The cache folder, and files in it that are generated once and verified against a manifest.

`AGENTBENCH_FC_CACHE` names the folder; the default is `~/.cache/agentbench-fc`. Everything in it can be deleted at any
time: it is made again. Several processes may make the same file at once; each sees a whole file or none.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agentbench_fc.errors import InfrastructureError, TaskError


def cache_dir() -> Path:
    """The cache folder, made if absent.

    Raises:
        InfrastructureError: it cannot be made or written.
    """
    path = Path(os.environ.get("AGENTBENCH_FC_CACHE") or Path.home() / ".cache" / "agentbench-fc").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"the cache folder cannot be made: {error} [{path}]. Set AGENTBENCH_FC_CACHE to a writable folder."
        ) from error
    return path


def generated(name: str, build: Callable[[], bytes], *, sha256: str | None = None) -> Path:
    """The cached file `name`, built when it is absent or damaged.

    Args:
        name: Path below the cache folder; put the version of whatever builds it into the name.
        build: Makes the content; called at most once here.
        sha256: What the content must hash to, from the task's manifest; None: not checked.

    Raises:
        TaskError: the built content does not match the manifest: code and manifest are out of step.
        InfrastructureError: the folder cannot be written.
    """
    path = cache_dir() / name
    if path.exists() and (sha256 is None or _hash(path.read_bytes()) == sha256):
        return path
    content = build()
    if sha256 is not None and _hash(content) != sha256:
        raise TaskError(
            f"generated data does not match its manifest: {_hash(content)} is not {sha256} [{name}]. "
            "Reinstall the package, or rewrite the manifest if you changed the generator."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)  # atomic: another process sees the old file, none, or the whole new one
    except OSError as error:
        raise InfrastructureError(f"the cache cannot be written: {error} [{path}]. Free space or move it.") from error
    return path


@contextlib.contextmanager
def only_one(lock: Path, timeout_s: float) -> Iterator[None]:
    """Holds a lock file, so that one process of a host does a piece of work at a time. A dead process holds none.

    Raises:
        InfrastructureError: the file cannot be made, or another process holds it for `timeout_s` seconds.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InfrastructureError(
            f"the cache cannot be written: {error} [{lock.parent}]. Set AGENTBENCH_FC_CACHE to a writable folder."
        ) from error
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"another process has held it for {timeout_s:g} s [{lock}]. See what it does, and try again."
                    ) from error
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def manifest_hash(folder: Path, file: str) -> str | None:
    """The sha256 that `folder/manifest.json` gives for a generated file; None: the manifest does not list it.

    The manifest is `{"files": {"train.jsonl": "<sha256>", ...}}`.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    return str(files[file]) if file in files else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
