"""Walking a world while its questions are made: drawing chains and intersections, and looking for shorter ways.

It works on the dictionaries of a world in the making, with the meaning that expressions.py defines; an episode asks its
backend instead.

Not here: which questions are kept (questions.py).
"""

import random
from collections.abc import Callable, Iterator
from functools import lru_cache, reduce

from agentbench_fc.tasks.kg.expressions import And, ArgMax, ArgMin, Count, Entity, Expr, Join, topics
from agentbench_fc.tasks.kg.world import Link, World

MAX_ON_THE_WAY = 400
"""Members of a set inside a plan; larger ones make a question that nobody would ask, and in a graph without types the
search for shorter ways does not pass through them."""

MANY = 6


class Walker:
    """Draws plans that begin at the entities of one split."""

    def __init__(self, world: World, begins: Callable[[str], bool]) -> None:
        self.world = world
        self._links = world.recipe.links
        kinds = [*world.recipe.raw["types"], *world.recipe.raw["roles"]]
        self._base = {kind: world.recipe.base(kind) for kind in kinds}
        self._leaving = {
            kind: [link for link in self._links.values() if self._base[link.source] == self._base[kind]]
            for kind in kinds
        }
        self._typed = len(world.recipe.raw["types"]) > 1
        self._relations_of: dict[str, list[Link]] = {}  # for graphs without types
        if not self._typed:
            for relation, links in world.edges.items():
                for subject in links:
                    self._relations_of.setdefault(subject, []).append(self._links[relation])
        self._types = {entity: type_ for type_, ids in world.types.items() for entity in ids}
        self._entities = list(self._types)
        self._begins = [
            e for e, type_ in self._types.items() if self._leaving[type_] and e in world.names and begins(e)
        ]
        self._easy_begins = [e for e in self._begins if any(link.easy for link in self._leaving[self._types[e]])]
        self._may_begin = frozenset(self._begins)
        self.members: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=20_000)(self._members)
        self._chain_set: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=50_000)(self._follow)

    # meaning

    def _members(self, expr: Expr) -> frozenset[str]:
        match expr:
            case Entity(id=entity):
                return frozenset([entity])
            case Count(of=of):
                return frozenset([str(len(self.members(of)))])
            case ArgMax(of=of, attribute=attribute):
                return self.extreme(self.members(of), attribute, largest=True)
            case ArgMin(of=of, attribute=attribute):
                return self.extreme(self.members(of), attribute, largest=False)
            case _:
                return self._raw(expr).difference(topics(expr))

    def _raw(self, expr: Expr) -> frozenset[str]:
        match expr:
            case Join(relation=relation, of=of):
                edges = self.world.edges.get(relation, {})
                return frozenset(target for member in self._raw(of) for target in edges.get(member, ()))
            case And(left=left, right=right):
                return self._raw(left) & self._raw(right)
            case _:
                return self.members(expr)

    def extreme(self, members: frozenset[str], attribute: str, *, largest: bool) -> frozenset[str]:
        """Those with the largest or smallest value; ties stay together."""
        values = self.world.values[attribute]
        present = {member: values[member] for member in members if member in values}
        if not present:
            return frozenset()
        best = max(present.values()) if largest else min(present.values())
        return frozenset(member for member, value in present.items() if value == best)

    def type_of(self, expr: Expr) -> str:
        """The type or role of the members."""
        match expr:
            case Entity(id=entity):
                return self._types[entity]
            case Join(relation=relation):
                return self._links[relation].target
            case And(left=left):
                return self.type_of(left)
            case _:
                return self.type_of(expr.of)

    # drawing

    def chain(self, hops: int, rng: random.Random, *, easy: bool = False) -> Expr | None:
        """A walk of so many hops from a random entity; None: it ran into the ground."""
        begins = self._easy_begins if easy else self._begins
        expr: Expr | None = Entity(rng.choice(begins)) if begins else None
        for _ in range(hops):
            expr = None if expr is None else self.hop(expr, rng, easy=easy)
        return expr

    def hop(self, expr: Expr, rng: random.Random, *, easy: bool = False) -> Expr | None:
        """One more relation, but not straight back."""
        members = self.members(expr)
        if not 1 <= len(members) <= MAX_ON_THE_WAY:
            return None
        back = self._links[expr.relation].reverse if isinstance(expr, Join) else ""
        links = [
            link.name
            for link in self._links_from(expr)
            if (link.easy or not easy) and link.name != back and not members.isdisjoint(self.world.edges[link.name])
        ]
        return Join(rng.choice(links), expr) if links else None

    def intersection(self, hops: list[int], rng: random.Random, *, wide: bool = False) -> Expr | None:
        """Chains of these lengths that end in a common entity; their last relations lead to the same type.

        Single relations that shall have much in common (`wide`, or three of them) are drawn from the large sets.
        """
        target = rng.choice(self._entities)
        if set(hops) == {1} and (wide or len(hops) > 2):
            return self._wide_intersection(target, len(hops), rng)
        sides: list[Expr] = []
        for length in hops:
            side = self._chain_to(target, length, rng, like=sides[0] if sides else None)
            if side is None:
                return None
            sides.append(side)
        if len(set(sides)) < len(sides) or len(topics(reduce(And, sides))) < len(sides):
            return None
        if any(len(self.members(side)) > MAX_ON_THE_WAY for side in sides):
            return None
        return reduce(And, sides)

    def _wide_intersection(self, target: str, width: int, rng: random.Random) -> Expr | None:
        """Single relations that lead to `target` and to many others; small sets would leave nothing to intersect."""
        sides = [
            Join(link.reverse, Entity(neighbor))
            for link in self._links_from(Entity(target))
            for neighbor in self.world.edges[link.name].get(target, ())
            if neighbor in self._may_begin and len(self.world.edges[link.reverse][neighbor]) >= MANY
        ]
        by_type: dict[str, list[Expr]] = {}
        for side in sides:
            by_type.setdefault(self.type_of(side), []).append(side)
        enough = [group for group in by_type.values() if len(group) >= width]
        return reduce(And, rng.sample(rng.choice(enough), width)) if enough else None

    def _chain_to(self, target: str, hops: int, rng: random.Random, *, like: Expr | None) -> Expr | None:
        """A chain that has `target` among its members, found by walking it backwards; its type is that of `like`."""
        names: list[str] = []
        here = target
        for _ in range(hops):
            links = [
                link
                for link in self._links_from(Entity(here))
                if here in self.world.edges[link.name]
                and not (names and link.name == names[-1])
                and (names or like is None or self._links[link.reverse].target == self.type_of(like))
            ]
            if not links:
                return None
            link = rng.choice(links)
            names.append(link.reverse)
            here = rng.choice(self.world.edges[link.name][here])
        if here not in self._may_begin or here == target:
            return None
        chain: Expr = Entity(here)
        for name in reversed(names):
            chain = Join(name, chain)
        return chain

    def rankable(self, expr: Expr) -> list[str]:
        """Attributes that at least two members have."""
        base = self._base[self.type_of(expr)]
        members = self.members(expr)
        return [
            a.name
            for a in self.world.recipe.attributes.values()
            if a.of == base and sum(m in self.world.values[a.name] for m in members) >= 2
        ]

    # shorter ways

    def chain_gives(self, topic: str, hops: int, target: str, answer: frozenset[str]) -> bool:
        """Whether some chain of at most `hops` relations from `topic` gives exactly `answer`."""
        base = self._base[target]
        if hops < 1:
            return False
        return any(
            self._base[link.target] == base and self._gives(start, link.name, topic, answer)
            for start in self._starts(topic, hops - 1)
            for link in self._links_from(start)
        )

    def _gives(self, start: Expr, relation: str, topic: str, answer: frozenset[str]) -> bool:
        """Whether the relation leads from `start` to exactly `answer`; stops at the first member outside."""
        edges = self.world.edges[relation]
        reached: set[str] = set()
        for member in self._chain_set(start):
            for target in edges.get(member, ()):
                if target not in answer:
                    if target != topic:
                        return False
                else:
                    reached.add(target)
        return len(reached) == len(answer)

    def supersets(
        self, topic: str, hops: int, target: str, answer: frozenset[str]
    ) -> Iterator[tuple[int, frozenset[str]]]:
        """The members of every chain of at most `hops` relations from `topic` that has all of `answer`."""
        base = self._base[target]
        for start in self._starts(topic, hops - 1) if hops else ():
            for link in self._links_from(start):
                if self._base[link.target] == base:
                    members = self.members(Join(link.name, start))
                    if members and answer <= members:
                        yield start.size, members

    def _starts(self, topic: str, hops: int) -> Iterator[Expr]:
        """Every non-empty chain of 0 to `hops` relations from `topic`."""
        level: list[Expr] = [Entity(topic)]
        for remaining in range(hops, -1, -1):
            yield from level
            if remaining:
                level = [
                    longer
                    for expr in level
                    for link in self._links_from(expr)
                    if self._chain_set(longer := Join(link.name, expr))
                ]

    def _links_from(self, expr: Expr) -> list[Link]:
        """The links that may leave a chain: by its type, or in a graph without types by its members."""
        if self._typed:
            return self._leaving[self.type_of(expr)]
        members = self._chain_set(expr)
        if len(members) > MAX_ON_THE_WAY:
            return []
        found = {link.name: link for member in members for link in self._relations_of.get(member, ())}
        return [found[name] for name in sorted(found)]

    def _follow(self, expr: Expr) -> frozenset[str]:
        """The raw set of a chain."""
        if not isinstance(expr, Join):
            return self.members(expr)
        edges = self.world.edges[expr.relation]
        return frozenset(target for member in self._chain_set(expr.of) for target in edges.get(member, ()))
