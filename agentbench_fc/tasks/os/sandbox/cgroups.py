"""Control groups of our own, version 1, 2 or both: finding, emptying and removing them.

An owner process has one folder at the root of each hierarchy, `agentbench-fc-<owner>`, with one per sandbox in it.

Not here: making them and setting limits (runc does it, from spec.py).
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "agentbench-fc-"
MOUNTS = Path("/proc/self/mounts")


def hierarchies(mounts: Path = MOUNTS) -> list[Path]:
    """Where control groups are mounted."""
    found = []
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            _, where, kind, *_ = line.split(" ")
            if kind in ("cgroup", "cgroup2"):
                found.append(Path(where))
    return found


def why_not(found: list[Path] | None = None) -> str:
    """Why limits cannot be set here; empty when they can."""
    roots = hierarchies() if found is None else found
    if not roots:
        return "no control groups are mounted below /sys/fs/cgroup"
    if locked := [str(root) for root in roots if not os.access(root, os.W_OK)]:
        return f"control groups cannot be written: {', '.join(locked[:3])}"
    names = {root.name for root in roots}
    unified = {word for root in roots for word in _controllers(root)}
    if lacks := [each for each in ("memory", "pids", "cpu") if each not in unified and not _has(each, names)]:
        return f"this kernel offers no control of {', '.join(lacks)}"
    return ""


def _has(controller: str, names: set[str]) -> bool:
    return any(controller in name.split(",") for name in names)


def _controllers(root: Path) -> list[str]:
    try:
        return (root / "cgroup.controllers").read_text().split()
    except OSError:
        return []


def owners() -> set[str]:
    """The names of all owners that have control groups here."""
    found = set()
    for root in hierarchies():
        with contextlib.suppress(OSError):
            found |= {each.name.removeprefix(PREFIX) for each in root.glob(f"{PREFIX}*") if each.is_dir()}
    return found


def sandboxes(owner: str) -> set[str]:
    """The names of an owner's sandboxes."""
    found = set()
    for root in hierarchies():
        with contextlib.suppress(OSError):
            found |= {each.name for each in (root / f"{PREFIX}{owner}").iterdir() if each.is_dir()}
    return found


def folders(group: str) -> Iterator[Path]:
    """A group's folders in all hierarchies."""
    for root in hierarchies():
        folder = root / f"{PREFIX}{group}"
        if folder.is_dir():
            yield folder


def oom_kills(group: str) -> int:
    """How many processes of a group were killed for want of memory."""
    for folder in folders(group):
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (folder / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
    return 0


def running(group: str) -> int:
    """How many processes of a group run now, or wait for nothing but a CPU."""
    pids: set[str] = set()
    for folder in folders(group):
        with contextlib.suppress(OSError):
            pids |= set((folder / "cgroup.procs").read_text().split())
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    return count


def remove(group: str, *, kill: bool = False, timeout_s: float = 5.0) -> bool:
    """Removes a group and those below it in all hierarchies.

    Args:
        group: An owner's name, or that and a sandbox's.
        kill: Ends the processes that are still in it.
        timeout_s: For processes that are just ending.

    Returns:
        Whether nothing is left.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = [each for folder in folders(group) for each in _deepest_first(folder)]
        for each in left:
            if kill:
                _kill(each)
            with contextlib.suppress(OSError):
                each.rmdir()
        if not any(each.is_dir() for each in left):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def _deepest_first(folder: Path) -> list[Path]:
    """What another sweep removes meanwhile is passed over."""
    return [Path(each) for each, _, _ in os.walk(folder, topdown=False)]


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        for pid in (folder / "cgroup.procs").read_text().split():
            if int(pid) > 1:  # 0: of another pid namespace
                os.kill(int(pid), signal.SIGKILL)
