"""Plays transcripts again and reports every divergence: changed observations, statuses, rewards.

    report = replay_file("transcripts.jsonl")
    print(report.to_text())

A published score becomes checkable this way, and a transcript a regression test. A forked session stands in its file
with its parent's turns, so each session is played from its own lines alone.

Not here: the file format (transcript.py).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentbench_fc.episode import Task, Turn
from agentbench_fc.errors import AgentBenchError, CallerError
from agentbench_fc.loaded import check_options
from agentbench_fc.record import compare
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status
from agentbench_fc.samples import find_sample
from agentbench_fc.session import Session
from agentbench_fc.transcript import Recorded, RecordedTurn, read

Load = Callable[..., Task]
"""Makes a task like `load_task(name, profile=…, prompt=…, **options)`."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """One difference between the record and the replay."""

    session_id: str
    line: int
    """Where the session begins in the file."""
    turn: int | None
    """None: the session could not be played at all."""
    what: str

    def __str__(self) -> str:
        where = f"turn {self.turn}" if self.turn is not None else "not replayed"
        return f"session {self.session_id} (line {self.line}), {where}: {self.what}"


@dataclass(slots=True)
class ReplayReport:
    """What a replay found."""

    path: Path
    sessions: int = 0
    turns: int = 0
    """Turns played again, the starts included."""
    divergences: list[Divergence] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What a reader should know though nothing observable changed."""

    @property
    def ok(self) -> bool:
        """Whether everything came out as recorded."""
        return not self.divergences

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"path": str(self.path), "ok": self.ok}

    def to_text(self) -> str:
        """The report in lines, the sum last."""
        lines = [f"warning: {text}" for text in self.warnings]
        lines += [f"divergence: {divergence}" for divergence in self.divergences]
        found = "no divergence" if self.ok else f"{len(self.divergences)} divergences"
        return "\n".join([*lines, f"{self.path}: {self.sessions} sessions, {self.turns} turns, {found}"])


def replay_file(path: Path | str, load: Load = load_task) -> ReplayReport:
    """Plays every session of a transcript file again.

    Args:
        path: A JSONL file.
        load: Makes a task from the name, profile, prompt style and options in the record.

    Raises:
        CallerError: the file cannot be read, or a line of it is wrong.
    """
    path = Path(path)
    recorded = read(path)
    report = ReplayReport(path)
    for line in recorded.truncated:
        report.warnings.append(f"line {line} breaks off: its writer died there")
    tasks: dict[str, Task] = {}
    try:
        for session in recorded.sessions:
            _replay(session, load, tasks, report)
    finally:
        for task in tasks.values():
            task.close()
    return report


def _replay(recorded: Recorded, load: Load, tasks: dict[str, Task], report: ReplayReport) -> None:
    start = recorded.start
    report.sessions += 1
    try:
        task = _task(recorded, load, tasks)
        sample = find_sample(task, start["sample"], split=start.get("split"))
    except AgentBenchError as error:
        report.divergences.append(Divergence(recorded.session_id, recorded.line, None, str(error)))
        return
    if task.spec.digest != start["spec"]:
        report.warnings.append(
            f"session {recorded.session_id} (line {recorded.line}): the spec of {start['task']} has changed, "
            f"{start['spec']} to {task.spec.digest}"
        )
    if (backend := getattr(task, "backend", None)) != start.get("backend"):
        report.warnings.append(
            f"session {recorded.session_id} (line {recorded.line}): recorded on {start.get('backend')}, "
            f"played on {backend}"
        )
    if recorded.end is None:
        report.warnings.append(f"session {recorded.session_id} (line {recorded.line}) has no end: its writer died")
    session = Session(task, sample, seed=start["seed"], session_id=recorded.session_id, options=start["options"])
    try:
        for turn in recorded.turns:
            if not _play(turn, session, recorded, report):
                break
    finally:
        session.close()


def _task(recorded: Recorded, load: Load, tasks: dict[str, Task]) -> Task:
    start = recorded.start
    check_options(start["options"])
    key = repr([start["task"], start["profile"], start["prompt"], sorted(start["options"].items())])
    if key not in tasks:
        tasks[key] = load(start["task"], profile=start["profile"], prompt=start["prompt"], **start["options"])
    return tasks[key]


def _play(recorded: RecordedTurn, session: Session, whole: Recorded, report: ReplayReport) -> bool:
    """Plays one turn; whether the session goes on."""

    def differs(what: str) -> None:
        report.divergences.append(Divergence(whole.session_id, whole.line, recorded.turn, what))

    if recorded.status in {Status.CANCELLED, Status.CONTEXT_LIMIT} and not recorded.sent:
        session.cancel(recorded.status, str(recorded.metrics.get("reason", "")))
        return False
    if session.finished:
        differs(f"the session had ended as {session.status!s} before")
        return False
    try:
        played = session.interact(recorded.sent, recorded.turn) if recorded.sent else session.start()
    except CallerError as error:  # the record was edited
        differs(f"it cannot be played: {error}")
        return False
    report.turns += 1
    if recorded.metrics.get("fault") in {"environment", "worker"} and not played.finish:
        report.warnings.append(
            f"session {whole.session_id} (line {whole.line}): turn {recorded.turn} failed by a fault of the "
            f"environment when recorded, and not now: {recorded.metrics.get('reason')}"
        )
        return False
    if recorded.status == Status.CANCELLED:  # a cancel while the turn was played
        return False
    if difference := compare(_as_turn(recorded, session.id), played):
        differs(difference)
    return True


def _as_turn(recorded: RecordedTurn, session_id: str) -> Turn:
    status = recorded.status
    known = Status(status) if status in set(Status) else status
    return Turn(
        session_id,
        recorded.turn,
        recorded.messages,
        [],
        known,  # type: ignore[arg-type]  # an unknown one differs from all
        recorded.finish,
        recorded.reward,
        recorded.success,
    )
