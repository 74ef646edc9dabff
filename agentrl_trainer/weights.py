"""Weight versions on their way from the trainer to the engines: whole snapshots in a folder that both can read.

Version n is the policy after n optimizer steps. Fresh engines get every version, stale ones each that is a multiple of
their lag, and all of them the first. A snapshot is written beside its place and renamed: a reader sees all
of it or nothing.

Not here: how an engine takes a snapshot (engines/); checkpoints, which also hold the optimizer (checkpoint.py).
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.staleness import due

FILE = "model.safetensors"
PREFIX = "agentrl-weights-"
STALE = "stale"
"""Folder of a checkpoint."""
MEMORY = Path("/dev/shm")
ROOM = 6
"""A memory-backed folder must have room for so many snapshots, and for one more for each further lag."""
KEPT = 2
"""Newest snapshots that stay, so that an engine that is just reading one never loses it."""


class Publish(Protocol):
    """Tells the rollout side of a new version: `RolloutProcess.publish`."""

    def __call__(self, path: Path, version: int, *, stale: bool) -> None:
        """Hands over the snapshot folder; `stale` includes the stale engines."""
        ...


class WeightPublisher:
    """Writes snapshots, announces them, and removes those that no engine can need, also one that is started again.

    Args:
        publish: Announces them.
        stale_lags: Of the stale engines, the versions between two of their updates.
        folder: Of the snapshots.
    """

    def __init__(self, publish: Publish, *, stale_lags: Sequence[int], folder: Path) -> None:
        self._publish = publish
        self._lags = sorted(set(stale_lags))
        self._folder = folder
        self._held: dict[int, int] = {}  # by lag

    def publish(self, state: Mapping[str, Tensor], version: int, *, extra: Mapping[str, str] | None = None) -> Path:
        """Makes `state` known as `version`, to the stale engines too when some of them are due.

        Args:
            state: The model's state dict; tensors that share memory are written once, under their first name.
            version: Optimizer steps behind it.
            extra: Further text files of the snapshot by name, e.g. the model's `config.json`.

        Raises:
            InfrastructureError: the folder cannot be written, or the rollout side is dead.
        """
        taking = due(version, self._lags, self._held)
        path = self._path(version)
        try:
            write_snapshot(path, state, version, extra or {})
        except OSError as error:
            raise InfrastructureError(
                f"weights cannot be written: {error} [{path}]. Free space, or set engines.weights_dir."
            ) from error
        self._publish(path, version, stale=bool(taking))
        self._held |= dict.fromkeys(taking, version)
        self._remove_old()
        return path

    def save_stale(self, checkpoint: Path) -> None:
        """Puts what the stale engines hold into a checkpoint, where it differs from what the checkpoint holds."""
        held = {self._path(version) for version in self._held.values()}
        for snapshot in sorted(self._folder.glob("v*"))[:-1]:
            if snapshot in held:
                shutil.copytree(snapshot, checkpoint / STALE / snapshot.name, dirs_exist_ok=True)

    def restore_stale(self, checkpoint: Path, publish: Publish) -> None:
        """Gives the engines what the stale ones held when a checkpoint was made, oldest first; the newest follows.

        Args:
            checkpoint: Of the run that is resumed.
            publish: Hands it over.

        Raises:
            InfrastructureError: the rollout side is dead, or a snapshot is not whole.
        """
        for held, version in _held_at(checkpoint):
            path = self._path(version)
            shutil.copytree(held, path, dirs_exist_ok=True)
            publish(path, version, stale=True)
            self._held |= dict.fromkeys(due(version, self._lags, self._held), version)

    def close(self) -> None:
        """Removes all snapshots; safe to repeat."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_old(self) -> None:
        held = {self._path(version) for version in self._held.values()}
        for old in sorted(self._folder.glob("v*"))[:-KEPT]:
            if old not in held:
                shutil.rmtree(old, ignore_errors=True)

    def _path(self, version: int) -> Path:
        return self._folder / f"v{version:07d}"


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


def stale_snapshots(checkpoint: Path) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Version and tensors of each snapshot that stale engines held at a checkpoint, oldest first; not the newest."""
    for held, version in _held_at(checkpoint):
        yield version, load_file(held / FILE)


def _held_at(checkpoint: Path) -> list[tuple[Path, int]]:
    return [(held, read_version(held)) for held in sorted((checkpoint / STALE).glob("v*"))]


def snapshot_folder(chosen: Path | None, run: Path, snapshot_bytes: int, *, lags: int = 1) -> Path:
    """Where a run's snapshots go: the chosen folder, else memory-backed if there is room, else the run's folder.

    Args:
        chosen: The configuration's.
        run: The run's folder.
        snapshot_bytes: Size of one snapshot.
        lags: Different lags of stale engines, each of which keeps a snapshot.
    """
    # containers and machines may share the folder, and number their processes alike
    own = f"{PREFIX}{_process_space()}-{os.getpid()}-{secrets.token_hex(4)}"
    if chosen is not None:
        return chosen / own
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        _remove_orphans(MEMORY)
        if shutil.disk_usage(MEMORY).free > (ROOM + lags - 1) * snapshot_bytes:
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
