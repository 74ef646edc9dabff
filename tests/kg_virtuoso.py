"""A private Virtuoso for tests: started from one ini file on loopback ports, loaded in bulk, stopped and removed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from agentbench_fc.tasks.kg.endpoint import EndpointBackend

SERVER, CLIENT = "virtuoso-t", "isql-vt"
GRAPH = "http://example.org/kg"
MAX_ROWS = 10_000
START_S = 60.0
INI = """\
[Database]
DatabaseFile = virtuoso.db
ErrorLogFile = virtuoso.log
LockFile = virtuoso.lck
TransactionFile = virtuoso.trx
xa_persistent_file = virtuoso.pxa
FileExtend = 100
[TempDatabase]
DatabaseFile = temp.db
TransactionFile = temp.trx
FileExtend = 100
[Parameters]
ServerPort = 127.0.0.1:{sql}
ServerThreads = 20
NumberOfBuffers = 4000
MaxDirtyBuffers = 3000
CheckpointInterval = 0
DirsAllowed = {folder}
[HTTPServer]
ServerPort = 127.0.0.1:{http}
ServerThreads = 15
ServerRoot = {folder}
[SPARQL]
ResultSetMaxRows = {rows}
MaxQueryExecutionTime = 30
"""


def installed() -> bool:
    return bool(shutil.which(SERVER) and shutil.which(CLIENT))


class Virtuoso:
    """One server with a folder of its own, on tmpfs where there is one."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="agentbench-fc-kg-", dir=memory if memory.is_dir() else None))
        self.sql = self.http = 0
        self.process: subprocess.Popen[bytes] | None = None
        for last in (False, False, True):  # a port that was free may be another one's when the server gets to it
            self.sql, self.http = free_port(), free_port()
            ini = INI.format(sql=self.sql, http=self.http, folder=self.folder, rows=MAX_ROWS)
            (self.folder / "virtuoso.ini").write_text(ini)
            try:
                return self.start()
            except RuntimeError:
                if last:
                    self.close()
                    raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}/sparql"

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        (self.folder / "virtuoso.lck").unlink(missing_ok=True)  # a killed server leaves it behind
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [SERVER, "+configfile", "virtuoso.ini", "+foreground"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "?query=ASK%7B%7D", timeout=5):
                return
            time.sleep(0.1)
        words = (self.folder / "output").read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"virtuoso did not start: {words}")

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def load(self, lines: bytes, graph: str = GRAPH) -> None:
        """Loads N-Triples and makes them last."""
        file = self.folder / "load.nt"
        file.write_bytes(lines)
        self.execute(
            f"DELETE FROM DB.DBA.load_list; ld_dir('{self.folder}', '{file.name}', '{graph}'); "
            "rdf_loader_run(); checkpoint;"
        )
        failed = self.execute("SELECT ll_error FROM DB.DBA.load_list WHERE ll_error IS NOT NULL;")
        assert "0 Rows" in failed, failed
        file.unlink()

    def execute(self, sql: str) -> str:
        done = subprocess.run(
            [CLIENT, f"127.0.0.1:{self.sql}", "dba", "dba", f"exec={sql}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "*** Error" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    def backend(self, **options: object) -> EndpointBackend:
        return EndpointBackend(self.url, graph=GRAPH, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
