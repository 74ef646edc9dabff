"""The generated world: a fictional knowledge graph, made from `tasks/kg/world.yaml`, a size and a seed.

The same recipe, size and seed give the same triples in every process. Names are short made-up words, all different, so
that a name means one entity; ids look like Freebase's. Every link has a reverse. Some values are tied, some missing.

Not here: questions about the world (questions.py); asking it (backend.py).
"""

import datetime
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.kg.expressions import NAMESPACE
from agentbench_fc.tasks.kg.schema import Schema

TIED, MISSING = 0.05, 0.1
SMALLEST, LARGEST = 500, 200_000
_XSD = "http://www.w3.org/2001/XMLSchema#"
_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz_"
_NO_NAMES = frozenset(  # words that mean something in a question, or that nobody should be called
    "base date done five game gene give home have like line live love make male mane more move name nine none note "
    "rate rise rose rule same sale side sire size some sure take tale time tire tone tube tune type vote zone "
    "dago gook homo kike nazi nude pedo pimo rape sodo".split()
)


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a relation, as questions see it."""

    name: str
    source: str
    """Type of the entities that have it."""
    target: str
    """Type or role of what it leads to."""
    reverse: str
    phrases: tuple[str, ...]
    easy: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value of entities of one type."""

    name: str
    of: str
    kind: str
    most: str
    least: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What world.yaml says, in the shape that generation and questions need."""

    raw: Mapping[str, Any]
    links: Mapping[str, Link]
    attributes: Mapping[str, Attribute]
    nouns: Mapping[str, str]
    schema: Schema

    def base(self, type_: str) -> str:
        """The type whose entities fill a type or role."""
        role = self.raw["roles"].get(type_)
        return role["isa"][0] if role else type_


@dataclass(slots=True)
class World:
    """A graph as plain dictionaries; lists are in order of making."""

    recipe: Recipe
    names: dict[str, str] = field(default_factory=dict)
    """Id -> name."""
    types: dict[str, list[str]] = field(default_factory=dict)
    """Type -> ids."""
    edges: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Relation -> subject -> objects."""
    values: dict[str, dict[str, int | float | str]] = field(default_factory=dict)
    """Attribute -> entity -> value; dates as ISO text."""

    def to_ntriples(self) -> Iterator[str]:
        """The graph as lines of N-Triples, names included."""
        for entity, name in self.names.items():
            yield f'<{NAMESPACE}{entity}> <{NAMESPACE}type.object.name> "{name}"@en .'
        for relation, links in self.edges.items():
            for subject, objects in links.items():
                for target in objects:
                    yield f"<{NAMESPACE}{subject}> <{NAMESPACE}{relation}> <{NAMESPACE}{target}> ."
        for attribute, values in self.values.items():
            datatype = {"int": "integer", "float": "double", "date": "date"}[self.recipe.attributes[attribute].kind]
            for entity, value in values.items():
                yield f'<{NAMESPACE}{entity}> <{NAMESPACE}{attribute}> "{value}"^^<{_XSD}{datatype}> .'


