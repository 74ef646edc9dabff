"""The process that keeps one private MariaDB server for all processes of one user on this host.

It holds the lock of its folder while it lives, starts the server, starts it anew when it dies (with empty tables: what
was there belonged to sessions that ended with it), and tells every process that is connected where the server is. When
the last of them has gone, by closing or by dying, the server is killed and the folder removed. If this process itself
is killed, the kernel kills the server, and the next start sweeps the folder.

Run as a file, with the lock as an inherited descriptor; it needs nothing but the standard library. One line of JSON a
state goes to each process: `{"generation", "socket", "user", "password", "data"}`, or `{"error"}`.

Not here: the other end (private.py).
"""

import ctypes
import json
import os
import pwd
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

INSTALL_S = 120.0
START_S = 60.0
RESTARTS = 5
"""So many deaths within RESTART_WINDOW_S end the keeper: something is wrong that starting again will not mend."""
RESTART_WINDOW_S = 60.0
PR_SET_PDEATHSIG = 1
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
MODE = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
"""MySQL 8's default; MariaDB's own lacks half of it."""
OPTIONS = f"""
[mariadbd]
skip-networking
skip-name-resolve
skip-log-bin
skip-symbolic-links
skip-slave-start
performance_schema = OFF
sysdate-is-now
local_infile = OFF
max_connections = 1000
thread_cache_size = 64
open_files_limit = 8192
max_allowed_packet = 4M
max_session_mem_used = 128M
tmp_table_size = 16M
max_heap_table_size = 16M
max_statement_time = 60
key_buffer_size = 1M
aria_pagecache_buffer_size = 8M
innodb_buffer_pool_size = 32M
innodb_log_file_size = 16M
innodb_flush_log_at_trx_commit = 0
innodb_flush_method = nosync
innodb_doublewrite = 0
innodb_stats_persistent = 0
innodb_data_file_path = ibdata1:12M:autoextend:max:512M
innodb_temp_data_file_path = ibtmp1:12M:autoextend:max:512M
character-set-server = utf8mb4
collation-server = utf8mb4_general_ci
group_concat_max_len = 1024
default-time-zone = +00:00
sql_mode = {MODE}
"""


class Broken(Exception):
    """The server cannot be kept; the text says why."""


