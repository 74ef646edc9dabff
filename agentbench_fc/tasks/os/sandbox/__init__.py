"""Sandboxes: Linux boxes in which a model's bash runs and from which it cannot escape.

    from agentbench_fc.tasks.os.sandbox import Limits, Sandboxes

Not here: the OS task that plays in them (task.py, episode.py beside this folder).
"""

from agentbench_fc.tasks.os.sandbox.base import (
    Change,
    Entry,
    ExecResult,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxLost,
    SandboxSpent,
    SandboxUnavailable,
    ShellResult,
)

__all__ = [
    "Change",
    "Entry",
    "ExecResult",
    "Limits",
    "Sandbox",
    "SandboxBackend",
    "SandboxLost",
    "SandboxSpent",
    "SandboxUnavailable",
    "ShellResult",
]
