"""Raw text -> calls: the formats, malformed calls, and that no text raises or takes more than linear time."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import AgentTurn, ToolCall
from agentbench_fc.parsers import PARSERS, get_parser, parse_glm4, parse_hermes, parse_llama3, parse_smollm2

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=8), json_values, max_size=4)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)


def pairs(turn: AgentTurn) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in turn.calls]


def test_an_unknown_parser_is_refused_with_a_suggestion() -> None:
    with pytest.raises(CallerError, match="Did you mean 'hermes'"):
        get_parser("hermse")


@given(st.lists(st.tuples(names, arguments, st.booleans()), min_size=1, max_size=4))
def test_hermes_gives_back_the_substring_that_was_written(calls: list[tuple[str, dict[str, object], bool]]) -> None:
    raws = [json.dumps(args, indent=1 if wide else None) for _, args, wide in calls]
    blocks = [
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {raw}}}\n</tool_call>'
        for (name, _, _), raw in zip(calls, raws, strict=True)
        if "<tool_call>" not in raw
    ]
    turn = parse_hermes("First.\n" + "\n".join(blocks))
    expected = [(n, r) for (n, _, _), r in zip(calls, raws, strict=True) if "<tool_call>" not in r]
    assert pairs(turn) == expected
    assert turn.text == "First."
    assert [call.id for call in turn.calls] == [f"call_{i + 1}" for i in range(len(expected))]


@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=4))
def test_glm4_and_llama3_give_back_the_substring_that_was_written(calls: list[tuple[str, dict[str, object]]]) -> None:
    raws = [(name, json.dumps(args)) for name, args in calls]
    assert pairs(parse_glm4("<|assistant|>".join(f"{name}\n{raw}" for name, raw in raws))) == raws
    assert pairs(parse_glm4("\n".join(f"{name}\n{raw}" for name, raw in raws))) == raws
    objects = "; ".join(f'{{"name": {json.dumps(name)}, "parameters": {raw}}}' for name, raw in raws)
    assert pairs(parse_llama3("<|python_tag|>" + objects)) == raws
    assert pairs(parse_llama3("Let me see.\n" + objects)) == raws


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [("f", '{"a": 1}')]),
        ('<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>', [("f", '{"a":1}')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', [("f", '{"a": "</tool_call>"}')]),
        ('<think><tool_call>{"name": "no"}</tool_call></think><tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
        ('hm <tool_call>{"name": "no"}</tool_call></think><tool_call>{"name": "f"}</tool_call>', None),
        ('let me see</think>\n<tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
        ("<think>for ever", []),
    ],
)
def test_hermes_variants(text: str, expected: list[tuple[str, str]] | None) -> None:
    if expected is not None:
        assert pairs(parse_hermes(text)) == expected
        assert parse_hermes(text).text == ""
    else:  # a closing think tag behind the first call is not a think block
        assert [name for name, _ in pairs(parse_hermes(text))] == ["no", "f"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"name": "f", "arguments": {"a": }}', "f"),
        ('{"name": "f", "arguments": {"a": 1}', "f"),
        ('{"name": "f", "arguments": {}}}', "f"),
        ('{"name": "f" "arguments": {}}', "f"),
        ("not json", ""),
        ("{", ""),
        ("", ""),
        ('{"name": "f", "arguments": ' + "[" * 100_000, "f"),
    ],
)
def test_a_malformed_call_keeps_its_text_and_is_no_json(text: str, name: str) -> None:
    turn = parse_hermes(f"<tool_call>\n{text}\n</tool_call> and so on")
    assert pairs(turn) == [(name, text)]
    assert turn.text == "and so on"
    with pytest.raises((ValueError, RecursionError)):
        json.loads(turn.calls[0].arguments)


@pytest.mark.parametrize("text", ['{"arguments": {"a": 1}}', '{"name": 5, "arguments": {}}', "{}"])
def test_an_object_without_a_name_is_a_call_of_nothing(text: str) -> None:
    assert parse_hermes(f"<tool_call>{text}</tool_call>").calls == (ToolCall("call_1", "", text),)


def test_malformed_glm4_and_llama3_calls_keep_their_text() -> None:
    assert pairs(parse_glm4('f\n{"a": ')) == [("f", '{"a":')]
    assert pairs(parse_llama3('{"name": "f", "parameters": {')) == [("", '{"name": "f", "parameters": {')]
    assert pairs(parse_llama3("<|python_tag|>print(1)")) == [("", "print(1)")]
    turn = parse_llama3('{"name": "f", "parameters": {}} and then text')
    assert (turn.text, pairs(turn)) == ("and then text", [("f", "{}")])


@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=4), st.booleans())
def test_smollm2_gives_back_each_call_of_a_list(calls: list[tuple[str, dict[str, object]]], wide: bool) -> None:
    raws = [(name, json.dumps(args, indent=1 if wide else None)) for name, args in calls]
    objects = ", ".join(f'{{"name": {json.dumps(name)}, "arguments": {raw}}}' for name, raw in raws)
    turn = parse_smollm2(f"Well. <tool_call>[{objects}]</tool_call> So.")
    if "<tool_call>" not in objects:
        assert (pairs(turn), turn.text) == (raws, "Well.\nSo.")
        assert [call.id for call in turn.calls] == [f"call_{i + 1}" for i in range(len(raws))]


def test_a_closing_think_tag_within_an_argument_hides_no_call() -> None:
    assert pairs(parse_glm4('f\n{"a": "</think>"}')) == [("f", '{"a": "</think>"}')]
    assert pairs(parse_llama3('{"name": "f", "parameters": {"</think>": 1}}')) == [("f", '{"</think>": 1}')]
    assert pairs(parse_glm4('so f\n it is</think>f\n{"a": 1}')) == [("f", '{"a": 1}')]
    assert pairs(parse_llama3('hm</think>\n{"name": "f", "parameters": {}}')) == [("f", "{}")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]', [("f", "{}"), ("g", "{}")]),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>[{"name": "f"}] x</tool_call>', [("", '[{"name": "f"}] x')]),
        ('<tool_call>[{"name": "f"} {"name": "g"}]</tool_call>', [("", '[{"name": "f"} {"name": "g"}]')]),
        ("<tool_call>[]</tool_call>", [("", "[]")]),
        ("<tool_call>[1]</tool_call>", [("", "[1]")]),
        ('<tool_call>[{"name": "f"}]</tool_call><tool_call>[{"name": "g"}]</tool_call>', [("f", "{}"), ("g", "{}")]),
    ],
)
def test_smollm2_variants(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(parse_smollm2(text)) == expected


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("text", ["", "The answer is 7.", "a\nb\nc", "  spaced {x}\n"])
def test_plain_text_is_text(name: str, text: str) -> None:
    assert get_parser(name)(text) == AgentTurn(text.strip())


fragments = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": {', "}", "}}", '"', "\\", "\ud800", "<think>",
     "</think>", "f\n{", "\n", " ", "[", "<|python_tag|>", "<|assistant|>", "NaN", "9" * 5000, '{"a": 1}', ";", "\0"]
)  # fmt: skip


@pytest.mark.parametrize("name", ["hermes", "glm4", "llama3", "smollm2"])
@given(pieces=st.lists(fragments | st.text(max_size=5), max_size=30))
def test_no_text_raises_and_what_comes_out_is_utf8(name: str, pieces: list[str]) -> None:
    turn = get_parser(name)("".join(pieces))
    assert isinstance(turn, AgentTurn)
    json.dumps(turn.to_messages(), ensure_ascii=False).encode()
    assert len({call.id for call in turn.calls}) == len(turn.calls)


@pytest.mark.parametrize("name", ["hermes", "glm4", "llama3", "smollm2"])
@pytest.mark.parametrize(
    "unit",
    [
        '<tool_call>{"name": "f", "arguments": {"',
        '<tool_call>{",":",', "<tool_call>", "f\n{", "f\n", "\n", " ", '{"a":',
        "[", '{"name": "f"};', '<tool_call>{"name": "f"}</tool_call>\n', "</think>", "<|assistant|>", '"\\', '\n{"name',
        "\n{ ", "<|python_tag|>{",
    ],
)  # fmt: skip
def test_time_is_linear_in_hostile_text(name: str, unit: str) -> None:
    parse: Callable[[str], AgentTurn] = get_parser(name)
    start = time.process_time()
    parse(unit * (1_000_000 // len(unit)))
    assert time.process_time() - start < 5.0  # a quadratic scan of a megabyte takes minutes
