"""Schemathesis draws requests from the committed OpenAPI documents; a real controller and worker answer as documented.

Not here: bytes that are no request at all, and far more requests (serve/test_fuzz.py).
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serve_stack import Answer, ask

ROOT = Path(__file__).parents[2]
TASK = ROOT / "tests/toys_as_task.py"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
RUN_TIMEOUT_S = 60.0
WAIT_S = 30.0

# Drawn names hit nothing, so the hooks put real ones where a string was drawn, a call
# where there are no messages, and no number for every second turn; everything else stays as drawn. A drawn
# heartbeat speaks for a stranger on a closed loopback port: what it says of itself must not send requests elsewhere,
# and in the real worker's name it would rightly make that one unreachable.
HOOKS = """
import json
import os
import re

import schemathesis

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": json.dumps({"number": 1})}}
OPEN = json.loads(os.environ["OPEN"])


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("task"), str) and body["task"]:
        body["task"] = "counter"
    if isinstance(body.get("session_id"), str) and OPEN:
        body["session_id"] = OPEN.pop(0) if case.path == "/v1/cancel" and len(OPEN) > 1 else OPEN[-1]
    if OPEN and type(body.get("turn")) is int and body["turn"] % 2 == 0:
        body["turn"] = None
    if body.get("messages") == []:
        body["messages"] = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    if isinstance(body.get("worker_id"), str) and re.fullmatch("[A-Za-z0-9_-]{1,60}", body["worker_id"]):
        body["worker_id"] = "stranger"
    if str(body.get("address")).startswith("http"):
        body["address"] = "http://127.0.0.1:9"


@schemathesis.hook
def after_call(context, case, response):
    made = None
    if response.status_code == 200 and case.path in {"/v1/start_sample", "/v1/fork"}:
        made = response.json()["session_id"]
        OPEN.append(made)
    with open(os.environ["CALLS"], "a", encoding="utf-8") as file:
        print(json.dumps([case.method, case.path, response.status_code, made]), file=file)
"""


@dataclass
class Served:
    """Two processes and where they listen."""

    processes: dict[str, subprocess.Popen[bytes]]
    urls: dict[str, str]

    def get(self, role: str, path: str) -> Any:
        return self.ask(role, "GET", path).body

    def ask(self, role: str, method: str, path: str, body: Any = None) -> Answer:
        return asyncio.run(ask(self.urls[role], method, path, body))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A controller and a worker that has reported to it."""
    made = Served({}, {})
    with contextlib.ExitStack() as ends:

        def start(role: str, *arguments: str) -> None:
            ready, log = tmp_path / f"{role}.url", ends.enter_context((tmp_path / f"{role}.log").open("wb"))
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "agentbench_fc.cli", role, *arguments,
                    "--port", "0", "--ready-file", str(ready),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            ends.callback(process.wait, 10)
            ends.callback(process.kill)
            made.processes[role] = process
            deadline = time.monotonic() + WAIT_S
            while not (ready.exists() and ready.read_text()):
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / f"{role}.log").read_text()  # noqa: PT018
                time.sleep(0.03)
            made.urls[role] = ready.read_text()

        start("controller", "--heartbeat", "2")
        start("worker", f"{TASK}:TASK", "--controller", made.urls["controller"], "--name", "w1")
        deadline = time.monotonic() + WAIT_S
        while made.ask("controller", "GET", "/readyz").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield made


def test_both_servers_answer_as_their_documents_say(schemathesis: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / "wire_hooks.py").write_text(HOOKS, encoding="utf-8")
    (before,) = served.get("worker", "/v1/list_workers")["workers"]
    for role in ("worker", "controller"):
        calls = tmp_path / f"{role}.calls"
        given = [
            served.ask(role, "POST", "/v1/start_sample", {"task": "counter"}).body["session_id"] for _ in range(20)
        ]
        document = ROOT / f"docs/openapi-{role}.json"
        run = subprocess.run(
            [
                str(schemathesis), "-m", "schemathesis.cli", "--no-color", "run", str(document),
                "--url", served.urls[role], "--checks", CHECKS,
                "--max-examples", "10", "--seed", "7", "--generation-database", "none",
                "--no-shrink", "--continue-on-failure", "--request-timeout", "10", "--max-redirects", "0",
                "--warnings", "off",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
            env={
                **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
                "PYTHONPATH": str(tmp_path), "SCHEMATHESIS_HOOKS": "wire_hooks", "CALLS": str(calls),
                "OPEN": json.dumps(given),
            },
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr

        # It reached every operation, with success and with refusals, and never a defect.
        rows = [json.loads(line) for line in calls.read_text(encoding="utf-8").splitlines()]
        seen = Counter(status for _, _, status, _ in rows)
        assert not [status for status in seen if status >= 500], seen
        assert {200, 404, 405, 422} <= set(seen), seen
        operations = {
            (method.upper(), path)
            for path, its in json.loads(document.read_text(encoding="utf-8"))["paths"].items()
            for method in its
        }
        answered = {(method, path) for method, path, status, _ in rows if status == 200}
        assert answered == operations, [row[:3] for row in rows if tuple(row[:2]) in operations - answered]

        # The worker lives, and what is open was given to the caller: it ends at the caller's word, and nothing is left.
        assert {name: process.poll() for name, process in served.processes.items()} == dict.fromkeys(served.processes)
        opened = {row["session_id"] for row in served.get("worker", "/v1/list_sessions")["sessions"]}
        assert opened
        assert opened <= {*given, *(made for *_, made in rows if made)}
        for session_id in opened:
            assert served.ask(role, "POST", "/v1/cancel", {"session_id": session_id}).status == 200
        (after,) = served.get("worker", "/v1/list_workers")["workers"]
        assert (after["worker_id"], after["status"], after["sessions"]) == (before["worker_id"], "alive", 0)
