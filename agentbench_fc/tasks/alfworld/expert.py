"""Two experts: one that knows the way, and one that has to look for things as a model has to.

`follow` has a walkthrough. It carries it out against what it sees: it goes where a step has to be done, opens what is
closed, and leaves out what is done already, so it also wins from the middle of a game that someone else began.
`explore` knows the goal and the names of the places, as the first message tells them; it looks into places where such
a thing may be kept, open ones first and in the order of the list, and remembers what it saw.

Both read the messages of the game and act on its list of actions. Not here: games (games.py), how actions are listed
(rules.py).
"""

import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentbench_fc.episode import Expert, Turn
from agentbench_fc.messages import ToolCall
from agentbench_fc.tasks.alfworld.generate import APPLIANCES
from agentbench_fc.tasks.alfworld.naming import display_names
from agentbench_fc.tasks.alfworld.rules import read_actions

GIVE_UP = 200
"""Moves; every episode is over before that."""
_THING = re.compile(r"\ba ([a-z]+ \d+)")
_DECLARED = re.compile(r"(\S+) - (\w+)")
_FACT = re.compile(r"\((\w+) ([^()\s]+)(?: ([^()\s]+))?\)")


@dataclass(frozen=True, slots=True)
class Place:
    """A place of the room, as far as one can know it without going there."""

    name: str
    openable: bool
    may_hold: frozenset[str]
    """Kinds of things, in lower case."""

    @property
    def kind(self) -> str:
        """Its name without the number."""
        return self.name.partition(" ")[0]


Moves = Generator[str, "Seen", None]


@dataclass(slots=True)
class Seen:
    """What the last message said."""

    text: str = ""
    actions: Sequence[str] = field(default_factory=list)

    def can(self, action: str) -> bool:
        """Whether an action is in the list."""
        return action in self.actions


def follow(walkthrough: Sequence[str]) -> Expert:
    """Plays a walkthrough, going and opening where it must, leaving out what is done."""
    return _speak(_follow(walkthrough))


def explore(goal: Mapping[str, str], task_type: str, places: Sequence[Place]) -> Expert:
    """Plays without knowing where things are.

    Args:
        goal: Kinds of the wanted `object` and `receptacle`; the lamp for `look_at_obj_in_light`.
        task_type: One of the six.
        places: From `places_of`.
    """
    search = _Explorer(goal["object"].lower(), goal["receptacle"].lower(), task_type, places)

    def moves() -> Moves:
        yield from search.play()
        while True:  # it has looked everywhere
            yield "look"

    return _speak(moves())


def _speak(moves: Moves) -> Expert:
    """Turns actions into calls and messages into what was seen."""
    action = next(moves, None)
    number = 0
    while action is not None and number < GIVE_UP:
        number += 1
        turn: Turn | None = yield ToolCall(f"call_{number}", "take_action", json.dumps({"action": action}))
        text = "\n".join(str(message.get("content") or "") for message in turn.messages) if turn else ""
        try:
            action = moves.send(Seen(text, read_actions(text)))
        except StopIteration:
            return


def _follow(walkthrough: Sequence[str]) -> Moves:
    seen = Seen()
    here = ""
    wanted = {_thing(step) for step in walkthrough if step.startswith("take ")}
    for step in walkthrough:
        verb, _, rest = step.partition(" ")
        if verb == "go":
            here = rest.removeprefix("to ")
        tries = 0
        while tries < 4:
            tries += 1
            if not seen.actions:  # the first move is made before anything is seen
                seen = yield step
                if "Nothing happens" not in seen.text:
                    break
                continue
            action = _next_action(step, here, seen, wanted)
            if action is None:
                break
            seen = yield action
            if action == step:
                break


def _next_action(step: str, here: str, seen: Seen, wanted: Collection[str]) -> str | None:
    """The next action towards a step at a place; None: the step needs no doing, or cannot be done."""
    verb, _, what = step.partition(" ")
    if seen.can(step):
        return step
    if verb == "go" or (verb == "open" and seen.can(f"close {what}")):
        return None
    for words in (" from ", " to ", " with ", " in/on "):
        if words in what:
            here = what.rpartition(words)[2]
    putting = next((action for action in seen.actions if action.startswith(("move ", "put "))), None)
    if verb == "take" and putting and not seen.can(f"go to {here}"):  # the hand is full
        return None if _thing(putting) in wanted else putting
    if verb in ("take", "move", "put", "close") and seen.can(f"open {here}"):
        return f"open {here}"
    return f"go to {here}" if seen.can(f"go to {here}") else None


