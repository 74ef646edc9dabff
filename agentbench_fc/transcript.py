"""Transcripts: the record of a session as JSON lines, enough to play it again.

Each line is an object `{"v": 1, "type": …, "session_id": …}` of one of four types:

- `start`: task, sample, split, seed, profile, prompt, options, backend, versions, tools, spec (the hash of the spec)
- `fork`: parent, turn (only for a session that was forked; its record holds the parent's turns as well)
- `turn`: turn, sent (the agent's messages), messages (the reply), status, finish, reward, success, metrics
- `end`: status, reward (raw, of the whole session), success, turns

A session's lines stand together, `start` first; they are appended in one write when it ends, so that many writers can
share a file.

Not here: playing a transcript again (replay.py).
"""

import fcntl
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import Message
from agentbench_fc.session import Session

VERSION = 1
Record = dict[str, Any]


def records(session: Session, task: str | None = None) -> Iterator[Record]:
    """The lines of a session, as far as it was played.

    Args:
        session: Open or finished.
        task: The name under which `load_task` makes the task; by default the name in its spec.
    """
    spec = session.task.spec

    def line(kind: str, **values: Any) -> Record:
        return {"v": VERSION, "type": kind, "session_id": session.id, **values}

    yield line(
        "start",
        task=task or spec.name,
        sample=session.sample.id,
        split=session.sample.split,
        seed=session.seed,
        profile=spec.profile,
        prompt=spec.prompt,
        options=session.options,
        backend=getattr(session.task, "backend", None),
        versions={"agentbench-fc": _package_version(), "python": platform.python_version(), "task": spec.version},
        spec=spec.digest,
        tools=list(spec.tools),
    )
    if session.parent is not None:
        yield line("fork", parent=session.parent[0], turn=session.parent[1])
    for played in session.log:
        turn = played.turn
        yield line(
            "turn",
            turn=turn.turn,
            sent=list(played.sent),
            messages=turn.messages,
            status=str(turn.status),
            finish=turn.finish,
            reward=turn.reward,
            success=turn.success,
            metrics=turn.metrics,
        )
    if session.finished:
        last = session.last
        yield line(
            "end", status=str(last.status), reward=session.raw_reward, success=last.success, turns=last.metrics["turns"]
        )


def append(path: Path, session: Session, task: str | None = None, *, fsync: bool = False) -> Path:
    """Appends a session's lines to a file; in a folder, to a file of this process.

    Returns:
        The file written.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_dir():
        path = path / f"transcripts-{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(dump(record) for record in records(session, task)).encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # on local disks the append alone would do, on network ones it would not
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            text = b"\n" + text  # another writer died within its last line
        while text:
            text = text[os.write(handle, text) :]
        if fsync:
            os.fsync(handle)
    finally:
        os.close(handle)
    return path


def dump(record: Mapping[str, Any]) -> str:
    """One line: strict JSON whatever a task put into its metrics."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError):
        return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item"):  # a numpy scalar
        return _plain(value.item())
    return str(value)


def _package_version() -> str:
    try:
        return importlib.metadata.version("agentbench-fc")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a transcript; `sent` is empty for the start and for an end that the agent did not cause."""

    turn: int
    sent: list[Message]
    messages: list[Message]
    status: str
    finish: bool
    reward: float | None
    success: bool | None
    metrics: dict[str, Any]


@dataclass(slots=True)
class Recorded:
    """A session as read from a transcript."""

    start: Record
    line: int
    """Number of its first line in the file."""
    turns: list[RecordedTurn] = field(default_factory=list)
    fork: Record | None = None
    end: Record | None = None
    """None: its writer died before the end."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        return str(self.start["session_id"])


@dataclass(frozen=True, slots=True)
class Transcripts:
    """What a file holds."""

    sessions: list[Recorded]
    truncated: list[int]
    """Lines that break off because their writer died: the last one, or the last one before another writer's."""


def read(path: Path | str) -> Transcripts:
    """Reads a transcript file.

    Raises:
        CallerError: no such file, or a line that is wrong for another reason than a writer's death.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CallerError(f"the transcript cannot be read: {error.strerror} [{path}]. Name a JSONL file.") from error
    sessions: list[Recorded] = []
    truncated: list[int] = []
    fault: tuple[int, str] | None = None
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        record, problem = _parse(raw)
        if fault is not None:
            if record is None or record.get("type") != "start":
                raise _wrong(path, *fault)
            truncated.append(fault[0])
            fault = None
        if record is None:
            fault = (number, problem)
        else:
            _add(record, sessions, path, number)
    if fault is not None:
        truncated.append(fault[0])
    return Transcripts(sessions, truncated)


_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "start": {"task": str, "sample": str, "seed": int, "profile": str, "prompt": str, "options": dict, "spec": str},
    "turn": {"turn": int, "sent": list, "messages": list, "status": str, "finish": bool, "metrics": dict},
    "fork": {"parent": str, "turn": int},
    "end": {"status": str},
}


def _parse(raw: bytes) -> tuple[Record | None, str]:
    """The record of a line, or what is wrong with it."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"
    if not isinstance(record, dict) or not isinstance(record.get("session_id"), str):
        return None, "it is not an object with a session_id"
    return record, ""


def _add(record: Record, sessions: list[Recorded], path: Path, number: int) -> None:
    if record.get("v") != VERSION:
        raise _wrong(path, number, f"its version is {record.get('v')!r}, this release reads {VERSION}")
    kind = str(record.get("type"))
    if kind not in _NEEDED:
        raise _wrong(path, number, f"its type is {kind}, not one of {', '.join(_NEEDED)}")
    for name, expected in _NEEDED[kind].items():
        if not isinstance(record.get(name), expected):
            raise _wrong(path, number, f"its {name} is missing or of the wrong type")
    if kind == "start":
        sessions.append(Recorded(record, number))
        return
    if not sessions or sessions[-1].session_id != record["session_id"]:
        raise _wrong(path, number, f"session {record['session_id']!r} has no start line before it")
    session = sessions[-1]
    if kind == "fork":
        session.fork = record
    elif kind == "end":
        session.end = record
    else:
        if record["turn"] != len(session.turns):
            raise _wrong(path, number, f"its turn is {record['turn']}, expected {len(session.turns)}")
        values: Record = {name: record.get(name) for name in RecordedTurn.__dataclass_fields__}
        session.turns.append(RecordedTurn(**values))


def _wrong(path: Path, number: int, problem: str) -> CallerError:
    return CallerError(f"a line is wrong: {problem} [{path}, line {number}]. Restore the file, or remove the line.")
