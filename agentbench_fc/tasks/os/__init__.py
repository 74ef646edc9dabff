"""OS: solve problems on a Linux system by bash, in a real and hardened sandbox.

Not here: prompts, tools and limits (tasks/os/task.yaml); sandboxes (sandbox/).
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError
from agentbench_fc.spec import TaskSpec

if TYPE_CHECKING:
    from agentbench_fc.tasks.os.boxes import Pool

WIRE_OPTIONS = ("exclude_suspect", "level")
"""What clients may set over HTTP: nothing that names a file or decides what runs on the host."""


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    backend: str = "auto",
    warm: int = 0,
    max_open: int | None = None,
    data: str | Path | None = None,
    exclude_suspect: bool = False,
    level: str | None = None,
    command_timeout_s: float = 30.0,
) -> Task:
    """The OS task.

    Args:
        spec: Tools, limits and prompts, already resolved.
        folder: The task's folder, with the manifest of the generated data.
        backend: `docker`, `oci`, or `auto`: the first of them that can start a sandbox here.
        warm: Sandboxes that stand ready before they are asked for.
        max_open: Sandboxes at once; more sessions wait. None: the pool's own bound.
        data: AgentBench's `os_interaction/` folder, the folder above it, or one of its JSON files; `agentbench` means
            the folder that `AGENTBENCH_DATA` names. None: the generated samples.
        exclude_suspect: Leave out AgentBench's samples that are known to be wrong or cannot be played.
        level: Only the generated samples of one level: `easy`, `medium` or `hard`.
        command_timeout_s: A script of the agent has so long; less than a call.

    Raises:
        CallerError: an option that there is not, or data that are not there.
    """
    from dataclasses import replace

    from agentbench_fc.tasks.os import generate, readers
    from agentbench_fc.tasks.os.task import OsTask
    from agentbench_fc.tasks.splits import check_level, generated_rows

    check_level("os", level, generate.LEVELS, generated_data=data is None)
    _check(backend, warm, max_open)
    seconds = command_timeout_s if isinstance(command_timeout_s, int | float) else -1
    if not 0 < seconds < (spec.call_timeout_s or float("inf")):
        raise CallerError(
            f"command_timeout_s is {command_timeout_s!r} [task os]. Use seconds above 0, less than call_timeout_s."
        )

    def make_pool() -> "Pool":
        from agentbench_fc.tasks.os.sandbox.pool import Sandboxes

        return Sandboxes(backend, warm=warm, max_open=max_open)

    if data is None:
        return OsTask(
            spec,
            partial(generated_rows, f"os/{generate.VERSION}", folder, generate.make_split),
            list(generate.SIZES),
            make_pool,
            level=level,
            command_timeout_s=command_timeout_s,
        )
    sources = readers.find_sources(data)
    spec = replace(spec, splits={split: f"AgentBench's {split} samples" for split in sources})

    def rows(split: str) -> list[dict[str, object]]:
        return readers.read_split(sources[split], folder, exclude_suspect, split)

    return OsTask(spec, rows, list(sources), make_pool, command_timeout_s=command_timeout_s)


def _check(backend: object, warm: object, max_open: object) -> None:
    """Refuses options that would fail at the first episode only."""
    from agentbench_fc.errors import did_you_mean
    from agentbench_fc.tasks.os.sandbox.choose import NAMES

    names = ["auto", *NAMES]
    if backend not in names:
        raise CallerError(f"no sandbox backend {backend!r} [task os]. {did_you_mean(str(backend), names)}")
    for name, value, least in (("warm", warm, 0), ("max_open", 1 if max_open is None else max_open, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise CallerError(f"{name} is {value!r} [task os]. Use a whole number, {least} or more.")
