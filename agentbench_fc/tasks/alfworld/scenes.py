"""What `world.yaml` says about rooms, and the places that stand in one scene.

A scene is a room with a number, as in ALFRED: kitchens 1 to 30, living rooms from 201, bedrooms from 301, bathrooms
from 401. Its places depend on the scene, the level and the seed alone, so all games of a scene and level are played in
the same room. The last four scenes of each kind are held out for `valid_unseen`.

Not here: what lies where, and what has to be done (generate.py).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_fc.errors import TaskError

LEVELS = ("easy", "normal", "hard")
SAME_SPLIT = {"dev": "valid_seen", "test": "valid_unseen"}
"""The other tasks' names for splits, so that all tasks can be evaluated at once -> ALFWorld's names."""
HELD_OUT = 4
"""Scenes of each kind of room that only `valid_unseen` has."""
BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
"""Places that ALFRED writes as a part of something else: `Sink_bar_01_bar_SinkBasin` is called sinkbasin 1."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Level:
    """How large and how bare a room is."""

    places: Range
    things: Range
    same: int
    """Most things of one kind, the wanted kind excepted."""
    hidden: float
    """How often a wanted thing starts in something closed, where that is possible."""
    spare: Range
    """Wanted things beyond those that are needed."""


@dataclass(frozen=True, slots=True)
class Room:
    """One kind of room."""

    kind: str
    scenes: range
    places: Mapping[str, Sequence[Range]]
    """Kind of place -> how many, for each level."""
    things: Sequence[str]
    lamps: Sequence[str]
    """Kinds of places that a lamp may stand on."""

    def scenes_of(self, split: str) -> range:
        """The scenes that a split is played in."""
        return self.scenes[-HELD_OUT:] if split == "valid_unseen" else self.scenes[:-HELD_OUT]


@dataclass(frozen=True, order=True, slots=True)
class Entity:
    """A place or a thing: its kind and its number among its kind, from 1."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        """What the game calls it, such as `sinkbasin 1`."""
        return f"{self.kind.lower()} {self.number}"

    def id(self, count: int) -> str:
        """Its name in PDDL, if there are `count` of its kind.

        ALFWorld numbers the ids of a kind from the last to the first, so the highest number gets the first id.
        """
        number = f"{count + 1 - self.number:02d}"
        whole = BASINS.get(self.kind)
        return f"{whole}_bar_{number}_bar_{self.kind}" if whole else f"{self.kind}_bar_{number}"


@dataclass(frozen=True)
class World:
    """The whole of `world.yaml`."""

    levels: Mapping[str, Level]
    rooms: Mapping[str, Room]
    openable: frozenset[str]
    holds: Mapping[str, frozenset[str]]
    """Kind of place -> kinds of things that may be put there."""
    traits: Mapping[str, frozenset[str]]
    """clean, heat, cool, slice, vessels, look -> kinds of things."""

    @cached_property
    def room_of(self) -> Mapping[int, Room]:
        """Scene -> its room."""
        return {scene: room for room in self.rooms.values() for scene in room.scenes}

    def places(self, scene: int, level: str, seed: int) -> list[Entity]:
        """What stands in a scene, in the order of `world.yaml`."""
        room = self.room_of[scene]
        rng = random.Random(f"alfworld scene {scene} {level} {seed}")
        low, high = self.levels[level].places
        at = LEVELS.index(level)
        while True:
            counts = {kind: rng.randint(*ranges[at]) for kind, ranges in room.places.items()}
            if low <= sum(counts.values()) <= high:
                return [Entity(kind, n + 1) for kind, count in counts.items() for n in range(count)]


def read_world(path: Path) -> World:
    """Reads world.yaml.

    Raises:
        TaskError: it cannot be read.
    """
    import yaml

    try:
        raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        sets = {name: words.split() for name, words in raw["sets"].items()}

        def kinds(words: str) -> frozenset[str]:
            return frozenset(kind for word in words.split() for kind in sets.get(word, [word]))

        return World(
            levels={
                name: Level(
                    places=_range(level["places"]),
                    things=_range(level["things"]),
                    same=level["same"],
                    hidden=level["hidden"],
                    spare=_range(level["spare"]),
                )
                for name, level in raw["levels"].items()
            },
            rooms={kind: _room(kind, room) for kind, room in raw["rooms"].items()},
            openable=kinds(raw["openable"]),
            holds={kind: kinds(words) for kind, words in raw["holds"].items()},
            traits={trait: kinds(raw[trait]) for trait in ("clean", "heat", "cool", "slice", "vessels", "look")},
        )
    except (OSError, yaml.YAMLError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise TaskError(f"world.yaml cannot be read: {error!r} [{path}]. Restore it from the package.") from error


def _room(kind: str, raw: Mapping[str, Any]) -> Room:
    first, last = _range(raw["scenes"])
    return Room(
        kind=kind,
        scenes=range(first, last + 1),
        places={
            place: [_range(part) for part in str(numbers).split("|")] for place, numbers in raw["receptacles"].items()
        },
        things=raw["things"].split(),
        lamps=raw.get("lamps", "").split(),
    )


def _range(text: str | int) -> Range:
    low, _, high = str(text).strip().partition("-")
    return int(low), int(high or low)
