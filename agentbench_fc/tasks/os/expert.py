"""A policy that solves the samples: it runs a solution in the shell and hands in what the shell showed.

Generated samples carry a plan of commands that never saw the gold. AgentBench's samples carry an example script; where
there is none, the label itself is handed in.

Not here: other players (players.py); the plans (generate_files.py and its siblings).
"""

import itertools
import json
import shlex
from collections.abc import Mapping
from typing import Any

from agentbench_fc.episode import Expert, Sample
from agentbench_fc.messages import ToolCall
from agentbench_fc.tasks.os import observation
from agentbench_fc.tasks.os.grading import AGING_S
from agentbench_fc.tasks.os.sandbox.base import PATH


def solve(sample: Sample) -> Expert | None:
    """The moves for one sample; None where nothing says how to solve it."""
    data = sample.data
    plan = _plan(data)
    label = (data["match"] or {}).get("answer")
    return None if not plan and label is None else _moves(data, plan, label)


def _moves(data: Mapping[str, Any], plan: list[str], label: str | None) -> Expert:
    ids = (f"call_{number}" for number in itertools.count(1))
    shown = ""
    for command in plan:
        turn = yield ToolCall(next(ids), "bash_action", json.dumps({"script": command}, ensure_ascii=False))
        shown = str(turn.messages[-1]["content"])
    if _asks_for_answer(data):
        answer = observation.read(shown) if plan else label or ""
        yield ToolCall(next(ids), "answer_action", json.dumps({"answer": answer}, ensure_ascii=False))
    else:
        yield ToolCall(next(ids), "finish_action", json.dumps({"thought": "Done."}))


def _plan(data: Mapping[str, Any]) -> list[str]:
    if "plan" in data:
        return list(data["plan"])
    script = data["reference"]
    if script is None:
        return []
    code = script["code"]
    if script["language"] == "python":
        return [f"python3 -c {shlex.quote(code)} 2>/dev/null"]
    if data["start"]:  # it may need the variables of the shell; an exit must not take the shell along
        return [f"(\n{code}\n) 2>/dev/null"]
    wait = f"sleep {AGING_S}; " if "dated" in data["volatile"] else ""
    return [f"{wait}env -i HOME=/root PATH={PATH} bash -c {shlex.quote(code)} -- 2>/dev/null"]


def _asks_for_answer(data: Mapping[str, Any]) -> bool:
    """Whether a check looks at the answer, be it a script that reads its first argument."""
    return data["match"] is not None or any(
        step["kind"] == "stock" or "argv" in step.get("code", "") or "$1" in step.get("code", "")
        for step in data["checks"]
    )
