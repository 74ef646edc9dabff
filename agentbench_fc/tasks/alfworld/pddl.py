"""A game as ALFWorld's files: the PDDL problem, `game.tw-pddl` and `traj_data.json`.

Domain, grammar and the sentences that name a goal are those of the installed `alfworld` package, read as text:
importing it would make a folder for its data and set an environment variable.

Not here: what the game is (generate.py); playing it (engine.py).
"""

import ast
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.alfworld.generate import APPLIANCES, LAMP, Game
from agentbench_fc.tasks.alfworld.scenes import Entity, World

INSTALL = "Install it: pip install 'agentbench-fc[alfworld]'"
UNKNOWN_GOAL = "UNKNOWN GOAL"
"""What the package's grammar has where a game's own grammar has the goal."""
DOMAIN_THINGS = ("KnifeType", "ButterKnifeType")
DOMAIN_PLACES = ("SinkBasinType", "MicrowaveType", "FridgeType")
"""Types that actions of the domain name, so that every problem has to declare them."""


@dataclass(frozen=True)
class Wheel:
    """The texts of the installed `alfworld` package."""

    folder: Path

    @cached_property
    def domain(self) -> str:
        """The PDDL domain."""
        return self._read("data/alfred.pddl")

    @cached_property
    def grammar(self) -> str:
        """The text grammar, with `UNKNOWN GOAL` for the goal."""
        grammar = self._read("data/alfred.twl2")
        if UNKNOWN_GOAL not in grammar:
            raise self._other("its grammar has no place for a goal")
        return grammar

    @cached_property
    def sentences(self) -> Mapping[str, Sequence[str]]:
        """Task type -> sentences with {obj}, {recep} and {toggle}."""
        found: dict[str, Sequence[str]] = {}
        for statement in ast.parse(self._read("gen/goal_library.py")).body:
            match statement:  # gdict["look_at_obj_in_light"] = {"pddl": ..., "templates": [...]}
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id="gdict"), slice=ast.Constant(value=str(task_type)))],
                    value=ast.Dict() as described,
                ):
                    found[task_type] = ast.literal_eval(described)["templates"]
        return found

    def sentence(self, game: Game) -> str:
        """The goal in words, as ALFWorld puts it."""
        goal = game.goal
        sentences = self.sentences.get(goal.task_type)
        if not sentences:
            raise self._other(f"it has no sentence for {goal.task_type}")
        place = goal.place.lower()
        return sentences[game.wording % len(sentences)].format(obj=goal.thing.lower(), recep=place, toggle=place)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise self._other(f"{name} is not in it") from error

    def _other(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"the package alfworld is not as expected: {what} [{self.folder}]. Games are made with alfworld 0.4.2."
        )


def find_wheel() -> Wheel:
    """The installed `alfworld` package.

    Raises:
        InfrastructureError: it is not installed.
    """
    found = importlib.util.find_spec("alfworld")
    if found is None or not found.submodule_search_locations:
        raise InfrastructureError(f"the package alfworld is not installed [task alfworld]. {INSTALL}")
    return Wheel(Path(found.submodule_search_locations[0]))


def game_file(world: World, game: Game, wheel: Wheel) -> dict[str, Any]:
    """The content of `game.tw-pddl`."""
    return {
        "pddl_domain": wheel.domain,
        "grammar": wheel.grammar.replace(UNKNOWN_GOAL, wheel.sentence(game)),
        "pddl_problem": problem(world, game),
        "solvable": True,
        "walkthrough": list(game.walkthrough),
    }


def traj_data(game: Game) -> dict[str, Any]:
    """The content of `traj_data.json`, as far as text games need it."""
    goal = game.goal
    return {
        "task_id": game.folder.rpartition("/")[2],
        "task_type": goal.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.thing,
            "parent_target": "" if goal.place == LAMP else goal.place,
            "toggle_target": goal.place if goal.place == LAMP else "",
        },
        "scene": {"floor_plan": f"FloorPlan{game.scene}", "scene_num": game.scene},
    }


