"""Spaces of messages and of function calls: real Gymnasium spaces whose samples are valid.

>>> from agentbench_fc.messages import function_tool
>>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
>>> space = ActionSpace([function_tool("pick", "Picks.", schema)], seed=1)
>>> space.sample() in space, {"name": "pick", "arguments": {"n": "three"}} in space
(True, False)
>>> ({"role": "user", "content": "Pick a number."},) in MessagesSpace()
True

They are not built on `spaces.Text`: a text has no alphabet and no useful bound here. Vector envs batch them as tuples.

Not here: what a schema admits (schema_sampling.py), how an action becomes messages (actions.py).
"""

import copy
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from agentbench_fc.envs.actions import Action, read_turn
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import AgentTurn, Message, Role, ToolCall, ToolSpec, tool_name, tool_result
from agentbench_fc.parsers import get_parser

ROLES: tuple[Role, ...] = get_args(Role)
_LETTERS = "abcdefghijklmnopqrstuvwxyz     .,:?\n"


class MessagesSpace(gym.Space[tuple[Message, ...]]):
    """Tuples of new chat messages, the empty one included."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Messages have no array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[Message, ...]:
        """Zero to three messages of random text.

        Args:
            mask: (4,) of 0 and 1: which of system, user, assistant, tool may appear; by default all.
            probability: (4,), sums to 1: how often each role appears; not together with a mask.
        """
        weights = _weights(len(ROLES), mask, probability)
        rng = self.np_random
        return tuple(self._message(ROLES[int(rng.choice(len(ROLES), p=weights))]) for _ in range(rng.integers(4)))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of well-formed messages."""
        return isinstance(x, tuple) and all(_is_message(message) for message in x)

    def to_jsonable(self, sample_n: Iterable[tuple[Message, ...]]) -> list[list[Message]]:
        """Each tuple as a list; messages are JSON as they are."""
        return [copy.deepcopy(list(sample)) for sample in sample_n]

    def from_jsonable(self, sample_n: list[list[Message]]) -> list[tuple[Message, ...]]:
        """The inverse of `to_jsonable`."""
        return [tuple(copy.deepcopy(sample)) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessagesSpace)

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's own spaces: equal by value, mutable by seed

    def __repr__(self) -> str:
        return "MessagesSpace()"

    def _message(self, role: Role) -> Message:
        rng = self.np_random
        text = "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=rng.integers(1, 40)))
        if role == "tool":
            return tool_result(f"call_{rng.integers(1, 10)}", text)
        return {"role": role, "content": text}


class ActionSpace(gym.Space[Any]):
    """What an agent may do: function calls of the given tools. Samples are `{"name": …, "arguments": {…}}`.

    Members are all forms of an action that a session plays without an invalid call: a call as a dict or `ToolCall`, an
    assistant message with or without calls, and raw text that `parser` understands as such.

    Args:
        tools: The tools on offer; positions in a mask follow their order.
        parser: How raw text is read, by name.
        seed: Of the sampling.
    """

    def __init__(
        self, tools: Sequence[ToolSpec], parser: str = "hermes", seed: int | np.random.Generator | None = None
    ) -> None:
        self.tools = tuple(copy.deepcopy(list(tools)))
        self.parser = parser
        self._parse = get_parser(parser)
        self._validators: dict[str, Any] | None = None
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Calls have no array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> dict[str, Any]:
        """A call with random arguments that match the tool's schema.

        Args:
            mask: (number of tools,) of 0 and 1: which tools may be drawn; by default all.
            probability: (number of tools,), sums to 1: how often each is drawn; not together with a mask.

        Raises:
            CallerError: a mask of another shape, one that excludes every tool, or a space without tools.
            TaskError: the schema admits nothing that was found.
        """
        if not self.tools:
            raise CallerError("the space has no tools [ActionSpace.sample]. Send text, or offer tools.")
        from agentbench_fc.schema_sampling import sample_arguments

        weights = _weights(len(self.tools), mask, probability)
        tool = self.tools[int(self.np_random.choice(len(self.tools), p=weights))]
        rng = random.Random(int(self.np_random.integers(2**62)))
        return {"name": tool_name(tool), "arguments": sample_arguments(tool["function"]["parameters"], rng)}

    def contains(self, x: Any) -> bool:
        """Whether `x` is an action in which every call names a tool and matches its schema."""
        try:
            return all(self._is_valid(call) for call in read_turn(x, self._parse).calls)
        except CallerError:
            return False

    def to_jsonable(self, sample_n: Iterable[Action]) -> list[Any]:
        """JSON values; `ToolCall` and `AgentTurn` become dicts."""
        return [_jsonable(sample) for sample in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        """The inverse of `to_jsonable`, up to the form: what was an object stays the dict that means the same."""
        return copy.deepcopy(sample_n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and (self.tools, self.parser) == (other.tools, other.parser)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ActionSpace({', '.join(map(tool_name, self.tools))})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_validators": None}  # compiled again on first use

    def _is_valid(self, call: ToolCall) -> bool:
        if self._validators is None:
            from agentbench_fc.spec import TaskSpec

            self._validators = dict(TaskSpec(name="space", tools=self.tools).validators)
        from agentbench_fc.arguments import read_arguments

        try:
            read_arguments(self._validators, call)
        except ValueError:
            return False
        return True


def _weights(count: int, mask: Any | None, probability: Any | None) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """What a choice among `count` is weighted by; None: all alike."""
    if mask is not None and probability is not None:
        raise CallerError("both mask and probability are given [Space.sample]. Give one of them.")
    given = mask if mask is not None else probability
    if given is None:
        return None
    weights = np.asarray(given, dtype=np.float64)
    name = "mask" if mask is not None else "probability"
    if weights.shape != (count,):
        raise CallerError(f"the {name} has the shape {weights.shape} [Space.sample]. Use ({count},).")
    if mask is not None and not np.isin(weights, (0, 1)).all():
        raise CallerError(f"the mask is {weights.tolist()} [Space.sample]. Use 0 and 1 only.")
    total = weights.sum()
    if not total > 0 or (weights < 0).any() or (mask is None and not np.isclose(total, 1)):
        cure = "Allow at least one entry." if mask is not None else "Use values >= 0 that sum to 1."
        raise CallerError(f"the {name} is {weights.tolist()} [Space.sample]. {cure}")
    return np.asarray(weights / total)


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        return False
    content, calls = message.get("content"), message.get("tool_calls")
    if message["role"] == "tool":
        return isinstance(content, str) and isinstance(message.get("tool_call_id"), str)
    if calls is not None and (message["role"] != "assistant" or not _are_calls(calls)):
        return False
    return isinstance(content, str) or (content is None and message["role"] == "assistant")


def _are_calls(calls: Any) -> bool:
    return isinstance(calls, list) and all(
        isinstance(call, Mapping)
        and isinstance(call.get("id"), str)
        and isinstance(function := call.get("function"), Mapping)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
        for call in calls
    )


def _jsonable(action: Action) -> Any:
    match action:
        case ToolCall():
            return action.to_dict()
        case AgentTurn():
            return action.to_messages()[0]
    return json.loads(json.dumps(action))
