"""A run's configuration from a YAML file and `key=value` overrides, and back to plain data.

>>> config = load_config(overrides=["steps=3", "tasks=kg", "tasks.kg.weight=2", "model=./my-model"])
>>> config.steps, config.tasks[0].weight, config.model.path
(3, 2.0, './my-model')
>>> load_config(overrides=["staleness.max_lags=1"])
Traceback (most recent call last):
agentbench_fc.errors.CallerError: unknown key 'max_lags' [staleness]. Did you mean 'max_lag'? Known: max_lag.

Later wins: defaults, then the file, then the overrides in their order. Values are YAML; where a text is expected, an
override is taken as it is written (`output=007`). `model=PATH` and `tasks=a,b` are short for the whole section; a
task's fields are reached by its name.

Not here: what the fields mean and which values are possible (config.py).
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import yaml

from agentbench_fc.errors import CallerError, did_you_mean
from agentrl_trainer.config import Model, RunConfig, TaskMix

Section = TypeVar("Section")
SHORT = {"Model": "path", "TaskMix": "name"}
"""The field that a bare text stands for, by the section's class."""
TEXTS = (str, str | None, Path, Path | None, Model, tuple[TaskMix, ...])
"""What an unquoted scalar on the command line means literally, e.g. a folder named by a number or a date."""


