"""Expressions: their SPARQL gives what their definition says, however they are nested, and stays cheap."""

import time
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kg_toys import RecordingBackend, SlowGraph, Triple

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.kg.backend import OxigraphBackend
from agentbench_fc.tasks.kg.expressions import MAX_SIZE, And, ArgMax, ArgMin, Count, Entity, Expr, Join, TooLarge
from agentbench_fc.tasks.kg.plans import actions, expression

NODES = [f"m.n{i}" for i in range(5)]
RELATIONS = ["a.b.r", "c.d.s"]
ATTRIBUTES = ["a.b.size", "a.b.weight"]
POSSIBLE: list[Triple] = [
    *((s, r, o) for s in NODES for r in RELATIONS for o in NODES),
    *((s, "a.b.size", v) for s in NODES for v in (-2, 7, 10)),
    *((s, "a.b.weight", v) for s in NODES for v in (-2.5, 0.25, 1e6)),
]

triples = st.lists(st.sampled_from(POSSIBLE), min_size=15, max_size=45, unique=True)
entities = st.builds(Entity, st.sampled_from(NODES))
sets = st.recursive(
    st.builds(Join, st.sampled_from(RELATIONS), entities),
    lambda inner: st.one_of(
        st.builds(Join, st.sampled_from(RELATIONS), inner),
        st.builds(And, inner, inner),
        st.builds(ArgMax, inner, st.sampled_from(ATTRIBUTES)),
        st.builds(ArgMin, inner, st.sampled_from(ATTRIBUTES)),
    ),
    max_leaves=4,
)
expressions = st.one_of(sets, st.builds(Count, sets))


@settings(max_examples=150, deadline=None)
@given(triples, st.lists(expressions, min_size=4, max_size=4))
def test_the_store_gives_what_the_definition_says(graph: list[Triple], several: list[Expr]) -> None:
    store, slow = RecordingBackend(graph), SlowGraph(graph)
    for expr in several:
        assert store.members(expr) == slow.members(expr)


def test_a_topic_is_not_a_member_and_paths_are_not_counted() -> None:
    graph: list[Triple] = [
        ("m.n0", "a.b.r", "m.n0"),
        ("m.n0", "a.b.r", "m.n1"),
        ("m.n0", "a.b.r", "m.n2"),
        ("m.n1", "c.d.s", "m.n3"),
        ("m.n2", "c.d.s", "m.n3"),
        ("m.n0", "a.b.size", 9),
        ("m.n1", "a.b.size", 1),
        ("m.n2", "a.b.size", 7),
    ]
    store = RecordingBackend(graph)
    near = Join("a.b.r", Entity("m.n0"))
    assert store.members(near) == {"m.n1", "m.n2"}
    assert store.members(ArgMax(near, "a.b.size")) == {"m.n2"}
    assert store.members(Count(near)) == {"2"}
    assert store.members(Count(Join("c.d.s", near))) == {"1"}
    assert store.members(Join("c.d.s", ArgMin(near, "a.b.size"))) == {"m.n3"}


@settings(max_examples=100, deadline=None)
@given(triples, st.one_of(sets, entities))
def test_predicates_are_those_that_leave_a_member(graph: list[Triple], expr: Expr) -> None:
    slow = SlowGraph(graph)
    members = {expr.id} if isinstance(expr, Entity) else slow.members(expr)
    leaving = {predicate for subject, predicate, _ in graph if subject in members}
    assert RecordingBackend(graph).predicates(expr) == leaving


@given(expressions)
def test_a_plan_builds_the_expression_that_it_was_made_from(expr: Expr) -> None:
    plan = actions(expr)
    assert expression(plan) == expr
    looked_up = [a for a in plan if a.startswith(("get_relations", "get_attributes"))]
    used = [a for a in plan if a.startswith(("get_neighbors", "argmax", "argmin"))]
    assert len(looked_up) == len(used)


@pytest.mark.parametrize(
    "plan",
    [
        [],
        ["get_relations(m.1)"],
        ["get_neighbors(m.1)"],
        ["union(#0,#1)"],
        ["count(#0)"],
        ["count(#x)"],
        ["get_neighbors(m.1,a.b.c"],
    ],
)
def test_a_damaged_plan_is_the_tasks_fault(plan: list[str]) -> None:
    with pytest.raises(TaskError):
        expression(plan)


def test_sharing_a_part_does_not_hide_its_size() -> None:
    def double(expr: Expr, _: int) -> Expr:  # as a chain of intersection(#k, #k) does
        return And(expr, expr)

    assert reduce(double, range(3), Join("a.b.r", Entity("m.n0"))).size == 23
    with pytest.raises(TooLarge):
        reduce(double, range(40), Join("a.b.r", Entity("m.n0")))


def hub_graph(people: int) -> list[str]:
    """Everybody is linked to two hubs and back: the number of paths grows by `people` per pair of hops."""
    return [
        line
        for n in range(people)
        for hub in range(2)
        for line in (f"<x{n}> <to> <hub{hub}> .", f"<hub{hub}> <from> <x{n}> .")
    ]


def test_the_largest_expressions_are_cheap_where_paths_abound() -> None:
    from agentbench_fc.tasks.kg.expressions import NAMESPACE

    backend = OxigraphBackend()
    backend.load_lines(line.replace("<", f"<{NAMESPACE}") for line in hub_graph(2000))
    longest = reduce(lambda e, n: Join(("from", "to")[n % 2], e), range(MAX_SIZE - 1), Entity("hub0"))
    side = reduce(lambda e, n: Join(("from", "to")[n % 2], e), range(8), Entity("hub0"))
    widest = And(And(side, side), And(side, side))
    for expr in (longest, widest):
        start = time.process_time()
        backend.members(expr)
        backend.predicates(expr)
        assert time.process_time() - start < 5
