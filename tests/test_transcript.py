"""Transcripts: written whole, read back equal, and honest about damage."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import counter_task

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.session import Session
from agentbench_fc.transcript import append, dump, read, records


def played(moves: int = 2, seed: int = 3, *, end: bool = True) -> Session:
    session = Session(counter_task(), counter_task().samples("train")[1], seed=seed)
    session.start()
    for n in range(moves):
        session.interact([assistant("é\u2028", [ToolCall(f"c{n}", "add", '{"number": 1}')])])
    if end:
        session.interact([assistant(None, [ToolCall("end", "submit", "{}")])])
    return session


def test_a_session_comes_back_as_it_was(tmp_path: Path) -> None:
    session = played()
    path = append(tmp_path / "deep" / "t.jsonl", session)
    (recorded,) = read(path).sessions
    assert recorded.session_id == session.id
    assert recorded.start["sample"] == "counter/train/1"
    assert recorded.start["spec"] == session.task.spec.digest
    assert set(recorded.start["versions"]) == {"agentbench-fc", "python", "task"}
    assert [t.sent for t in recorded.turns] == [list(p.sent) for p in session.log]
    for turn, log in zip(recorded.turns, session.log, strict=True):
        for name in ("turn", "messages", "status", "finish", "reward", "success", "metrics"):
            assert getattr(turn, name) == getattr(log.turn, name)
    assert recorded.end is not None
    assert (recorded.end["status"], recorded.end["reward"], recorded.end["turns"]) == ("completed", 1.0, 3)


def test_the_lines_stand_in_order_and_name_their_session() -> None:
    child = played(end=False).fork(1)
    lines = list(records(child, "my_task.py:TASK"))
    assert [line["type"] for line in lines] == ["start", "fork", "turn", "turn"]
    assert {line["session_id"] for line in lines} == {child.id}
    assert {line["v"] for line in lines} == {1}
    assert lines[0]["task"] == "my_task.py:TASK"
    assert child.parent is not None
    assert (lines[1]["parent"], lines[1]["turn"]) == child.parent


def test_a_folder_takes_a_file_of_this_process(tmp_path: Path) -> None:
    first, second = append(tmp_path, played()), append(tmp_path, played(), fsync=True)
    assert first == second
    assert first.parent == tmp_path
    assert len(read(first).sessions) == 2


def test_every_line_is_strict_json() -> None:
    values = {"nan": float("nan"), "inf": [float("-inf")], "numpy": np.float32(0.5), "set": {1}, "key": {1: object}}
    text = dump({"metrics": values})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    back = json.loads(text, parse_constant=refuse)["metrics"]
    assert (back["nan"], back["inf"], back["numpy"], back["set"]) == (None, [None], 0.5, [1])


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_transcript import played
from agentbench_fc.transcript import append
for n in range(25):
    append(Path(sys.argv[2]), played(moves=9, seed=n))
"""


def test_writers_in_many_processes_never_interleave(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(path)]
    writers = [subprocess.Popen(command) for _ in range(min(3, multiprocessing.cpu_count() + 1))]
    assert [writer.wait(120) for writer in writers] == [0] * len(writers)
    transcripts = read(path)
    assert len(transcripts.sessions) == 25 * len(writers)
    assert transcripts.truncated == []
    assert all(len(session.turns) == 11 and session.end for session in transcripts.sessions)


@pytest.mark.parametrize("cut", [1, 2, 30, 300])
def test_a_cut_last_line_is_reported_and_the_rest_is_read(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.jsonl"
    append(path, played())
    append(path, played())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    transcripts = read(path)
    assert [bool(s.end) for s in transcripts.sessions] == [True, cut == 1]
    assert len(transcripts.truncated) == (cut > 1)
    append(path, played())  # the next writer neither loses its first line nor drops the damage
    transcripts = read(path)
    assert [bool(s.end) for s in transcripts.sessions] == [True, cut == 1, True]
    assert len(transcripts.truncated) == (cut > 1)


def lines_of(session: Session) -> list[Any]:
    return [json.loads(dump(record)) for record in records(session)]


@pytest.mark.parametrize(
    ("damage", "line", "text"),
    [
        (lambda ls: ls.insert(1, "{broken"), 2, "not JSON"),
        (lambda ls: ls.insert(2, {"v": 1, "type": "turn"}), 3, "session_id"),
        (lambda ls: ls[0].update(v=2), 1, "version is 2"),
        (lambda ls: ls[1].update(type="step"), 2, "type is step"),
        (lambda ls: ls[1].pop("messages"), 2, "its messages"),
        (lambda ls: ls[0].update(seed="7"), 1, "its seed"),
        (lambda ls: ls[2].update(turn=5), 3, "its turn is 5, expected 1"),
        (lambda ls: ls[2].update(session_id="other"), 3, "no start line"),
        (lambda ls: ls.pop(0), 1, "no start line"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(tmp_path: Path, damage: Any, line: int, text: str) -> None:
    lines = lines_of(played())
    damage(lines)
    path = tmp_path / "t.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    with pytest.raises(CallerError, match=text) as caught:
        read(path)
    assert f"line {line}]" in str(caught.value)


def test_an_absent_file_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    assert read(tmp_path / "empty.jsonl").sessions == []
