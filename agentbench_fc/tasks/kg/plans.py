"""Gold plans as AgentBench writes them: a list of actions, `get_neighbors(#0,film.film.directed_by)`, and back.

>>> plan = actions(And(Join("a.b.c", Entity("m.01")), Join("d.e.f", Entity("m.02"))))
>>> plan
['get_relations(m.01)', 'get_neighbors(m.01,a.b.c)', 'get_relations(m.02)', 'get_neighbors(m.02,d.e.f)', \
'intersection(#0,#1)']
>>> expression(plan).to_lisp()
'(AND (JOIN (R a.b.c) m.01) (JOIN (R d.e.f) m.02))'

Not here: playing a plan in an episode (expert.py).
"""

import re
from collections.abc import Sequence

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.kg.expressions import And, ArgMax, ArgMin, Count, Entity, Expr, Join

_ACTION = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
PARAMETERS = {
    "get_relations": ("variable",),
    "get_neighbors": ("variable", "relation"),
    "intersection": ("variable1", "variable2"),
    "get_attributes": ("variable",),
    "argmax": ("variable", "attribute"),
    "argmin": ("variable", "attribute"),
    "count": ("variable",),
}
MAKES_VARIABLE = frozenset({"get_neighbors", "intersection", "argmax", "argmin", "count"})


def actions(expr: Expr) -> list[str]:
    """The calls that build an expression, each set once, lists looked up before they are used."""
    plan: list[str] = []
    known: dict[Expr, str] = {}

    def build(node: Expr) -> str:
        if node in known:
            return known[node]
        match node:
            case Entity(id=entity):
                return entity
            case Join(relation=relation, of=of):
                start = build(of)
                plan.extend([f"get_relations({start})", f"get_neighbors({start},{relation})"])
            case And(left=left, right=right):
                plan.append(f"intersection({build(left)},{build(right)})")
            case ArgMax(of=of, attribute=attribute) | ArgMin(of=of, attribute=attribute):
                start = build(of)
                name = "argmax" if isinstance(node, ArgMax) else "argmin"
                plan.extend([f"get_attributes({start})", f"{name}({start},{attribute})"])
            case Count(of=of):
                plan.append(f"count({build(of)})")
        known[node] = f"#{len(known)}"
        return known[node]

    build(expr)
    return plan


def read_action(text: str) -> tuple[str, list[str]]:
    """Name and arguments of an action.

    Raises:
        TaskError: not an action.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None or match[1] not in PARAMETERS:
        raise TaskError(f"not an action: {text[:80]!r} [gold plan]. Mend the data file.")
    values = [value.strip() for value in match[2].split(",")]
    if len(values) != len(PARAMETERS[match[1]]):
        raise TaskError(f"{len(values)} arguments in {text[:80]!r} [gold plan]. Mend the data file.")
    return match[1], values


def expression(plan: Sequence[str]) -> Expr:
    """What the last variable of a plan stands for.

    Raises:
        TaskError: an action that cannot be read, a variable before it exists, or a plan without a variable.
    """
    variables: list[Expr] = []

    def resolve(value: str) -> Expr:
        if not value.startswith("#"):
            return Entity(value)
        if not value[1:].isdigit() or int(value[1:]) >= len(variables):
            raise TaskError(f"{value} is used before it exists [gold plan]. Mend the data file.")
        return variables[int(value[1:])]

    for text in plan:
        name, values = read_action(text)
        match name:
            case "get_neighbors":
                variables.append(Join(values[1], resolve(values[0])))
            case "intersection":
                variables.append(And(resolve(values[0]), resolve(values[1])))
            case "argmax":
                variables.append(ArgMax(resolve(values[0]), values[1]))
            case "argmin":
                variables.append(ArgMin(resolve(values[0]), values[1]))
            case "count":
                variables.append(Count(resolve(values[0])))
    if not variables:
        raise TaskError("the plan makes no variable [gold plan]. Mend the data file.")
    return variables[-1]
