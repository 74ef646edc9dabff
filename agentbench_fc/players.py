"""Players that need no model: expert, no-op, constant and random, for any task.

>>> from agentbench_fc.episode import ToolEpisode, make_task, tool
>>> class Echo(ToolEpisode):
...     finish_tool = "answer"
...     def start(self):
...         return f"Say {self.sample.data['word']}."
...     @tool
...     def answer(self, word: str):
...         '''Answers.'''
...         return self.finish("Thank you.", reward=float(word == self.sample.data["word"]))
>>> def solve(sample):
...     yield ToolCall("c1", "answer", json.dumps(sample.data))
>>> task = make_task(Echo, samples={"train": [{"word": "yes"}, {"word": "no"}]}, expert=solve)
>>> sample = task.samples("train")[0]
>>> [play(task, sample, make_player(name, task)).raw_reward for name in ("expert", "noop", "constant")]
[1.0, 0.0, 1.0]

The expert shows that a task can be won, the others what can be had without reading: a task whose no-op or constant
player scores is broken. A player sees what a model sees and answers in the same form, so it runs wherever a model does.

Not here: the turn loop (session.py), scores and reports (evaluate.py), the file format of transcripts (transcript.py).
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentbench_fc.episode import Expert, Sample, Task, Turn
from agentbench_fc.errors import CallerError, TaskError, did_you_mean
from agentbench_fc.messages import Message, ToolCall, assistant, read_agent_messages, tool_name
from agentbench_fc.schema_sampling import emptiest_arguments, sample_arguments
from agentbench_fc.session import Session

PLAYERS = ("expert", "noop", "constant", "random")

LONGEST_SEQUENCE = 3
"""Moves of the longest constant sequence."""
MOST_FREQUENT = 20
"""Candidates of each kind."""


class Player(Protocol):
    """One policy in one episode."""

    def act(self, turn: Turn) -> list[Message]:
        """The assistant messages that answer a turn which is not the last; turn 0 is the prompt."""
        ...


Policy = Callable[[Sample, int], Player]
"""Makes the player of one episode from its sample and seed."""

Move = tuple[str, str]
"""A repeatable move: (tool name, JSON arguments), or ("", text)."""


def make_player(name: str, task: Task, *, split: str = "train", limit: int = 100) -> Policy:
    """The policy of that name for one task.

    Args:
        name: `expert`, `noop`, `constant` or `random`.
        task: What it will play.
        split: Where the constant player learns its moves; the others ignore it.
        limit: How many samples of that split it learns from.

    Raises:
        CallerError: unknown name, or the task has no expert and the player needs one.
    """
    if name == "expert":
        return lambda sample, seed: _Scripted(_expert_of(task, sample), sample)
    if name == "noop":
        return fixed([noop_move(task)])
    if name == "constant":
        return fixed(best_constant(task, split=split, limit=limit).moves)
    if name == "random":
        return lambda sample, seed: _Random(task, random.Random(f"{sample.id}#{seed}#random player"))
    raise CallerError(f"no player {name!r} [players]. {did_you_mean(name, PLAYERS)}")


def play(
    task: Task, sample: Sample, policy: Policy, *, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Session:
    """Plays one episode to its end; the finished session holds the log.

    Args:
        task: The task that the policy was made for.
        sample: One of its samples.
        policy: From `make_player`.
        seed: Of the episode and the player.
        options: What the task was loaded with; transcripts carry it.
    """
    session = Session(task, sample, seed=seed, options=options)
    try:
        turn = session.start()
        player = policy(sample, seed)
        while not turn.finish:
            turn = session.interact(player.act(turn))
    except BaseException:
        session.close()
        raise
    return session


@dataclass(frozen=True, slots=True)
class Constant:
    """The best answer that needs no reading."""

    moves: tuple[Move, ...]
    score: float
    """Mean raw reward on the samples that it was chosen on, which flatters it."""
    candidates: int


def best_constant(task: Task, *, split: str = "train", limit: int = 100) -> Constant:
    """The fixed sequence of moves that earns most on the first `limit` samples of a split.

    Candidates come from experts' games: the 20 most frequent last moves, that is answers; and for tasks whose answer
    refers to earlier calls the 20 most frequent endings and beginnings of up to three moves, as far as they occur more
    than once, a beginning closed by one of the two most frequent last moves of games that are as short.

    Raises:
        CallerError: the split is empty, or the task has no expert to learn from.
    """
    samples = task.samples(split)[:limit]
    if not samples:
        raise CallerError(f"split {split!r} has no samples [task {task.spec.name}]. Name another split.")
    expert = make_player("expert", task)
    candidates = _candidates([_moves(play(task, sample, expert)) for sample in samples])
    if not candidates:
        raise TaskError(f"the expert makes no move [task {task.spec.name}, split {split}]. Mend it.")
    scores = [sum(_reward(task, sample, moves) for sample in samples) / len(samples) for moves in candidates]
    best = max(range(len(candidates)), key=scores.__getitem__)  # among equals the first, which is the plainest
    return Constant(candidates[best], scores[best], len(candidates))


def fixed(moves: Sequence[Move]) -> Policy:
    """Plays these moves in order and then repeats the last, whatever it sees."""
    return lambda sample, seed: _Fixed(moves)


def noop_move(task: Task) -> Move:
    """The move of the no-op player: the finishing tool with the emptiest arguments; without one the plainest call."""
    schemas = {tool_name(tool): tool["function"]["parameters"] for tool in task.spec.tools}
    if not schemas:
        return "", ""
    name = task.spec.finish_tool
    if name not in schemas:
        name = min(schemas, key=lambda each: len(schemas[each].get("required", ())))
    return name, json.dumps(emptiest_arguments(schemas[name]))


def _expert_of(task: Task, sample: Sample) -> Expert:
    expert = task.expert(sample)
    if expert is None:
        raise CallerError(f"the task has no expert for this sample [{sample.id}]. Use another player.")
    return expert


def _candidates(games: Sequence[Sequence[Move]]) -> list[tuple[Move, ...]]:
    last = _most_frequent([moves[-1:] for moves in games if moves], at_least=1)
    found = dict.fromkeys(last)
    for length in range(2, LONGEST_SEQUENCE + 1):
        long = [moves for moves in games if len(moves) >= length]
        found |= dict.fromkeys(_most_frequent([moves[-length:] for moves in long], at_least=2))
        short = _most_frequent([moves[-1:] for moves in games if 0 < len(moves) <= length], at_least=1)
        for beginning in _most_frequent([moves[: length - 1] for moves in long], at_least=2):
            found |= dict.fromkeys((*beginning, *end) for end in (short or last)[:2])
    return list(found)


def _most_frequent(sequences: Sequence[Sequence[Move]], *, at_least: int) -> list[tuple[Move, ...]]:
    counts = Counter(tuple(moves) for moves in sequences).most_common(MOST_FREQUENT)
    return [moves for moves, count in counts if count >= at_least]


def _moves(session: Session) -> list[Move]:
    moves: list[Move] = []
    for played in session.log[1:]:
        if played.sent:
            agent = read_agent_messages(played.sent)
            moves += [(call.name, call.arguments) for call in agent.calls] or [("", agent.text)]
    return moves


def _reward(task: Task, sample: Sample, moves: Sequence[Move]) -> float:
    """What a sequence earns. It is over after its moves: repeating the last one to the limit would earn no more."""
    session = Session(task, sample)
    try:
        turn = session.start()
        player = _Fixed(moves)
        for _ in moves:
            if turn.finish:
                break
            turn = session.interact(player.act(turn))
        return session.raw_reward
    finally:
        session.close()


class _Scripted:
    """Passes an expert's moves on, and hands it the turn that each one caused."""

    def __init__(self, moves: Expert, sample: Sample) -> None:
        self._moves = moves
        self._sample = sample
        self._begun = False

    def act(self, turn: Turn) -> list[Message]:
        try:
            move = self._moves.send(turn) if self._begun else next(self._moves)
        except StopIteration:
            raise TaskError(
                f"the expert stopped at turn {turn.turn} of an unfinished episode [{self._sample.id}]. Mend its plan."
            ) from None
        self._begun = True
        return [assistant(move)] if isinstance(move, str) else [assistant(None, [move])]


