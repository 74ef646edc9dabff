"""DB: answer questions about a MySQL database, or change it, by SQL through two tools.

Not here: prompts, tools and limits (tasks/db/task.yaml).
"""

from functools import partial
from pathlib import Path

from agentbench_fc.episode import Task
from agentbench_fc.spec import TaskSpec


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    backend: str = "sqlite",
    data: str | Path | None = None,
    exclude_suspect: bool = False,
    level: str | None = None,
) -> Task:
    """The DB task.

    Args:
        spec: Tools, limits and prompts, already resolved.
        folder: The task's folder, with the manifest of the generated data.
        backend: `sqlite`, embedded.
        data: A `.jsonl` file of AgentBench's dbbench, or a folder with `dbbench/`; None: the generated samples.
        exclude_suspect: Leave out AgentBench's samples with a known fault.
        level: Only the generated samples of one level: `easy`, `medium` or `hard`.

    Raises:
        CallerError: an option that this version does not have, or data that are not there.
    """
    from agentbench_fc.tasks.db import readers
    from agentbench_fc.tasks.db.backend import check_backend
    from agentbench_fc.tasks.db.generate import SIZES
    from agentbench_fc.tasks.db.task import DbTask, check_level, generated_rows

    check_backend(backend)
    check_level(level, generated_data=data is None)
    if data is None:
        return DbTask(spec, partial(generated_rows, folder), list(SIZES), backend, level)
    files = readers.find_files(Path(data).expanduser())
    rows = partial(readers.read_split, files, folder, exclude_suspect)
    return DbTask(spec, rows, list(files), backend, level)