class Keeper:
    """The server and the processes that use it."""

    def __init__(self, folder: Path, program: str, share: Path) -> None:
        self._folder = folder
        self._program = program
        self._share = share
        self._home = folder / "server"
        self._user = "nobody" if os.geteuid() == 0 else None
        self._server: subprocess.Popen[bytes] | None = None
        self._state: dict[str, Any] = {"generation": 0}
        self._deaths: list[float] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._clients: set[socket.socket] = set()
        self._leaving: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Sweeps what an earlier keeper left, starts the server, and listens."""
        _remove(self._home)
        door = self._folder / "control"
        door.unlink(missing_ok=True)
        self._start_server()
        before = os.umask(0o177)
        try:
            self._listener.bind(str(door))
        finally:
            os.umask(before)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self, patience_s: float) -> None:
        """Until the last client has gone; `patience_s` is for the first one to come."""
        born, had_clients = time.monotonic(), False
        while True:
            for key, _ in self._selector.select(timeout=0.25):
                if key.fileobj is self._listener:
                    self._welcome()
                    had_clients = True
                else:
                    self._hear(key.fileobj)  # type: ignore[arg-type]
            if not self._clients and (had_clients or time.monotonic() - born > patience_s):
                return
            if self._server is not None and self._server.poll() is not None:
                self._restart(self._server.returncode)

    def stop(self) -> None:
        """Kills the server and removes everything; the clients see the end of their connections after that."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._selector.close()
        self._listener.close()
        _remove(self._home)
        for name in ("control", "lock"):
            (self._folder / name).unlink(missing_ok=True)
        try:
            self._folder.rmdir()
        except OSError:
            pass  # another process is starting here already
        for client in (*self._clients, *self._leaving):
            client.close()

    def give_up(self, reason: str) -> None:
        """Tells every client why there will be no server."""
        self._state = {"error": reason}
        for client in list(self._clients):
            self._tell(client)

    def _welcome(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.settimeout(5)
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ)
        self._tell(client)

    def _hear(self, client: socket.socket) -> None:
        """Nothing is ever asked: a client says `bye` before it leaves, or dies without a word."""
        try:
            said = client.recv(64)
        except OSError:
            said = b""
        if said and len(self._clients) == 1:  # the last one waits until all is gone
            self._selector.unregister(client)
            self._clients.discard(client)
            self._leaving.append(client)
        else:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        self._clients.discard(client)
        client.close()

    def _tell(self, client: socket.socket) -> None:
        try:
            client.sendall(json.dumps(self._state).encode() + b"\n")
        except OSError:
            self._drop(client)

    def _restart(self, code: int) -> None:
        now = time.monotonic()
        self._deaths = [moment for moment in self._deaths if now - moment < RESTART_WINDOW_S] + [now]
        if len(self._deaths) > RESTARTS:
            raise Broken(f"the server died {len(self._deaths)} times in a minute, at last with {code}: {self._log()}")
        self._start_server()
        for client in list(self._clients):
            self._tell(client)

    def _start_server(self) -> None:
        _remove(self._home)
        self._home.mkdir(mode=0o700)
        for name in ("data", "tmp", "files"):
            (self._home / name).mkdir(mode=0o700)
        password = secrets.token_hex(16)
        door = self._home / "socket"
        (self._home / "my.cnf").write_text(
            f"{OPTIONS}\ndatadir = {self._home}/data\ntmpdir = {self._home}/tmp\nsocket = {door}\n"
            f"secure_file_priv = {self._home}/files\nlog_error = {self._home}/error.log\n"
            f"pid_file = {self._home}/pid\ninit_file = {self._home}/init.sql\n"
        )
        (self._home / "init.sql").write_text(
            "DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys' AND (User <> 'root' OR Host <> 'localhost');\n"
            "FLUSH PRIVILEGES;\n"
            f"ALTER USER 'root'@'localhost' IDENTIFIED VIA mysql_native_password USING PASSWORD('{password}');\n"
        )
        (self._home / "init.sql").chmod(0o600)
        if self._user is not None:
            _give(self._home, self._user)
        self._install()
        self._server = subprocess.Popen(
            [self._program, f"--defaults-file={self._home}/my.cnf"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            preexec_fn=_die_with_parent,  # this process has one thread
            start_new_session=True,
            **self._identity(),
        )
        self._await(door)
        (self._home / "init.sql").unlink()
        self._state = {
            "generation": self._state["generation"] + 1,
            "socket": str(door),
            "user": "root",
            "password": password,
            "data": str(self._home / "data"),
        }

    def _install(self) -> None:
        """Makes the system tables, as mariadb-install-db does with programs that need not be installed here."""
        script = [b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"]
        try:
            script += [(self._share / name).read_bytes() for name in SYSTEM_TABLES]
        except OSError as error:
            raise Broken(f"the server is not fully installed: {error}") from error
        command = [self._program, f"--defaults-file={self._home}/my.cnf", "--bootstrap", "--init-file="]
        done = subprocess.run(
            [*command, "--enforce-storage-engine=", "--sql-mode=", "--max-allowed-packet=8M", "--log-warnings=0"],
            input=b"".join(script),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_S,
            cwd="/",
            preexec_fn=_die_with_parent,  # this process has one thread
            **self._identity(),
        )
        if done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace")[-500:].strip()
            raise Broken(f"the system tables cannot be made: {said} {self._log()}")

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        account = pwd.getpwnam(self._user)
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _await(self, door: Path) -> None:
        """Waits for the greeting that the server sends to whoever connects."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._server is not None and self._server.poll() is not None:
                raise Broken(f"the server ended at its start with {self._server.returncode}: {self._log()}")
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(5)
                    probe.connect(str(door))
                    if probe.recv(5)[4:] == b"\x0a":
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise Broken(f"the server did not answer within {START_S:g} s: {self._log()}")

    def _log(self) -> str:
        try:
            return (self._home / "error.log").read_text("utf-8", "replace")[-500:].strip()
        except OSError:
            return "no log"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _give(folder: Path, user: str) -> None:
    account = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _remove(folder: Path) -> None:
    for _ in range(50):  # a dying server may still be writing
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def main() -> None:
    """Arguments: folder, server, folder of its SQL files, descriptor of the lock, seconds to wait for a client."""
    folder, program, share, _, patience = sys.argv[1:]
    if os.fork() > 0:  # whoever started this one must not have to wait for it
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keeper = Keeper(Path(folder), program, Path(share))
    reason = ""
    try:
        keeper.start()
        print(json.dumps({"ready": True}), flush=True)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        keeper.serve(float(patience))
    except (Broken, OSError, KeyError, subprocess.TimeoutExpired) as error:
        reason = str(error)
        keeper.give_up(reason)
    finally:
        keeper.stop()
    if reason:  # said when all is removed; heard only by a starter that still waits
        print(json.dumps({"error": reason}), flush=True)


if __name__ == "__main__":
    main()
