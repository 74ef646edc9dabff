"""Makes games: one of six chores in one scene, with a walkthrough that is right because the game was built around it.

A game is made from its split, number and seed alone, in half a millisecond, so that there are as many training games
as one likes and nothing has to be kept. Its number gives task type and level in turn. A game is drawn like this: a
scene of the split, a wanted kind of thing and of place that the scene allows, where the wanted things lie, and then
everything else around them. Nothing wanted lies where it belongs, so no game is won at the start.

`valid_seen` has the scenes of `train` and the tasks there (kind of task, thing, place, scene) that train never has.

Not here: the rooms (scenes.py); PDDL (pddl.py); which splits and samples there are (generated.py).
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.alfworld.scenes import LEVELS, Entity, Room, World

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""In the order of ALFWorld's numbers 1 to 6."""
APPLIANCES = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}
"""Task type -> what is done to the thing, and where."""
LAMP = "DeskLamp"
KEPT_FOR_VALID = 8
"""One task of so many in a scene is kept out of train."""
TRIES = 200


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to be done: with which kind of thing, and where."""

    task_type: str
    thing: str
    place: str
    """Kind of place; for `look_at_obj_in_light` the lamp."""


@dataclass(slots=True)
class Game:
    """One game, before it is written down."""

    split: str
    number: int
    seed: int
    level: str
    scene: int
    goal: Goal
    places: Sequence[Entity]
    lies: dict[Entity, Entity] = field(default_factory=dict)
    """Thing -> place where it starts; lamps among them."""
    wording: int = 0
    """Which of the sentences for its type names the goal."""
    walkthrough: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where ALFWorld would keep it, below the folder of the split."""
        goal = self.goal
        return (
            f"{goal.task_type}-{goal.thing}-None-{goal.place}-{self.scene}/"
            f"trial_{self.level}_{self.seed}_{self.number:06d}"
        )


def make_game(world: World, split: str, number: int, *, seed: int = 0) -> Game:
    """The game of that number: equal arguments give an equal game in every process.

    Raises:
        TaskError: `world.yaml` leaves no room for such a game.
    """
    rng = random.Random(f"alfworld game {split} {number} {seed}")
    task_type, level = TASK_TYPES[number % 6], LEVELS[number // 6 % 3]
    rooms = [room for room in world.rooms.values() if _fits(room, task_type)]
    for _ in range(TRIES):
        room = rng.choice(rooms)
        scene = rng.choice(room.scenes_of(split))
        places = world.places(scene, level, seed)
        goals = [
            goal
            for goal in possible_goals(world, room, task_type, level, places)
            if split == "valid_unseen" or kept_for_valid(goal, scene) == (split == "valid_seen")
        ]
        if goals:
            game = Game(split, number, seed, level, scene, rng.choice(goals), places, wording=rng.randrange(2))
            _furnish(world, room, game, rng)
            game.walkthrough = tuple(_walkthrough(world, game))
            return game
    raise TaskError(
        f"no {level} {task_type} can be made in {TRIES} tries [alfworld, {split} {number}]. Mend world.yaml."
    )


def kept_for_valid(goal: Goal, scene: int) -> bool:
    """Whether a task in a scene belongs to `valid_seen`; train has the others."""
    text = f"{goal.task_type} {goal.thing} {goal.place} {scene}"
    return hashlib.sha256(text.encode()).digest()[0] % KEPT_FOR_VALID == 0


def possible_goals(world: World, room: Room, task_type: str, level: str, places: Sequence[Entity]) -> list[Goal]:
    """Every goal that can be set in a room with these places, in a fixed order."""
    kinds = list(dict.fromkeys(place.kind for place in places))
    verb, appliance = APPLIANCES.get(task_type, ("", ""))
    if task_type == "look_at_obj_in_light":
        if not set(kinds) & set(room.lamps):
            return []
        wanted, targets = world.traits["look"], [LAMP]
    else:
        wanted, targets = world.traits.get(verb, frozenset(room.things)), [kind for kind in kinds if kind != appliance]
    return [
        Goal(task_type, thing, target)
        for thing in room.things
        if thing in wanted
        for target in targets
        if (target == LAMP or thing in world.holds[target]) and _sources(world, thing, target, level, places)
    ]


def _fits(room: Room, task_type: str) -> bool:
    if task_type == "look_at_obj_in_light":
        return bool(room.lamps)
    return APPLIANCES.get(task_type, ("", next(iter(room.places))))[1] in room.places


def _sources(world: World, thing: str, target: str, level: str, places: Sequence[Entity]) -> list[Entity]:
    """Where a wanted thing may start: anywhere but in the places where it is wanted, and in sight if all must be."""
    hidden = world.levels[level].hidden > 0
    return [
        place
        for place in places
        if place.kind != target and thing in world.holds[place.kind] and (hidden or place.kind not in world.openable)
    ]


def _furnish(world: World, room: Room, game: Game, rng: random.Random) -> None:
    """Puts the wanted things down, a lamp, and then others until the room is as full as its level wants."""
    level, goal = world.levels[game.level], game.goal
    needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
    sources = _sources(world, goal.thing, goal.place, game.level, game.places)
    closed = [place for place in sources if place.kind in world.openable]
    in_sight = [place for place in sources if place.kind not in world.openable]
    for number in range(1, needed + rng.randint(*level.spare) + 1):
        pool = closed if closed and (not in_sight or rng.random() < level.hidden) else in_sight
        game.lies[Entity(goal.thing, number)] = rng.choice(pool)
    if goal.place == LAMP or (room.lamps and rng.random() < 0.5):
        stands = [place for place in game.places if place.kind in room.lamps]
        if stands:
            game.lies[Entity(LAMP, 1)] = rng.choice(stands)
    others = [thing for thing in room.things if thing != goal.thing] * level.same
    rng.shuffle(others)
    total = rng.randint(*level.things)
    numbers: dict[str, int] = {}
    for thing in others:
        if len(game.lies) >= total:
            break
        allowed = [place for place in game.places if thing in world.holds[place.kind]]
        if allowed:
            numbers[thing] = numbers.get(thing, 0) + 1
            game.lies[Entity(thing, numbers[thing])] = rng.choice(allowed)


def _walkthrough(world: World, game: Game) -> list[str]:
    """The commands that win: fetch, treat, put down, with no way made twice and nothing opened twice."""
    goal, commands = game.goal, []
    at: Entity | None = None
    opened: set[Entity] = set()

    def go(place: Entity, *, open_it: bool = True) -> None:
        nonlocal at
        if place != at:
            commands.append(f"go to {place.name}")
            at = place
        if open_it and place.kind in world.openable and place not in opened:
            commands.append(f"open {place.name}")
            opened.add(place)

    def fetch(thing: Entity) -> None:
        place = game.lies[thing]
        go(place)
        commands.append(f"take {thing.name} from {place.name}")

    if goal.place == LAMP:
        lamp = Entity(LAMP, 1)
        fetch(Entity(goal.thing, 1))
        go(game.lies[lamp], open_it=False)
        return [*commands, f"use {lamp.name}"]
    target = next(place for place in game.places if place.kind == goal.place)
    for number in (1, 2) if goal.task_type == "pick_two_obj_and_place" else (1,):
        thing = Entity(goal.thing, number)
        fetch(thing)
        if goal.task_type in APPLIANCES:
            verb, kind = APPLIANCES[goal.task_type]
            appliance = next(place for place in game.places if place.kind == kind)
            go(appliance, open_it=False)
            commands.append(f"{verb} {thing.name} with {appliance.name}")
        go(target)
        commands.append(f"move {thing.name} to {target.name}")
    return commands
