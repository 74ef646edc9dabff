"""What a task author implements: an Episode of plain blocking Python, and the Task that opens it.

>>> class Echo(ToolEpisode):
...     def start(self):
...         return f"Say {self.sample.data['word']}."
...     @tool
...     def say_word(self, word: str):
...         '''Says a word.
...
...         Args:
...             word: The word to say.
...         '''
...         return self.finish("Thank you.", reward=float(word == self.sample.data["word"]))
>>> task = make_task(Echo, samples={"train": [{"word": "yes"}]})
>>> task.samples("train")[0].id
'echo/train/0'
>>> episode = task.open(task.samples("train")[0], seed=0)
>>> episode.start(), episode.call("say_word", {"word": "yes"}).reward
([{'role': 'user', 'content': 'Say yes.'}], 1.0)

An author writes tools, not a loop: what happens on a missing, malformed, unknown or surplus call is decided once, in
session.py, for all tasks. `call` only ever sees arguments that passed the tool's JSON schema.

Not here: the turn loop (session.py); task ids and folders (registry.py).
"""

import copy
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from agentbench_fc.errors import NotFound, TaskError, did_you_mean
from agentbench_fc.messages import Message, ToolCall, ToolSpec, function_tool, user
from agentbench_fc.rewards import Status
from agentbench_fc.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem of a task. `index` is its position in id order within the split."""

    id: str
    index: int
    split: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What one call did. `reward` in [0, 1] adds to the episode's raw reward; `done` ends it as `status`."""

    content: str
    reward: float | None = None
    success: bool | None = None
    done: bool = False
    metrics: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.COMPLETED
    """Only read when `done`: e.g. `agent validation failed` for an answer that cannot be graded."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of a session as the client sees it: the increment of messages, never the history.

    Turn 0 comes from the start and holds the prompt; the k-th interaction gives turn k.
    """

    session_id: str
    turn: int
    messages: list[Message]
    tools: list[ToolSpec]
    status: Status
    finish: bool
    reward: float | None
    """Raw reward earned in this turn; at the finish a scored episode always has one. None: nothing was earned."""
    success: bool | None
    metrics: dict[str, Any] = field(default_factory=dict)


ExpertMove = ToolCall | str
"""A call, or a text for a turn without one."""
Expert = Generator[ExpertMove, Turn, None]


@runtime_checkable
class Episode(Protocol):
    """One running problem: blocking Python, one call at a time, no knowledge of HTTP or Gymnasium."""

    def start(self) -> list[Message]:
        """The system and user messages that open the episode."""
        ...

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Runs one call that passed the tool's schema. An exception other than ours becomes a tool error."""
        ...

    def say(self, text: str) -> Reply | None:
        """Takes a turn without a tool call; None: it means nothing here, and the session asks for a call."""
        ...

    def fork(self) -> "Episode | None":
        """An independent copy of the present state; None: the session replays the calls instead."""
        ...

    def close(self) -> None:
        """Frees everything; safe to repeat."""
        ...


@runtime_checkable
class Task(Protocol):
    """A family of problems under one spec. One object serves many sessions and threads."""

    spec: TaskSpec

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split, in id order.

        Raises:
            NotFound: no such split; the message lists those that exist.
        """
        ...

    def open(self, sample: Sample, seed: int) -> Episode:
        """A fresh episode; equal sample, seed and calls give an equal episode in any process."""
        ...

    def expert(self, sample: Sample) -> Expert | None:
        """A policy that solves the sample: yields moves and is sent the turn that each one caused."""
        ...

    def close(self) -> None:
        """Frees what all episodes share; safe to repeat."""
        ...


ToolMethod = TypeVar("ToolMethod", bound=Callable[..., Any])


def tool(method: ToolMethod) -> ToolMethod:
    """Marks a method of a `ToolEpisode` as a tool: type hints and Google-style docstring become its schema."""
    method.__agentbench_tool__ = True  # type: ignore[attr-defined]
    return method


class ToolEpisode:
    """An episode as one class: methods marked `@tool` are the tools, class attributes are the limits.

    A tool returns a `Reply`, a text, or any JSON value. `self.sample`, `self.seed` and `self.rng` are set before
    `start`. Class attributes `max_turns`, `max_output_chars`, … override the fields of `TaskSpec` of that name.
    """

    def __init__(self, sample: Sample, seed: int) -> None:
        self.sample = sample
        self.seed = seed
        self.rng = random.Random(f"{sample.id}#{seed}")

    def start(self) -> list[Message] | str:
        """The opening messages; a text is one user message."""
        raise TaskError(f"{type(self).__name__} has no start [ToolEpisode]. Return the opening messages or a text.")

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Calls the method of that name."""
        result = getattr(self, name)(**arguments)
        if isinstance(result, Reply):
            return result
        if isinstance(result, str):
            return Reply(result)
        import json

        return Reply(json.dumps(result, ensure_ascii=False, default=str))

    def say(self, text: str) -> Reply | None:
        """No meaning by default: the session asks for a tool call."""
        return None

    def fork(self) -> Self | None:
        """None by default: the session replays. `return copy.deepcopy(self)` is right for pure-Python state."""
        return None

    def close(self) -> None:
        """Nothing to free by default."""

    @staticmethod
    def finish(content: str = "", *, reward: float, success: bool | None = None, **metrics: Any) -> Reply:
        """A reply that ends the episode; `success` defaults to `reward == 1`."""
        return Reply(content, reward, reward == 1.0 if success is None else success, done=True, metrics=metrics)


