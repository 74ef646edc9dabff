"""A private MariaDB server for whoever asks on this host: found, or started, and left when no longer needed.

    with contextlib.closing(PrivateServer()) as server:
        address = server.address()   # socket, user and password of a running server

All processes of a user share one server; a keeper process (keeper.py) starts it, restarts it and removes it with the
last of them, also when that one was killed. Its files are on tmpfs where there is room: `/dev/shm`, else the
temporary folder.

Not here: connections and sessions (server.py); the server's settings (keeper.py).
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.errors import InfrastructureError

KEEPER = Path(__file__).with_name("keeper.py")
"""Run as a file: the keeper needs none of the package, and starts in a tenth of the time."""
SHARED_MEMORY = Path("/dev/shm")
ROOM = 512 * 2**20
"""Bytes that must be free in shared memory; containers often have only 64 MiB there."""
START_TIMEOUT_S = 90.0
LEAVE_TIMEOUT_S = 10.0
PATIENCE_S = 30
INSTALL = "apt-get install -y mariadb-server-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is and how its administrator enters."""

    user: str
    password: str
    socket: str | None = None
    host: str = "localhost"
    port: int = 3306
    tls: bool = False
    generation: int = 0
    """Counts the server's starts: sessions of an earlier one are gone."""
    data: Path | None = None
    """The server's data folder, where it can be seen from here."""


class PrivateServer:
    """A share in the private server of this user on this host; serves any number of threads."""

    kind = "mariadb"

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is made and removed; None: the one that all processes of this user share."""
        self._program, self._share = find_server()
        self._folder = folder or shared_folder()
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._heard = b""
        self._address: Address | None = None

    def address(self, *, after: int = 0, timeout_s: float = START_TIMEOUT_S) -> Address:
        """The running server, started if there is none.

        Args:
            after: A generation known to be dead: only a later one will do.
            timeout_s: How long to wait for it.

        Raises:
            InfrastructureError: there is none in time, or it cannot be started.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                self._listen(0.0)
                if self._address is not None and self._address.generation > after:
                    return self._address
                if self._line is None:
                    self._attach(deadline)
                    after = 0  # another keeper counts anew
                elif time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"the database server did not come back within {timeout_s:g} s [{self._folder}]. Try again."
                    )
                else:
                    self._listen(0.2)

    def close(self) -> None:
        """Leaves; the last one to leave waits until server and files are gone. Safe to repeat."""
        with self._lock:
            line, self._line, self._address = self._line, None, None
            if line is None:
                return
            with contextlib.suppress(OSError):
                line.settimeout(LEAVE_TIMEOUT_S)
                line.sendall(b"bye\n")
                while line.recv(4096):
                    pass
            line.close()

    def forget(self) -> None:
        """Drops what was inherited from a parent process, without a word to the keeper."""
        line, self._line, self._address = self._line, None, None
        self._lock = threading.Lock()
        if line is not None:
            line.close()

    def _attach(self, deadline: float) -> None:
        while not self._knock():
            with _locked(self._folder) as lock:
                if lock is not None:
                    self._start_keeper(lock)
                    continue
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the database server was not there in time [{self._folder}]. "
                    "Another process may be starting it: try again."
                )
            time.sleep(0.05)

    def _knock(self) -> bool:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(self._folder / "control"))
        except OSError:
            line.close()
            return False
        self._line, self._heard, self._address = line, b"", None
        self._listen(5.0)
        return self._address is not None

    def _listen(self, wait_s: float) -> None:
        """Takes what the keeper has said."""
        line = self._line
        if line is None or not select.select([line], [], [], wait_s)[0]:
            return
        try:
            said = line.recv(65536)
        except OSError:
            said = b""
        if not said:
            self._address = None
            self._line = None
            line.close()
            return
        *lines, self._heard = (self._heard + said).split(b"\n")
        for text in lines:
            state: dict[str, Any] = json.loads(text)
            if "error" in state:
                raise InfrastructureError(f"the database server is gone: {state['error']} [{self._folder}]. Try again.")
            self._address = Address(
                user=state["user"],
                password=state["password"],
                socket=state["socket"],
                generation=state["generation"],
                data=Path(state["data"]),
            )

    def _start_keeper(self, lock: int) -> None:
        command = [sys.executable, "-I", "-S", str(KEEPER), str(self._folder), self._program, self._share]
        with subprocess.Popen(
            [*command, str(lock), str(PATIENCE_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            cwd="/",
        ) as starter:
            out = starter.stdout
            said = b""
            if out is not None and select.select([out], [], [], START_TIMEOUT_S)[0]:
                said = out.readline()
        answer: dict[str, Any] = json.loads(said) if said.strip() else {"error": "its keeper ended without a word"}
        if "error" in answer:
            raise InfrastructureError(
                f"the database server cannot be started: {answer['error']} [{self._folder}]. "
                "Free memory or disk, or use backend='sqlite'."
            )


def find_server() -> tuple[str, str]:
    """The server's program and the folder of its SQL files.

    Raises:
        InfrastructureError: not installed here.
    """
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/usr/local/bin"])
    server = shutil.which("mariadbd", path=folders)
    shares = [Path(server).resolve().parents[1] / "share" / name for name in ("mysql", "mariadb")] if server else []
    share = next((path for path in shares if (path / "mysql_system_tables.sql").is_file()), None)
    if server is None or share is None:
        raise InfrastructureError(
            f"no MariaDB server is installed [task db, backend mariadb]. Run `{INSTALL}`, or use backend='sqlite'."
        )
    return server, str(share)


def shared_folder() -> Path:
    """The folder of this user's server: in shared memory where it is already, or where there is room."""
    name = f"agentbench-fc-mariadb-{os.geteuid()}"
    if (SHARED_MEMORY / name).exists():
        return SHARED_MEMORY / name
    roomy = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= ROOM
    return (SHARED_MEMORY if roomy else Path(tempfile.gettempdir())) / name


@contextlib.contextmanager
def _locked(folder: Path) -> Any:
    """The lock of the folder as a descriptor, or None while another process holds it; a keeper holds it for life."""
    # Root's server runs as another user, who must be able to pass through here to a folder of its own.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        folder.chmod(mode)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InfrastructureError(f"the folder belongs to another user [{folder}]. Remove it.")
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:  # removed by a keeper that is leaving
        yield None
        return
    except PermissionError as error:
        raise InfrastructureError(f"the server's folder cannot be used: {error} [{folder}]. Remove it.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        try:
            same = os.stat(folder / "lock").st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            same = False
        yield descriptor if same else None  # a lock on a file that was removed locks nothing
    finally:
        os.close(descriptor)
