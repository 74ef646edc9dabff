"""Questions about a world: plan templates filled at random, kept only where the question is a fair one.

A question is kept if its answer has 1 to 50 members, no shorter plan from its entities gives the same set, each side of
an intersection is strictly larger than the result, and the same answer is not given too often (so that a constant
answer earns nothing). Splits share no topic entity. Dev and test have shapes that train does not.

`easy` questions name the relations themselves, in the order of the calls; `medium` and `hard` ones are phrased, three
ways for each relation. Rows have AgentBench's format, so that one reader serves both.

Not here: the world (world.py); the words (tasks/kg/world.yaml).
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.kg.expressions import And, ArgMax, ArgMin, Count, Entity, Expr, Join, topics
from agentbench_fc.tasks.kg.phrases import easy_question, question
from agentbench_fc.tasks.kg.plans import actions
from agentbench_fc.tasks.kg.walk import Walker
from agentbench_fc.tasks.kg.world import World

LEVELS = ("easy", "medium", "hard")
MAX_ANSWER = 50
SAME_ANSWER = 0.015
"""Largest share of a split's questions of one level that may have the same answer."""
TRIES = 5_000
"""Draws for one question; a shape that finds none is given up."""

# shape -> how often it is drawn, by level; `+` shapes stay out of train
SHAPES: dict[str, dict[str, int]] = {
    "easy": {"1": 3, "2": 3},
    "medium": {"2": 3, "3": 2, "and(1,1)": 4, "argmax(1)": 2, "argmin(1)": 2, "count(1)": 1, "count(2)": 2},
    "hard": {
        "3": 2,
        "4": 2,
        "and(1,2)": 3,
        "and(2,2)": 2,
        "and(1,1,1)": 2,
        "argmax(2)": 2,
        "argmin(2)": 2,
        "argmax(and(1,1))": 2,
        "argmin(and(1,1))": 2,
        "count(and(1,1))": 2,
        "hop(argmax(1))": 2,
        "hop(and(1,1))": 2,
        "+hop(argmin(1))": 2,
        "+count(and(1,2))": 2,
        "+hop(and(1,2))": 2,
        "+argmax(and(1,2))": 2,
    },
}


def make_split(world: World, split: str, *, size: int, seed: int, fewer: bool = False) -> list[dict[str, Any]]:
    """The questions of a split, levels mixed.

    Raises:
        TaskError: the world is too small for so many different questions, and `fewer` will not do.
    """
    rows: list[dict[str, Any]] = []
    walker = Walker(world, lambda entity: _split_of(entity, seed) == split)
    seen: set[Expr] = set()
    for number, level in enumerate(LEVELS):
        wanted = (size + number) // len(LEVELS)
        rng = random.Random(f"kg questions {split} {level} {seed}")
        rows += _Maker(world, walker, split, level, rng, seen).make(wanted, fewer=fewer)
    random.Random(f"kg order {split} {seed}").shuffle(rows)
    return [{"qid": f"{split}-{n}_generated", **row} for n, row in enumerate(rows)]


