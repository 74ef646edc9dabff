"""Makes and ends the sandboxes of one owner process; run as a file by oci.py, with a socket as standard input.

Two processes. The *warden* stays outside: it waits for the end of its owner or of the keeper, and then removes the
control groups. The *keeper* is process 1 of a process and mount namespace of its own, in which every mount and every
sandbox lives: when it goes, whatever killed it, the kernel ends all of them and no mount is left.

A request is a JSON packet with at most one descriptor; requests run on threads, and answers name their request.

Not here: the owner's side (oci.py); what a sandbox may do (spec.py).
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
HOME = "/run"
"""Covered by a tmpfs of the keeper's own: what it keeps there nobody else sees, and nothing of it stays."""
PACKET = 1 << 20
PIECE = 1 << 16
RUNC_TIMEOUT_S = 60.0

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Attaches a file system.

    Raises:
        OSError: it failed.
    """
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount of {kind} on {target}: {os.strerror(code)}")


def unmount(target: str) -> None:
    """Detaches a mount; one that is not there is fine."""
    libc.umount2(target.encode(), MNT_DETACH)


def tell(link: socket.socket, reply: dict[str, Any]) -> None:
    """Sends a reply in packets that begin with `+` where more of it follows, for a packet has a limit."""
    data = json.dumps(reply).encode()
    for start in range(0, len(data), PIECE):
        more = start + PIECE < len(data)
        link.send((b"+" if more else b".") + data[start : start + PIECE])


def unshare(flags: int) -> None:
    """Leaves the namespaces of before for new ones.

    Raises:
        OSError: it failed.
    """
    if libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


class Keeper:
    """Process 1 of the namespace in which the sandboxes live."""

    def __init__(self, link: socket.socket, runc: str, entry: Path | None = None) -> None:
        self._link = link
        self._runc = runc
        self._entry = entry
        self._sending = threading.Lock()
        self._inits: dict[str, int] = {}
        self._reaping = threading.Lock()

    def serve(self) -> None:
        """Answers requests until the owner is gone."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._link, PACKET, 1)
            if not packet:
                return
            threading.Thread(target=self._answer, args=(json.loads(packet), descriptors), daemon=True).start()

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> None:
        reply: dict[str, Any] = {"number": request["number"]}
        try:
            act: Callable[..., Any] = getattr(self, request["op"])
            reply["result"] = act(*request["args"], *descriptors)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            reply["error"] = str(error)
        finally:
            for each in descriptors:
                os.close(each)
        with self._sending:
            tell(self._link, reply)

    def create(self, name: str, spec: dict[str, Any], lower: str, disk: list[int], source: str, link: int) -> int:
        """Mounts a sandbox's file system and starts its process 1 with `link` as standard input and output.

        Args:
            name: Of the sandbox.
            spec: Its configuration; the root's path is filled in here.
            lower: The unpacked image.
            disk: Bytes, files and the first user id.
            source: A sandbox whose files are copied; empty: those of the image.
            link: Descriptor of the agent's end.
        """
        home = Path(HOME, name)
        threading.Thread(target=self._hurry, daemon=True).start()
        try:
            self._mount(home, lower, disk, source)
            spec["root"]["path"] = str(home / "root")
            (home / "config.json").write_text(json.dumps(spec))
            self._start(name, home, link)
        except BaseException:
            self._clear(name)
            raise
        return self._inits[name]

    def _hurry(self) -> None:
        """Enters the control group again that this process is in, which changes nothing.

        After a pause the kernel waits for all CPUs before a process may change its group (30 ms on an idle machine);
        once asked, it gets over with that while the files are mounted and runc starts.
        """
        if self._entry is not None:
            with contextlib.suppress(OSError):
                self._entry.write_text("0")

    def _mount(self, home: Path, lower: str, disk: list[int], source: str) -> None:
        size, files, owner = disk
        for each in (home, home / "disk", home / "root"):
            each.mkdir(mode=0o755)
        mount("sandbox", str(home / "disk"), "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={files},mode=0755")
        upper, work = home / "disk" / "upper", home / "disk" / "work"
        if source:
            # -a keeps owners, times, links, devices and the marks by which an overlay remembers what is deleted
            subprocess.run(["cp", "-a", f"{HOME}/{source}/disk/upper", str(upper)], check=True, timeout=RUNC_TIMEOUT_S)
        else:
            upper.mkdir(mode=0o755)
            os.chown(upper, owner, owner)
        work.mkdir()
        mount("overlay", str(home / "root"), "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")

    def _start(self, name: str, home: Path, link: int) -> None:
        log = home / "log"
        command = [self._runc, "--root", f"{HOME}/runc", "--log", str(log), "run", "--detach", "--bundle", str(home)]
        with open(home / "stderr", "wb") as errors:
            done = subprocess.run(
                [*command, "--pid-file", str(home / "pid"), name],
                stdin=link,
                stdout=link,
                stderr=errors,
                timeout=RUNC_TIMEOUT_S,
                check=False,
            )
        if done.returncode != 0:
            text = (home / "stderr").read_text(errors="replace") or log.read_text(errors="replace")
            raise OSError(f"runc: {text.strip()[-600:]}")
        self._inits[name] = int((home / "pid").read_text())

    def destroy(self, name: str) -> bool:
        """Ends all processes of a sandbox and removes its mounts and files; whether all is gone."""
        return self._clear(name)

    def _clear(self, name: str) -> bool:
        pid = self._inits.pop(name, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # the kernel kills the rest of its pid namespace
            os.waitpid(pid, 0)
        home = Path(HOME, name)
        unmount(str(home / "root"))
        unmount(str(home / "disk"))
        shutil.rmtree(Path(HOME, "runc", name), ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
        return not home.exists()

    def changes(self, name: str) -> list[tuple[str, str]]:
        """The paths that differ from the image, as the overlay keeps them: no process inside can hide one."""
        home = Path(HOME, name)
        upper = str(home / "disk" / "upper")
        lower = next(
            option.partition("=")[2]
            for line in Path("/proc/self/mounts").read_text().splitlines()
            if line.split(" ")[1] == str(home / "root")
            for option in line.split(" ")[3].split(",")
            if option.startswith("lowerdir=")
        )
        found = []
        for folder, folders, files in os.walk(upper):
            inside = folder[len(upper) :]
            for file in files + [each for each in folders if os.path.islink(os.path.join(folder, each))]:
                try:
                    facts = os.lstat(os.path.join(folder, file))
                except OSError:
                    continue  # a process inside deleted it meanwhile, or made it deeper than any path is long
                known = os.path.lexists(f"{lower}{inside}/{file}")
                gone = facts.st_mode & 0o170000 == 0o020000 and facts.st_rdev == 0
                if not gone or known:
                    found.append((f"{inside}/{file}", "deleted" if gone else "modified" if known else "added"))
            for each in folders:
                if not os.path.lexists(f"{lower}{inside}/{each}"):
                    found.append((f"{inside}/{each}", "added"))
                elif _hides_all(f"{folder}/{each}"):
                    found.append((f"{inside}/{each}", "modified"))
                elif _differs(f"{folder}/{each}", f"{lower}{inside}/{each}"):
                    found.append((f"{inside}/{each}", "modified"))
        return found

    def groups(self, name: str) -> int:
        """The process id of a sandbox's process 1, in the keeper's namespace."""
        return self._inits[name]


def _hides_all(folder: str) -> bool:
    """Whether a folder replaced one of the image, with all that was in it."""
    try:
        return os.getxattr(folder, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


def _differs(mine: str, other: str) -> bool:
    """Whether a folder's own mode or owner was changed."""
    try:
        one, two = os.lstat(mine), os.lstat(other)
    except OSError:
        return False  # deleted meanwhile
    return (one.st_mode, one.st_uid, one.st_gid) != (two.st_mode, two.st_uid, two.st_gid)


def entry_of(groups: list[str]) -> Path | None:
    """The file by which this process enters the control group that it is in; None: it cannot.

    Args:
        groups: A folder at the root of each hierarchy.
    """
    roots = [Path(group).parent for group in groups]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for root in roots:
            named = set(root.name.split(",")) & set(controllers.split(","))
            file = Path(f"{root}{path}", "cgroup.procs")
            if (named or (not controllers and (root / "cgroup.controllers").exists())) and os.access(file, os.W_OK):
                return file
    return None


def keep(link: socket.socket, runc: str, groups: list[str]) -> None:
    """The keeper's life, as process 1 of its namespace."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("keeper", HOME, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    Keeper(link, runc, entry_of(groups)).serve()


def guard(link: socket.socket, runc: str, series: str, groups: list[str]) -> None:
    """The warden's life: waits for the keeper's end, then removes what the kernel does not.

    Args:
        link: To the owner.
        runc: The program.
        series: What the names of the keeper's sandboxes begin with.
        groups: The owner's folder in each control-group hierarchy, where another keeper of the owner may have some too.
    """
    unshare(CLONE_NEWNS | CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            keep(link, runc, groups)
            status = 0
        except OSError as error:
            tell(link, {"number": 0, "error": str(error)})
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while (left := _beginning_with(series, groups)) and time.monotonic() < deadline:
        for group in left:
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass  # its last process is just ending
        time.sleep(0.01)
    for group in groups:
        try:
            os.rmdir(group)
        except OSError:
            pass  # gone, or another keeper's still


def _beginning_with(series: str, groups: list[str]) -> list[str]:
    found = []
    for group in groups:
        try:
            found += [f"{group}/{name}" for name in os.listdir(group) if name.startswith(series)]
        except OSError:
            pass  # there is none
    return [each for each in found if os.path.isdir(each)]


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # a terminal's Ctrl-C is the owner's; this ends when the owner does
    guard(socket.socket(fileno=0), sys.argv[1], sys.argv[2], sys.argv[3:])
