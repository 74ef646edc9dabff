"""A scripted OpenAI-compatible server: it answers as a task's expert would, and misbehaves where it is told to.

It keeps no state between requests: the expert is driven anew through the conversation that a request brings, so that
it does not matter how often a request comes, in what order, or whether the server was started again in between.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

from aiohttp import web

from agentbench_fc.episode import Task, Turn
from agentbench_fc.messages import Message, assistant, tool_name
from agentbench_fc.rewards import Status

Answer = Callable[[list[Message], list[str]], Message]
"""Conversation and names of the tools -> the assistant's message."""
Fault = Callable[[int, Mapping[str, Any]], str | None]
"""How often this very request has come, and its body -> what goes wrong; None: nothing."""

CONTEXT_ERROR = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


class FakeOpenAI:
    """The server; an async context manager that knows its `url`."""

    def __init__(self, answer: Answer, fault: Fault = lambda n, body: None, *, delay_s: float = 0.0) -> None:
        self.answer = answer
        self.fault = fault
        self.delay_s = delay_s
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.at_once = self.most_at_once = 0
        self._seen: Counter[str] = Counter()
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            return await self._respond(request)
        finally:
            self.at_once -= 1

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        body = json.loads(raw)
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        self._seen[raw] += 1
        fault = self.fault(self._seen[raw], body)
        if fault is not None:
            return await self._misbehave(fault, request)
        message = self.answer(body["messages"], [tool_name(tool) for tool in body.get("tools", [])])
        return web.json_response(completion(message))

    async def _misbehave(self, fault: str, request: web.Request) -> web.StreamResponse:
        kind, _, detail = fault.partition(":")
        if kind == "hang":
            await self._closing.wait()
            return web.Response(status=500)
        if kind == "cut":
            response = web.StreamResponse(headers={"Content-Length": "10000", "Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(b'{"id": "x", "choices": [{"message": {"role": "assi')
            assert request.transport is not None
            request.transport.close()
            return response
        if kind == "garbage":
            return web.Response(text=detail or "<html>It works!</html>")
        if kind == "context":
            return web.json_response(CONTEXT_ERROR, status=400)
        if kind == "429":
            return web.Response(status=429, headers={"Retry-After": detail} if detail else {}, text="slow down")
        return web.Response(status=int(kind), text=detail)


def completion(message: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
    """A chat completion in OpenAI's shape."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "fake",
        "choices": [{"index": 0, "message": dict(message), "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        **extra,
    }


def expert_answers(
    task: Task, split: str, *, gives_up: Callable[[str], bool] = lambda sample_id: False, limit: int | None = None
) -> Answer:
    """Answers as the task's expert; the sample is known by its prompt. `gives_up` names samples that it gets wrong."""
    samples = {}
    for sample in task.samples(split)[:limit]:
        episode = task.open(sample, 0)
        samples[_prompt(episode.start())] = sample
        episode.close()

    def answer(messages: list[Message], tools: list[str]) -> Message:
        opening = next(i for i, m in enumerate([*messages, assistant("")]) if m["role"] == "assistant")
        sample = samples[_prompt(messages[:opening])]
        if gives_up(sample.id):
            return assistant("I do not know.")
        expert = task.expert(sample)
        assert expert is not None
        try:
            move = next(expert)
            for number, increment in enumerate(_increments(messages[opening:]), start=1):
                move = expert.send(Turn("", number, increment, [], Status.RUNNING, False, None, None))
        except StopIteration:  # nobody carried its moves out
            return assistant("I have said it all.")
        return assistant(move) if isinstance(move, str) else assistant(None, [move])

    return answer


def _prompt(messages: list[Message]) -> str:
    return json.dumps([message["content"] for message in messages])


def _increments(messages: list[Message]) -> list[list[Message]]:
    """What the environment said after each assistant message."""
    out: list[list[Message]] = []
    for message in messages:
        if message["role"] == "assistant":
            out.append([])
        else:
            out[-1].append(message)
    return out
