"""AgentBench's own OS samples, set up, solved by their own examples and graded, against a stored audit of all 1,170.

One play of a sample is graded twice, by the default rules (reference computed in another sandbox) and by AgentBench's
(reference run once more, in place). Every sample that the audit marks as passing has to pass both, but for the
exceptions, which are listed here by id.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from os_boxes import engine  # noqa: F401
from os_task_kinds import kind  # noqa: F401

from agentbench_fc.episode import Expert, Sample, Turn
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import tool_result
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.os.boxes import Boxes
from agentbench_fc.tasks.os.episode import OsEpisode, Rules
from agentbench_fc.tasks.os.grading import Grader, References
from agentbench_fc.tasks.os.sandbox.pool import Sandboxes

THREADS = 3
UNPLAYABLE = {
    *(f"os/std/1/stock#{n}" for n in range(7)),
    *(f"os/std/2/environment#{n}" for n in (2, 3, 4)),
    *(f"os/std/5/new#{n}" for n in (0, 1, 2)),
    *(f"os/dev/{n}" for n in (3, 5, 25)),
}
"""Their script files are not in the data folder of these tests."""
INIT_FAILS = {"os/std/4/Q09#0"}
"""Needs descriptor 123321."""
DIFFER = {
    "os/std/6/new#0": (False, False),  # ~/test is nowhere: the example does not find it
    "os/std/6/new#1": (False, False),
    "os/dev/24": (False, False),
    "os/dev/8": (True, False),  # 8.0K is a size by our rules
    "os/train/252": (False, False),  # two lines
    "os/train/337": (False, True),  # an empty answer
    "os/train/683": (True, False),  # the example changes what it counts: right once
}


HOST = {"os/std/7/bootstrap#6", "os/std/7/bootstrap#18"}
"""They ask how full the host's memory is, which may be another answer a moment later."""
TRIES = 5
"""For those, and for all that count processes: `ps -A | wc -l` sees its own `wc` or, now and then, does not."""


class Play(NamedTuple):
    """What came of one sample: verdicts by the default rules and by AgentBench's; none, and why, if it did not start.

    None stands for rules by which it was not judged.
    """

    verdicts: tuple[bool | None, bool] | None
    note: str


def our_id(audit_id: str) -> str:
    split, folder, rest = audit_id.split("-", 2)
    if split != "std":
        return f"os/{split}/{int(audit_id[-5:])}"
    stem, _, number = rest.rpartition("-")
    return f"os/std/{int(folder)}/{stem}#{int(number)}"


@pytest.fixture(scope="module")
def audit(test_data: Path) -> dict[str, str]:
    samples = json.loads((test_data / "os_gold_audit.json").read_text(encoding="utf-8"))["samples"]
    return {our_id(sample["id"]): sample["status"] for sample in samples}


@pytest.fixture(scope="module")
def samples(test_data: Path) -> Callable[[str], list[Sample]]:
    task = load_task("os", data=test_data / "agentbench")
    return lambda split: list(task.samples(split))


@pytest.fixture(scope="module")
def boxes(kind: str) -> Iterator[Boxes]:  # noqa: F811
    made = Boxes(lambda: Sandboxes(kind, warm=2))
    yield made
    made.close()


def play(sample: Sample, task: Any, boxes: Boxes, *, both: bool) -> Play:
    ours, theirs = (Grader(boxes, References(), agentbench=agentbench) for agentbench in (False, True))
    try:
        episode = OsEpisode.begin(Rules(task.spec, ours if both else theirs, 60.0), sample)
    except TaskError as error:
        return Play(None, str(error))
    try:
        answer, shown = follow(episode, task.expert(sample))
        passed = [
            grader.grade(sample.id, sample.data, answer, episode._box, episode._known).passed
            for grader in ([ours, theirs] if both else [theirs])
        ]
        return Play((passed[0] if both else None, passed[-1]), f"answer {answer!r}, shown {shown[-200:]!r}")
    finally:
        episode.close()


def follow(episode: OsEpisode, moves: Expert) -> tuple[str | None, str]:
    """Plays an expert's moves up to the one that commits; the answer, and what was shown last."""
    shown, move = "", next(moves)
    while not isinstance(move, str) and move.name == "bash_action":
        shown = episode.call(move.name, json.loads(move.arguments)).content
        message = tool_result(move.id, shown)
        move = moves.send(Turn("", 0, [message], [], Status.RUNNING, False, None, None))
    assert not isinstance(move, str)
    return json.loads(move.arguments).get("answer"), shown


def replay(chosen: list[Sample], test_data: Path, boxes: Boxes, *, both_each: int = 1) -> dict[str, Play]:
    """Plays the samples; each so many-th is judged by both rules, which takes a second sandbox, the others by one."""
    task = load_task("os", data=test_data / "agentbench")

    def play_again(numbered: tuple[int, Sample]) -> Play:
        number, sample = numbered
        both = number % both_each == 0
        played = play(sample, task, boxes, both=both)
        passing = sample.id in HOST or "processes" in sample.data["volatile"]
        for _ in range(TRIES if passing else 0):
            if played.verdicts and all(played.verdicts):
                break
            played = play(sample, task, boxes, both=both)
        return played

    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip([sample.id for sample in chosen], threads.map(play_again, enumerate(chosen)), strict=True))


def surprises(plays: dict[str, Play], audit: dict[str, str]) -> dict[str, tuple[Any, Play]]:
    """What came out otherwise than the audit and the lists above say."""
    found = {}
    for name, played in plays.items():
        expected: tuple[bool, bool] | None = DIFFER.get(name, (True, True))
        if name in UNPLAYABLE | INIT_FAILS:
            expected = None
        elif name not in DIFFER:
            assert audit[name] in {"pass", "no_gold_script"}, name
        fits = (played.verdicts is None) == (expected is None)
        pairs = zip(played.verdicts or (), expected or (), strict=False)
        if not fits or any(verdict not in {None, wanted} for verdict, wanted in pairs):
            found[name] = (expected, played)
    return found


def check_std_and_dev(plays: dict[str, Play], audit: dict[str, str]) -> None:
    assert surprises(plays, audit) == {}
    not_played = {name for name, played in plays.items() if played.verdicts is None}
    assert not_played == UNPLAYABLE | INIT_FAILS
    assert all("is not there" in plays[name].note for name in UNPLAYABLE)


def test_std_and_dev(
    samples: Callable[[str], list[Sample]],
    test_data: Path,
    boxes: Boxes,
    audit: dict[str, str],
    kind: str,  # noqa: F811
) -> None:
    everything = [*samples("std"), *samples("dev")]
    check_std_and_dev(replay(everything, test_data, boxes, both_each=1 if kind == "oci" else 4), audit)


def test_a_tenth_of_train(
    samples: Callable[[str], list[Sample]],
    test_data: Path,
    boxes: Boxes,
    audit: dict[str, str],
    kind: str,  # noqa: F811
) -> None:
    if kind == "docker":
        pytest.skip("the tenth of train is played on oci; all of it on both with -m full")
    assert surprises(replay(samples("train")[3::10], test_data, boxes), audit) == {}


@pytest.mark.full
def test_all_of_train(
    samples: Callable[[str], list[Sample]], test_data: Path, boxes: Boxes, audit: dict[str, str]
) -> None:
    assert surprises(replay(samples("train"), test_data, boxes), audit) == {}


@pytest.mark.full
def test_all_of_std_and_dev(
    samples: Callable[[str], list[Sample]], test_data: Path, boxes: Boxes, audit: dict[str, str]
) -> None:
    check_std_and_dev(replay([*samples("std"), *samples("dev")], test_data, boxes), audit)
