"""A fuzzer over requests and messages: whatever comes in, no 500, no dead worker, no leaked session.

Requests are drawn from the route table's own schemas, then bent: wrong types, missing and surplus keys, cut and random
bytes, wrong methods, huge and deep values. Sessions of a task of ours are open meanwhile, so that many requests meet a
real one. All runs in process, through ASGI.
"""

import asyncio
import json
import random
import string
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest
from toys import counter_task

from agentbench_fc.serve.config import ControllerConfig, WorkerConfig
from agentbench_fc.serve.controller import Controller
from agentbench_fc.serve.http import App
from agentbench_fc.serve.worker import Worker

ALLOWED = {200, 401, 404, 405, 409, 410, 413, 422, 424, 429, 431, 503}
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", " ", "\x00", "\ud800", "é" * 600, "x" * 5000, "../../etc/passwd", "my.py:TASK", "${jndi:ldap://x}", "None",
    [], {}, [[]], [None], {"": {}}, {"__class__": "x"}, "[" * 5000, "counter", "counter/train/0", "cancelled",
]  # fmt: skip


def deep(depth: int) -> Any:
    value: Any = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


class Fuzzer:
    def __init__(self, seed: int, app: App) -> None:
        self.dice = random.Random(seed)
        self.app = app
        self.sessions: list[str] = ["w1-aaaaaa.counter-0123456789abcdef", "nobody"]
        self.schemas = {
            path: route.takes.model_json_schema() for path, route in app.routes.items() if route.takes is not None
        }

    def value(self, depth: int = 0) -> Any:
        if depth < 4 and self.dice.random() < 0.3:
            count = self.dice.randrange(4)
            if self.dice.random() < 0.5:
                return [self.value(depth + 1) for _ in range(count)]
            return {self.word(): self.value(depth + 1) for _ in range(count)}
        return self.dice.choice([*NASTY, self.word()])

    def word(self) -> str:
        known = ["role", "content", "tool_calls", "function", "name", "arguments", "id", "type", "assistant", "user"]
        random_word = "".join(self.dice.choices(string.printable, k=self.dice.randrange(12)))
        return self.dice.choice([*known, random_word])

    def messages(self) -> Any:
        """What a model and a careless client send together."""
        dice = self.dice
        out = []
        for _ in range(dice.randrange(4)):
            calls: list[Any] = [
                {
                    "id": dice.choice(["c1", "c1", "", None, 5]),
                    "type": "function",
                    "function": {
                        "name": dice.choice(["add", "roll", "nothing", "", None, "x" * 2000]),
                        "arguments": dice.choice(
                            ['{"number": 1}', "{", "[]", "NaN", '{"number": "1"}', None, {"number": 1}, self.value(3)]
                        ),
                    },
                }
                for _ in range(dice.randrange(4))
            ]
            message: dict[str, Any] = {
                "role": dice.choice(["assistant"] * 6 + ["user", "tool", None, 3]),
                "content": dice.choice(
                    [None, "text", "lone \ud800", [{"type": "text", "text": "x"}], 5, self.value(3)]
                ),
            }
            if dice.random() < 0.8:
                message["tool_calls"] = dice.choice([calls, calls, calls, None, "x", [None], self.value(3)])
            out.append(message)
        return dice.choice([out, out, out, out, self.value()])

    def field(self, name: str) -> Any:
        dice = self.dice
        likely: dict[str, Any] = {
            "session_id": lambda: dice.choice(self.sessions[-20:]),
            "messages": self.messages,
            "turn": lambda: dice.choice([None, 1, 1, 2, 3, dice.randrange(-2, 30)]),
            "task": lambda: "counter",
            "sample": lambda: dice.choice([None, 0, 4, 9, -1, "counter/dev/1", "counter/nope/1"]),
            "split": lambda: dice.choice([None, "train", "dev", "tset"]),
            "request_id": lambda: dice.choice([None, f"request-{dice.randrange(30):03}"]),
            "wait_s": lambda: 0.01,
            "status": lambda: dice.choice(["cancelled", "agent context limit", "completed"]),
            "options": lambda: dice.choice([{}, {"max_turns": 3}, {"x": 1}]),
            "seed": lambda: dice.choice([None, 0, 7, -5]),
        }
        return likely[name]() if name in likely and dice.random() < 0.9 else self.value()

    def body(self, path: str) -> bytes:
        dice = self.dice
        schema = self.schemas.get(path)
        if schema is None or dice.random() < 0.05:
            value = self.value()
        else:
            required = schema.get("required", [])
            value = {
                name: self.field(name)
                for name in schema["properties"]
                if (dice.random() < 0.97 if name in required else dice.random() < 0.4)
            }
            if path == "/v1/start_sample":
                value["wait_s"] = dice.choice([0.01, 0.01, 0.01, self.value()])
                if isinstance(value["wait_s"], float) and value["wait_s"] > 0.1:
                    value["wait_s"] = 0.01
            if dice.random() < 0.03:
                value[self.word()] = self.value()
        if dice.random() < 0.02:
            value = deep(dice.choice([50, 300, 5000]))
        try:
            raw = json.dumps(value).encode("utf-8", "surrogatepass")
        except RecursionError:
            raw = b'{"x":' * 5000 + b"1" + b"}" * 5000
        if dice.random() < 0.03:
            cut = dice.randrange(len(raw) + 1)
            raw = dice.choice(
                [raw[:cut], raw[:cut] + bytes([dice.randrange(256)]) + raw[cut:], dice.randbytes(50), b""]
            )
        return raw

    def query(self, path: str) -> bytes:
        dice = self.dice
        if path != "/v1/get_indices":
            return dice.choice([b"", b"x=1", b"%ff", b"&&=&"])
        pairs = [
            f"{name}={quote(str(self.field(name)).encode('utf-8', 'replace'))}"
            for name in ("task", "split", "profile", "prompt", "options", self.word())
            if dice.random() < 0.5
        ]
        return quote("&".join(pairs), safe="=&%").encode()

    async def request(self) -> tuple[str, int, Any]:
        dice = self.dice
        path = dice.choice([*self.app.routes] + ["/v1/interact"] * 12 + ["/v1/start_sample"] * 4 + ["/v1/fork"] * 2)
        if path == "/v1/heartbeat" and dice.random() < 0.5:
            path = "/v1/interact"
        route = self.app.routes[path]
        method = route.method if dice.random() < 0.98 else dice.choice(["GET", "POST", "PUT", "HEAD", "BREW"])
        if dice.random() < 0.01:
            path = dice.choice(["/", "/v1/", "/v1/interact/", "//", "/v1/\ud800", "/" + "x" * 3000])
        headers = [(b"content-type", b"application/json")]
        if dice.random() < 0.05:
            name = dice.choice([b"authorization", b"x-client-id", b"x-session-id", b"content-length"])
            headers.append(
                (name, dice.choice([b"", b"Bearer x", b"Session x", b"\xff\xfe", b"9" * 30, b"-1", b"x" * 90]))
            )
        body = self.body(path) if path in self.app.routes else b"{}"
        status, reply = await call(self.app, method, path, self.query(path), headers, body)
        if status == 200 and path in {"/v1/start_sample", "/v1/fork"} and method == "POST":
            self.sessions.append(json.loads(reply)["session_id"])
        return path, status, reply