def read_recipe(path: Path) -> Recipe:
    """Reads world.yaml.

    Raises:
        TaskError: the file is missing or damaged.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # a safe loader, the fast one if present
    except (OSError, yaml.YAMLError) as error:
        raise TaskError(f"the recipe cannot be read: {error} [{path}]. Restore it from the package.") from error
    links: dict[str, Link] = {}
    kinds = raw["types"] | raw["roles"]
    for row in raw["relations"]:
        reverse = row["name"] if row.get("symmetric") else row["reverse"]
        easy = bool(row.get("easy"))
        links[row["name"]] = Link(row["name"], row["from"], row["to"], reverse, tuple(row["phrases"]), easy)
        if not row.get("symmetric"):
            links[reverse] = Link(reverse, row["to"], row["from"], row["name"], tuple(row["reverse_phrases"]))
    attributes = {
        row["name"]: Attribute(row["name"], row["of"], row["kind"], row["most"], row["least"])
        for row in raw["attributes"]
    }
    above = {name: frozenset(kind["isa"]) for name, kind in kinds.items() if kind.get("isa")}
    ranges = {link.name: link.target for link in links.values()} | {d["name"]: d["to"] for d in raw["distractors"]}
    schema = Schema(frozenset(ranges), frozenset(attributes), ranges, above)
    return Recipe(raw, links, attributes, {name: kind["noun"] for name, kind in kinds.items()}, schema)


def check_size(size: int) -> None:
    """Refuses a size that no world can have.

    Raises:
        CallerError: it is out of range.
    """
    if not SMALLEST <= size <= LARGEST:
        raise CallerError(f"size is {size} [task kg]. Use {SMALLEST} to {LARGEST} entities.")


def build(recipe: Recipe, *, size: int, seed: int) -> World:
    """Makes a world of about `size` entities."""
    rng = random.Random(f"kg world {size} {seed}")
    world = World(recipe)
    names = _names(rng)
    ids = (f"m.0{_base32(n)}" for n in itertools.count(1000))
    for type_, kind in recipe.raw["types"].items():
        world.types[type_] = [next(ids) for _ in range(max(8, round(kind["share"] * size)))]
        world.names |= {entity: next(names) for entity in world.types[type_]}
    for row in recipe.raw["relations"]:
        _link(world, row, rng)
    for row in recipe.raw["distractors"]:
        for type_ in recipe.raw["types"]:
            if not type_.startswith("common."):
                _link(world, row | {"from": type_}, rng)
    for row in recipe.raw["attributes"]:
        _evaluate(world, row, rng)
    return world


def _link(world: World, row: Mapping[str, Any], rng: random.Random) -> None:
    """Draws the objects of every subject, and the way back."""
    targets = list(world.types[world.recipe.base(row["to"])])
    rng.shuffle(targets)  # which ones are popular
    power = 1 + 2 * float(row.get("skew", 0.0))
    fewest, most = row["law"]
    forward = world.edges.setdefault(row["name"], {})
    symmetric = bool(row.get("symmetric"))
    backward = forward if symmetric else world.edges.setdefault(row["reverse"], {}) if "reverse" in row else None
    for subject in world.types[row["from"]]:
        if rng.random() >= row.get("some", 1.0):
            continue
        objects = forward.setdefault(subject, [])
        wanted = rng.randint(fewest, most)
        for _ in range(4 * wanted):
            if len(objects) >= wanted:
                break
            target = targets[int(len(targets) * rng.random() ** power)]
            full = symmetric and len(forward.get(target, ())) >= most
            if target == subject or target in objects or full:
                continue
            objects.append(target)
            if backward is not None:
                backward.setdefault(target, []).append(subject)
        if not objects:
            del forward[subject]


def _evaluate(world: World, row: Mapping[str, Any], rng: random.Random) -> None:
    """Draws the values of an attribute; some repeat the value before them, some are missing."""
    low, high = row["range"]
    values = world.values.setdefault(row["name"], {})
    last: int | float | str | None = None
    for entity in world.types[row["of"]]:
        if rng.random() < MISSING:
            continue
        if last is None or rng.random() >= TIED:
            last = _draw(row["kind"], low, high, rng)
        values[entity] = last


def _draw(kind: str, low: float, high: float, rng: random.Random) -> int | float | str:
    if kind == "date":
        first = datetime.date(int(low), 1, 1).toordinal()
        return datetime.date.fromordinal(first + rng.randrange(int((high - low + 1) * 365))).isoformat()
    if high / max(low, 1) > 50:  # wide ranges are drawn by magnitude, as populations and prices are
        drawn = low * (high / low) ** rng.random() if low else high * rng.random()
    else:
        drawn = rng.uniform(low, high)
    return round(drawn) if kind == "int" else round(drawn, 2)


def _names(rng: random.Random) -> Iterator[str]:
    """Different words of two open syllables and sometimes a closing letter; longer ones when those run out."""
    syllables = [c + v for c in "bdfgjklmnprstvz" for v in "aeiou"]
    for length in itertools.count(2):
        words = [
            word
            for parts in itertools.product(syllables, repeat=length)
            for coda in ("", "n", "r", "s")
            if (word := "".join(parts) + coda)[:4] not in _NO_NAMES
        ]
        rng.shuffle(words)
        yield from (word.capitalize() for word in words)


def _base32(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 32)
        digits = _DIGITS[digit] + digits
    return digits
