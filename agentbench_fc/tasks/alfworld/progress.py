"""How far a state is on the way to a game's goal, for a shaped reward.

>>> goal = read_goal("(:goal (and (exists (?r - receptacle) (exists (?o - object) (and (isHot ?o)"
...                  "(objectType ?o EggType) (receptacleType ?r FridgeType) (inReceptacle ?o ?r))))))")
>>> goal.steps, goal.thing, goal.place, goal.treatment
(3, 'eggtype', 'fridgetype', 'ishot')

The steps of the six kinds of game: hold a thing of the wanted kind, treat it, put it where it belongs; twice for two
things; hold it and switch the lamp on. The last step is the goal itself.

Not here: what a step is worth (episode.py).
"""

import re
from collections import Counter
from dataclasses import dataclass

from agentbench_fc.tasks.alfworld.text import Facts

_TREATMENTS = ("ishot", "iscool", "isclean")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a goal asks for; types and predicates are in lower case, as in a translated problem."""

    thing: str
    place: str | None = None
    treatment: str | None = None
    lamp: str | None = None
    count: int = 1

    @property
    def steps(self) -> int:
        """How many steps lead to the goal."""
        if self.lamp is not None:
            return 2
        return 2 * self.count + (self.treatment is not None)

    def done(self, facts: Facts) -> int:
        """How many of the steps are done; the last one is never counted, since only the engine knows the goal."""
        things = _of_kind(facts, "objecttype", self.thing)
        held = {thing for _, thing in _all(facts, "holds")} & things
        if self.lamp is not None:
            lit = {lamp for (lamp,) in _all(facts, "istoggled")} & _of_kind(facts, "objecttype", self.lamp)
            steps = bool(held) + bool(lit)
        elif self.treatment is not None:
            treated = {thing for (thing,) in _all(facts, self.treatment)} & things
            steps = 2 if treated else 1 if held else 0
        else:
            places = _of_kind(facts, "receptacletype", self.place or "")
            lies = Counter(place for thing, place in _all(facts, "inreceptacle") if thing in things and place in places)
            placed = min(max(lies.values(), default=0), self.count)
            steps = 2 * placed + (placed < self.count and bool(held))
        return min(steps, self.steps - 1)


def read_goal(problem: str) -> Goal | None:
    """The goal of a PDDL problem; None where it is not of one of the six kinds."""
    goal = problem.lower().partition("(:goal")[2]
    kinds = dict(re.findall(r"\(objecttype (\?\w+) (\w+)\)", goal))
    lamps = set(re.findall(r"\(istoggled (\?\w+)\)", goal))
    places = set(re.findall(r"\(receptacletype \?\w+ (\w+)\)", goal))
    treatments = [treatment for treatment in _TREATMENTS if f"({treatment} " in goal]
    things = {kind for variable, kind in kinds.items() if variable not in lamps}
    if len(things) != 1 or len(places) > 1 or len(treatments) > 1 or bool(lamps) == bool(places):
        return None
    (thing,) = things
    lamp = next((kinds[variable] for variable in lamps if variable in kinds), None)
    return Goal(
        thing,
        next(iter(places), None),
        treatments[0] if treatments else None,
        lamp,
        count=len(kinds) - len(lamps),
    )


def _all(facts: Facts, predicate: str) -> set[tuple[str, ...]]:
    return {arguments for (name, _), known in facts.items() if name == predicate for arguments in known}


def _of_kind(facts: Facts, predicate: str, kind: str) -> set[str]:
    return {thing for thing, its_kind in _all(facts, predicate) if its_kind == kind}
