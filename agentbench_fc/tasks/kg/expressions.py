"""What a variable stands for: an expression over the graph, with its program text and its SPARQL.

>>> films = Join("film.director.films_directed", Entity("m.01"))
>>> ArgMax(Join("film.film.starring", films), "people.person.height_meters").to_lisp()
'(ARGMAX (JOIN (R film.film.starring) (JOIN (R film.director.films_directed) m.01)) people.person.height_meters)'
>>> select(films)[:104]
'SELECT DISTINCT ?x WHERE { <http://rdf.freebase.com/ns/m.01> <http://rdf.freebase.com/ns/film.director.f'

An expression is a value: frozen, hashable, compared by structure, and evaluated only when something asks. Its meaning
is compositional: the members of `Join(r, x)` are what r leads to from the members of x; ranking and counting apply to
the members of what they hold, wherever they stand. A topic entity is never a member of the set that it leads to.

The SPARQL is 1.1 with full IRIs (a Freebase name has two dots, which some engines refuse in prefixed names). Every set
but the simplest is a `SELECT DISTINCT` of its own, so that the cost of a query grows with the edges that it touches,
not with the number of paths through them.

Not here: running a query (backend.py); gold plans as text (plans.py).
Source: AgentBench's variables are programs of JOIN, AND, ARGMAX, ARGMIN and COUNT.
"""

from dataclasses import dataclass, field
from itertools import count

NAMESPACE = "http://rdf.freebase.com/ns/"
MAX_SIZE = 40
"""Nodes of an expression. AgentBench's longest plan has nine."""


class TooLarge(ValueError):
    """The expression has more than MAX_SIZE nodes, or more than a backend can take."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One node of the graph, by id."""

    id: str
    size: int = field(default=1, init=False, compare=False, repr=False)

    def to_lisp(self) -> str:
        """The id."""
        return self.id


@dataclass(frozen=True, slots=True)
class Join:
    """What `relation` leads to from the members of `of`."""

    relation: str
    of: "Expr"
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sized(1 + self.of.size))

    def to_lisp(self) -> str:
        """The program text."""
        return f"(JOIN (R {self.relation}) {self.of.to_lisp()})"


@dataclass(frozen=True, slots=True)
class And:
    """The members of both."""

    left: "Expr"
    right: "Expr"
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sized(1 + self.left.size + self.right.size))

    def to_lisp(self) -> str:
        """The program text."""
        return f"(AND {self.left.to_lisp()} {self.right.to_lisp()})"


@dataclass(frozen=True, slots=True)
class ArgMax:
    """The members of `of` with the largest value of `attribute`; ties stay together."""

    of: "Expr"
    attribute: str
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sized(1 + 2 * self.of.size))  # the query holds its set twice

    def to_lisp(self) -> str:
        """The program text."""
        return f"(ARGMAX {self.of.to_lisp()} {self.attribute})"


@dataclass(frozen=True, slots=True)
class ArgMin:
    """The members of `of` with the smallest value of `attribute`; ties stay together."""

    of: "Expr"
    attribute: str
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sized(1 + 2 * self.of.size))

    def to_lisp(self) -> str:
        """The program text."""
        return f"(ARGMIN {self.of.to_lisp()} {self.attribute})"


@dataclass(frozen=True, slots=True)
class Count:
    """The number of members of `of`."""

    of: "Expr"
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sized(1 + self.of.size))

    def to_lisp(self) -> str:
        """The program text."""
        return f"(COUNT {self.of.to_lisp()})"


Expr = Entity | Join | And | ArgMax | ArgMin | Count


def _sized(size: int) -> int:
    if size > MAX_SIZE:
        raise TooLarge(f"the expression has {size} parts, {MAX_SIZE} are the most")
    return size


def depth(expr: Expr) -> int:
    """How many sets stand within each other."""
    match expr:
        case Entity():
            return 0
        case And(left=left, right=right):
            return 1 + max(depth(left), depth(right))
        case _:
            return 1 + depth(expr.of)


def topics(expr: Expr) -> tuple[str, ...]:
    """The ids of the entities in an expression, in order of first mention."""
    return tuple(dict.fromkeys(_entities(expr)))