class _Loader(yaml.SafeLoader):
    """YAML without dates: no field takes one, and JSON, by which other processes get the configuration, has none."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # PyYAML is untyped in this
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a run.

    Args:
        path: A YAML file; None: the defaults alone.
        overrides: `dotted.key=value` each; the value is YAML.

    Raises:
        CallerError: unreadable file, unknown key, wrong type, or an impossible value; the message names the cure.
    """
    raw = _read(path) if path else {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise CallerError(f"{override!r} is not a setting [command line]. Write key=value, e.g. steps=3.")
        if not text.strip():
            raise CallerError(
                f"{override!r} has no value [command line]. Write null for none, or '' for an empty text."
            )
        try:
            value = _parsed(text)
        except ValueError as error:
            raise CallerError(f"{override[:200]!r} cannot be read: {error} [command line]. Quote the value.") from error
        _assign(raw, key.strip().split("."), _Given(value, text.strip()), override)
    return from_dict(raw)


def from_dict(raw: Mapping[str, Any]) -> RunConfig:
    """The configuration in plain data, e.g. what `to_dict` gave to another process."""
    return _build(RunConfig, raw, "")


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain data that YAML and JSON can hold; `from_dict` turns it back."""
    plain: dict[str, Any] = _plain(config)
    return plain


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as a file that `--config` accepts."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, width=120)


def changed_settings(before: RunConfig, after: RunConfig) -> str:
    """What differs between two configurations of one run, for a person; empty: nothing that matters."""

    def flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from flat(inner, f"{key}.{name}" if key else name)
        else:
            yield key, value

    def named(config: RunConfig) -> dict[str, Any]:
        plain = to_dict(config)
        return plain | {"tasks": {task.pop("name"): task for task in plain["tasks"]}, "output": None, "resume": None}

    old, new = dict(flat(named(before), "")), dict(flat(named(after), ""))
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return ", ".join(f"{key}={new.get(key)} (before: {old.get(key)})" for key in keys)


def _parsed(text: str) -> Any:
    """What a YAML text says.

    Raises:
        ValueError: it is not YAML, or a value is not of the kind that it looks like (`0x_`, `!!int x`).
    """
    try:
        return yaml.load(text, _Loader)  # a safe loader, with less
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:500]}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CallerError(f"the file cannot be read: {error.strerror} [{path}]. Check --config.") from error
    except ValueError as error:
        raise CallerError(f"this is not YAML: {error} [{path}]. Mend the file.") from error
    if raw is not None and not isinstance(raw, dict):
        raise CallerError(f"the file holds {_kind(raw)} [{path}]. It must map keys to values, e.g. `steps: 3`.")
    return raw or {}


class _Given(NamedTuple):
    """A value of the command line: as YAML reads it, and as it was written."""

    value: Any
    text: str

    def for_field(self, hint: Any) -> Any:
        """What a field of this type gets."""
        scalar = isinstance(self.value, (bool, int, float))
        return self.text if scalar and hint in TEXTS else self.value


def _assign(raw: dict[str, Any], keys: list[str], given: _Given, override: str) -> None:
    """Sets one dotted key in the raw data, making the sections on the way."""
    *sections, last = keys
    node: Any = raw
    hint: Any = RunConfig
    for position, key in enumerate(sections):
        hint = _hint_of(hint, key, ".".join(keys[:position]))
        if hint == tuple[TaskMix, ...]:
            return _assign_task(raw, keys, given, override)
        inner = node.get(key)
        if inner is None or not isinstance(inner, dict):
            short = SHORT.get(getattr(hint, "__name__", ""))
            inner = {short: inner} if short and inner is not None else {}
        node[key] = node = inner
    node[last] = given.for_field(_fields_of(hint).get(last))
    return None


def _assign_task(raw: dict[str, Any], keys: list[str], given: _Given, override: str) -> None:
    if len(keys) < 3:
        raise CallerError(f"{override!r} names no field [tasks]. Write tasks.<name>.<field>=value, e.g. .weight=2.")
    default = RunConfig.__dataclass_fields__["tasks"].default
    entries = map(_task, _entries(raw.get("tasks") or default))
    tasks = [entry if isinstance(entry, dict) else {"name": entry} for entry in entries]
    # the name may hold dots itself (`my_task.py:TASK`): take the longest one that is known
    rest = ".".join(keys[1:])
    matches = [t for t in tasks if rest.startswith(f"{t.get('name')}.")]
    if not matches:
        raise CallerError(f"no task {keys[1]!r} [{override}]. {did_you_mean(keys[1], [str(t['name']) for t in tasks])}")
    task = max(matches, key=lambda t: len(str(t["name"])))
    *sections, last = rest[len(str(task["name"])) + 1 :].split(".")
    node = task
    for key in sections:
        inner = node.get(key)
        node[key] = node = inner if isinstance(inner, dict) else {}
    node[last] = given.for_field(None if sections else _hints(TaskMix).get(last))
    raw["tasks"] = tasks


def _hint_of(section: Any, key: str, where: str) -> Any:
    if not dataclasses.is_dataclass(section):
        return Any  # inside a free mapping
    hints = _hints(typing.cast("type[Any]", section))
    if key not in hints:
        raise _unknown(key, hints, where)
    return hints[key]


def _hints(section: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(section)


def _unknown(key: object, known: Mapping[str, Any], where: str) -> CallerError:
    text = f"unknown key {key!r} [{where or 'configuration'}]."
    if homes := [f"{name}.{key}" for name, hint in _hints(RunConfig).items() if str(key) in _fields_of(hint)]:
        return CallerError(f"{text} Did you mean {' or '.join(homes)}?")
    return CallerError(f"{text} {did_you_mean(str(key), known)}")


def _fields_of(hint: Any) -> Mapping[str, Any]:
    return _hints(hint) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else {}


def _build(section: type[Section], raw: Any, where: str) -> Section:
    short = SHORT.get(section.__name__)
    if short and isinstance(raw, str):
        raw = {short: raw}
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise CallerError(f"{where or 'the configuration'} is {_kind(raw)} [{where}]. Give keys and values.")
    hints = _hints(section)
    for key in raw:
        if key not in hints:
            raise _unknown(key, hints, where)
    return section(**{k: _value(hints[k], v, f"{where}.{k}" if where else str(k)) for k, v in raw.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value in the type of its field, or the error that says what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value, where)
    if hint == tuple[TaskMix, ...]:
        return tuple(_build(TaskMix, _task(entry), where) for entry in _entries(value))
    if origin is tuple:  # of one kind each
        kind = arguments[0]
        entries = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
        if not isinstance(entries or [], list | tuple):
            raise CallerError(f"{where} is {_kind(value)} [{where}]. Give values, as a list or divided by commas.")
        texts = [entry.strip() if isinstance(entry, str) else entry for entry in entries or []]
        return tuple(_scalar(kind, text, where) for text in texts if text != "")
    if origin is types.UnionType:  # only `X | None` occurs
        return None if value is None else _value(arguments[0], value, where)
    if origin is Literal:
        if isinstance(value, bool) and (switch := "on" if value else "off") in arguments:
            return switch  # YAML 1.1 reads `off` as false
        if value not in arguments:
            name = where.rpartition(".")[2]
            raise CallerError(f"{name} is {value!r} [{where}]. {did_you_mean(str(value), map(str, arguments))}")
        return value
    if hint is Path:
        try:
            return Path(_scalar(str, value, where)).expanduser()
        except RuntimeError as error:
            raise CallerError(f"{value!r} is nobody's folder: {error} [{where}]. Write the whole path.") from error
    if origin is not None:  # a free mapping
        if value is not None and not isinstance(value, Mapping):
            raise CallerError(f"{where} is {_kind(value)} [{where}]. Give keys and values.")
        return dict(value or {})
    return _scalar(hint, value, where)


def _entries(value: Any) -> list[Any]:
    """The entries of the tasks section: a list, one text of comma-separated names, or task objects."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, (list, tuple)):
        return [_trimmed(entry) if isinstance(entry, TaskMix) else entry for entry in value]
    raise CallerError(f"tasks is {_kind(value)} [tasks]. Give names (tasks=db,kg) or a list with a name in each entry.")


def _trimmed(task: TaskMix) -> dict[str, Any]:
    """A task as it was written: fields that have their default are left out, so they still resolve."""
    plain: dict[str, Any] = _plain(task)
    defaults = TaskMix(name=task.name)
    return {k: v for k, v in plain.items() if k == "name" or getattr(defaults, k) != getattr(task, k)}


def _task(entry: Any) -> Any:
    if entry is None or (isinstance(entry, Mapping) and "name" not in entry):
        raise CallerError("a task has no name [tasks]. Give each entry a name, e.g. `- name: db`.")
    return entry


def _scalar(hint: Any, value: Any, where: str) -> Any:
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
    wrong = CallerError(f"{where.rpartition('.')[2]} is {_kind(value)} [{where}]. It must be {expected}.")
    if hint is bool or isinstance(value, bool):
        if hint is not bool or not isinstance(value, bool):
            raise wrong
        return value
    if value is None or not isinstance(value, (str, int, float)):
        raise wrong
    if hint is str and not isinstance(value, str):  # it would lose zeros: 007, 1.50
        raise CallerError(f"{str(wrong).removesuffix('.')}: quote it.")
    if hint is int and isinstance(value, float):
        if not value.is_integer():
            raise wrong
        return int(value)
    try:
        return hint(value)  # YAML 1.1 reads 1e-4 as a text
    except (ValueError, TypeError) as error:
        raise wrong from error


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else repr(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
