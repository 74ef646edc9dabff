"""The OCI configuration of one sandbox: its namespaces, capabilities, mounts, limits and system calls, as data.

Not here: running it (oci_keeper.py); the list of system calls (seccomp.py).
Source: the OCI runtime specification 1.0; capabilities and masked paths are those under which AgentBench's samples
give the same verdicts as with Docker's defaults.
"""

import resource
from pathlib import Path
from typing import Any

from agentbench_fc.tasks.os.sandbox.base import PATH, Limits
from agentbench_fc.tasks.os.sandbox.seccomp import profile
from agentbench_fc.tasks.os.sandbox.wire import COMMAND

FIRST_ID = 0x70000000
"""The first user and group id of this host that stands for root inside; far from those that anything else uses."""
IDS = 65_536
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "KILL")
"""What root inside may do to its own; nothing that would let it look into process 1."""
HOSTNAME = "localhost"
NOFILE = 1_048_576
PTY_OPTIONS = ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64")
"""A bound of its own, for all containers of a host share its pseudoterminals."""
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/fs", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
    "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats", "/proc/tty/driver", "/proc/sysrq-trigger",
    "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/vmallocinfo", "/proc/slabinfo",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/irq", "/proc/sys", "/proc/mtrr", "/proc/driver")


def swap_is_counted() -> bool:
    """Whether this kernel can limit memory and swap together."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return unified or Path("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()


def runtime_spec(root: str, cgroup: str, limits: Limits) -> dict[str, Any]:
    """The configuration of one sandbox.

    Args:
        root: Its file system, mounted, owned by the shifted ids.
        cgroup: Path of its control group below the hierarchy's root.
        limits: What it may use.
    """
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    memory = limits.memory_mib * 2**20
    nofile = min(NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return {
        "ociVersion": "1.0.2",
        "hostname": HOSTNAME,
        "root": {"path": root, "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0, "umask": 0o022},
            "cwd": "/",
            "args": list(COMMAND),
            "env": [f"PATH={PATH}", "HOME=/root"],
            "noNewPrivileges": True,
            "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")},
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": nofile, "hard": nofile},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "mounts": [
            _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k"),
            _mount("/dev/pts", "devpts", "devpts", *PTY_OPTIONS),
            _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=16m"),
        ],
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "network", "ipc", "uts", "mount", "user")],
            "uidMappings": [{"containerID": 0, "hostID": FIRST_ID, "size": IDS}],
            "gidMappings": [{"containerID": 0, "hostID": FIRST_ID, "size": IDS}],
            "cgroupsPath": cgroup,
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": memory, **({"swap": memory} if swap_is_counted() else {})},
                "pids": {"limit": limits.pids},
                "cpu": {"period": 100_000, "quota": int(limits.cpus * 100_000)},
            },
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            "seccomp": profile(),
        },
    }


def _mount(where: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": where, "type": kind, "source": source, "options": list(options)}
