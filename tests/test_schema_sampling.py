"""Sampled and emptiest arguments always validate."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentbench_fc.errors import TaskError
from agentbench_fc.schema_sampling import emptiest_arguments, sample_arguments

names = st.sampled_from(["a", "b", "c", "d"])


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(-9, 9), st.integers(0, 20))
    leaves = [
        st.just({"type": "boolean"}),
        st.just({}),
        st.just({"type": ["null", "string"]}),
        st.lists(st.one_of(st.text(), st.integers(), st.none()), min_size=1).map(lambda v: {"enum": v}),
        st.integers().map(lambda v: {"const": v}),
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        bounds.map(lambda b: {"type": "number", "exclusiveMinimum": b[0], "maximum": b[0] + b[1] + 1}),
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "multipleOf": 3}),
        st.tuples(st.integers(0, 4), st.integers(0, 40)).map(
            lambda b: {"type": "string", "minLength": b[0], "maxLength": sum(b)}
        ),
    ]
    if depth == 0:
        return st.one_of(leaves)
    inner = schemas(depth - 1)
    return st.one_of(
        *leaves,
        st.lists(inner, min_size=1, max_size=3).map(lambda s: {"anyOf": s}),
        st.tuples(inner, st.integers(0, 3), st.integers(0, 3)).map(
            lambda p: {"type": "array", "items": p[0], "minItems": p[1], "maxItems": p[1] + p[2]}
        ),
        objects(inner),
    )


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(st.dictionaries(names, inner), st.lists(names, unique=True)).map(
        lambda p: {
            "type": "object",
            "properties": p[0],
            "required": [name for name in p[1] if name in p[0]],
            "additionalProperties": False,
        }
    )


@given(objects(schemas()), st.integers(), st.lists(st.text(min_size=1), max_size=3))
def test_whatever_is_drawn_validates(schema: dict[str, Any], seed: int, words: list[str]) -> None:
    validator = Draft202012Validator(schema)
    drawn = sample_arguments(schema, random.Random(seed), words=words)
    validator.validate(drawn)
    assert drawn == sample_arguments(schema, random.Random(seed), words=words)
    empty = emptiest_arguments(schema)
    validator.validate(empty)
    assert set(empty) == set(schema["required"])


def test_references_unions_and_recursion_are_followed() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "n": {"$ref": "#/$defs/small"}},
        "required": ["next", "n"],
    }
    schema = {"$defs": {"node": node, "small": {"type": "integer", "minimum": 3, "maximum": 4}}, **node}
    for seed in range(50):
        Draft202012Validator(schema).validate(sample_arguments(schema, random.Random(seed)))
    assert emptiest_arguments(schema) == {"next": None, "n": 3}


def test_words_fill_free_texts() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    drawn = [sample_arguments(schema, random.Random(seed), words=["Oslo"])["x"] for seed in range(100)]
    assert drawn.count("Oslo") > 50
    assert len(set(drawn)) > 10


def test_a_schema_that_nothing_fits_is_the_task_s_fault() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^q{9}$"}}, "required": ["x"]}
    with pytest.raises(TaskError, match="no arguments that fit"):
        sample_arguments(schema, random.Random(0))