def _split_of(entity: str, seed: int) -> str:
    share = int.from_bytes(hashlib.sha256(f"{seed} {entity}".encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.6 else "dev" if share < 0.8 else "test"


class _Maker:
    """Makes the questions of one split and level."""

    def __init__(
        self, world: World, walker: Walker, split: str, level: str, rng: random.Random, seen: set[Expr]
    ) -> None:
        self.world, self.walker, self.split, self.level, self.rng = world, walker, split, level, rng
        self.seen = seen
        self.answers: Counter[frozenset[str]] = Counter()

    def make(self, wanted: int, *, fewer: bool) -> list[dict[str, Any]]:
        shapes = {
            shape: weight
            for shape, weight in SHAPES[self.level].items()
            if not (self.split == "train" and shape.startswith("+")) and (self.world.values or "arg" not in shape)
        }
        quota = max(2, int(SAME_ANSWER * wanted))
        rows: list[dict[str, Any]] = []
        while len(rows) < wanted:
            shape = self.rng.choices(list(shapes), list(shapes.values()))[0]
            row = next(filter(None, (self._try(shape, quota) for _ in range(TRIES))), None)
            if row is not None:
                rows.append(row)
                continue
            del shapes[shape]  # the world has no more of these
            if not shapes and fewer:
                break
            if not shapes:
                raise TaskError(
                    f"only {len(rows)} of {wanted} questions found [task kg, {self.split}, {self.level}]. "
                    "Make the world larger, or the splits smaller."
                )
        return rows

    def _try(self, shape: str, quota: int) -> dict[str, Any] | None:
        expr = self._draw(shape.removeprefix("+"))
        if expr is None or expr in self.seen:
            return None
        answer = self.walker.members(expr)
        if not 1 <= len(answer) <= MAX_ANSWER or self.answers[answer] >= quota or not self._fair(expr, answer):
            return None
        row = self._row(expr, shape, answer)
        self.seen.add(expr)
        self.answers[answer] += 1
        return row

    # drawing a plan of a shape

    def _draw(self, shape: str, *, wide: bool = False) -> Expr | None:
        kind, _, inner = shape.partition("(")
        inner = inner.removesuffix(")")
        if not inner:
            return self.walker.chain(int(kind), self.rng, easy=self.level == "easy")
        if kind == "and":
            return self.walker.intersection([int(hops) for hops in inner.split(",")], self.rng, wide=wide)
        base = self._draw(inner, wide=kind != "hop")  # what is ranked or counted needs several members
        if base is None:
            return None
        if kind == "count":
            return Count(base)
        if kind == "hop":
            return self.walker.hop(base, self.rng)
        ranked = self.walker.rankable(base)
        if not ranked or len(self.walker.members(base)) > 200:
            return None
        attribute = self.rng.choice(ranked)
        return ArgMax(base, attribute) if kind == "argmax" else ArgMin(base, attribute)

    # is the question a fair one

    def _fair(self, expr: Expr, answer: frozenset[str]) -> bool:
        match expr:
            case Entity():
                return False
            case And():
                return self._sides_larger(expr, answer) and not self._shorter_set(expr, answer)
            case ArgMax(of=of) | ArgMin(of=of):
                if len(self.walker.members(of)) <= len(answer) or not self._inner_fair(of):
                    return False
                return not self._shorter_set(expr, answer) and not self._shorter_ranking(expr, answer)
            case Count(of=of):
                return int(next(iter(answer))) >= 2 and self._inner_fair(of) and not self._shorter_count(expr, answer)
            case Join(of=of):
                return self._inner_fair(of) and not self._shorter_set(expr, answer)

    def _inner_fair(self, expr: Expr) -> bool:
        """What stands inside must itself be needed: no side of an intersection or ranking may be idle."""
        members = self.walker.members(expr)
        if not members:
            return False
        match expr:
            case And():
                return self._sides_larger(expr, members)
            case ArgMax(of=of) | ArgMin(of=of):
                return len(self.walker.members(of)) > len(members)
            case _:
                return True

    def _sides_larger(self, expr: Expr, members: frozenset[str]) -> bool:
        sides = list(_sides(expr))
        if any(len(self.walker.members(side)) <= len(members) for side in sides):
            return False
        if len(sides) < 3:
            return True
        return all(  # of three sides, none may be left out
            len(frozenset.intersection(*(self.walker.members(s) for s in sides if s is not left_out))) > len(members)
            for left_out in sides
        )

    def _shorter_set(self, expr: Expr, answer: frozenset[str]) -> bool:
        target = self.walker.type_of(expr)
        calls = len(actions(expr))
        hops = min((calls - 1) // 2, 3)
        sides: list[tuple[int, frozenset[str]]] = []
        for topic in topics(expr):
            if self.walker.chain_gives(topic, hops, target, answer):
                return True
            if len(topics(expr)) > 1:
                sides += self.walker.supersets(topic, min(hops, 2), target, answer)
        return any(
            2 * (left_hops + right_hops) + 1 < calls and left & right == answer
            for position, (left_hops, left) in enumerate(sides)
            for right_hops, right in sides[:position]
        )

    def _shorter_ranking(self, expr: ArgMax | ArgMin, answer: frozenset[str]) -> bool:
        target = self.walker.type_of(expr)
        calls = len(actions(expr.of))
        return any(
            self.walker.extreme(members, expr.attribute, largest=isinstance(expr, ArgMax)) == answer
            for topic in topics(expr)
            for hops, members in self.walker.supersets(topic, min((calls - 1) // 2, 2), target, answer)
            if 2 * hops < calls
        )

    def _shorter_count(self, expr: Count, answer: frozenset[str]) -> bool:
        target = self.walker.type_of(expr.of)
        calls = len(actions(expr.of))
        return any(
            str(len(members)) in answer
            for topic in topics(expr)
            for hops, members in self.walker.supersets(topic, min((calls - 1) // 2, 2), target, frozenset())
            if 2 * hops < calls
        )

    # writing it down

    def _row(self, expr: Expr, shape: str, answer: frozenset[str]) -> dict[str, Any]:
        names = self.world.names
        make: Callable[..., str] = easy_question if self.level == "easy" else question
        plan = actions(expr)
        return {
            "question": make(expr, self.world, self.walker.type_of, self.rng),
            "source": "generated",
            "entities": {names[entity]: entity for entity in topics(expr)},
            "s_expression": expr.to_lisp(),
            "actions": plan,
            "answer": [self._part(member, is_value=isinstance(expr, Count)) for member in sorted(answer)],
            "level": self.level,
            "shape": shape.removeprefix("+"),
            "unseen_shape": shape.startswith("+"),
            "hops": _hops(expr),
            "calls": len(plan) + 1,
        }

    def _part(self, member: str, *, is_value: bool) -> dict[str, str]:
        if is_value:
            return {"answer_type": "Value", "answer_argument": member}
        part = {"answer_type": "Entity", "answer_argument": member}
        return part | ({"entity_name": self.world.names[member]} if member in self.world.names else {})


def _sides(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        yield from _sides(expr.left)
        yield from _sides(expr.right)
    else:
        yield expr


def _hops(expr: Expr) -> int:
    match expr:
        case Entity():
            return 0
        case Join(of=of):
            return 1 + _hops(of)
        case And(left=left, right=right):
            return max(_hops(left), _hops(right))
        case _:
            return _hops(expr.of)
