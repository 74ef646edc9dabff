"""Small sets without SPARQL: a walk over few triples is looked up, for reading a query takes longer than such a walk.

Only what needs no comparison of values is answered here: chains of relations, their intersections and counts, as long
as no set on the way grows beyond FEW. Everything else is None, and asked in SPARQL, whose answer is the same
(`test_lookups_answer_as_queries_do` holds both against each other).

Not here: what an expression means (expressions.py); larger sets (store.py).
"""

from itertools import islice
from typing import Any

from agentbench_fc.tasks.kg.expressions import NAMESPACE, And, Count, Entity, Expr, Join, topics

FEW = 24
"""Members of a set on the way. Beyond, the library's own joins are faster than a call for each member."""


def reached(store: Any, expr: Expr) -> set[Any] | None:
    """The members as terms of pyoxigraph, topic entities among them; None where a query has to tell."""
    import pyoxigraph

    found: set[Any] | None
    match expr:
        case Entity(id=entity):
            return {pyoxigraph.NamedNode(NAMESPACE + entity)}
        case Join(relation=relation, of=of):
            start = reached(store, of)
            if start is None:
                return None
            edge, graph = pyoxigraph.NamedNode(NAMESPACE + relation), pyoxigraph.DefaultGraph()
            found = set()
            for node in start:
                if isinstance(node, pyoxigraph.Literal):  # nothing leaves a value
                    continue
                quads = store.quads_for_pattern(node, edge, None, graph)
                found.update([quad.object for quad in islice(quads, FEW + 1)])
                if len(found) > FEW:
                    return None
            return found
        case And(left=left, right=right):
            one = reached(store, left)
            other = None if one is None else reached(store, right)
            return None if one is None or other is None else one & other
        case _:
            return None


def members(store: Any, expr: Expr) -> set[Any] | None:
    """The members as terms, without topic entities; a count as its number."""
    import pyoxigraph

    if isinstance(expr, Count):
        counted = members(store, expr.of) if not isinstance(expr.of, Count) else None
        return None if counted is None else {pyoxigraph.Literal(len(counted))}
    found = reached(store, expr)
    if found and not isinstance(expr, Entity):
        found -= {pyoxigraph.NamedNode(NAMESPACE + entity) for entity in topics(expr)}
    return found


def predicates(store: Any, expr: Expr) -> set[str] | None:
    """Every relation and attribute that leaves a member."""
    import pyoxigraph

    found = members(store, expr)
    if found is None or len(found) > FEW // 4:  # each has many more triples than a relation has
        return None
    graph = pyoxigraph.DefaultGraph()
    return {
        quad.predicate.value.removeprefix(NAMESPACE)
        for node in found
        if not isinstance(node, pyoxigraph.Literal)
        for quad in store.quads_for_pattern(node, None, None, graph)
    }
