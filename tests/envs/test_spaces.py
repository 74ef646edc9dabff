"""Spaces: whatever is sampled belongs, for any schema; what does not fit does not."""

import copy
import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentbench_fc.envs.spaces import ROLES, ActionSpace, MessagesSpace
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import AgentTurn, ToolCall, ToolSpec, assistant, function_tool, tool_result, user

PICK = function_tool(
    "pick",
    "Picks.",
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 6}, "why": {"type": "string"}},
        "required": ["n"],
        "additionalProperties": False,
    },
)
PASS = function_tool("pass_turn", "Does nothing.", {"type": "object", "properties": {}, "additionalProperties": False})

scalars = st.one_of(
    st.tuples(st.integers(-9, 9), st.integers(0, 9)).map(
        lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}
    ),
    st.sampled_from([{"type": "string", "minLength": 3}, {"type": "number"}, {"type": "boolean"}, {"const": "x"}]),
    st.lists(st.one_of(st.text(), st.integers()), min_size=1).map(lambda values: {"enum": values}),
)
values = st.one_of(
    scalars,
    st.lists(scalars, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    st.tuples(scalars, st.integers(0, 2)).map(lambda p: {"type": "array", "items": p[0], "minItems": p[1]}),
)
parameters = st.dictionaries(st.sampled_from("abc"), values).flatmap(
    lambda properties: st.lists(st.sampled_from(sorted(properties) or ["a"]), unique=True).map(
        lambda required: {
            "type": "object",
            "properties": properties,
            "required": [name for name in required if name in properties],
            "additionalProperties": False,
        }
    )
)


@settings(max_examples=60, deadline=None)
@given(st.lists(parameters, min_size=1, max_size=4), st.integers(0, 2**31))
def test_samples_are_valid_for_every_tool(schemas: list[dict[str, Any]], seed: int) -> None:
    tools = [function_tool(f"tool{i}", "", schema) for i, schema in enumerate(schemas)]
    space = ActionSpace(tools, seed=seed)
    for position, tool in enumerate(tools):
        mask = np.zeros(len(tools), dtype=np.int8)
        mask[position] = 1
        sample = space.sample(mask=mask)
        assert sample["name"] == f"tool{position}"
        Draft202012Validator(tool["function"]["parameters"]).validate(sample["arguments"])
        assert sample in space
        assert json.loads(json.dumps(space.to_jsonable([sample]))) == [sample]


def test_equal_seeds_give_equal_samples_and_all_tools_come_up() -> None:
    one, two = ActionSpace([PICK, PASS], seed=3), ActionSpace([PICK, PASS])
    two.seed(3)
    drawn = [one.sample() for _ in range(60)]
    assert drawn == [two.sample() for _ in range(60)]
    assert {call["name"] for call in drawn} == {"pick", "pass_turn"}
    assert {call["name"] for call in (one.sample(probability=np.array([0.0, 1.0])) for _ in range(20))} == {"pass_turn"}


@pytest.mark.parametrize(
    "action",
    [
        {"name": "pick", "arguments": {"n": 3}},
        {"name": "pick", "arguments": '{"n": 3}'},
        {"name": "pass_turn"},
        ToolCall("c1", "pick", '{"n": 3}'),
        ToolCall("c1", "pick", '{"n": 3}').to_dict(),
        AgentTurn("I pick.", (ToolCall("c1", "pick", '{"n": 3}'),)),
        assistant("I pick.", [ToolCall("c1", "pick", '{"n": 3}')]),
        [assistant("I pick."), assistant(None, [ToolCall("c1", "pick", '{"n": 3}')])],
        assistant("Only words."),
        "Only words.",
        '<tool_call>\n{"name": "pick", "arguments": {"n": 3}}\n</tool_call>',
    ],
    ids=lambda action: type(action).__name__,
)
def test_every_form_of_a_valid_action_belongs(action: Any) -> None:
    space = ActionSpace([PICK, PASS])
    assert action in space
    back = space.from_jsonable(json.loads(json.dumps(space.to_jsonable([action]))))
    assert back[0] in space


@pytest.mark.parametrize(
    "action",
    [
        {"name": "pick", "arguments": {"n": 7}},
        {"name": "pick", "arguments": {"n": "three"}},
        {"name": "pick", "arguments": {}},
        {"name": "pick", "arguments": {"n": 3, "extra": 1}},
        {"name": "pick", "arguments": "{"},
        {"name": "other", "arguments": {}},
        {"arguments": {"n": 3}},
        user("I pick 3."),
        [],
        None,
        3,
        b"pick",
        '<tool_call>\n{"name": "pick", "arguments": {"n": 9}}\n</tool_call>',
    ],
    ids=repr,
)
def test_what_a_session_would_refuse_does_not_belong(action: Any) -> None:
    assert action not in ActionSpace([PICK, PASS])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": np.array([1])}, "shape"),
        ({"mask": np.array([0, 0])}, "Allow at least one"),
        ({"mask": np.array([2, 0])}, "0 and 1 only"),
        ({"probability": np.array([0.5, 0.2])}, "sum to 1"),
        ({"mask": np.array([1, 1]), "probability": np.array([0.5, 0.5])}, "both"),
    ],
    ids=["shape", "nothing", "twos", "sum", "both"],
)
def test_a_bad_mask_says_what_is_wrong(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        ActionSpace([PICK, PASS]).sample(**arguments)


def test_a_space_without_tools_has_no_sample() -> None:
    with pytest.raises(CallerError, match="no tools"):
        ActionSpace([]).sample()


def test_spaces_are_equal_by_value_and_survive_copies() -> None:
    other: list[ToolSpec] = [PASS, PICK]
    space = ActionSpace([PICK, PASS], seed=1)
    space.contains({"name": "pick", "arguments": {"n": 1}})  # compiles the schemas, which cannot be pickled
    for twin in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert twin == space
        assert twin.sample() == copy.deepcopy(space).sample()
    assert space != ActionSpace(other)
    assert space != ActionSpace([PICK, PASS], parser="glm4")
    assert space != MessagesSpace()
    assert MessagesSpace() == MessagesSpace(seed=4)


def test_messages_are_sampled_valid_and_by_seed() -> None:
    space, twin = MessagesSpace(seed=2), MessagesSpace(seed=2)
    drawn = [space.sample() for _ in range(50)]
    assert drawn == [twin.sample() for _ in range(50)]
    assert all(messages in space for messages in drawn)
    assert {message["role"] for messages in drawn for message in messages} == set(ROLES)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(drawn)))) == drawn
    only_tools = [m["role"] for _ in range(20) for m in space.sample(mask=np.array([0, 0, 0, 1]))]
    assert set(only_tools) == {"tool"}


@pytest.mark.parametrize(
    "messages",
    [
        [user("a list")],
        ({"role": "robot", "content": "x"},),
        ({"role": "user", "content": None},),
        ({"role": "tool", "content": "no id"},),
        ({"role": "user", "content": "x", "tool_calls": []},),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},),
        ("text",),
    ],
    ids=repr,
)
def test_malformed_messages_do_not_belong(messages: Any) -> None:
    assert messages not in MessagesSpace()


def test_well_formed_messages_belong() -> None:
    messages = (user("x"), assistant(None, [ToolCall("c1", "pick", "{")]), tool_result("c1", "y"))
    assert messages in MessagesSpace()
    assert () in MessagesSpace()


@pytest.mark.parametrize("space", [MessagesSpace(seed=1), ActionSpace([PICK, PASS], seed=1)], ids=repr)
def test_vector_envs_batch_them_as_tuples(space: gym.Space[Any]) -> None:
    batched = batch_space(space, 3)
    batched.seed(5)
    assert batched.sample() in batched
    items = [space.sample() for _ in range(3)]
    together = concatenate(space, items, create_empty_array(space, 3))
    assert together == tuple(items)
    assert list(iterate(batched, together)) == items
    assert not space.is_np_flattenable
