"""Task id -> Task: the built-in five, entry points of other packages, or `my_task.py:TASK`.

>>> sorted(known_tasks())[:2]
['alfworld', 'db']

A built-in task is a folder of data (`tasks/<name>/task.yaml`) and a module `agentbench_fc.tasks.<name>` with
`make(spec, folder, **options) -> Task`. Another package offers a `Task`, or a callable that makes one, under the entry
point group `agentbench_fc.tasks`. Metadata alone lists the tasks: nothing is imported before a task is loaded.

Not here: what a task is (episode.py); Gymnasium ids (envs/).
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from agentbench_fc.episode import Task
from agentbench_fc.errors import AgentBenchError, CallerError, NotFound, TaskError, did_you_mean
from agentbench_fc.spec import load_spec

GROUP = "agentbench_fc.tasks"
BUILT_IN = ("os", "db", "kg", "alfworld", "webshop")


def tasks_root() -> Path:
    """The folder with the tasks' data: AGENTBENCH_FC_TASKS, else the checkout's `tasks/`, else the installed copy."""
    if given := os.environ.get("AGENTBENCH_FC_TASKS"):
        root = Path(given).expanduser()
        if not root.is_dir():
            raise CallerError(f"no such folder: {root} [AGENTBENCH_FC_TASKS]. Unset it, or name a folder of tasks.")
        return root
    package = Path(__file__).parent
    checkout = package.parent / "tasks"
    return checkout if (package.parent / "pyproject.toml").exists() and checkout.is_dir() else package / "_tasks"


def available_built_ins() -> list[str]:
    """The built-in tasks whose code and data are present in this version."""
    return [n for n in BUILT_IN if (tasks_root() / n / "task.yaml").exists() and (_code_folder(n)).exists()]


def _code_folder(name: str) -> Path:
    return Path(__file__).parent / "tasks" / name / "__init__.py"


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Tasks that other installed packages offer, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def known_tasks() -> list[str]:
    """Every task id that `load_task` understands without a path."""
    return [*BUILT_IN, *(name for name in entry_points() if name not in BUILT_IN)]


def load_task(name: str, *, profile: str = "default", prompt: str = "default", **options: Any) -> Task:
    """Makes a task under one profile and prompt style.

    Args:
        name: A built-in id, the name of an entry point, or `path/to/file.py:ATTRIBUTE`.
        profile: `default` (fair and safe) or `agentbench` (AgentBench's rules to the bit).
        prompt: The style of the prompts, `default` or `compact`.
        options: The task's own options, and overrides of single spec fields such as `max_turns`.

    Raises:
        NotFound: no such task.
        CallerError: it does not know an option.
        TaskError: its code cannot be imported.
    """
    if ":" in name:
        return _from_object(_load_path(name), name, profile, prompt, options)
    if name in BUILT_IN:
        return _load_built_in(name, profile, prompt, options)
    points = entry_points()
    if name not in points:
        raise NotFound(
            f"no task {name!r} [registry]. {did_you_mean(name, known_tasks())} "
            "A task of your own: give `path/to/file.py:TASK`."
        )
    try:
        target = points[name].load()
    except (Exception, SystemExit) as error:  # whatever another package's import raises
        raise TaskError(
            f"task {name!r} cannot be imported: {error!r} [{points[name].value}]. Reinstall that package."
        ) from error
    return _from_object(target, name, profile, prompt, options)


def _load_built_in(name: str, profile: str, prompt: str, options: dict[str, Any]) -> Task:
    if name not in available_built_ins():
        raise NotFound(
            f"task {name!r} is not in this version yet [registry]. Available: {', '.join(available_built_ins())}."
        )
    folder = tasks_root() / name
    fields = {"max_turns", "max_output_chars", "max_invalid_calls", "start_timeout_s", "call_timeout_s"}
    overrides = {key: options.pop(key) for key in fields & set(options)}
    spec = load_spec(folder / "task.yaml", profile=profile, prompt=prompt, **overrides)
    module = importlib.import_module(f"agentbench_fc.tasks.{name}")
    return _call_factory(module.make, name, (spec, folder), options, also=fields)


def _from_object(target: Any, name: str, profile: str, prompt: str, options: dict[str, Any]) -> Task:
    if isinstance(target, Task) and not isinstance(target, type):
        if profile != "default" or prompt != "default" or options:
            given = ", ".join(
                [*options, *([profile] if profile != "default" else []), *([prompt] * (prompt != "default"))]
            )
            raise CallerError(f"task {name!r} takes no profile, prompt style or options, got {given} [registry].")
        return target
    if not callable(target):
        raise TaskError(
            f"{name!r} is a {type(target).__name__} [registry]. Export a Task, or a callable that makes one."
        )
    extra = {key: value for key, value in (("profile", profile), ("prompt", prompt)) if value != "default"}
    task = _call_factory(target, name, (), options | extra)
    if not isinstance(task, Task):
        raise TaskError(f"{name!r} made a {type(task).__name__} [registry]. It must return a Task (see make_task).")
    return task


def _call_factory(
    factory: Any, name: str, args: tuple[Any, ...], options: dict[str, Any], also: Collection[str] = ()
) -> Task:
    """Calls the maker of a task; `also` names the options that were taken before, for the hint of a slip."""
    import inspect

    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = [
        p.name for p in list(parameters.values())[len(args) :] if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}
    ]
    for key in options:
        if key not in names and not takes_any:
            raise CallerError(f"task {name!r} has no option {key!r} [registry]. {did_you_mean(key, [*names, *also])}")
    try:
        task: Task = factory(*args, **options)
    except AgentBenchError:
        raise
    except Exception as error:  # a task's own code may raise anything
        raise TaskError(f"task {name!r} cannot be made: {error!r} [registry]. Look at its code and data.") from error
    return task


def _load_path(name: str) -> Any:
    path_text, _, attribute = name.rpartition(":")
    path = Path(path_text).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise NotFound(f"no such file: {path_text} [task {name!r}]. Give `path/to/file.py:TASK`.")
    module = _imported(path, name)
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise NotFound(f"{path.name} has no {attribute!r} [task {name!r}]. {did_you_mean(attribute, public)}")
    return getattr(module, attribute)


_importing = (
    threading.RLock()
)  # two threads that load one file at once must not see it half executed; a file may load another


def _imported(path: Path, name: str) -> ModuleType:
    module_name = f"agentbench_fc_task_{abs(hash(path)):x}"
    with _importing:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # pickling and get_type_hints look the module up by name
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # the user's file may raise anything
            del sys.modules[module_name]
            if not isinstance(error, (Exception, SystemExit)):
                raise
            raise TaskError(
                f"{path.name} cannot be imported: {error!r} [task {name!r}]. Run it alone to see."
            ) from error
        return module
