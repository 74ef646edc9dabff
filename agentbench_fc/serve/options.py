"""Which options of a task may come over the wire: limits within bounds, and what the task or the operator allows.

A task's own options can name files, servers and sizes of worlds. So a request may set the limits of the spec, the
options that the task's module lists in `WIRE_OPTIONS`, and those that the worker was started with
(`--allow-option kg.level`); everything else is refused.

Not here: what the options mean (each task's `make`).
"""

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from agentbench_fc.errors import CallerError
from agentbench_fc.registry import BUILT_IN

BOUNDS: Mapping[str, tuple[float, float]] = {
    "max_turns": (1, 10_000),
    "max_output_chars": (1, 1_000_000),
    "max_invalid_calls": (0, 10_000),
    "start_timeout_s": (0.001, 3600),
    "call_timeout_s": (0.001, 3600),
}


def allowed_by_task(name: str) -> frozenset[str]:
    """The options that a built-in task opens to the wire."""
    if name not in BUILT_IN:
        return frozenset()
    module = importlib.import_module(f"agentbench_fc.tasks.{name}")
    return frozenset(getattr(module, "WIRE_OPTIONS", ()))


def check_options(task: str, options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises unless every option may come over the wire.

    Raises:
        CallerError: one may not, or leaves its bounds.
    """
    for name, value in options.items():
        if name in BOUNDS:
            low, high = BOUNDS[name]
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and low <= value <= high) and not (name == "max_invalid_calls" and value is None):
                raise CallerError(f"{name} is {value!r} [task {task}]. Over the wire it is {low:g} to {high:g}.")
        elif name not in allowed:
            listed = ", ".join(sorted([*BOUNDS, *allowed]))
            raise CallerError(
                f"option {name[:80]!r} cannot be set over the wire [task {task}]. Allowed: {listed}; the worker's "
                f"operator can allow more with --allow-option {task}.NAME."
            )
