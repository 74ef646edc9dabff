"""Who made a sandbox: a name that tells whether its maker still lives, also after its process id was given away.

Not here: removing what the dead have left (reaper of each backend: docker.py, oci.py).
"""

import contextlib
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process of some host."""

    host: str
    """This host and the space of its process ids: elsewhere the same id is another process."""
    pid: int
    born: int
    """In clock ticks since the host's start."""

    @classmethod
    def me(cls) -> Self:
        """The present process."""
        return cls(_host(), os.getpid(), _born(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The owner of that name; None: it is none of ours."""
        host, _, rest = text.partition("-")
        pid, _, born = rest.partition("-")
        if not host or not pid.isdigit() or not born.isdigit():
            return None
        return cls(host, int(pid), int(born))

    @property
    def name(self) -> str:
        """As it stands in labels and control groups."""
        return f"{self.host}-{self.pid}-{self.born}"

    @property
    def is_gone(self) -> bool:
        """Whether the process certainly is no more; of another host's nothing is known, so it is not gone."""
        return self.host == _host() and _born(self.pid) != self.born


def _host() -> str:
    facts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            facts.append(Path(path).read_text().strip())
            break
    with contextlib.suppress(OSError):
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("|".join(facts).encode()).hexdigest()[:8]


def _born(pid: int) -> int | None:
    """When a process began; None: there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])
