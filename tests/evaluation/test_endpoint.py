"""The endpoint client against a server that misbehaves in every known way."""

import email.utils
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_openai import CONTEXT_ERROR, FakeOpenAI, completion

from agentbench_fc.errors import CallerError
from agentbench_fc.evaluation.agents import remembered
from agentbench_fc.evaluation.endpoint import Answer, ContextLimit, Endpoint, ModelError, Sampling, Unreachable
from agentbench_fc.messages import AgentTurn, Message, ToolCall, assistant, function_tool, user

HELLO = [user("Hello.")]
TOOL = function_tool("look", "Looks.", {"type": "object", "properties": {}})


def polite(messages: list[Message], tools: list[str]) -> Message:
    return assistant(f"I saw {len(messages)} messages and {len(tools)} tools.")


def first(fault: str, times: int = 1) -> Callable[[int, Any], str | None]:
    return lambda n, body: fault if n <= times else None


async def ask(fake: FakeOpenAI, **settings: Any) -> Answer:
    defaults = {"timeout_s": 30.0, "deadline_s": 90.0, "retries": 2, "backoff_s": 0.01}
    async with Endpoint(fake.url, "m", **(defaults | settings)) as endpoint:
        return await endpoint.complete(HELLO, [TOOL], Sampling(temperature=0.5, max_tokens=7, body={"top_p": 0.9}))


async def test_a_request_carries_everything_and_an_answer_is_counted() -> None:
    async with FakeOpenAI(polite) as fake:
        answer = await ask(fake, api_key="secret")
        assert answer.message == assistant("I saw 1 messages and 1 tools.")
        assert (answer.prompt_tokens, answer.completion_tokens, answer.attempts, answer.cut) == (100, 10, 1, False)
        assert 0 < answer.seconds < 30
    body = {"model": "m", "messages": HELLO, "tools": [TOOL], "temperature": 0.5, "max_tokens": 7, "top_p": 0.9}
    assert fake.bodies == [body]
    assert fake.keys == {"Bearer secret"}


async def test_what_is_left_out_is_left_to_the_endpoint() -> None:
    async with FakeOpenAI(polite) as fake, Endpoint(f"{fake.url}/chat/completions", "m") as endpoint:
        await endpoint.complete(HELLO, [], Sampling(temperature=None, max_tokens=None))
    assert fake.bodies == [{"model": "m", "messages": HELLO}]
    assert fake.keys == {None}


@pytest.mark.parametrize("fault", ["hang", "cut", "garbage", "429", "500", "503:busy", "garbage:{}", "garbage:[1]"])
async def test_what_may_pass_is_tried_again(fault: str) -> None:
    async with FakeOpenAI(polite, first(fault)) as fake:
        answer = await ask(fake, timeout_s=2.0 if fault == "hang" else 30.0)
        assert answer.attempts == 2
        assert len(fake.bodies) == 2


BAD_BODIES = [
    {"choices": []},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {"content": 3}}]},
    {"choices": [{"message": {"content": "", "tool_calls": "look()"}}]},
    {"choices": [{"text": "an old-style completion"}]},
    {"error": {"message": "upstream is down", "code": 502}},
]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("hang", "timeout"),
        ("cut", "cut"),
        ("garbage", "garbage"),
        ("429", "http 429"),
        ("500:oops", "http 500"),
        *((f"garbage:{json.dumps(body)}", "garbage") for body in BAD_BODIES[:-1]),
        (f"garbage:{json.dumps(BAD_BODIES[-1])}", "http 502"),
        ("garbage:" + "[" * 100_000, "garbage"),
    ],
)
async def test_what_does_not_pass_is_a_model_error_of_its_kind(fault: str, kind: str) -> None:
    async with FakeOpenAI(polite, first(fault, 99)) as fake:
        with pytest.raises(ModelError, match="after 3 tries") as caught:
            await ask(fake, timeout_s=1.0 if fault == "hang" else 30.0)
    assert caught.value.kind == kind
    assert len(fake.bodies) == 3