class _Fixed:
    """See `fixed`."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = moves

    def act(self, turn: Turn) -> list[Message]:
        name, text = self._moves[min(turn.turn, len(self._moves) - 1)]
        return [assistant(None, [ToolCall(f"call_{turn.turn + 1}", name, text)]) if name else assistant(text)]


class _Random:
    """Calls a random tool with random valid arguments, three quarters of the free texts taken from what it has seen."""

    MAX_WORDS = 400
    WORD = re.compile(r"`([^`\n]{1,80})`|\"([^\"\n]{1,80})\"|'([^'\n]{1,80})'|([\w#][\w.:#-]{0,60})")

    def __init__(self, task: Task, rng: random.Random) -> None:
        self._schemas = {tool_name(tool): tool["function"]["parameters"] for tool in task.spec.tools}
        self._rng = rng
        self._words: dict[str, None] = {}

    def act(self, turn: Turn) -> list[Message]:
        for message in turn.messages:
            self._look(message.get("content") or "")
        if not self._schemas:
            return [assistant("I have no tool.")]
        name = self._rng.choice(list(self._schemas))
        arguments = sample_arguments(self._schemas[name], self._rng, words=list(self._words))
        return [assistant(None, [ToolCall(f"call_{turn.turn + 1}", name, json.dumps(arguments, ensure_ascii=False))])]

    def _look(self, text: str) -> None:
        for match in self.WORD.finditer(text[:20_000]):
            self._words[next(group for group in match.groups() if group)] = None
        for word in list(self._words)[: -self.MAX_WORDS]:  # the oldest
            del self._words[word]
