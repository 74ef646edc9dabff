"""The words of a question: from an expression to a sentence.

Easy questions name the relations, in the order in which they are followed: "From Bako follow directed_by then
place_of_birth." The others put a phrase for each relation, one of three, around what it starts from.

Not here: the phrases themselves (tasks/kg/world.yaml).
"""

import random
from collections.abc import Callable

from agentbench_fc.tasks.kg.expressions import And, ArgMax, ArgMin, Count, Entity, Expr, Join
from agentbench_fc.tasks.kg.world import World

TypeOf = Callable[[Expr], str]


def easy_question(expr: Expr, world: World, type_of: TypeOf, rng: random.Random) -> str:
    """The regular wording of a chain."""
    steps: list[str] = []
    while isinstance(expr, Join):
        steps.append(expr.relation.rpartition(".")[2])
        expr = expr.of
    assert isinstance(expr, Entity)
    return f"From {world.names[expr.id]} follow {' then '.join(reversed(steps))}."


def question(expr: Expr, world: World, type_of: TypeOf, rng: random.Random) -> str:
    """One sentence that asks for an expression."""

    def phrase(node: Expr) -> str:
        match node:
            case Entity(id=entity):
                return world.names[entity]
            case Join(relation=relation, of=of):
                return rng.choice(world.recipe.links[relation].phrases).format(x=phrase(of))
            case And(left=left, right=right):
                return f"{phrase(left)} that are also among {phrase(right)}"
            case ArgMax(of=of) | ArgMin(of=of):
                return f"whichever of {phrase(of)} has {superlative(node)}"
            case Count(of=of):
                return f"the number of {phrase(of)}"

    def superlative(node: ArgMax | ArgMin) -> str:
        attribute = world.recipe.attributes[node.attribute]
        return attribute.most if isinstance(node, ArgMax) else attribute.least

    noun = world.recipe.nouns[type_of(expr)]
    match expr:
        case And(left=And(left=first, right=second), right=third):
            texts = [phrase(first), phrase(second), phrase(third)]
            templates = (
                "Which {noun} are among {0}, among {1} and among {2}?",
                "Find the {noun} that {0}, {1} and {2} have in common.",
                "Name what belongs to {0}, to {1} and to {2}.",
            )
        case And(left=left, right=right):
            texts = [phrase(left), phrase(right)]
            templates = (
                "Which {noun} are both among {0} and among {1}?",
                "Find the {noun} that {0} and {1} have in common.",
                "Name {0} that are also among {1}.",
            )
        case ArgMax(of=of) | ArgMin(of=of):
            texts = [phrase(of), superlative(expr)]
            templates = (
                "Of {0}, which has {1}?",
                "Which of {0} has {1}?",
                "Find the one with {1} among {0}.",
            )
        case Count(of=of):
            texts = [phrase(of)]
            templates = (
                "How many {noun} are among {0}?",
                "Count {0}.",
                "What is the number of {0}?",
            )
        case _:
            texts = [phrase(expr)]
            templates = (
                "Name {0}.",
                "Find {0}.",
                "Tell me {0}.",
            )
    return rng.choice(templates).format(*texts, noun=noun)
