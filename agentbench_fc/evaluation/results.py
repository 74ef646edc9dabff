r"""The results of an evaluation: one JSON line per episode, appended as it ends, so that a killed run goes on.

The first line holds the options of the run. The same command finds its file again and plays what is missing; an option
that shapes an episode and has changed is refused by name, because the results would not belong together. A line that a
kill cut short is dropped. A later line of the same episode replaces an earlier one.

Not here: what is played (evaluate.py), what the lines add up to (scores.py).
"""

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from agentbench_fc.errors import CallerError, Conflict, InfrastructureError
from agentbench_fc.rewards import Status, settle

VERSION = 1
_HEAD = json.dumps({"type": "run", "v": VERSION}).encode()[:-1]
MODEL_ERROR = "model error"
"""The status of an episode whose model gave no usable answer; no session ends so, and it is no result."""


class Key(NamedTuple):
    """What one episode is."""

    task: str
    sample: str
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One played episode."""

    task: str
    sample: str
    repeat: int
    seed: int
    status: str
    """A session's status, or `model error`."""
    reward: float | None
    """Raw, in [0, 1]; None without a score."""
    success: bool | None
    turns: int = 0
    calls: int = 0
    invalid_calls: int = 0
    no_call_turns: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's own, such as f1."""
    prompt_tokens: int | None = None
    """Summed over the requests, when the endpoint reports it."""
    completion_tokens: int | None = None
    cut_answers: int = 0
    """Answers that reached max_tokens."""
    tries: int = 0
    """Further tries of requests that failed at first."""
    model_s: tuple[float, ...] = ()
    """Seconds of each answer."""
    env_s: tuple[float, ...] = ()
    """Seconds of the start, then of each turn."""
    fault: str | None = None
    """Whose fault a missing score is: client, task, environment, worker or model."""
    error: str | None = None
    kind: str | None = None
    """Kind of a model error: timeout, cut, garbage, http 500 …"""
    policies: tuple[str, ...] = ()
    """Who answered each turn, where a pool of models plays."""

    @property
    def key(self) -> Key:
        """The episode."""
        return Key(self.task, self.sample, self.repeat)

    @property
    def scored(self) -> bool:
        """Whether the episode says something about the model."""
        return self.status != MODEL_ERROR and settle(Status(self.status), self.reward).trained


class ResultsFile:
    """The results of one run on disk, open for appending. Use as a context manager.

    Raises:
        CallerError: the file belongs to a run with other options, or is no results file.
        Conflict: another process is writing it.
        InfrastructureError: it cannot be written.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[Key, EpisodeResult] = {}
        self._options = json.loads(json.dumps(options, default=str))
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
        except OSError as error:
            raise InfrastructureError(
                f"no results can be kept: {error} [{self.path}]. Choose another --out."
            ) from error
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Conflict(
                    f"another run writes these results [{self.path}]. Wait, or choose another --out."
                ) from error
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, result: EpisodeResult) -> None:
        """Appends one episode; it is on disk when this returns, as far as a killed process is concerned."""
        self._append({"type": "episode", **asdict(result)})
        self.done[result.key] = result

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None, "use the results file as a context manager"
        try:
            self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            self._file.flush()
        except OSError as error:
            raise InfrastructureError(f"no results can be kept: {error} [{self.path}]. Free some space.") from error

    def _read(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1  # a kill cut the rest short: that episode is played again
        if content[: len(_HEAD)] != _HEAD[: len(content)]:
            raise CallerError(f"this is no results file of this version [{self.path}]. Choose another --out.")
        if whole:
            try:
                head, *rows = [json.loads(line) for line in content[:whole].splitlines()]
                results = [_result(row) for row in rows]
                before = dict(head["options"])
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise CallerError(f"a line cannot be read: {error!r} [{self.path}]. Choose another --out.") from error
            refuse_changes(before, self._options, self.path)
            self.done = {result.key: result for result in results}
        self._file.truncate(whole)
        if not whole:
            self._append({"type": "run", "v": VERSION, "options": self._options})


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises a CallerError that names the options that differ, with both values."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if names:
        changes = "; ".join(f"{name} was {_short(before.get(name))}, now {_short(now.get(name))}" for name in names)
        raise CallerError(f"these results were made with other options: {changes} [{path}]. Choose another --out.")


def read_results(path: Path) -> list[EpisodeResult]:
    """The episodes of a results file, in order of their keys; it may be in use."""
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]]
    found = {result.key: result for result in map(_result, rows)}
    return [found[key] for key in sorted(found)]


def _result(row: dict[str, Any]) -> EpisodeResult:
    fields = {name: value for name, value in row.items() if name != "type"}
    fields |= {name: tuple(fields.get(name, ())) for name in ("model_s", "env_s", "policies")}
    return EpisodeResult(**fields)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
