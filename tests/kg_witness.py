"""A graph in which AgentBench's gold plans hold, made from the plans and answers alone.

The nodes between a question's entities and its answer are not in the files, so they are made up: hidden nodes for each
hop, a distractor on each side of an intersection, a loser for each ranking, as many nodes as a count says. Samples
share entities, so a plan may find more than its own answer; what matters is that every store finds the same.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kg_toys import XSD

from agentbench_fc.tasks.kg.expressions import NAMESPACE, And, ArgMax, ArgMin, Count, Entity, Expr, Join
from agentbench_fc.tasks.kg.plans import expression


class Witness:
    """Grows by plans; `lines` is the graph so far as N-Triples."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._fresh = itertools.count()

    def lines(self) -> list[str]:
        return list(self._lines)

    def add(self, row: Mapping[str, Any]) -> None:
        gold = {str(part["answer_argument"]) for part in row["answer"]}
        self._make(expression(row["actions"]), gold)

    def _make(self, expr: Expr, wanted: set[str]) -> None:
        """Adds what makes `wanted` members of the set."""
        match expr:
            case Entity():
                pass  # an entity stands for itself
            case Join(relation=relation, of=of):
                start = {of.id} if isinstance(of, Entity) else self._new(2)
                for subject in start:
                    self._link(subject, relation, wanted)
                self._make(of, start)
            case And(left=left, right=right):
                self._make(left, wanted | self._new(1))
                self._make(right, wanted | self._new(1))
            case ArgMax(of=of, attribute=attribute) | ArgMin(of=of, attribute=attribute):
                losers = self._new(2)
                largest = isinstance(expr, ArgMax)
                self._value(wanted, attribute, 1990 if largest else 1010)
                self._value(losers, attribute, 1010 if largest else 1990)
                self._make(of, wanted | losers)
            case Count(of=of):
                self._make(of, self._new(int(next(iter(wanted)))))

    def _new(self, count: int) -> set[str]:
        return {f"m.9w{next(self._fresh)}" for _ in range(count)}

    def _link(self, subject: str, relation: str, objects: Iterable[str]) -> None:
        for target in objects:
            self._lines[f"<{NAMESPACE}{subject}> <{NAMESPACE}{relation}> <{NAMESPACE}{target}> ."] = None

    def _value(self, subjects: Iterable[str], attribute: str, number: int) -> None:
        kind, text = ("date", f"{number}-01-01") if "date" in attribute else ("double", f"{number}.50")
        for subject in subjects:
            self._lines[f'<{NAMESPACE}{subject}> <{NAMESPACE}{attribute}> "{text}"^^<{XSD}{kind}> .'] = None


def parts(expr: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of."""
    yield expr
    match expr:
        case Entity():
            pass
        case And(left=left, right=right):
            yield from parts(left)
            yield from parts(right)
        case _:
            yield from parts(expr.of)