def dumped(content: Mapping[str, Any]) -> bytes:
    """A file of ALFWorld's, as bytes."""
    return json.dumps(content, ensure_ascii=False).encode()


def problem(world: World, game: Game) -> str:
    """The PDDL problem."""
    counts = Counter(entity.kind for entity in (*game.places, *game.lies))
    ids = {entity: entity.id(counts[entity.kind]) for entity in (*game.places, *game.lies)}
    locations = {place: f"loc_bar_{number}" for number, place in enumerate(game.places, start=1)}
    objects = [
        "agent1 - agent",
        *(f"{name} - otype" for name in _types(game.lies, DOMAIN_THINGS)),
        *(f"{name} - rtype" for name in _types(game.places, DOMAIN_PLACES)),
        *(f"{ids[thing]} - object" for thing in game.lies),
        *(f"{ids[place]} - receptacle" for place in game.places),
        "loc_bar_0 - location",
        *(f"{location} - location" for location in locations.values()),
    ]
    facts = [
        "atLocation agent1 loc_bar_0",
        *_place_facts(world, game, ids, locations),
        *_thing_facts(world, game, ids, locations),
    ]
    body = [
        f"(define (problem plan_{game.folder.rpartition('/')[2]})",
        "(:domain alfred)",
        *_block("objects", objects),
        *_block("init", [f"({fact})" for fact in facts]),
        f"(:goal {_goal(game)})",
        ")",
    ]
    return "\n".join(body) + "\n"


def _types(entities: Iterator[Entity] | Mapping[Entity, Any] | Sequence[Entity], always: Sequence[str]) -> list[str]:
    return sorted({f"{entity.kind}Type" for entity in entities} | set(always))


def _block(name: str, lines: Sequence[str]) -> list[str]:
    return [f"(:{name}", *(f"  {line}" for line in lines), ")"]


def _place_facts(world: World, game: Game, ids: Mapping[Entity, str], locations: Mapping[Entity, str]) -> Iterator[str]:
    for place in game.places:
        yield f"receptacleType {ids[place]} {place.kind}Type"
        yield f"receptacleAtLocation {ids[place]} {locations[place]}"
        if place.kind in world.openable:
            yield f"openable {ids[place]}"
    things = sorted({thing.kind for thing in game.lies})
    for kind in dict.fromkeys(place.kind for place in game.places):
        for thing in things:
            if thing in world.holds[kind]:
                yield f"canContain {kind}Type {thing}Type"


_TRAITS = {
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "vessels": "isReceptacleObject",
}


def _thing_facts(world: World, game: Game, ids: Mapping[Entity, str], locations: Mapping[Entity, str]) -> Iterator[str]:
    for thing, place in game.lies.items():
        yield f"objectType {ids[thing]} {thing.kind}Type"
        yield f"inReceptacle {ids[thing]} {ids[place]}"
        yield f"objectAtLocation {ids[thing]} {locations[place]}"
        yield f"{'toggleable' if thing.kind == LAMP else 'pickupable'} {ids[thing]}"
        for trait, predicate in _TRAITS.items():
            if thing.kind in world.traits[trait]:
                yield f"{predicate} {ids[thing]}"


_DONE = {
    "clean": "(cleanable ?o) (isClean ?o)",
    "heat": "(heatable ?o) (isHot ?o)",
    "cool": "(coolable ?o) (isCool ?o)",
}


def _goal(game: Game) -> str:
    thing, place = f"{game.goal.thing}Type", f"{game.goal.place}Type"
    if game.goal.place == LAMP:
        return (
            f"(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t {place}) "
            "(toggleable ?t) (isToggled ?t) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o))))"
        )
    there = f"(objectType ?o {thing}) (receptacleType ?r {place}) (inReceptacle ?o ?r)"
    if game.goal.task_type == "pick_two_obj_and_place":
        second = f"(exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {thing}) (inReceptacle ?p ?r)))"
        return f"(and (exists (?r - receptacle) (exists (?o - object) (and {there} {second}))))"
    verb, _ = APPLIANCES.get(game.goal.task_type, ("", ""))
    done = f" {_DONE[verb]}" if verb else ""
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {there}{done}))))"
