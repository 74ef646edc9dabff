"""Checkpoints that can be trusted: sealed by a manifest of hashes, found again by `resume=auto`.

The trainer writes model, optimizer, scheduler, random state and cursor (which samples are done) into
`checkpoint-<step>`; `seal` adds the manifest, last and atomically. A folder without a manifest was being written when
the run died; one whose hashes differ is damaged. Neither is used: the one before it is.

Not here: what the trainer writes and how it reads it (Hugging Face's trainer).
"""

import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentbench_fc.errors import CallerError

logger = logging.getLogger(__name__)
PREFIX = "checkpoint-"
MANIFEST = "manifest.json"
CURSOR = "cursor.json"
TEMPORARY = ".tmp"
ASIDE = "taken-back-"
CHUNK = 1 << 20


@dataclass(slots=True)
class Cursor:
    """Which groups have been consumed: a set, because groups finish out of order."""

    done: set[str] = field(default_factory=set)
    """Ids of consumed groups; what was in flight is not among them and is drawn again."""

    def add(self, group_ids: Iterable[str]) -> None:
        """Marks groups as consumed."""
        self.done.update(group_ids)

    def save(self, folder: Path) -> None:
        """Writes the cursor into a checkpoint."""
        _write(folder / CURSOR, {"done": sorted(self.done)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the cursor of a sealed checkpoint."""
        return cls(set(json.loads((folder / CURSOR).read_text(encoding="utf-8"))["done"]))


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Completes a checkpoint: hashes every file into the manifest, together with `facts`."""
    for left in folder.glob(f".*{TEMPORARY}"):  # of a run that died here
        left.unlink()
    hashes = {str(p.relative_to(folder)): _hash(p) for p in _files(folder)}
    _write(folder / MANIFEST, {"files": hashes, **facts})


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint in a few words; None: it is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it was never completed"
    except (OSError, ValueError, KeyError):
        return "its manifest cannot be read"
    for name, expected in manifest.items():
        try:
            if _hash(folder / name) != expected:
                return f"{name} has changed"
        except OSError:
            return f"{name} is missing"
    return None


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name; -1 for other folders."""
    number = folder.name.removeprefix(PREFIX)
    return int(number) if folder.name.startswith(PREFIX) and number.isdecimal() else -1


def sealed_step(folder: Path) -> int:
    """The step that a whole checkpoint holds, whatever its folder is called."""
    return int(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["step"])


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first, whole or not."""
    return sorted((p for p in run.glob(f"{PREFIX}*") if p.is_dir() and step_of(p) >= 0), key=step_of)


def newest_whole(run: Path) -> Path | None:
    """The newest checkpoint that can be trusted; those passed over are named in the log."""
    for folder in reversed(checkpoints(run)):
        fault = damage(folder)
        if fault is None:
            return folder
        logger.warning("%s is passed over: %s", folder, fault)
    return None


def resume_from(resume: str, run: Path) -> Path | None:
    """The checkpoint to start from, as the configuration's `resume` asks.

    Raises:
        CallerError: the named checkpoint is damaged or absent; or the run's folder holds a run and `resume` is never.
    """
    if resume == "auto":
        return newest_whole(run)
    if resume == "never":
        if checkpoints(run) or (run / "metrics.jsonl").exists():
            raise CallerError(f"the folder holds another run [{run}]. Use resume=auto, or another output=.")
        return None
    folder = Path(resume).expanduser()
    if fault := damage(folder):
        raise CallerError(f"the checkpoint cannot be used: {fault} [{folder}]. Use resume=auto, or another one.")
    return folder


def check_place(start: Path, run: Path) -> None:
    """Refuses to go on from a checkpoint of one run in the folder of another.

    Raises:
        CallerError: the figures and transcripts there would be lost.
    """
    inside = start.resolve().parent == run.resolve()
    if not inside and (checkpoints(run) or (run / "metrics.jsonl").exists()):
        raise CallerError(
            f"the folder holds another run than the one of the checkpoint [{run}, {start}]. "
            "Use resume=auto to go on with what is there, or another output=."
        )


def set_aside(run: Path, start: Path) -> list[Path]:
    """Takes back the checkpoints behind the one that a run goes on from, as its later figures are.

    Otherwise they would count as its newest ones: new checkpoints would be pruned before them, and `resume=auto` would
    go on from a past that this run has left.

    Returns:
        Where whole ones are now, under names that nothing reads; what was never completed is removed.
    """
    moved = []
    for folder in checkpoints(run):
        if step_of(folder) <= sealed_step(start):
            continue
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)
            continue
        place = next(p for n in itertools.count(1) if not (p := run / f"{ASIDE}{folder.name}-{n}").exists())
        moved.append(folder.rename(place))
    return moved


def prune(run: Path, keep: int) -> None:
    """Removes all but the newest `keep` whole checkpoints, and broken ones older than the newest whole one."""
    whole = [folder for folder in checkpoints(run) if (folder / MANIFEST).exists()]
    kept = set(whole[-keep:])
    newest = step_of(whole[-1]) if whole else -1
    for folder in checkpoints(run):
        if folder not in kept and step_of(folder) < newest:
            shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
