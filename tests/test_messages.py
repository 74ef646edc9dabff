"""What an agent sends, as a turn."""

from typing import Any

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import AgentTurn, ToolCall, assistant, clean_text, read_agent_messages


def read_one(**fields: Any) -> AgentTurn:
    return read_agent_messages([{"role": "assistant", **fields}])


def test_messages_survive_the_round_trip() -> None:
    turn = AgentTurn("I look.", (ToolCall("c1", "look", '{"at": "x"}'), ToolCall("c2", "wait", "")))
    assert read_agent_messages(turn.to_messages()) == turn
    assert "tool_calls" not in assistant("no calls")


def test_several_messages_are_one_turn() -> None:
    first, second = (assistant(text, [ToolCall(text, "go", "{}")]) for text in "ab")
    assert read_agent_messages([first, second]) == AgentTurn(
        "a\nb", (ToolCall("a", "go", "{}"), ToolCall("b", "go", "{}"))
    )


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ({"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}, ToolCall("x", "f", '{"a": 1}')),
        ({"function": {"name": "f", "arguments": None}}, ToolCall("call_1", "f", "")),
        ({"id": 5, "function": {"arguments": "{}"}}, ToolCall("call_1", "", "{}")),
        ({"id": "", "function": {"name": 3, "arguments": 7}}, ToolCall("call_1", "", "7")),
        ({"id": "x", "function": {"name": "f", "arguments": {1, 2}}}, ToolCall("x", "f", "<of type set>")),
    ],
)
def test_what_models_and_servers_get_wrong_is_read_leniently(call: dict[str, Any], read: ToolCall) -> None:
    assert read_one(content=None, tool_calls=[call]).calls == (read,)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert read_one(content=parts).text == "ab"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        3,
        "hello",
        {"role": "assistant"},
        [],
        [None],
        [{"role": "user", "content": "x"}],
        [{"content": "x"}],
        [{"role": "assistant", "content": 3}],
        [{"role": "assistant", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "content": None, "tool_calls": "f()"}],
        [{"role": "assistant", "content": None, "tool_calls": ["f()"]}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}],
    ],
)
def test_what_only_a_client_gets_wrong_says_what_to_send(messages: Any) -> None:
    with pytest.raises(CallerError, match=r"\[.*\]\. (Send|Only)"):
        read_agent_messages(messages)


def test_lone_surrogates_leave_text_encodable() -> None:
    assert clean_text("a\ud800ü").encode("utf-8") == "a?ü".encode()
    assert read_one(content="\udfff").text == "?"
