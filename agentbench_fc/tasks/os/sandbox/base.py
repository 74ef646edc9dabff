r"""What a sandbox is: a Linux box of its own in which untrusted bash runs, and the backends that make one.

    with Sandboxes("auto") as sandboxes:                # pool.py
        with sandboxes.open("default") as sandbox:
            sandbox.exec(["bash", "-c", "echo 42 > /tmp/answer"]).check()
            sandbox.shell("cd /tmp").output             # b"": the shell is persistent
            sandbox.shell("cat answer").output          # b"42\n"

Everything blocks, has a deadline, and may be called from any thread; calls into one sandbox take turns. Output is
bytes: what bash prints need not be text.

Not here: what runs inside (inside/); the channel to it (wire.py); the kinds of sandbox (docker.py, oci.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, runtime_checkable

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError

BackendName = Literal["docker", "oci"]
Feature = Literal["users", "disk_limit", "seccomp", "cgroup", "network_off", "fork", "changes"]

EXEC_TIMEOUT_S = 30.0
CAP_BYTES = 64 * 1024
"""Output that is kept of one call; the rest is read and dropped."""
LOOK_BYTES = 8 << 20
"""What `look` may return in all."""
CROWD = 12
CROWDED = "its processes left its process 1 no CPU time"
"""The reason where so many of them run at a time that no answer came."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SandboxUnavailable(InfrastructureError):
    """No kind of sandbox works here; the message has each one's reason and the command that mends it."""


class SandboxLost(InfrastructureError):
    """The engine, the channel or the machine failed, and the answer with it: start the episode again."""


