"""What a grammar says about a state: the texts of a game.

A state is its facts, `{(predicate, types): {arguments, ...}}`. A query is answered as TextWorld answers it: facts in
sorted order, and different variables stand for different things. Expressions are attributes of variables joined by `+`
or `or`; anything else is refused, so that no text of a game file is ever run.

Not here: how a grammar is read (grammar.py); how a state changes (engine.py).
"""

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.alfworld.gamefile import NO_GOAL
from agentbench_fc.tasks.alfworld.grammar import Grammar, Query, Symbol

Arguments = tuple[str, ...]
Signature = tuple[str, tuple[str, ...]]
Facts = dict[Signature, set[Arguments]]
Place = tuple[str, str]
"""A variable of a query: its name and type."""
Thing = tuple[str, str]
"""What a variable stands for: its id and type."""
MAX_DEPTH = 100
ATTRIBUTES = ("name", "id", "type", "definite", "indefinite")


@dataclass(frozen=True, slots=True)
class Entity:
    """What an expression can ask of a thing."""

    id: str
    name: str
    type: str
    definite: str = "the"
    indefinite: str = "a"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class View:
    """Where a text is written: a state, and what the variables stand for."""

    facts: Facts
    mapping: Mapping[Place, Thing]

    def bound(self, mapping: Mapping[Place, Thing]) -> "View":
        """The same state with other variables."""
        return View(self.facts, mapping)


class Writer:
    """Writes the texts of one game.

    Args:
        grammar: Its grammar.
        goal: Its goal sentence.
        entities: Id -> what is known of the thing.
        types: Type -> supertypes.
    """

    def __init__(
        self, grammar: Grammar, goal: str, entities: Mapping[str, Entity], types: Mapping[str, list[str]]
    ) -> None:
        self._grammar = grammar
        self._goal = goal
        self._entities = entities
        self._types = types
        self._expressions: dict[str, ast.expr] = {}
        self._subtypes: dict[str, tuple[str, ...]] = {}

    def write(self, symbols: list[Symbol], view: View) -> str:
        """The text of some symbols.

        Raises:
            TaskError: the grammar lacks a rule, or has an expression of another kind.
        """
        parts: list[str] = []
        for symbol in symbols:
            self._write(symbol, view, parts, 0)
        return "".join(parts)

    def _write(self, symbol: Symbol, view: View, parts: list[str], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TaskError("the grammar's rules go in circles [task alfworld]. Use the grammar of a release.")
        kind = symbol[0]
        if kind == "text":
            parts.append(symbol[1].replace(NO_GOAL, self._goal))
        elif kind == "value":
            parts.append(self._value(symbol[1], view))
        elif kind == "rule":
            self._write_rule(symbol[1], view, parts, depth)
        elif kind == "each":
            for inner in self._views(symbol, view):
                self._write(symbol[1], inner, parts, depth + 1)
        else:
            self._write_list(symbol[1], view, parts, depth)

    def _write_rule(self, name: str, view: View, parts: list[str], depth: int) -> None:
        ways = self._grammar.rules.get(name)
        for way in ways or ():
            if way.condition is None or next(self.answers(way.condition, view), None) is not None:
                for symbol in way.symbols:
                    self._write(symbol, view, parts, depth + 1)
                return
        raise TaskError(f"the grammar has no rule {name!r} that fits [task alfworld]. Use the grammar of a release.")

    def _write_list(self, symbol: Symbol, view: View, parts: list[str], depth: int) -> None:
        views = list(self._views(symbol, view))
        if not views:
            self._write_rule("list_empty", view, parts, depth)
        for number, inner in enumerate(views):
            if number:
                separator = "list_last_separator" if number == len(views) - 1 else "list_separator"
                self._write_rule(separator, view, parts, depth)
            self._write(symbol[1], inner, parts, depth + 1)

    def _views(self, symbol: Symbol, view: View) -> Iterator[View]:
        _, _, query = symbol
        return iter([view]) if query is None else map(view.bound, self.answers(query, view))

    # queries

    def answers(self, query: Query, view: View) -> Iterator[dict[Place, Thing]]:
        """What the variables can stand for, so that all parts of the query hold; what is bound stays."""
        mapping = dict(view.mapping)
        return self._answers(query, 0, view.facts, mapping, set(mapping.values()))

    def _answers(
        self, query: Query, depth: int, facts: Facts, mapping: dict[Place, Thing], used: set[Thing]
    ) -> Iterator[dict[Place, Thing]]:
        if depth == len(query):
            yield dict(mapping)
            return
        predicate, variables = query[depth]
        places = [(name, kind) for name, kind in variables]
        for types in itertools.product(*(self._subtypes_of(kind) for _, kind in places)):
            known = facts.get((predicate, types))
            if not known:
                continue
            for arguments in _sorted_matches(known, places, types, mapping):
                new: list[tuple[Place, Thing]] = []
                for place, thing in zip(places, zip(arguments, types, strict=True), strict=True):
                    standing = mapping.get(place)
                    if standing is None:
                        if thing in used:
                            break
                        mapping[place] = thing
                        used.add(thing)
                        new.append((place, thing))
                    elif standing != thing:
                        break
                else:
                    yield from self._answers(query, depth + 1, facts, mapping, used)
                for place, thing in new:
                    del mapping[place]
                    used.discard(thing)

    def _subtypes_of(self, kind: str) -> tuple[str, ...]:
        """A type and its descendants."""
        if kind not in self._subtypes:
            found = [kind]
            for parent in found:  # grows while it is walked
                found += [name for name in sorted(self._types) if parent in self._types[name] and name not in found]
            self._subtypes[kind] = tuple(found)
        return self._subtypes[kind]

    # expressions

    def _value(self, expression: str, view: View) -> str:
        if expression not in self._expressions:
            try:
                self._expressions[expression] = ast.parse(expression.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise self._refused(expression) from error
        variables = {name: self._entities[thing] for (name, _), (thing, _) in view.mapping.items()}
        return str(self._evaluate(self._expressions[expression], variables, expression))

    def _evaluate(self, node: ast.expr, variables: Mapping[str, Entity], text: str) -> Entity | str:
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.Name(id=name) if name in variables:
                return variables[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name in variables and attribute in ATTRIBUTES
            ):
                return str(getattr(variables[name], attribute))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = self._evaluate(left, variables, text), self._evaluate(right, variables, text)
                return f"{first}{second}"
            case ast.BoolOp(op=ast.Or(), values=values):
                found: Entity | str = ""
                for alternative in values:
                    found = self._evaluate(alternative, variables, text)
                    if found:
                        break
                return found
        raise self._refused(text)

    @staticmethod
    def _refused(text: str) -> TaskError:
        return TaskError(f"the grammar's expression {text!r:.80} is not read [task alfworld]. Use names and '+'.")


def _sorted_matches(
    known: set[Arguments], places: list[Place], types: tuple[str, ...], mapping: Mapping[Place, Thing]
) -> list[Arguments]:
    """The facts that agree with what is bound already, in order: most are left out before anything is sorted."""
    fixed: list[tuple[int, str]] = []
    for position, place in enumerate(places):
        standing = mapping.get(place)
        if standing is not None:
            if standing[1] != types[position]:
                return []
            fixed.append((position, standing[0]))
    if len(fixed) == len(places):
        arguments = tuple(name for _, name in fixed)
        return [arguments] if arguments in known else []
    return sorted(a for a in known if all(a[position] == name for position, name in fixed))
