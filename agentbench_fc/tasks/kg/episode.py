"""One question: the variables of a session, the seven tools on them, and the final answer.

A variable is an expression with a type, nothing else: making one runs no query. Whatever a model writes is checked
before it can reach a query: a variable by its number, an entity by the names of this sample or the form of an id, a
relation or attribute by the list of those that leave the variable. A refused argument is a tool message that says what
would be right.

Not here: what an expression means (expressions.py); schema checks and limits of turns (session.py).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_fc.episode import Reply, Sample
from agentbench_fc.messages import Message, system, user
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.kg.backend import MAX_MEMBERS, Backend, TooMany, TooSlow
from agentbench_fc.tasks.kg.expressions import And, ArgMax, ArgMin, Count, Entity, Expr, Join, TooLarge
from agentbench_fc.tasks.kg.schema import TOPIC, Schema, TypeCheck

NUMBER = "type.int"
MAX_VARIABLES = 200
MAX_LISTED = 100
_VARIABLE = re.compile(r"#([0-9]{1,9})")
_ENTITY_ID = re.compile(r"[mfg]\.[A-Za-z0-9_]{1,64}")
_FINAL_ANSWER = re.compile(r"(?:Find|Final) Answer: #([0-9]+)")


@dataclass(frozen=True, slots=True)
class Rules:
    """What all episodes of a task share."""

    backend: Backend
    schema: Schema
    prompts: Mapping[str, str]
    max_turns: int
    type_check: TypeCheck = "subclass"
    exact_names: bool = False
    """Entity names must match to the letter; otherwise case and blanks around them are ignored."""
    max_listed: int | None = MAX_LISTED
    """Relations or attributes shown; None: all."""
    example: tuple[Message, ...] = ()
    """A worked example between the rules and the question."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A set under construction and the type of its members."""

    expr: Expr
    type: str


class Refused(Exception):
    """An argument that cannot be used; the text goes to the model."""


