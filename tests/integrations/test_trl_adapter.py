"""A task as TRL's environment_factory: schemas survive the round trip, and a stock GRPOTrainer trains on it."""

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
from toys import Counter, counter_task, rude_task

from agentbench_fc.envs.env import AgentEnv
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError
from agentbench_fc.integrations.trl import ENDED, TaskEnvironment, _type_hint, dataset, environment_factory
from agentbench_fc.messages import function_tool
from agentbench_fc.registry import load_task
from agentbench_fc.spec import TaskSpec

GUESS = str(Path(__file__).parents[2] / "examples" / "guess_number.py") + ":TASK"


def started(task: Any = None, sample: Any = "counter/train/1", **options: Any) -> TaskEnvironment:
    environment = environment_factory(task or counter_task(), **options)()
    environment.reset(sample=sample, prompt=[{"role": "user", "content": ""}])
    return environment


# tools as methods


@pytest.mark.parametrize("name", ["db", "kg"])
@pytest.mark.parametrize("prompt", ["default", "compact"])
def test_trl_reads_the_task_s_own_schemas_back(name: str, prompt: str) -> None:
    from transformers.utils import get_json_schema

    environment = environment_factory(name, prompt=prompt)()
    for spec in load_task(name, prompt=prompt).spec.tools:
        function, seen = spec["function"], get_json_schema(getattr(environment, spec["function"]["name"]))["function"]
        assert seen["name"] == function["name"]
        if prompt == "default":
            assert seen["description"].split() == function["description"].split()
        expected = function["parameters"]
        assert set(seen["parameters"]["properties"]) == set(expected["properties"])
        assert seen["parameters"].get("required", []) == expected.get("required", [])
        for key, value in seen["parameters"]["properties"].items():
            if "type" in expected["properties"][key]:
                assert value["type"] == expected["properties"][key]["type"]
            assert value["description"]


def test_every_kind_of_schema_has_a_type_hint() -> None:
    assert _type_hint({"type": ["string", "null"]}) == str | None
    assert _type_hint({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "number"}}]}) == (
        int | list[float]
    )
    assert _type_hint({"type": "array"}) == list[Any]
    assert _type_hint({"type": "object"}) is dict
    assert _type_hint({"const": "x"}) == _type_hint({"enum": ["x"]})
    assert _type_hint({"enum": [1.5]}) is Any
    assert _type_hint({"$ref": "#/$defs/x"}) is Any
    assert _type_hint(True) is Any


def test_optional_arguments_that_are_left_out_stay_out() -> None:
    seen: list[dict[str, Any]] = []

    class Optional(ToolEpisode):
        def start(self) -> str:
            return "Go."

        @tool
        def look(self, where: str, depth: int = 2, note: str | None = None) -> Reply:
            """Looks. Returns: nothing. Args: are fine.

            Args:
                where: The place (choices: any).
            """
            seen.append({"where": where, "depth": depth, "note": note})
            return Reply("ok")

    from transformers.utils import get_json_schema

    environment: Any = started(make_task(Optional, samples={"train": [{}]}), 0)
    assert environment.look("here") == "ok"
    assert environment.look(where="there", depth=None, note=None) == "ok"
    assert environment.look("x", 5, note="n") == "ok"
    assert seen == [
        {"where": "here", "depth": 2, "note": None},
        {"where": "there", "depth": 2, "note": None},
        {"where": "x", "depth": 5, "note": "n"},
    ]
    schema = get_json_schema(environment.look)["function"]
    assert schema["parameters"]["required"] == ["where"]
    assert schema["description"].startswith("Looks. Returns - nothing.")
    assert "enum" not in schema["parameters"]["properties"]["where"]


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden", "no-name"])
def test_a_tool_that_trl_cannot_offer_is_refused(name: str) -> None:
    class Reserved:
        spec = TaskSpec(name="odd", tools=(function_tool(name, "", {"type": "object"}),), splits={"train": ""})
        samples = open = expert = close = lambda self, *_: []

    with pytest.raises(CallerError, match="Rename it"):
        environment_factory(Reserved())  # type: ignore[arg-type]


# a rollout


def test_a_rollout_plays_the_episode_and_earns_its_reward() -> None:
    environment: Any = started()
    assert environment.add(number=2) == "The total is 2."
    assert environment.submit() == "Ended at 2."
    assert environment.submit() == ENDED
    assert environment.get_reward() == 1.0
    environment.reset(sample="counter/train/3")
    environment.submit()
    assert environment.get_reward() == 0.0


def test_an_unfinished_rollout_is_abnormal() -> None:
    environment: Any = started()
    environment.add(number=2)
    assert environment.get_reward() == -0.2
    assert environment.get_reward() == -0.2
    assert environment.add(number=1) == ENDED
    assert started(abnormal_penalty=0).get_reward() == 0.0


def test_the_success_reward_is_asked_for_by_name() -> None:
    environment: Any = started(reward="success")
    environment.add(number=2)
    environment.submit()
    assert environment.get_reward() == 1.0