def _entities(expr: Expr) -> list[str]:
    match expr:
        case Entity(id=entity):
            return [entity]
        case And(left=left, right=right):
            return _entities(left) + _entities(right)
        case _:
            return _entities(expr.of)


def select(expr: Expr, *, limit: int | None = None, all_languages: bool = False) -> str:
    """SPARQL for the members: `?x`; of texts with a language only the English ones, unless told otherwise."""
    names = _Names()
    body = _members(expr, "?x", names)
    if not all_languages and not _is_number(expr):  # Virtuoso cannot tell the language of a number that it has computed
        body += ' FILTER(!isLiteral(?x) || LANG(?x) = "" || LANGMATCHES(LANG(?x), "en"))'
    return f"SELECT DISTINCT ?x WHERE {{ {body} }}" + (f" LIMIT {limit}" if limit else "")


def select_predicates(expr: Expr, *, limit: int | None = None) -> str:
    """SPARQL for the relations and attributes that leave any member: `?p`."""
    if isinstance(expr, Entity):
        body = f"{_iri(expr.id)} ?p ?o ."
    else:
        body = f"{{ SELECT DISTINCT ?x WHERE {{ {_members(expr, '?x', _Names())} }} }} ?x ?p ?o ."
    return f"SELECT DISTINCT ?p WHERE {{ {body} }}" + (f" LIMIT {limit}" if limit else "")


class _Names:
    """Fresh variable names of one query."""

    def __init__(self) -> None:
        self._numbers = count()

    def new(self) -> str:
        return f"?v{next(self._numbers)}"


def _members(expr: Expr, var: str, names: _Names) -> str:
    """A pattern that binds `var` to the members: the raw set without the topic entities."""
    raw = _pattern(expr, var, names)
    if isinstance(expr, Entity) or _is_number(expr):
        return raw
    return raw + "".join(f" FILTER({var} != {_iri(entity)})" for entity in topics(expr))


def _is_number(expr: Expr) -> bool:
    return isinstance(expr, Count) or (isinstance(expr, And) and _is_number(expr.left))


def _pattern(expr: Expr, var: str, names: _Names) -> str:
    match expr:
        case Entity(id=entity):
            return f"VALUES {var} {{ {_iri(entity)} }}"
        case Join(relation=relation, of=Entity(id=entity)):
            return f"{_iri(entity)} {_iri(relation)} {var} ."
        case Join(relation=relation, of=of):
            start = names.new()
            return f"{_set(of, start, names)} {start} {_iri(relation)} {var} ."
        case And(left=left, right=right):
            return f"{_set(left, var, names)} {_set(right, var, names)}"
        case ArgMax(of=of, attribute=attribute):
            return _extreme(of, attribute, "DESC", var, names)
        case ArgMin(of=of, attribute=attribute):
            return _extreme(of, attribute, "ASC", var, names)
        case Count(of=of):
            member = names.new()
            return f"{{ SELECT (COUNT(DISTINCT {member}) AS {var}) WHERE {{ {_members(of, member, names)} }} }}"


def _set(expr: Expr, var: str, names: _Names) -> str:
    """The pattern, made distinct where one member may be reached by several paths."""
    pattern = _pattern(expr, var, names)
    if isinstance(expr, (Entity, Count)) or (isinstance(expr, Join) and isinstance(expr.of, Entity)):
        return pattern
    return f"{{ SELECT DISTINCT {var} WHERE {{ {pattern} }} }}"


def _extreme(of: Expr, attribute: str, order: str, var: str, names: _Names) -> str:
    value, best, member = names.new(), names.new(), names.new()
    inner = (
        f"SELECT {best} WHERE {{ {{ SELECT DISTINCT {member} WHERE {{ {_members(of, member, names)} }} }} "
        f"{member} {_iri(attribute)} {best} . }} ORDER BY {order}({best}) LIMIT 1"
    )
    return (
        f"{{ SELECT DISTINCT {var} WHERE {{ {{ {inner} }} "
        f"{{ SELECT DISTINCT {var} WHERE {{ {_members(of, var, names)} }} }} "
        f"{var} {_iri(attribute)} {value} . FILTER({value} = {best}) }} }}"
    )


def _iri(name: str) -> str:
    return f"<{NAMESPACE}{name}>"