class SandboxSpent(AgentBenchError):
    """What ran inside made the sandbox unusable: it ate all memory or processes, or deleted the system.

    The deed of whoever acts in the sandbox, no fault of the machines: the episode ends without success.
    """

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use. There is never a network."""

    memory_mib: int = 1024
    """Memory and swap together, for all processes of the sandbox."""
    pids: int = 256
    """Processes and threads."""
    cpus: float = 1.0
    disk_mib: int = 256
    """What may be written; below `memory_mib`, for oci keeps it in memory."""
    inodes: int = 65_536
    """Files that may be made; only oci can limit them."""

    def __post_init__(self) -> None:
        for name, least in (("memory_mib", 32), ("pids", 8), ("cpus", 0.01), ("disk_mib", 1), ("inodes", 256)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise CallerError(f"{name} is {value!r} [sandbox limits]. Use {least} or more.")
        if self.disk_mib >= self.memory_mib:
            raise CallerError(
                f"disk_mib is {self.disk_mib} and memory_mib {self.memory_mib} [sandbox limits]. "
                "Use a disk below the memory: a full disk must be an error of the program, not out of memory."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a fresh process ended."""

    code: int
    """Its exit status; 128 + n when signal n ended it, as bash says it. 124 when it timed out."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    """There was more output than `cap_bytes`; the first part is here."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.code == 0 and not self.timed_out

    def check(self) -> Self:
        """Itself when `ok`.

        Raises:
            SandboxSpent: it failed; the message has the status and the end of its stderr.
        """
        if self.ok:
            return self
        tail = self.stderr[-400:].decode(errors="replace").strip() or "nothing on stderr"
        how = "timed out" if self.timed_out else f"ended with status {self.code}"
        raise SandboxSpent(f"the process {how}: {tail} [sandbox exec]. See what ran before it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """What a script did in the persistent shell."""

    output: bytes
    """stdout and stderr in the order they came; partial after a timeout."""
    code: int | None
    """Status of the last command; None after a timeout."""
    timed_out: bool = False
    """The script's processes were killed; the shell lives on, its variables and folder too, unless it also `ended`."""
    truncated: bool = False
    dropped: int = 0
    """Bytes beyond the cap."""
    ended: int | None = None
    """The shell itself ended (`exit`, `set -e`, `exec`) with this status; a fresh one has taken its place, or the shell
    in which this one was nested."""
    depth: int = 0
    """Nested shells (`su - jack`, `bash`) that are open now."""


@dataclass(frozen=True, slots=True)
class Change:
    """A path of the image that is different now."""

    path: str
    kind: Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What there is at a path; symbolic links are not followed."""

    kind: Literal["file", "dir", "link", "other"]
    mode: int
    """Permission bits, 0 to 0o7777."""
    uid: int
    gid: int
    size: int
    target: str = ""
    """Where a link points."""
    names: tuple[str, ...] = ()
    """What a folder holds, sorted."""
    content: bytes = b""
    """The first bytes of a file, as many as were asked for."""
    sha256: str = ""
    """Of a whole file, when it was asked for."""


@runtime_checkable
class Sandbox(Protocol):
    """One box; after `close`, or once lost or spent, it is never used again."""

    id: str
    backend: BackendName
    image: str

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        timeout_s: float = EXEC_TIMEOUT_S,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        cap_bytes: int = CAP_BYTES,
    ) -> ExecResult:
        """Runs a fresh process as root and waits for it, not for what it leaves in the background.

        Args:
            argv: Program and arguments; a program without a slash is sought in a fixed PATH.
            timeout_s: Then its process group is killed.
            stdin: What it reads.
            env: Added to PATH, HOME=/root and the few others that each process gets. Nothing else is inherited.
            cwd: Where it starts.
            cap_bytes: Kept of stdout and of stderr.

        Raises:
            SandboxLost: there is no answer, for reasons outside the sandbox.
            SandboxSpent: the sandbox is beyond use.
        """
        ...

    def shell(
        self, script: str | bytes, *, timeout_s: float = EXEC_TIMEOUT_S, cap_bytes: int = CAP_BYTES
    ) -> ShellResult:
        """Runs a script in the one bash that lives as long as the sandbox; the first call starts it, in /root.

        Raises:
            SandboxLost: there is no answer, for reasons outside the sandbox.
            SandboxSpent: no shell can be started any more.
        """
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a file of root's, making the folders above it.

        Raises:
            SandboxSpent: it cannot be written, e.g. the disk is full.
            SandboxLost: there is no answer.
        """
        ...

    def look(
        self, paths: Sequence[str], *, content: int = 0, digest: bool = False, timeout_s: float = EXEC_TIMEOUT_S
    ) -> dict[str, Entry | None]:
        """What there is at each path, or None, as the agent sees it with its own eyes.

        No program of the sandbox takes part, so that whoever replaced its Python, bash or libc cannot lie. Names that
        are no UTF-8 come with surrogate escapes.

        Raises:
            SandboxSpent: a path cannot be read, it takes too long, or all together have more than `LOOK_BYTES`.
            SandboxLost: there is no answer.
        """
        ...

    def changes(self) -> list[Change]:
        """What differs from the image, sorted by path, as seen from outside: no process inside can hide anything.

        Folders that merely hold changes are left out.
        """
        ...

    def expose(self) -> None:
        """From now on any process inside may look into process 1, and into its memory: `find /` has no error then.

        For those who do not judge by what process 1 tells.
        """
        ...

    def fork(self) -> "Sandbox | None":
        """An independent copy: files, and a shell in the same folder with the same variables, functions and options.

        None where that would not be faithful (processes run in the background, a nested shell is open) or the backend
        cannot: the caller replays instead.
        """
        ...

    def warm(self, timeout_s: float = EXEC_TIMEOUT_S) -> None:
        """Starts the shell ahead of its first script."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is still there, as far as can be seen without asking; only between calls."""
        ...

    def on_close(self, told: Callable[[], None]) -> None:
        """Calls `told` once, when the sandbox is closed."""
        ...

    def close(self) -> None:
        """Ends all processes and frees everything; safe to repeat, never raises."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether a backend works here, found out by starting a sandbox."""

    backend: BackendName
    ok: bool
    detail: str
    """What was found: versions and features, or the reason why not."""
    mend: str = ""
    """The command that mends it."""
    features: frozenset[Feature] = field(default_factory=frozenset)


def reason(message: str) -> str:
    """What happened, and where, of an error's message: without what to do.

    >>> reason("no engine answers [here]. Start one.")
    'no engine answers [here]'
    """
    what, end, _ = message.partition("]. ")
    return what + end[:1]


@runtime_checkable
class SandboxBackend(Protocol):
    """One way to make sandboxes; safe to share between threads."""

    name: BackendName

    def probe(self, image: str = "default") -> Probe:
        """Really starts a sandbox and runs a command in it; never raises for what is missing."""
        ...

    def create(self, image: str = "default", limits: Limits | None = None, *, timeout_s: float = 60.0) -> Sandbox:
        """A new sandbox, ready for `exec`.

        Raises:
            SandboxUnavailable: this backend does not work here, or lacks the image.
            InfrastructureError: this start failed; another may work.
        """
        ...

    def reap(self) -> int:
        """Removes what processes that are no more have left behind on this host; how many sandboxes that were."""
        ...

    def close(self) -> None:
        """Closes all of this process's sandboxes and frees everything; safe to repeat."""
        ...