class KGEpisode:
    """A session's state is its list of variables; everything else is shared and read-only."""

    __slots__ = ("_names", "_rules", "_sample", "_variables")

    def __init__(self, sample: Sample, rules: Rules) -> None:
        self._sample = sample
        self._rules = rules
        self._variables: list[Variable] = []
        self._names = {self._key(name): entity for name, entity in sample.data["entities"].items()}

    def start(self) -> list[Message]:
        """Rules, a worked example where the task has one, then the question with the names of its entities."""
        prompts = self._rules.prompts
        opening = [system(prompts["system"].format(max_turns=self._rules.max_turns))] if prompts["system"] else []
        entities = ", ".join(self._sample.data["entities"])
        question = prompts["user"].format(question=self._sample.data["question"], entities=entities)
        return [*opening, *self._rules.example, user(question)]

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Runs one of the tools."""
        tools: dict[str, Callable[..., Reply]] = {
            "get_relations": self._get_relations,
            "get_neighbors": self._get_neighbors,
            "intersection": self._intersection,
            "get_attributes": self._get_attributes,
            "argmax": self._argmax,
            "argmin": self._argmin,
            "count": self._count,
            "submit_answer": self._submit_answer,
        }
        try:
            return tools[name](**arguments)
        except Refused as refusal:
            return Reply(f"Error: {refusal}")
        except TooLarge as error:
            return Reply(f"Error: {name}: {error}. Use an earlier variable.")
        except TooSlow:
            return Reply(f"Error: {name}: the graph did not answer in time. Use a smaller set.")
        except TooMany:
            return Reply(f"Error: {name}: the graph has too many answers. Use a smaller set.")

    def say(self, text: str) -> Reply | None:
        """Takes a textual final answer."""
        match = _FINAL_ANSWER.search(text.partition("Observation:")[0])
        return None if match is None else self._grade(match[1])

    def fork(self) -> "KGEpisode":
        """A copy with a list of variables of its own."""
        twin = KGEpisode(self._sample, self._rules)
        twin._variables = list(self._variables)
        return twin

    def close(self) -> None:
        """Drops the variables."""
        self._variables = []

    # the tools

    def _get_relations(self, variable: str) -> Reply:
        return self._listed("relations", self._relations(self._resolve("get_relations", variable)))

    def _get_neighbors(self, variable: str, relation: str) -> Reply:
        source = self._resolve("get_neighbors", variable)
        name = relation if self._rules.exact_names else relation.strip()
        if name not in self._relations(source):
            raise Refused(
                f"get_neighbors: {_short(relation)} is not a relation of {_short(variable)}. "
                f"Call get_relations on it and take one of the list."
            )
        return self._new(Join(name, source.expr), self._rules.schema.range_of(name))

    def _intersection(self, variable1: str, variable2: str) -> Reply:
        left = self._variable("intersection", variable1)
        right = self._variable("intersection", variable2)
        common = self._rules.schema.common_type(left.type, right.type, self._rules.type_check)
        if common is None:
            raise Refused(
                f"intersection: {variable1.strip()} holds instances of {left.type}, {variable2.strip()} of "
                f"{right.type}. Intersect two variables of the same type."
            )
        return self._new(And(left.expr, right.expr), common)

    def _get_attributes(self, variable: str) -> Reply:
        return self._listed("attributes", self._attributes(self._variable("get_attributes", variable)))

    def _argmax(self, variable: str, attribute: str) -> Reply:
        return self._extreme("argmax", ArgMax, variable, attribute)

    def _argmin(self, variable: str, attribute: str) -> Reply:
        return self._extreme("argmin", ArgMin, variable, attribute)

    def _extreme(self, tool: str, kind: type[ArgMax | ArgMin], variable: str, attribute: str) -> Reply:
        source = self._variable(tool, variable)
        name = attribute if self._rules.exact_names else attribute.strip()
        if name not in self._attributes(source):
            raise Refused(
                f"{tool}: {_short(attribute)} is not an attribute of {_short(variable)}. "
                f"Call get_attributes on it and take one of the list."
            )
        return self._new(kind(source.expr, name), source.type)

    def _count(self, variable: str) -> Reply:
        return self._new(Count(self._variable("count", variable).expr), NUMBER)

    def _submit_answer(self, variable: str) -> Reply:
        match = _VARIABLE.fullmatch(variable.strip())
        return self._grade(match[1] if match else "")

    # arguments

    def _key(self, name: str) -> str:
        return name if self._rules.exact_names else name.strip().casefold()

    def _resolve(self, tool: str, text: str) -> Variable:
        """A variable by number, else an entity by its name or id."""
        if text.strip().startswith("#"):
            return self._variable(tool, text)
        entity = self._names.get(self._key(text))
        if entity is None and _ENTITY_ID.fullmatch(text.strip()):
            entity = text.strip()
        if entity is None or not _ENTITY_ID.fullmatch(entity):
            raise Refused(
                f"{tool}: {_short(text)} is neither a variable nor an entity. {self._have()} "
                f"Entities: {', '.join(self._sample.data['entities']) or 'none'}."
            )
        return Variable(Entity(entity), TOPIC)

    def _variable(self, tool: str, text: str) -> Variable:
        match = _VARIABLE.fullmatch(text.strip())
        if match is None:
            raise Refused(f"{tool}: {_short(text)} is not a variable. {self._have()}")
        number = int(match[1])
        if number >= len(self._variables):
            raise Refused(f"{tool}: there is no variable #{number}. {self._have()}")
        return self._variables[number]

    def _have(self) -> str:
        if not self._variables:
            return "No variable exists yet: get_neighbors makes the first one."
        return f"Variables: #0 to #{len(self._variables) - 1}." if len(self._variables) > 1 else "Variables: #0."

    def _relations(self, source: Variable) -> frozenset[str]:
        if source.type == NUMBER:
            return frozenset()
        return self._rules.backend.predicates(source.expr) & self._rules.schema.relations

    def _attributes(self, source: Variable) -> frozenset[str]:
        if source.type == NUMBER:
            return frozenset()
        return self._rules.backend.predicates(source.expr) & self._rules.schema.attributes

    # replies

    def _listed(self, kind: str, names: frozenset[str]) -> Reply:
        prompts = self._rules.prompts
        shown = sorted(names)[: self._rules.max_listed]
        if more := len(names) - len(shown):
            shown.append(f"and {more} more")
        if not shown and "nothing" in prompts:
            return Reply(prompts["nothing"].format(kind=kind))
        return Reply(prompts["list"].format(items=prompts["separator"].join(shown)))

    def _new(self, expr: Expr, type_: str) -> Reply:
        if len(self._variables) >= MAX_VARIABLES:
            raise Refused(f"there are {MAX_VARIABLES} variables already. Use those, and answer.")
        number = len(self._variables)
        self._variables.append(Variable(expr, type_))
        prompts = self._rules.prompts
        return Reply(prompts["number" if type_ == NUMBER else "variable"].format(n=number, type=type_))

    # the answer

    def _grade(self, digits: str) -> Reply:
        """Scores a variable against the gold set and ends the episode; what is no variable cannot be scored."""
        if not 0 < len(digits) <= 9 or int(digits) >= len(self._variables):
            return _ungraded(f"The answer is not one of the variables. {self._have()} The episode has ended.")
        gold = gold_answer(self._sample)
        try:
            found = self._rules.backend.members(self._variables[int(digits)].expr)
        except TooMany:
            return _ungraded(f"The answer has more than {MAX_MEMBERS} members. The episode has ended.")
        except TooSlow:
            return _ungraded("The answer took too long to compute. The episode has ended.")
        except TooLarge as error:
            return _ungraded(f"The answer cannot be computed: {error}. The episode has ended.")
        exact = found == gold and bool(gold)
        metrics = {"f1": f1(found, gold), "answer_size": len(found)}
        return Reply(self._rules.prompts["answered"], reward=float(exact), success=exact, done=True, metrics=metrics)


def gold_answer(sample: Sample) -> frozenset[str]:
    """Ids or values that the answer of a sample consists of."""
    return frozenset(str(part["answer_argument"]) for part in sample.data["answer"])


def f1(found: frozenset[str], gold: frozenset[str]) -> float:
    """Harmonic mean of precision and recall of a set; 0 without overlap.

    >>> f1(frozenset("ab"), frozenset("bc")), f1(frozenset(), frozenset())
    (0.5, 0.0)
    """
    overlap = len(found & gold)
    return 2 * overlap / (len(found) + len(gold)) if overlap else 0.0


def _ungraded(content: str) -> Reply:
    return Reply(content, reward=0.0, success=False, done=True, metrics={"f1": 0.0}, status=Status.VALIDATION_FAILED)


def _short(text: str) -> str:
    """The text as quoted in a message: one line, at most 60 characters."""
    line = " ".join(text.split())
    return f"'{line[:60]}…'" if len(line) > 60 else f"'{line}'"
