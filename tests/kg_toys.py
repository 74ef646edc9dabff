"""A graph small enough to know by heart, and the meaning of expressions computed the slow way."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentbench_fc.episode import Sample
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.registry import tasks_root
from agentbench_fc.session import Session
from agentbench_fc.spec import TaskSpec, load_spec
from agentbench_fc.tasks.kg.backend import Backend, OxigraphBackend
from agentbench_fc.tasks.kg.episode import Rules
from agentbench_fc.tasks.kg.expressions import NAMESPACE, And, ArgMax, Count, Entity, Expr, Join
from agentbench_fc.tasks.kg.schema import Schema
from agentbench_fc.tasks.kg.task import KGTask

Triple = tuple[str, str, Any]
XSD = "http://www.w3.org/2001/XMLSchema#"

FILMS: list[Triple] = [
    ("m.ann", "film.director.film", "m.f1"),
    ("m.ann", "film.director.film", "m.f2"),
    ("m.ann", "film.director.film", "m.f3"),
    ("m.ann", "people.person.nationality", "m.sweden"),
    ("m.bob", "film.actor.film", "m.f2"),
    ("m.bob", "film.actor.film", "m.f3"),
    ("m.bob", "film.actor.film", "m.f4"),
    ("m.f1", "film.film.directed_by", "m.ann"),
    ("m.f2", "film.film.directed_by", "m.ann"),
    ("m.f3", "film.film.directed_by", "m.ann"),
    ("m.f4", "film.film.directed_by", "m.cat"),
    ("m.f2", "film.film.starring", "m.bob"),
    ("m.f3", "film.film.starring", "m.bob"),
    ("m.f1", "film.film.runtime", 90),
    ("m.f2", "film.film.runtime", 120),
    ("m.f3", "film.film.runtime", 120),
    ("g.121", "award.award.winners", "m.ann"),
    ("m.ann", "common.secret.number", "m.f4"),  # in the graph, not in the schema
]
FILM_SCHEMA = Schema(
    relations=frozenset(
        {
            "film.director.film",
            "film.actor.film",
            "film.film.directed_by",
            "film.film.starring",
            "people.person.nationality",
            "award.award.winners",
        }
    ),
    attributes=frozenset({"film.film.runtime"}),
    ranges={
        "film.director.film": "film.film",
        "film.actor.film": "film.film",
        "film.film.directed_by": "film.director",
        "film.film.starring": "film.actor",
        "people.person.nationality": "location.country",
        "award.award.winners": "people.person",
    },
    supertypes={"film.director": frozenset({"people.person"}), "film.actor": frozenset({"people.person"})},
)
QUESTION = {
    "question": "Which films did Ann direct with Bob?",
    "entities": {"Ann": "m.ann", "Bob": "m.bob", "The Prize": "g.121"},
    "actions": [
        "get_relations(m.ann)",
        "get_neighbors(m.ann,film.director.film)",
        "get_relations(m.bob)",
        "get_neighbors(m.bob,film.actor.film)",
        "intersection(#0,#1)",
    ],
    "answer": [{"answer_argument": "m.f2"}, {"answer_argument": "m.f3"}],
}


class RecordingBackend(OxigraphBackend):
    """The real store, with a list of what reached it: SPARQL, or the expression that was looked up."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        super().__init__()
        self.queries: list[str] = []
        self.load_lines(ntriples(triples))

    def _look_up(self, look: Callable[[Any, Expr], set[Any] | None], expr: Expr) -> set[Any] | None:
        found = super()._look_up(look, expr)
        if found is not None:
            self.queries.append(expr.to_lisp())
        return found

    def _ask(self, query: str, expr: Expr) -> frozenset[str]:
        self.queries.append(query)
        return super()._ask(query, expr)


def ntriples(triples: Iterable[Triple]) -> list[str]:
    return [f"<{NAMESPACE}{s}> <{NAMESPACE}{p}> {term(o)} ." for s, p, o in triples]