async def call(
    app: App, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> tuple[int, bytes]:
    sent: list[Any] = []
    chunks = [body[:7], body[7:]]

    async def receive() -> Any:
        if not chunks:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], sent[1]["body"]


def check(path: str, status: int, reply: bytes) -> None:
    assert status in ALLOWED, (path, status, reply)
    if status != 200 and reply:
        error = json.loads(reply)["error"]
        assert set(error) == {"type", "message", "retryable", "fault"}
        assert error["type"] != "Defect"


@pytest.mark.parametrize("seed", range(2))
async def test_a_worker_survives_ten_thousand_strange_requests(seed: int) -> None:
    worker = Worker(WorkerConfig(given={"counter": counter_task()}, name="w1", default_capacity=50))
    await worker.open()
    fuzzer, seen = Fuzzer(seed, worker.app), Counter[int]()
    for _ in range(5000):
        path, status, reply = await fuzzer.request()
        check(path, status, reply)
        seen[status] += 1
        if worker.taken >= 45:  # room for more starts
            for session_id in fuzzer.sessions[2:-5]:
                body = json.dumps({"session_id": session_id}).encode()
                status, reply = await call(worker.app, "POST", "/v1/cancel", b"", [], body)
                assert status in {200, 404}, reply
            del fuzzer.sessions[2:-5]
    assert seen[200] > 1000, seen
    assert {404, 405, 409, 422} <= set(seen), seen
    assert not worker.stopping.is_set()
    opened = json.loads((await call(worker.app, "GET", "/v1/list_sessions", b"", [], b""))[1])["sessions"]
    assert len(opened) == worker.taken
    for row in opened:
        body = json.dumps({"session_id": row["session_id"]}).encode()
        assert (await call(worker.app, "POST", "/v1/cancel", b"", [], body))[0] == 200
    assert worker.taken == 0
    assert worker.hosted[0]._open_by == {}
    assert worker.hosted[0]._client_of == {}
    await worker.aclose()


async def test_a_controller_survives_strange_requests() -> None:
    controller = Controller(ControllerConfig(heartbeat_s=0.01))
    fuzzer, seen = Fuzzer(9, controller.app), Counter[int]()
    await asyncio.sleep(0.05)
    for _ in range(1000):
        path, status, reply = await fuzzer.request()
        check(path, status, reply)
        seen[status] += 1
    assert {200, 404, 422, 503} <= set(seen), seen
    assert len(controller.queue) == 0
    await controller.aclose()
