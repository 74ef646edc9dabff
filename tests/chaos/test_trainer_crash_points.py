"""A trainer that dies at any line of queue or checkpoint code goes on where its last whole checkpoint stands.

A life is the trainer's loop over the real queue, sample plan, rows and checkpoints, with files of a few bytes in the
place of a model. A tracer counts the lines that queue.py and checkpoint.py execute, in all threads, and ends the life
at a given one; what was not sealed by then may be torn, as a disk does it. The next life resumes.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from agentrl_trainer import checkpoint, queue
from agentrl_trainer.config import Normalization
from agentrl_trainer.normalization import TaskNormalizer
from agentrl_trainer.queue import TrajectoryQueue
from agentrl_trainer.rollout.plan import SamplePlan
from agentrl_trainer.rows import train_rows
from agentrl_trainer.types import Group, Trajectory

POINTS = 500
IN_CI = 60
"""Of them in every run of the suite; all of them in the full one."""
STEPS = 5
PER_STEP = 2
IN_FLIGHT = 3
MEMBERS = 3
TRACED = {queue.__file__, checkpoint.__file__}
TASKS = {"t": (1.0, [f"t/train/{i}" for i in range(40)])}


class Crash(BaseException):
    """Nothing that anyone may catch and go on from."""


class Tracer:
    """Counts executed lines of the traced files in all threads, and crashes at one of them."""

    def __init__(self, crash_at: int = -1) -> None:
        self.lines = 0
        self.crashed = False
        self._crash_at = crash_at

    def __enter__(self) -> "Tracer":
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename in TRACED else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if event == "line" and not self.crashed:
            self.lines += 1
            # a process dies as a whole: what another thread has reached ends the main one
            if 0 < self._crash_at <= self.lines and threading.current_thread() is threading.main_thread():
                self.crashed = True
                raise Crash(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self._line


class Source:
    """Plays the plan with a few groups in flight, which come in any order; some members fail, some groups are equal."""

    def __init__(self, done: set[str], rng: random.Random) -> None:
        self._plan = SamplePlan(TASKS, seed=3, done=done)
        self._rng = rng
        self._flight: list[str] = []

    def get_group(self, timeout: float) -> Group | None:
        while len(self._flight) < IN_FLIGHT:
            draw = self._plan.next()
            assert draw is not None
            self._flight.append(draw.group_id)
        group_id = self._flight.pop(self._rng.randrange(IN_FLIGHT))
        rows = [member(group_id, replica, self._rng) for replica in range(MEMBERS)]
        return Group(id=group_id, task="t", sample_id="t/train/0", trajectories=rows, admitted_version=0)

    def stats(self) -> Mapping[str, Any]:
        return {}


def member(group_id: str, replica: int, rng: random.Random) -> Trajectory:
    usable = rng.random() < 0.9
    mask = np.array([False, True, True])
    return Trajectory(
        task="t", sample_id="t/train/0", group_id=group_id, replica=replica, prompt_length=1,
        ids=np.ones(3, "i4"), mask=mask, logprobs=np.zeros(3, "f4"), versions=np.where(mask, 0, -1).astype("i4"),
        engines=np.where(mask, 0, -1).astype("i1"), turns=mask.astype("i2"), status="completed",
        reward=float(rng.random() < 0.5) if usable else None, usable=usable,
    )  # fmt: skip


def life(run: Path, seed: int) -> dict[str, Any]:
    """From the newest whole checkpoint to the last step; the state of the last one."""
    start = checkpoint.resume_from("auto", run)
    state: dict[str, Any] = {"trained": [], "weight": 0.0}
    cursor = checkpoint.Cursor()
    if start:
        state = json.loads((start / "model.json").read_text())
        cursor = checkpoint.Cursor.load(start)
    assert cursor.done == set(state["trained"]), "cursor and weights agree"
    normalizer = TaskNormalizer(Normalization())
    feed = TrajectoryQueue(Source(cursor.done, random.Random(seed)), capacity=2).start()
    try:
        for step in range((checkpoint.step_of(start) if start else 0) + 1, STEPS + 1):
            batch = feed.get_batch(
                PER_STEP * MEMBERS - 2, PER_STEP * MEMBERS, version=step - 1, deadline_s=10, refill=None
            )
            rows = train_rows(batch.groups, normalizer, version=0, max_lag=9, fresh_engines=1)
            state["weight"] += float(np.sum(rows.advantages)) if len(rows.advantages) else 0.0
            state["trained"] += [group.id for group in batch.groups]
            cursor.add(group.id for group in batch.groups)
            folder = run / f"{checkpoint.PREFIX}{step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.json").write_text(json.dumps(state))
            cursor.save(folder)
            checkpoint.seal(folder, {"step": step})
            checkpoint.prune(run, keep=2)
        feed.close()
    except Crash:
        feed._closed = True  # no `close`: a dead process tidies nothing up, and may have died with a lock in its hand
        raise
    return state


def tear(run: Path, rng: random.Random) -> None:
    """What a crashed machine may do to files that nothing vouches for yet, and rarely to those of a whole one."""
    folders = checkpoint.checkpoints(run)
    for folder in folders:
        sealed = (folder / checkpoint.MANIFEST).exists()
        harmed = rng.random() < 0.5 if not sealed else folder is folders[-1] and len(folders) > 1 and rng.random() < 0.1
        if harmed:
            for path in sorted(p for p in folder.iterdir() if p.is_file()):
                path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])


def die_and_go_on(points: range, folder: Path) -> None:
    with Tracer() as tracer:
        life(folder / "whole", 0)
    most = tracer.lines
    assert most > POINTS
    crashed = 0
    for number in points:
        run = folder / f"run{number}"
        run.mkdir()
        rng = random.Random(number)
        for attempt in range(rng.choice([1, 1, 2])):  # some die twice
            try:
                with Tracer(1 + (number * most // POINTS + 977 * attempt) % most) as tracer:
                    life(run, 10 * number + attempt)
            except Crash:
                crashed += 1
            tear(run, rng)
        state = life(run, number)
        trained = state["trained"]
        assert len(set(trained)) == len(trained), "none doubled"
        numbers = {int(group_id[1:]) for group_id in trained}
        assert len(set(range(max(numbers) + 1)) - numbers) <= IN_FLIGHT + 3, "none skipped but what is under way"
        assert np.isfinite(state["weight"])
        assert checkpoint.newest_whole(run) == run / f"{checkpoint.PREFIX}{STEPS}"
    assert crashed > 0.8 * len(points)


# a crash between opening a file and its `with` leaves the file to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestARunThatDiesAnywhereLosesAndDoublesNothing:
    def test_at_points_spread_over_its_life(self, tmp_path: Path) -> None:
        die_and_go_on(range(0, POINTS, POINTS // IN_CI), tmp_path)

    @pytest.mark.full
    @pytest.mark.parametrize("part", range(5))
    def test_at_all_points(self, part: int, tmp_path: Path) -> None:
        die_and_go_on(range(part, POINTS, 5), tmp_path)
