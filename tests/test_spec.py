"""task.yaml, profiles and prompt styles."""

from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.messages import function_tool
from agentbench_fc.registry import available_built_ins, tasks_root
from agentbench_fc.spec import TaskSpec, load_spec

YAML = """
name: demo
version: 1.2.3
max_turns: 9
tools:
  - type: function
    function:
      name: look
      description: Looks around.
      parameters:
        type: object
        properties: {description: {type: string, description: A field of that name.}}
  - {type: function, function: {name: leave, parameters: {type: object, properties: {}}}}
prompts:
  default: {system: A long text.}
  compact: {system: Short.}
profiles:
  agentbench: {max_turns: 4, only_tools: [look]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "task.yaml"
    file.write_text(YAML)
    return file


def test_a_spec_is_resolved(path: Path) -> None:
    spec = load_spec(path)
    assert (spec.name, spec.version, spec.max_turns, spec.prompts["system"]) == ("demo", "1.2.3", 9, "A long text.")
    assert list(spec.validators) == ["look", "leave"]


def test_a_profile_overlays_the_rest(path: Path) -> None:
    spec = load_spec(path, profile="agentbench")
    assert (spec.max_turns, list(spec.validators), spec.profile) == (4, ["look"], "agentbench")
    assert load_spec(path, profile="agentbench", max_turns=2).max_turns == 2


def test_the_compact_style_drops_descriptions_but_no_argument_of_that_name(path: Path) -> None:
    function = load_spec(path, prompt="compact").tools[0]["function"]
    assert function == {
        "name": "look",
        "parameters": {"type": "object", "properties": {"description": {"type": "string"}}},
    }


def test_the_digest_follows_what_shapes_an_episode(path: Path) -> None:
    digests = {load_spec(path).digest, load_spec(path, prompt="compact").digest, load_spec(path, max_turns=3).digest}
    assert len(digests) == 3
    assert load_spec(path).digest == load_spec(path).digest


def test_wrong_choices_are_named(path: Path) -> None:
    with pytest.raises(CallerError, match="no profile 'agentbech'.*Did you mean 'agentbench'"):
        load_spec(path, profile="agentbech")
    with pytest.raises(CallerError, match="no prompt style 'compct'.*Did you mean 'compact'"):
        load_spec(path, prompt="compct")
    with pytest.raises(CallerError, match="unknown option 'max_turn'.*Did you mean 'max_turns'"):
        load_spec(path, max_turn=3)
    for limits in ({"max_turns": 0}, {"call_timeout_s": -1.0}, {"affinity": "core"}, {"calls_per_turn": "two"}):
        with pytest.raises(CallerError, match=next(iter(limits))):
            load_spec(path, **limits)


def test_a_broken_file_is_the_tasks_fault(path: Path) -> None:
    path.write_text(YAML + "max_turnz: 3\n")
    with pytest.raises(TaskError, match=r"unknown key \['max_turnz'\].*max_turns"):
        load_spec(path)
    path.write_text("a: [")
    with pytest.raises(TaskError, match=r"task\.yaml cannot be read"):
        load_spec(path)
    with pytest.raises(TaskError, match="the schema of a tool is wrong"):
        _ = TaskSpec(name="demo", tools=(function_tool("f", "", {"type": "objekt"}),)).validators


@pytest.mark.parametrize("name", available_built_ins())
def test_every_shipped_task_reads_under_every_profile_and_style(name: str) -> None:
    for profile in ("default", "agentbench"):
        for prompt in ("default", "compact"):
            spec = load_spec(tasks_root() / name / "task.yaml", profile=profile, prompt=prompt)
            assert spec.validators
            assert spec.finish_tool is None or spec.finish_tool in spec.validators or profile == "agentbench"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", "x"), ("max_turns", 0), ("max_turns", True), ("max_turns", 2.5), ("max_turns", None),
        ("max_output_chars", [1]), ("max_invalid_calls", -1), ("max_invalid_calls", "2"), ("start_timeout_s", None),
        ("start_timeout_s", "1"), ("call_timeout_s", 0), ("call_timeout_s", float("nan")), ("call_timeout_s", 1e300),
    ],
)  # fmt: skip
def test_impossible_limits_are_named(field: str, value: object) -> None:
    with pytest.raises(CallerError, match=f"{field} is "):
        TaskSpec(name="demo", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", [{"profile": 3}, {"prompt": None}, {"profile": ["agentbench"]}], ids=str)
def test_a_choice_that_is_no_text_is_named(path: Path, choice: dict[str, str]) -> None:
    with pytest.raises(CallerError, match="Known:"):
        load_spec(path, **choice)
