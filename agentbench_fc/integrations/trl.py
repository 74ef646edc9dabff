"""A task as TRL's `environment_factory`: a stock `GRPOTrainer` trains on it.

    factory = environment_factory("kg", prompt="compact")
    trainer = GRPOTrainer(
        model, args=GRPOConfig(…), train_dataset=dataset("kg", n=256, prompt="compact"), environment_factory=factory
    )

The trainer sees an object whose public methods are the task's tools, with the signatures, type hints and docstrings
that TRL turns back into schemas. Each row of the data set names one sample; all generations of a group play it.

What TRL's loop cannot express: a turn of text ends the rollout, so an episode that no tool has ended by then counts as
abnormal (-0.2 by default), and KG's answer must come through `submit_answer`.

Not here: our own trainer (agentrl_trainer), which has neither limit. Nothing here imports torch or TRL.
Source: TRL 1.16, `GRPOTrainer(environment_factory=…)`.
"""

import inspect
import json
import random
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

from agentbench_fc.envs.choosing import open_task
from agentbench_fc.envs.scoring import RewardKind, Scoring
from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import Message, ToolCall, ToolSpec, assistant, tool_name
from agentbench_fc.rewards import ABNORMAL_PENALTY, Status, settle
from agentbench_fc.samples import choose_split, find_sample
from agentbench_fc.session import Session

if TYPE_CHECKING:
    from datasets import Dataset

OWN_OPTIONS = ("task", "split", "profile", "prompt", "reward", "abnormal_penalty", "seed", "n")
ENDED = "The episode has ended. Stop calling tools."


def environment_factory(
    task: str | Task,
    *,
    split: str | None = None,
    profile: str = "default",
    prompt: str = "default",
    reward: RewardKind = "raw",
    abnormal_penalty: float = ABNORMAL_PENALTY,
    seed: int = 0,
    **options: Any,
) -> "EnvironmentFactory":
    """A callable without arguments that makes environments for TRL; it pickles where `task` is an id or a path.

    Args:
        task: An id, a path `my_task.py:TASK`, or a `Task`.
        split: Where a row's number (not its id) is looked up; by default `train`.
        profile: `default`, or `agentbench` for AgentBench's own rules.
        prompt: Style of the prompts, `default` or `compact`.
        reward: `raw` (in [0, 1], as the task gives it) or `success` (0 or 1).
        abnormal_penalty: Reward of an episode that did not end by itself; 0 keeps the task's own.
        seed: Of every episode: the generations of a group must start alike.
        options: Of the task, such as `max_turns=10`.

    Raises:
        CallerError: a bad option, or a tool whose name TRL reserves.
        NotFound: no such task or split.
    """
    factory = EnvironmentFactory(task, split, profile, prompt, Scoring(reward, abnormal_penalty), seed, options)
    factory._prepare()
    return factory


