"""Weight versions on their way from the trainer to the engines: whole snapshots in a folder that both can read.

Version n is the policy after n optimizer steps. Fresh engines get every version, stale ones every
`stale_sync_steps`-th, and all of them the first. A snapshot is written beside its place and renamed: a reader sees all
of it or nothing.

Not here: how an engine takes a snapshot (engines/); checkpoints, which also hold the optimizer (checkpoint.py).
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file
from torch import Tensor

from agentbench_fc.errors import InfrastructureError

FILE = "model.safetensors"
PREFIX = "agentrl-weights-"
STALE = "stale"
"""Folder of a checkpoint."""
MEMORY = Path("/dev/shm")
ROOM = 6
"""A memory-backed folder must have room for so many snapshots."""
KEPT = 2
"""Newest snapshots that stay, so that an engine that is just reading one never loses it."""


class Publish(Protocol):
    """Tells the rollout side of a new version: `RolloutProcess.publish`."""

    def __call__(self, path: Path, version: int, *, stale: bool) -> None:
        """Hands over the snapshot folder; `stale` includes the stale engines."""
        ...


class WeightPublisher:
    """Writes snapshots, announces them, and removes those that no engine can need."""

    def __init__(self, publish: Publish, *, stale_sync_steps: int, folder: Path) -> None:
        self._publish = publish
        self._every = stale_sync_steps
        self._folder = folder
        self._stale: int | None = None

    def publish(self, state: Mapping[str, Tensor], version: int, *, extra: Mapping[str, str] | None = None) -> Path:
        """Makes `state` known as `version`; the first version, and each `stale_sync_steps`-th, to stale engines too.

        Args:
            state: The model's state dict; tensors that share memory are written once, under their first name.
            version: Optimizer steps behind it.
            extra: Further text files of the snapshot by name, e.g. the model's `config.json`.

        Raises:
            InfrastructureError: the folder cannot be written, or the rollout side is dead.
        """
        stale = self._stale is None or version % self._every == 0
        path = self._folder / f"v{version:07d}"
        try:
            write_snapshot(path, state, version, extra or {})
        except OSError as error:
            raise InfrastructureError(
                f"weights cannot be written: {error} [{path}]. Free space, or set engines.weights_dir."
            ) from error
        self._publish(path, version, stale=stale)
        if stale:
            self._stale = version
        self._remove_old()
        return path

    def save_stale(self, checkpoint: Path) -> None:
        """Puts what the stale engines hold into a checkpoint, where it differs from what the checkpoint holds."""
        snapshots = sorted(self._folder.glob("v*"))
        held = self._folder / f"v{self._stale or 0:07d}"
        if self._stale is not None and held in snapshots[:-1]:
            shutil.copytree(held, checkpoint / STALE, dirs_exist_ok=True)

    def restore_stale(self, checkpoint: Path, publish: Publish) -> None:
        """Gives the engines what the stale ones held when a checkpoint was made; the newest version follows.

        Args:
            checkpoint: Of the run that is resumed.
            publish: Hands it over.

        Raises:
            InfrastructureError: the rollout side is dead, or the snapshot is not whole.
        """
        if not (checkpoint / STALE).is_dir():
            return
        version = read_version(checkpoint / STALE)
        path = self._folder / f"v{version:07d}"
        shutil.copytree(checkpoint / STALE, path, dirs_exist_ok=True)
        publish(path, version, stale=True)
        self._stale = version

    def close(self) -> None:
        """Removes all snapshots; safe to repeat."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_old(self) -> None:
        snapshots = sorted(self._folder.glob("v*"))
        for old in snapshots[:-KEPT]:
            if old.name != f"v{self._stale or 0:07d}":
                shutil.rmtree(old, ignore_errors=True)


def write_snapshot(path: Path, state: Mapping[str, Tensor], version: int, extra: Mapping[str, str]) -> None:
    """Writes `path/model.safetensors` and the extra files, atomically; an equal version is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        save_file(dict(_distinct(state)), temporary / FILE, metadata={"format": "pt", "version": str(version)})
        for name, text in extra.items():
            (temporary / name).write_text(text, encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _distinct(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tied weights once: safetensors refuses shared memory, and a loader ties them again."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        yield name, tensor.detach().contiguous()


def snapshot_folder(chosen: Path | None, run: Path, snapshot_bytes: int) -> Path:
    """Where a run's snapshots go: the chosen folder, else memory-backed if there is room, else the run's folder."""
    # containers and machines may share the folder, and number their processes alike
    own = f"{PREFIX}{_process_space()}-{os.getpid()}-{secrets.token_hex(4)}"
    if chosen is not None:
        return chosen / own
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        _remove_orphans(MEMORY)
        if shutil.disk_usage(MEMORY).free > ROOM * snapshot_bytes:
            return MEMORY / own
    return run / "weights"


def _remove_orphans(folder: Path) -> None:
    """Snapshots of killed runs would stay in memory for ever; those of other containers are not ours to judge."""
    space = _process_space()
    for left in folder.glob(f"{PREFIX}{space}-*"):
        pid = left.name.removeprefix(f"{PREFIX}{space}-").partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def _process_space() -> str:
    """Names the processes among which a number is unique: those of this container, or of this machine."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def read_version(path: Path) -> int:
    """The version that a snapshot says it holds.

    Raises:
        InfrastructureError: there is no whole snapshot.
    """
    try:
        with (path / FILE).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(header["__metadata__"]["version"])
    except (OSError, ValueError, KeyError) as error:
        raise InfrastructureError(f"no whole snapshot: {error!r} [{path}]. Publish it again.") from error
