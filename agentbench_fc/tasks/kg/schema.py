"""What a graph's relations and attributes are called, what they lead to, and which types are kinds of which.

>>> schema = Schema(frozenset({"film.film.directed_by"}), frozenset(), {"film.film.directed_by": "film.director"},
...                 {"film.director": frozenset({"people.person"})})
>>> schema.common_type("film.director", "people.person", "subclass"), schema.common_type("a.b", "c.d", "subclass")
('film.director', None)

A schema comes with the data: from the generated world, from AgentBench's ontology files, or from the triples alone.

Not here: the triples (backend.py); reading the files (readers.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

TypeCheck = Literal["subclass", "strict", "off"]
TYPE_CHECKS: tuple[str, ...] = get_args(TypeCheck)
TOPIC = "common.topic"
"""Freebase's type of everything; what a relation of unknown range leads to."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The vocabulary of a graph."""

    relations: frozenset[str]
    """Predicates that lead to entities."""
    attributes: frozenset[str]
    """Predicates that lead to values: numbers, dates, texts."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """Relation -> type of what it leads to."""
    supertypes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Type -> all types above it, without `common.topic`."""

    def range_of(self, relation: str) -> str:
        """The type of what a relation leads to."""
        return self.ranges.get(relation, TOPIC)

    def common_type(self, left: str, right: str, check: TypeCheck) -> str | None:
        """The type of an intersection; None: the check forbids it.

        `strict` wants equal types. `subclass` also takes a type with one above it, two types below a common one, and
        an unknown type with any.
        """
        if left == right or check == "off":
            return left
        if check == "strict":
            return None
        if TOPIC in {left, right}:
            return right if left == TOPIC else left
        above_left, above_right = self.supertypes.get(left, frozenset()), self.supertypes.get(right, frozenset())
        if right in above_left:
            return left
        if left in above_right:
            return right
        return min(above_left & above_right, default=None)