async def test_a_request_that_is_refused_is_not_repeated() -> None:
    async with FakeOpenAI(polite, first("400:tools are not supported", 99)) as fake:
        with pytest.raises(ModelError, match="tools are not supported") as caught:
            await ask(fake)
        assert caught.value.kind == "http 400"
        for status, text in (("401", "--api-key-env"), ("403", "--api-key-env"), ("404", "no such model")):
            fake.fault = first(f"{status}:no", 99)
            with pytest.raises(CallerError, match=text) as refused:
                await ask(fake, api_key="very-secret")
            assert "very-secret" not in str(refused.value)
    assert len(fake.bodies) == 4


async def test_retry_after_is_honoured_in_seconds_and_as_a_date() -> None:
    async with FakeOpenAI(polite, first("429:0.3")) as fake:
        start = time.monotonic()
        await ask(fake)
        assert time.monotonic() - start >= 0.3
        date = email.utils.formatdate(time.time() + 2, usegmt=True)
        fake.fault = lambda n, body: f"429:{date}" if n == 3 else None  # the same request for the third time
        start = time.monotonic()
        await ask(fake)
        assert time.monotonic() - start >= 0.9
        fake.fault = first("429:3600", 99)
        start = time.monotonic()
        with pytest.raises(ModelError) as caught:
            await ask(fake)
        assert time.monotonic() - start < 80, "a pause beyond the deadline is not waited for"
        assert caught.value.kind == "http 429"


async def test_the_deadline_covers_all_tries() -> None:
    async with FakeOpenAI(polite, first("hang", 99)) as fake:
        start = time.monotonic()
        with pytest.raises(ModelError):
            await ask(fake, timeout_s=0.2, deadline_s=0.5, retries=500)
        assert time.monotonic() - start < 50.0, "500 tries would take 100 s"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CONTEXT_ERROR),
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "Requested token count exceeds the model's maximum context length of 40960 tokens.",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "Please reduce the length of the messages: maximum context length is 32768 tokens",
        "Input length (5000) exceeds the maximum allowed length (4096 tokens): the prompt is too long",
    ],
)
async def test_a_conversation_that_is_too_long_is_told_apart(text: str) -> None:
    async with FakeOpenAI(polite, first(f"400:{text}", 99)) as fake:
        with pytest.raises(ContextLimit):
            await ask(fake)
    assert len(fake.bodies) == 1


@pytest.mark.parametrize(
    "text", ["invalid value for max_tokens", "tool_choice is not supported", "unknown key context"]
)
async def test_other_refusals_are_not_taken_for_a_long_context(text: str) -> None:
    async with FakeOpenAI(polite, first(f"400:{text}", 99)) as fake:
        with pytest.raises(ModelError):
            await ask(fake)


async def test_nobody_at_the_address_is_no_fault_of_the_model() -> None:
    with socket.socket() as kept:  # bound, so that nobody else gets the port, and not listening
        kept.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{kept.getsockname()[1]}/v1"
        async with Endpoint(url, "m", retries=1, backoff_s=0.01) as endpoint:
            with pytest.raises(Unreachable, match="Start the server"):
                await endpoint.complete(HELLO, [], Sampling())


@pytest.mark.parametrize("address", ["localhost:8000/v1", "", "ftp://x/v1"])
def test_an_address_that_cannot_be_is_refused(address: str) -> None:
    with pytest.raises(CallerError, match="base_url"):
        Endpoint(address, "m")


async def test_an_answer_that_reached_its_length_is_marked() -> None:
    body = completion(assistant("I was saying"), usage=None)
    body["choices"][0]["finish_reason"] = "length"
    async with FakeOpenAI(polite, first(f"garbage:{json.dumps(body)}")) as fake:
        answer = await ask(fake)
    assert answer.cut
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [('{"n": 1}', True), ("{", False), ("[1]", False), ('{"n": NaN}', False), ("", False), ("[" * 99_999, False)],
)
def test_what_the_endpoint_gets_back_can_always_be_rendered(arguments: str, kept: bool) -> None:
    message = remembered(AgentTurn("", (ToolCall("c1", "look", arguments),)))
    function = message["tool_calls"][0]["function"]
    assert (function["arguments"] == arguments) is kept
    assert isinstance(json.loads(function["arguments"]), dict)
    assert remembered(AgentTurn(""))["content"] == ""
