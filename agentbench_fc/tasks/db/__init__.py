"""DB: answer questions about a MySQL database, or change it, by SQL through two tools.

Not here: prompts, tools and limits (tasks/db/task.yaml).
"""

import logging
import os
from functools import cache, partial
from pathlib import Path

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError
from agentbench_fc.spec import TaskSpec

logger = logging.getLogger(__name__)

WIRE_OPTIONS = ("exclude_suspect", "level")
"""What clients may set over HTTP: nothing that names a file or a server, or decides how much is built."""


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    backend: str = "sqlite",
    dsn: str | None = None,
    data: str | Path | None = None,
    exclude_suspect: bool = False,
    level: str | None = None,
) -> Task:
    """The DB task.

    Args:
        spec: Tools, limits and prompts, already resolved.
        folder: The task's folder, with the manifest of the generated data.
        backend: `sqlite` (embedded, an approximation of MySQL), `mariadb` (a private server of ours) or `dsn` (an
            existing server).
        dsn: Of an existing server, `mysql://user:password@host:port`; better in `AGENTBENCH_FC_DSN`, which no
            transcript holds.
        data: A `.jsonl` file of AgentBench's dbbench, or a folder with `dbbench/`; `agentbench` means the folder that
            `AGENTBENCH_DATA` names. None: the generated samples.
        exclude_suspect: Leave out AgentBench's samples with a known fault.
        level: Only the generated samples of one level: `easy`, `medium` or `hard`.

    Raises:
        CallerError: an option that there is not, a driver that is not installed, or data that are not there.
        InfrastructureError: no server is installed.
    """
    from agentbench_fc.tasks.db import generate, readers
    from agentbench_fc.tasks.db.backend import make_backend
    from agentbench_fc.tasks.db.task import DbTask
    from agentbench_fc.tasks.splits import check_level, generated_rows

    check_level("db", level, generate.LEVELS, generated_data=data is None)
    made = make_backend(backend, dsn)
    if backend == "sqlite":
        _warn_of_sqlite()
    if data is None:
        rows = partial(generated_rows, f"db/{generate.VERSION}", folder, generate.make_split)
        return DbTask(spec, rows, list(generate.SIZES), made, level)
    if str(data) == "agentbench":
        data = os.environ.get("AGENTBENCH_DATA")
        if not data:
            raise CallerError("AGENTBENCH_DATA is not set [task db, data=agentbench]. Name AgentBench's data folder.")
    files = readers.find_files(Path(data).expanduser())
    return DbTask(spec, partial(readers.read_split, files, folder, exclude_suspect), list(files), made, level)


@cache
def _warn_of_sqlite() -> None:
    """Once a process: a training loads the task several times."""
    logger.warning("DB runs on sqlite, an approximation of MySQL: compare scores only with others on sqlite")
