"""Configuration: what is refused, with which advice, and that everything survives the way to a file and back."""

import dataclasses
import inspect
import json
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentrl_trainer import config as module
from agentrl_trainer.config import Batch, Engines, Model, Optimization, RunConfig, TaskMix
from agentrl_trainer.configfile import changed_settings, from_dict, load_config, to_dict, to_yaml


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["stepz=3"], r"unknown key 'stepz' \[configuration\]. Did you mean 'steps'"),
        (["max_lag=1"], "Did you mean staleness.max_lag"),
        (["staleness.max_lak=1"], "Did you mean 'max_lag'"),
        (["steps=x"], "must be a whole number"),
        (["steps=1.5"], "must be a whole number"),
        (["steps=true"], "must be a whole number"),
        (["steps="], "Write null"),
        (["steps=null"], "steps is empty"),
        (["steps=0"], "Use 1 or more"),
        (["steps"], "Write key=value"),
        (["=3"], "Write key=value"),
        (["steps={"], "Quote the value"),
        (["batch=3"], "Give keys and values"),
        (["model.dtype=float16"], "Known: bfloat16, float32"),
        (["model=''"], "path is empty"),
        (["tasks=[]"], "Name at least one"),
        (["tasks={db: 1}"], "Give names"),
        (["tasks=[{weight: 1}]"], "has no name"),
        (["tasks=db,db"], "given twice"),
        (["tasks.kgg.weight=1"], "Did you mean 'kg'"),
        (["tasks.kg=1"], "names no field"),
        (["tasks.kg.weigth=1"], "Did you mean 'weight'"),
        (["tasks.kg.weight=-1"], "tasks.kg.weight"),
        (["tasks.db.weight=0", "tasks.kg.weight=0"], "all weights are 0"),
        (["group_size=1"], "Use 2 or more"),
        (["staleness.max_lag=-1"], "0 \\(synchronous\\)"),
        (["sampling.temperature=0"], "Use more than 0"),
        (["sampling.temperature=.nan"], "temperature is nan"),
        (["sampling.max_context=10"], "must hold a prompt"),
        (["batch.max_trajectories=4"], "must not be below"),
        (["batch.min_trajectories=4", "batch.max_trajectories=4"], "must hold one whole group"),
        (["batch.micro_batch_tokens=100"], "must hold one trajectory"),
        (["batch.min_trajectories=300", "batch.max_trajectories=300"], "At most 144"),
        (["optimization.loss_type=grpo"], "Known: cispo, dapo, vespo"),
        (["optimization.delta=1.2"], "use more than 1 \\+ epsilon_high"),
        (["optimization.beta2=1"], "in \\[0, 1\\)"),
        (["rollout.abnormal_penalty=0.2"], "from -1 to 0"),
        (["engines.fresh=0"], "At least one engine"),
        (["engines.fresh=100", "engines.stale=100"], "at most 127"),
        (["engines.kind=sglang"], "no server follows the trainer"),
        (["engines.fresh_urls=http://a:1"], "Set engines.kind=sglang"),
        (["engines.kind=sglang", "engines.fresh_urls=gpu1:30000"], "Use http://host:port"),
        (["engines.kind=sglang", "engines.fresh_urls=http://a:1", "engines.stale_urls=http://a:1"], "given twice"),
        (["engines.kind=sglang", "engines.fresh_urls={a: 1}"], "as a list or divided by commas"),
        (["trl=3"], "Give keys and values"),
        (["normalization.center=1"], "true or false"),
        (["steps=2020-13-45"], "must be a whole number"),
        (["steps=0x_"], "cannot be read"),
        (["steps=!!int x"], "cannot be read"),
        (["steps=!!timestamp x"], "cannot be read"),
        (["steps=!!bool x"], "cannot be read"),
        (["steps=" + 5000 * "9"], "cannot be read"),
        (["seed=-1"], "Use 0 or more"),
        (["seed=4294967296"], "Use 2147483647 or less"),
        (["tasks=[null]"], "has no name"),
        (["tasks=[{weight: 1}]", "tasks.db.weight=2"], "has no name"),
        (["tasks=[{name: db, weight: 2}]", "tasks.db.weight.x=2"], "must be a number"),
        (["tasks=[{name: 3}]"], "must be a text: quote it"),
        (["tasks.db.options={1: 2}"], r"the key 1 is no text \[tasks.db.options\]"),
        (["tasks.db.options={a: {b: [{2: 3}]}}"], "the key 2 is no text"),
        (["tasks.db.options={x: .nan}"], "NaN"),
        (["tasks.db.options={x: !!set {a}}"], "Use texts, numbers"),
        (["trl=&a {x: *a}"], "Circular"),
        (["model.template_options={x: !!timestamp 2020-01-01}"], "Use texts, numbers"),
        (["model.device=cdua"], "Use auto, cpu, cuda"),
        (["optimization.delta=.nan"], "use more than"),
        (["engines.weights=[.nan, 1]"], "engines.weights"),
        (["engines.kind=sglang", "engines.fresh_urls=http://"], "Use http://host:port"),
        (["output=~nobody-of-this-name/x"], "Write the whole path"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(settings: list[str], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        load_config(overrides=settings)


def test_later_settings_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("steps: 5\ntasks:\n- db\n- name: my.py:T\n  weight: 2\noptimization: {learning_rate: 1e-4}\n")
    read = load_config(file, ["tasks.my.py:T.options.level=hard", "steps=6", "steps=7", "model.threads=2", "model=a/b"])
    assert (read.steps, read.optimization.learning_rate) == (7, 1e-4)
    assert read.tasks[1] == TaskMix(name="my.py:T", weight=2.0, options={"level": "hard"}, prompt="default")
    assert read.model.path == "a/b"
    assert load_config(overrides=["model=a/b", "model.threads=2"]).model == Model(path="a/b", threads=2)


@pytest.mark.parametrize("text", ["007", "1_000", "1.50", "2026-01-01", "2026-13-01", "no", "12:30", "1e-05", "0x1F"])
def test_a_text_of_the_command_line_is_taken_as_it_is_written(text: str) -> None:
    read = load_config(overrides=[f"output={text}", f"model={text}", f"resume={text}", f"tasks={text}"])
    assert (read.output, read.model.path, read.resume, read.tasks[0].name) == (Path(text), text, text, text)
    assert load_config(overrides=["output=null"]).output is None
    assert load_config(overrides=[f"tasks.kg.split={text}"]).tasks[1].split == text


def test_what_python_code_gets_wrong_is_told_like_what_a_file_gets_wrong() -> None:
    from agentrl_trainer.policy import open_policy

    for args, message in (
        (RunConfig(seed=1, engines=Engines(kind="vllm")), "Known: sglang, transformers"),  # type: ignore[arg-type]
        (RunConfig(steps=1.5), "must be a whole number"),  # type: ignore[arg-type]
        (RunConfig(tasks=(TaskMix(name=["db"]),)), "must be a text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(CallerError, match=message):
            open_policy(None, args)
    with pytest.raises(CallerError, match="steps is '3'.*must be a number"):
        RunConfig(steps="3")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="is no task"):
        open_policy(None, None, tasks=[{"name": "db"}])  # type: ignore[list-item]
    with pytest.raises(CallerError, match="no such folder"):
        open_policy("./absent", RunConfig(model=Model(path=Path("./absent"))), tasks="db, kg")  # type: ignore[arg-type]


def test_changed_settings_are_named() -> None:
    before = load_config(overrides=["output=a"])
    after = load_config(overrides=["output=b", "resume=auto", "tasks.kg.weight=2", "optimization.learning_rate=1e-05"])
    told = changed_settings(before, after)
    assert told == "tasks.kg.weight=2.0 (before: 1.0), optimization.learning_rate=1e-05 (before: 0.0003)"
    assert changed_settings(before, before) == ""


def test_unreadable_files_name_themselves(tmp_path: Path) -> None:
    for content in ("a: [", "- 1", "steps: !!int x", "a: &x [*x"):
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(CallerError, match=r"bad\.yaml"):
            load_config(tmp_path / "bad.yaml")
    with pytest.raises(CallerError, match="Check --config"):
        load_config(tmp_path / "absent.yaml")


def test_prompt_style_and_level_follow_from_model_and_task() -> None:
    assert [dict(t.options) for t in load_config(overrides=["tasks=db,os"]).tasks] == [
        {"level": "easy", "max_turns": 8},
        {},
    ]
    assert load_config(overrides=["model=./large"]).tasks[0].options == {}
    assert load_config(overrides=["tasks.kg.options.level=null"]).tasks[1].options["level"] is None
    assert [t.prompt for t in load_config(overrides=["tasks=db,my.py:T"]).tasks] == ["compact", "default"]
    assert [t.prompt for t in load_config(overrides=["model=./large"]).tasks] == ["default", "default"]
    assert load_config(overrides=["tasks.kg.prompt=default"]).tasks[1].prompt == "default"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
    | st.sampled_from(["no", "1_000", "0o7", "1e-05", "2020-01-01", "12:30", "\x85\u2028 x", "~", "=", "<<", " "]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


# the time of one example says nothing on a busy machine: with a deadline this failed once in a while
@settings(deadline=None)
@given(
    st.builds(
        RunConfig,
        steps=st.integers(1, 10**6),
        batch=st.builds(Batch, min_trajectories=st.integers(1, 64), micro_batch_tokens=st.integers(1024, 10**6)),
        optimization=st.builds(Optimization, learning_rate=st.floats(1e-30, 1e30)),
        trl=st.dictionaries(st.text(max_size=5), plain, max_size=3),
        output=st.none()
        | st.sampled_from([Path(p) for p in ("runs/x", "007", "1.50", "no", "2020-01-01", "a\u2028b")]),
    )
)
def test_a_configuration_survives_the_way_to_yaml_and_back(config: RunConfig) -> None:
    import yaml

    assert from_dict(to_dict(config)) == config
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config, "as the rollout process gets it"
    assert from_dict(yaml.safe_load(to_yaml(config))) == config


def test_every_field_says_what_it_does() -> None:
    for section in (c for c in vars(module).values() if dataclasses.is_dataclass(c) and isinstance(c, type)):
        source = inspect.getsource(section)
        for field in dataclasses.fields(section):
            hint = typing.get_type_hints(section)[field.name]
            if not dataclasses.is_dataclass(hint):
                line = next(i for i, text in enumerate(source.splitlines()) if text.startswith(f"    {field.name}: "))
                assert source.splitlines()[line + 1].startswith('    """'), f"{section.__name__}.{field.name}"


def test_the_quick_start_plays_what_the_tiny_policy_has_learnt() -> None:
    from agentrl_trainer.policy import policy_warnings
    from agentrl_trainer.tiny_asset import read_manifest

    assert policy_warnings(RunConfig()) == []
    for task in RunConfig().tasks:
        learnt = read_manifest().tasks[task.name]
        assert (task.prompt, task.options["level"]) == (learnt["prompt"], learnt["options"]["level"])


def test_the_shipped_configurations_are_whole() -> None:
    folder = Path(module.__file__).parent.parent / "configs"
    files = sorted(folder.glob("*.yaml"))
    assert files
    read = {file.stem: load_config(file) for file in files}
    assert read["quickstart"] == RunConfig()
    assert read["synchronous"].staleness.max_lag == 0


def test_servers_are_counted_by_their_addresses() -> None:
    config = load_config(
        overrides=[
            "engines.kind=sglang",
            "engines.fresh_urls=http://a:1, http://b:2",
            "engines.stale_urls=[http://c:3]",
        ]
    )
    assert (config.engines.fresh, config.engines.stale) == (2, 1)
    assert from_dict(to_dict(config)) == config