class ToolTask:
    """The `Task` of a `ToolEpisode` class; made by `make_task`."""

    def __init__(
        self,
        episode: type[ToolEpisode],
        spec: TaskSpec,
        samples: Mapping[str, Sequence[Mapping[str, Any]]],
        expert: Callable[[Sample], Expert] | None = None,
    ) -> None:
        self.spec = spec
        self._episode = episode
        self._expert = expert
        self._samples = {
            split: [Sample(f"{spec.name}/{split}/{i}", i, split, data) for i, data in enumerate(rows)]
            for split, rows in samples.items()
        }

    def samples(self, split: str) -> Sequence[Sample]:
        """All samples of a split."""
        if split not in self._samples:
            raise NotFound(f"no split {split!r} [task {self.spec.name}]. {did_you_mean(split, self._samples)}")
        return self._samples[split]

    def open(self, sample: Sample, seed: int) -> Episode:
        """A fresh episode of the class."""
        return _Started(self._episode(sample, seed))

    def expert(self, sample: Sample) -> Expert | None:
        """The expert given to `make_task`, if any."""
        return self._expert(sample) if self._expert else None

    def close(self) -> None:
        """Nothing is shared."""


class _Started:
    """Adapts a ToolEpisode's looser `start` to the protocol."""

    def __init__(self, inner: ToolEpisode) -> None:
        self._inner = inner
        self.call, self.say, self.close = inner.call, inner.say, inner.close

    def start(self) -> list[Message]:
        opening = self._inner.start()
        return [user(opening)] if isinstance(opening, str) else opening

    def fork(self) -> "Episode | None":
        inner = self._inner.fork()
        return None if inner is None else _Started(inner)


def make_task(
    episode: type[ToolEpisode],
    *,
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    name: str | None = None,
    expert: Callable[[Sample], Expert] | None = None,
) -> ToolTask:
    """A task from one class and its samples: split -> list of data, one dict a sample.

    Args:
        episode: The class; its `@tool` methods and class attributes make the spec.
        samples: Split name -> rows; row n of split s gets the id `<name>/<s>/<n>`.
        name: Task name; by default the class name in lower case, words joined by `_`.
        expert: Gives a generator of moves that solves a sample, for demonstrations and warm starts.
    """
    limits = {f: getattr(episode, f) for f in TaskSpec.__dataclass_fields__ if hasattr(episode, f)}
    spec = TaskSpec(
        name=name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", episode.__name__).lower(),
        tools=tuple(tool_specs(episode)),
        splits={split: f"{len(rows)} samples" for split, rows in samples.items()},
    )
    return ToolTask(episode, replace(spec, **limits), samples, expert)


def tool_specs(episode: type) -> list[ToolSpec]:
    """The tool specs of the methods marked `@tool`, in order of definition.

    Raises:
        TaskError: a parameter without a type hint.
    """
    names = [n for cls in reversed(episode.__mro__) for n, m in vars(cls).items() if hasattr(m, "__agentbench_tool__")]
    return [_method_spec(getattr(episode, name)) for name in dict.fromkeys(names)]


def _method_spec(method: Callable[..., Any]) -> ToolSpec:
    import inspect
    import typing

    from pydantic import create_model

    hints = typing.get_type_hints(method)
    summary, arguments = _read_docstring(inspect.getdoc(method) or "")
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name not in hints:
            raise TaskError(f"parameter {parameter.name!r} has no type hint [{method.__qualname__}]. Add one.")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    schema = _without_titles(create_model(method.__name__, **fields).model_json_schema())
    schema.setdefault("properties", {})
    for name, text in arguments.items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = text
    schema["additionalProperties"] = False
    return function_tool(method.__name__, summary, schema)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    schema = copy.deepcopy(schema)
    schema.pop("title", None)
    for part in [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]:
        part.pop("title", None)
    return schema


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Summary and `Args:` section of a Google-style docstring."""
    head, _, tail = doc.partition("\nArgs:\n")
    arguments: dict[str, str] = {}
    current = ""
    for line in tail.splitlines():
        if line and not line.startswith(" "):
            break
        if match := re.match(r" {2,4}(\w+)(?: \([^)]*\))?: (.*)", line):
            current = match[1]
            arguments[current] = match[2].strip()
        elif current and line.strip():
            arguments[current] += " " + line.strip()
    return " ".join(head.split("\n\n")[0].split()), arguments
