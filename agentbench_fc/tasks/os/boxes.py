"""Sandboxes for the episodes of one task: made when first needed, shared by all sessions, set up by a sample's scripts.

Not here: sandboxes themselves (sandbox/).
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.os.sandbox.base import ExecResult, Sandbox, SandboxSpent

INIT_TIMEOUT_S = 90.0
"""AgentBench allows 30 s, and has a sample whose init sleeps for 60."""
OPEN_TIMEOUT_S = 120.0
REST_S = 3.0
"""So long an episode waits at most until what its scripts left in the background has come to rest."""
_PAUSE_S = 0.02
_RESTING = b"STtZI"


class Pool(Protocol):
    """What the task needs of a pool of sandboxes (sandbox/pool.py)."""

    def open(self, image: str = "default", *, timeout_s: float = 60.0) -> Sandbox:
        """A fresh sandbox."""
        ...

    def close(self) -> None:
        """Closes all."""
        ...


class Boxes:
    """Opens sandboxes from a pool that is made at the first need, for a task may be loaded just to read its samples."""

    def __init__(self, make_pool: Callable[[], Pool]) -> None:
        self._make_pool = make_pool
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    def open(self, image: str) -> Sandbox:
        """A fresh sandbox.

        Raises:
            InfrastructureError: there is none to be had.
        """
        with self._lock:
            if self._pool is None:
                self._pool = self._make_pool()
            pool = self._pool
        return pool.open(image, timeout_s=OPEN_TIMEOUT_S)

    def close(self) -> None:
        """Closes all sandboxes; the next `open` begins anew."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def run_script(
    box: Sandbox,
    script: Mapping[str, Any],
    arguments: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> ExecResult:
    """Runs a sample's script in a process of its own, with AgentBench's way of passing arguments."""
    if script["language"] == "python":
        argv = ["/usr/bin/python3", "-c", script["code"], *arguments]
    else:
        argv = ["/bin/bash", "-c", script["code"], "--", *arguments]
    return box.exec([part.replace("\0", "") for part in argv], timeout_s=timeout_s, env=env)


def set_up(box: Sandbox, sample_id: str, data: Mapping[str, Any]) -> None:
    """Runs a sample's init scripts, then its `start` in the persistent shell; what they leave behind comes to rest.

    Raises:
        TaskError: a script of the sample fails.
    """
    try:
        for number, script in enumerate(data["init"], start=1):
            result = run_script(box, script, [], INIT_TIMEOUT_S)
            if not result.ok:
                how = "timed out" if result.timed_out else f"ended with status {result.code}"
                said = result.stderr[-300:].decode("utf-8", "replace").strip()
                raise TaskError(f"init script {number} {how}: {said} [{sample_id}]. Exclude this sample.")
        if data["start"]:
            box.shell(data["start"])
        if "background" in data["volatile"]:
            let_rest(box)
    except SandboxSpent as error:
        raise TaskError(f"the sample's own scripts broke the sandbox: {error} [{sample_id}]. Exclude it.") from error


def let_rest(box: Sandbox) -> None:
    """Waits until the processes in the background all sleep and are the same twice running, or for `REST_S` seconds.

    A daemon that was just started has children of its own for a moment more, under its own name and with its files
    open: on a busy machine an agent's first command finds two processes where the sample has one.
    """
    deadline, before = time.monotonic() + REST_S, None
    while time.monotonic() < deadline:
        states = _states(box)
        if states == before and all(state in _RESTING for state in states.values()):
            return
        before = states
        time.sleep(_PAUSE_S)


def _states(box: Sandbox) -> dict[str, bytes]:
    """The state of each process but the first, by its path; one that has ended meanwhile is none."""
    listed = box.look(["/proc"])["/proc"]
    pids = [name for name in listed.names if name.isdigit() and name != "1"] if listed else []
    found = box.look([f"/proc/{pid}/stat" for pid in pids], content=1000) if pids else {}
    texts = {path: entry.content for path, entry in found.items() if entry is not None}
    return {path: text.rpartition(b")")[2][1:2] for path, text in texts.items() if text}
