"""Demonstrations of a fallible expert: a task's own expert whose moves slip now and then, and that stops too early.

>>> from random import Random
>>> slip('{"query": "SELECT age FROM cats"}', ["Table cats: name, age."], Random(4))
'{"query": "SELECT name FROM cats"}'

A policy that learns from it is right often enough to be rewarded, and wrong in two ways. A slip is noise: it copies the
neighbour of the right word, and sampling at a lower temperature would do much against it. Haste is a habit: what takes
several steps is mostly handed in after the first, so even greedy decoding is wrong until reinforcement turns it around.

Not here: experts (agentbench_fc.players, tasks/); training on the transcripts (warmstart.py).
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_fc.episode import Sample, Task, Turn
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import Message, ToolCall, assistant, read_agent_messages
from agentbench_fc.players import Player, make_player, noop_move, play
from agentbench_fc.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Haste:
    """A habit of ending an episode before its time."""

    after: str
    """Regular expression for the whole of what the expert has just seen."""
    tool: str
    """What it calls then, if the right move is another tool's."""
    arguments: str
    """Of that call, as JSON; `\\1` is the expression's first group."""
    rate: float
    """How often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How an expert fails."""

    slip_rate: float = 0.0
    """Probability of a slip at each move."""
    haste: Haste | None = None


WORD = re.compile(r"#?\w+(?:\.\w+)*")


def demonstrate(
    task: Task, samples: Iterable[Sample], *, faults: Faults, seed: int, options: dict[str, Any] | None = None
) -> Iterator[Session]:
    """Plays each sample once; the finished sessions carry what transcripts need.

    Args:
        task: Has an expert for the samples.
        samples: In the order of playing.
        faults: How the expert fails.
        seed: Of the faults and the episodes.
        options: What the task was loaded with; transcripts carry it.
    """
    expert = make_player("expert", task)

    def policy(sample: Sample, episode_seed: int) -> Player:
        rng = random.Random(f"{sample.id}#{episode_seed}#faults")
        return _Fallible(expert(sample, episode_seed), task, rng, faults)

    for sample in samples:
        yield play(task, sample, policy, seed=seed, options=options)


def slip(arguments: str, seen: Sequence[str], rng: random.Random) -> str:
    """The arguments with one word that was read replaced by another of the same form, of the text it was read in.

    Unchanged where nothing in them was read or has a neighbour, as an empty answer.

    Args:
        arguments: JSON of a tool call.
        seen: The texts of the episode so far, oldest first; a word belongs to the newest one that has it.
        rng: Draws which word slips and to what.
    """
    texts = [list(dict.fromkeys(WORD.findall(text))) for text in seen]
    value = json.loads(arguments)
    found: list[tuple[re.Match[str], list[str]]] = []
    for leaf in _leaves(value):
        for match in WORD.finditer(leaf):
            source = next((words for words in reversed(texts) if match[0] in words), list[str]())
            others = [word for word in source if word != match[0] and _form(word) == _form(match[0])]
            if others:
                found.append((match, others))
    if not found:
        return arguments
    match, others = rng.choice(found)
    leaf = match.string
    changed = leaf[: match.start()] + rng.choice(others) + leaf[match.end() :]
    return json.dumps(_replaced(value, leaf, changed), ensure_ascii=False)


def _form(word: str) -> tuple[int, str]:
    """What kind of word it looks like: dotted, capitalized, a number, a variable."""
    first = "A" if word[0].isupper() else "a" if word[0].isalpha() else "0" if word[0].isdigit() else word[0]
    return word.count("."), first


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return new if value == old else value


class _Fallible:
    """A player that passes an expert's moves on, some of them spoilt; it gives up where the expert does."""

    def __init__(self, expert: Player, task: Task, rng: random.Random, faults: Faults) -> None:
        self._expert = expert
        self._give_up = noop_move(task)
        self._rng = rng
        self._faults = faults
        self._seen: list[str] = []
        self._slipped = False

    def act(self, turn: Turn) -> list[Message]:
        observed = [message["content"] or "" for message in turn.messages]
        self._seen += observed
        try:
            messages = self._expert.act(turn)
        except TaskError:
            if not self._slipped:
                raise
            name, arguments = self._give_up  # after a slip the expert's plan need not hold any more
            return [assistant(None, [ToolCall("call_end", name, arguments)])]
        agent = read_agent_messages(messages)
        if early := self._too_early(observed, agent.calls):
            return [assistant(None, [early])]
        if self._rng.random() >= self._faults.slip_rate:
            return messages
        self._slipped = True
        calls = [ToolCall(c.id, c.name, slip(c.arguments, self._seen, self._rng)) for c in agent.calls]
        return [assistant(agent.text or None, calls)]

    def _too_early(self, observed: Sequence[str], calls: Sequence[ToolCall]) -> ToolCall | None:
        haste = self._faults.haste
        if haste is None or not observed or any(call.name == haste.tool for call in calls):
            return None
        match = re.fullmatch(haste.after, observed[-1])
        if match is None or self._rng.random() >= haste.rate:
            return None
        return ToolCall("call_early", haste.tool, match.expand(haste.arguments))