def term(value: Any) -> str:
    if isinstance(value, int):
        return f'"{value}"^^<{XSD}integer>'
    if isinstance(value, float):
        return f'"{value}"^^<{XSD}double>'
    return f"<{NAMESPACE}{value}>"


def read_ntriples(lines: Iterable[str]) -> list[Triple]:
    """The generated world's triples, names left out."""
    found: list[Triple] = []
    for line in lines:
        match = re.fullmatch(rf'<{NAMESPACE}(.*?)> <{NAMESPACE}(.*?)> (?:<{NAMESPACE}(.*?)>|"(.*?)"(.*)) \.', line)
        assert match, line
        if match[3] is not None:
            found.append((match[1], match[2], match[3]))
        elif match[5].endswith(("integer>", "double>")):
            found.append((match[1], match[2], float(match[4])))
        elif match[5].endswith("date>"):
            found.append((match[1], match[2], match[4]))
    return found


class SlowGraph:
    """What expressions mean, member by member, over a list of triples."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self.out: dict[tuple[str, str], list[Any]] = {}
        for subject, predicate, value in triples:
            self.out.setdefault((subject, predicate), []).append(value)

    def members(self, expr: Expr) -> set[str]:
        return self.raw(expr) - self.begun_at(expr)

    def begun_at(self, expr: Expr) -> set[str]:
        if isinstance(expr, Entity):
            return set()
        parts = [expr.left, expr.right] if isinstance(expr, And) else [expr.of]
        return {e for part in parts for e in ({part.id} if isinstance(part, Entity) else self.begun_at(part))}

    def raw(self, expr: Expr) -> set[str]:
        if isinstance(expr, Entity):
            return {expr.id}
        if isinstance(expr, Join):
            return {str(o) for s in self.raw(expr.of) for o in self.out.get((s, expr.relation), [])}
        if isinstance(expr, And):
            return {x for x in self.raw(expr.left) if x in self.raw(expr.right)}
        if isinstance(expr, Count):
            return {str(len(self.members(expr.of)))}
        values = [(v, x) for x in self.members(expr.of) for v in self.out.get((x, expr.attribute), [])]
        if not values:
            return set()
        best = (max if isinstance(expr, ArgMax) else min)(v for v, _ in values)
        return {x for v, x in values if v == best}


def film_sample(**changes: Any) -> Sample:
    return Sample("kg/toy/0", 0, "toy", QUESTION | changes)


def kg_task(backend: Backend, *, profile: str = "default", prompt: str = "default", **rules: Any) -> KGTask:
    spec = kg_spec(profile, prompt)
    rows: Mapping[str, Any] = {"toy": lambda: [(0, QUESTION)]}
    fields = {"backend": backend, "schema": FILM_SCHEMA, "prompts": spec.prompts, "max_turns": spec.max_turns}
    return KGTask(spec, Rules(**(fields | rules)), rows)


def kg_spec(profile: str = "default", prompt: str = "default") -> TaskSpec:
    return load_spec(tasks_root() / "kg" / "task.yaml", profile=profile, prompt=prompt)


def film_session(backend: Backend, *, profile: str = "default", **rules: Any) -> Session:
    """A started session about the films, with single rules changed."""
    task = kg_task(backend, profile=profile, **rules)
    session = Session(task, task.samples("toy")[0])
    session.start()
    return session


def call(session: Session, name: str, **arguments: Any) -> str:
    """The text that one call comes back with."""
    turn = session.interact([assistant(None, [ToolCall("c1", name, json.dumps(arguments))])])
    assert [message.get("tool_call_id") for message in turn.messages] == ["c1"]
    return str(turn.messages[0]["content"])


def direct_with_bob(session: Session) -> None:
    """The calls that solve the question: #2 is the answer."""
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    call(session, "get_neighbors", variable="Bob", relation="film.actor.film")
    call(session, "intersection", variable1="#0", variable2="#1")