def test_what_a_model_gets_wrong_is_answered_and_costs_a_turn() -> None:
    environment: Any = started(
        make_task(type("Two", (Counter,), {"max_turns": 2}), samples={"train": [{"target": 1}]}), 0
    )
    assert "do not match" in environment.add(number="x")
    assert "do not match" in environment.add(nothing=1)
    assert environment.add(number=1) == ENDED
    assert environment.get_reward() == -0.2


def test_a_failure_of_the_task_is_left_out_of_the_advantages() -> None:
    environment: Any = started(rude_task(), 0)
    environment.raises("task")
    assert environment.get_reward() is None


def test_equal_rows_start_equal_episodes() -> None:
    one, two = started(seed=5), started(seed=5)
    rolls = [[getattr(e, "roll")() for _ in range(4)] for e in (one, two)]  # noqa: B009
    assert rolls[0] == rolls[1]


def test_a_row_without_a_sample_is_refused() -> None:
    with pytest.raises(CallerError, match=r"integrations\.trl\.dataset"):
        environment_factory(counter_task())().reset(prompt=[])
    with pytest.raises(CallerError, match="Call reset first"):
        environment_factory(counter_task())().get_reward()


def test_sessions_are_freed_by_the_next_reset_and_with_the_environment() -> None:
    closed: list[str] = []

    class Watched(Counter):
        def close(self) -> None:
            closed.append(self.sample.id)

    task = make_task(Watched, name="watched", samples={"train": [{"target": 1}, {"target": 2}]})
    environment = environment_factory(task)()
    environment.reset(sample=0)
    environment.reset(sample=1)
    assert closed == ["watched/train/0"]
    del environment
    gc.collect()
    assert closed == ["watched/train/0", "watched/train/1"]


def test_the_factory_pickles_and_makes_one_class() -> None:
    factory = environment_factory(GUESS, abnormal_penalty=0)
    twin = pickle.loads(pickle.dumps(factory))
    one, two = twin(), twin()
    assert type(one) is type(two)
    assert type(one).__name__ == "guess_number"
    one.reset(sample="guess_number/train/4")
    assert one.guess(5) == "Right!"
    assert (one.get_reward(), two is one) == (1.0, False)


# the data set


def test_rows_complete_to_the_task_s_own_opening() -> None:
    rows = dataset("kg", "train", 4, prompt="compact")
    assert set(rows.column_names) == {"prompt", "sample", "environment"}
    environment = environment_factory("kg", prompt="compact")()
    env = AgentEnv("kg", prompt="compact")
    for row in rows:
        text = environment.reset(**row)
        opening, _ = env.reset(options={"sample": row["sample"]})
        shown = [*row["prompt"][:-1], {**row["prompt"][-1], "content": row["prompt"][-1]["content"] + text}]
        assert shown == [dict(message) for message in opening]
    env.close()


def test_a_prompt_without_the_system_message_gets_it_as_text() -> None:
    env = AgentEnv("db")
    (system, question), info = env.reset(seed=1)
    text = environment_factory("db")().reset(sample=info["sample"], prompt=[{"role": "user", "content": ""}])
    assert text == f"{system['content']}\n\n{question['content']}"
    env.close()


def test_a_smaller_data_set_begins_a_larger_one() -> None:
    few, many = dataset(GUESS, n=5, seed=3), dataset(GUESS, n=50, seed=3)
    assert few["sample"] == many["sample"][:5]
    assert len(set(many["sample"])) == 50
    assert dataset(GUESS, n=5, seed=4)["sample"] != few["sample"]
    assert len(dataset(GUESS, "dev")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"n": 101}, "has 100 samples"), ({"n": 0}, "n is 0"), ({"split": "tset"}, "tset"), ({"promt": "x"}, "'prompt'")],
    ids=repr,
)
def test_bad_requests_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        dataset(GUESS, **arguments)


# the stock trainer


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers", "ignore::UserWarning")
@pytest.mark.parametrize(
    "tasks", [["db"], ["kg"], pytest.param(["db", "kg"], marks=pytest.mark.full)], ids=lambda tasks: "+".join(tasks)
)
def test_a_stock_grpo_trainer_trains_on_it(tasks: list[str], tiny_policy: Any, tmp_path: Path) -> None:
    from datasets import concatenate_datasets
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = tiny_policy
    args = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=256,
        max_tool_calling_iterations=6,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=1,
    )
    factories = {task: environment_factory(task, prompt="compact", level="easy") for task in tasks}
    trainer = GRPOTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=concatenate_datasets([dataset(task, n=16, prompt="compact", level="easy") for task in tasks]),
        environment_factory=factories if len(tasks) > 1 else factories[tasks[0]],
    )
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert len(steps) == 2
    assert all(-0.21 < row["reward"] <= 1 for row in steps)  # in float32
    assert {f"rewards/{task}/mean" for task in tasks} <= set().union(*steps)
    assert sum(row["tools/call_frequency"] for row in steps) > 0
    assert all(row["tools/failure_frequency"] < 0.5 for row in steps)  # at times it invents a tool
    if any(row["reward_std"] > 0 for row in steps):
        after = dict(trainer.model.named_parameters())
        assert any(not value.equal(after[name]) for name, value in before.items())