@dataclass
class EnvironmentFactory:
    """What `environment_factory` returns. All its environments are of one class and share one `Task`."""

    task: str | Task
    split: str | None
    profile: str
    prompt: str
    scoring: Scoring
    seed: int
    options: dict[str, Any]
    _prepared: "tuple[Task, type[TaskEnvironment]] | None" = field(default=None, repr=False, compare=False)

    def __call__(self) -> "TaskEnvironment":
        """A new environment, to be reset before use."""
        task, environment = self._prepare()
        return environment(task, self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": None}  # the class is made again where it is needed

    def _prepare(self) -> "tuple[Task, type[TaskEnvironment]]":
        if self._prepared is None:
            task, _ = open_task(self.task, self.profile, self.prompt, self.options, OWN_OPTIONS)
            task.samples(choose_split(task, self.split))
            self._prepared = task, _environment_class(task)
        return self._prepared


class TaskEnvironment:
    """One rollout's environment: `reset`, the tools as methods, `get_reward`. TRL pools and reuses it.

    Its session is freed by the next reset, with the object, and when the interpreter ends.
    """

    def __init__(self, task: Task, factory: EnvironmentFactory) -> None:
        self._task = task
        self._factory = factory
        self._session: Session | None = None
        self._free: Callable[[], object] = lambda: None

    def reset(self, **row: Any) -> str:
        """Starts the episode of a row.

        Args:
            row: A row of the data set; `sample` is the id of what to play, `prompt` what the model already sees.

        Returns:
            What is missing from the row's prompt to make it the episode's; TRL appends it.

        Raises:
            CallerError: the row names no sample.
        """
        self._free()
        wanted = row.get("sample")
        if wanted is None:
            raise CallerError(
                f"the row has no sample, only {sorted(row)} [reset]. Train on agentbench_fc.integrations.trl.dataset."
            )
        split = None if isinstance(wanted, str) else self._factory.split
        sample = find_sample(self._task, wanted, split=split)
        session = Session(self._task, sample, seed=self._factory.seed)
        self._session = session
        self._free = weakref.finalize(self, session.close)
        return _missing_text(session.start().messages, row.get("prompt") or [])

    def get_reward(self) -> float | None:
        """The shaped reward of the rollout; None where the task failed, which TRL leaves out of the advantages.

        Raises:
            CallerError: there was no reset.
        """
        session = self._session
        if session is None:
            raise CallerError("no episode was started [get_reward]. Call reset first.")
        session.cancel(
            Status.CONTEXT_LIMIT, "the rollout stopped before the episode ended"
        )  # no effect on a finished one
        scoring = self._factory.scoring
        base = session.raw_reward if scoring.reward == "raw" else float(bool(session.last.success))
        return settle(session.status, base, abnormal_penalty=scoring.abnormal_penalty).reward

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        session = self._session
        if session is None:
            raise CallerError(f"no episode was started [{name}]. Call reset first.")
        if session.finished:
            return ENDED
        call = ToolCall(f"call_{session.turn + 1}", name, json.dumps(arguments))
        turn = session.interact([assistant(None, [call])])
        return "\n\n".join(message["content"] or "" for message in turn.messages)


def dataset(
    task: str | Task,
    split: str | None = None,
    n: int | None = None,
    *,
    profile: str = "default",
    prompt: str = "default",
    seed: int = 0,
    **options: Any,
) -> "Dataset":
    """Rows for `train_dataset` or `eval_dataset`: `prompt`, `sample` and `environment` (the task's name).

    The prompt holds the task's system message and an empty user message, which `reset` fills. Data sets of several
    tasks can be concatenated; `environment` then selects among `{name: factory}`.

    Args:
        task: As for `environment_factory`; give both the same options.
        split: By default `train`.
        n: How many samples, drawn without repetition; None: all.
        profile: As for `environment_factory`.
        prompt: As for `environment_factory`.
        seed: Of the draw; it does not depend on `n`: a smaller set is the beginning of a larger one.
        options: As for `environment_factory`.

    Raises:
        CallerError: a bad option, more samples than there are, or `datasets` is not installed.
        NotFound: no such task or split.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise CallerError("datasets is not installed [trl]. pip install 'agentbench-fc[train]'.") from error

    made, _ = open_task(task, profile, prompt, options, OWN_OPTIONS)
    samples = list(made.samples(choose_split(made, split)))
    if n is not None and not 0 < n <= len(samples):
        raise CallerError(f"n is {n} [dataset of {made.spec.name}]. The split has {len(samples)} samples.")
    random.Random(seed).shuffle(samples)
    opening: list[Message] = [*_system_messages(made, samples[0]), {"role": "user", "content": ""}]
    return Dataset.from_list(
        [{"prompt": opening, "sample": sample.id, "environment": made.spec.name} for sample in samples[:n]]
    )


def _system_messages(task: Task, sample: Sample) -> list[Message]:
    session = Session(task, sample)
    opening = session.start().messages
    session.cancel()
    return [message for message in opening if message["role"] == "system"]


def _missing_text(opening: Sequence[Message], prompt: Sequence[Mapping[str, Any]]) -> str:
    """The opening's texts, less the system messages that the prompt already shows."""
    shown = [message.get("content") for message in prompt if message.get("role") == "system"]
    texts = [m["content"] or "" for m in opening if not (m["role"] == "system" and m["content"] in shown)]
    return "\n\n".join(texts)


# tools as methods


def _environment_class(task: Task) -> type[TaskEnvironment]:
    methods: dict[str, Any] = {"__doc__": f"The task {task.spec.name} for TRL."}
    for tool in task.spec.tools:
        name = tool_name(tool)
        if name in {"reset", "get_reward"} or name.startswith("_") or not name.isidentifier():
            raise CallerError(f"TRL cannot offer a tool named {name!r} [task {task.spec.name}]. Rename it.")
        methods[name] = _method(tool)
    return type(re.sub(r"\W", "_", task.spec.name), (TaskEnvironment,), methods)


def _method(tool: ToolSpec) -> Callable[..., str]:
    name, schema = tool_name(tool), tool["function"]["parameters"]
    required = schema.get("required", [])
    properties: Mapping[str, Any] = schema.get("properties", {})
    order = sorted(properties, key=lambda key: key not in required)  # Python wants defaults last
    omittable = {key for key in properties if key not in required and not _admits_null(properties[key])}

    def method(self: TaskEnvironment, *args: Any, **arguments: Any) -> str:
        given = dict(zip(order, args, strict=False)) | arguments
        return self._call(name, {k: v for k, v in given.items() if not (v is None and k in omittable)})

    hints = {key: _type_hint(properties[key]) for key in order}
    hints |= {key: hints[key] | None for key in omittable if "default" not in properties[key]}
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] + [
        inspect.Parameter(
            key,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=hints[key],
            default=inspect.Parameter.empty if key in required else properties[key].get("default"),
        )
        for key in order
    ]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = _docstring(tool, order)
    method.__annotations__ = hints  # without the return type, which the task's own schema does not show either
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return method


def _docstring(tool: ToolSpec, order: Sequence[str]) -> str:
    function = tool["function"]
    lines = [_one_line(function.get("description") or f"Calls {function['name']}.")]
    if order:
        lines += ["", "Args:"]
    for key in order:
        described = function["parameters"]["properties"][key].get("description")
        lines.append(f"    {key}: {_one_line(described or key.replace('_', ' ').capitalize() + '.')}")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """The text without what a reader of Google docstrings would take for structure."""
    return re.sub(r"\b(Args|Returns|Raises|choices):", r"\1 -", " ".join(text.split()))


def _admits_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    kinds = schema.get("type")
    options = schema.get("anyOf", schema.get("oneOf", []))
    return kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or any(map(_admits_null, options))


_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}


def _type_hint(schema: Any) -> Any:
    """The type hint that says most of what the schema says.

    >>> _type_hint({"type": "array", "items": {"enum": ["a", "b"]}})
    list[typing.Literal['a', 'b']]
    """
    if not isinstance(schema, Mapping):
        return Any
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values and all(isinstance(value, (str, int, bool, type(None))) for value in values):
        return Literal[tuple(values)]
    kinds = schema.get("type")
    if options := schema.get("anyOf", schema.get("oneOf")):
        return Union[tuple(_type_hint(option) for option in options)]  # noqa: UP007  (made at run time)
    if isinstance(kinds, list):
        return Union[tuple(_type_hint({**schema, "type": kind}) for kind in kinds)]  # noqa: UP007
    if kinds == "array":
        return list[_type_hint(schema.get("items"))]  # type: ignore[misc]
    return _TYPES.get(kinds, Any) if isinstance(kinds, str) else Any