def _thing(action: str) -> str:
    """What an action takes or puts: "egg 1" of "take egg 1 from fridge 1"."""
    return " ".join(action.split()[1:3])


class _Explorer:
    """The state of one search."""

    def __init__(self, thing: str, target: str, task_type: str, places: Sequence[Place]) -> None:
        self._thing, self._target, self._task_type = thing, target, task_type
        self._places = {place.name: place for place in places}
        self._lies: dict[str, str] = {}
        """What was seen of the wanted kinds -> where."""
        self._looked: set[str] = set()
        self._done: set[str] = set()
        """Things that are where they belong."""
        self._seen = Seen()
        self._at = ""

    def play(self) -> Moves:
        light = self._task_type == "look_at_obj_in_light"
        destination: str | None = None
        for _ in range(2 if self._task_type == "pick_two_obj_and_place" else 1):
            thing = yield from self._find(self._thing)
            if thing is None:
                return
            place = self._lies.pop(thing)
            yield from self._go(place)
            yield from self._do(f"take {thing} from {place}")
            if light:
                lamp = yield from self._find(self._target)
                if lamp is not None:
                    yield from self._go(self._lies[lamp], open_it=False)
                    yield from self._do(f"use {lamp}")
                return
            if self._task_type in APPLIANCES:
                verb, kind = APPLIANCES[self._task_type]
                appliance = next(name for name, each in self._places.items() if each.kind == kind.lower())
                yield from self._go(appliance, open_it=False)
                yield from self._do(f"{verb} {thing} with {appliance}")
            if destination is None:
                destination = next(name for name, each in self._places.items() if each.kind == self._target)
            yield from self._go(destination)
            put = next((a for a in self._seen.actions if re.match(rf"(move|put) {thing} .*{destination}$", a)), None)
            yield from self._do(put or f"move {thing} to {destination}")
            self._done.add(thing)

    def _find(self, kind: str) -> Generator[str, Seen, str | None]:
        """Goes on looking until something of a kind was seen; gives its name."""
        while True:
            known = [thing for thing in self._lies if thing.partition(" ")[0] == kind and thing not in self._done]
            if known:
                return min(known, key=lambda thing: self._lies[thing] != self._at)
            unknown = next(self._worth_a_look(kind), None)
            if unknown is None:
                return None
            yield from self._go(unknown.name)
            self._looked.add(unknown.name)

    def _worth_a_look(self, kind: str) -> Iterator[Place]:
        """Places not yet looked into, the likelier first: those that may hold it, open ones, in the list's order."""
        lamp = kind == self._target
        left = [place for place in self._places.values() if place.name not in self._looked]
        likely = [place for place in left if lamp or (kind in place.may_hold and place.kind != self._target)]
        for places in (likely, left):
            yield from sorted(places, key=lambda place: place.openable)

    def _go(self, place: str, *, open_it: bool = True) -> Moves:
        if place != self._at:
            yield from self._do(f"go to {place}")
            self._at = place
            if "Nothing happens" in self._seen.text:  # official rooms: two places can be reached from one spot
                yield from self._do(f"examine {place}")
        if open_it and self._seen.can(f"open {place}"):
            yield from self._do(f"open {place}")
            self._looked.add(place)

    def _do(self, action: str) -> Moves:
        self._seen = yield action
        if looks := re.match("(?:go to|open|examine) (.+)", action):
            place = looks[1]
            told = self._seen.text.partition("you see")[2].partition(".")[0]
            for thing in _THING.findall(told):
                if thing.partition(" ")[0] in (self._thing, self._target) and thing not in self._done:
                    self._lies[thing] = place


def places_of(problem: str) -> list[Place]:
    """The places of a game by its PDDL problem, in the order of its opening list, without what lies there."""
    declared = problem.partition("(:objects")[2].partition("(:init")[0]
    ids = {name.lower(): kind for name, kind in _DECLARED.findall(declared)}
    names = display_names(ids)
    kinds: dict[str, str] = {}
    holds: dict[str, set[str]] = {}
    openable: set[str] = set()
    for predicate, first, second in _FACT.findall(problem.lower()):
        if predicate == "receptacletype":
            kinds[first] = second
        elif predicate == "cancontain":
            holds.setdefault(first, set()).add(second.removesuffix("type"))
        elif predicate == "openable":
            openable.add(first)
    places = [
        Place(names[name], name in openable, frozenset(holds.get(kinds.get(name, ""), ())))
        for name, kind in ids.items()
        if kind == "receptacle"
    ]
    return sorted(places, key=lambda place: (place.kind, int(place.name.rpartition(" ")[2] or 0)))
