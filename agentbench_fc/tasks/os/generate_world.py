r"""What the makers of problems draw from: words, names, folders, and the script that sets a problem up.

>>> world = World(random.Random(3), "dev")
>>> setup = Setup()
>>> setup.file("/srv/a/b.txt", "one\n")
>>> print(setup.script())
set -e
mkdir -p /srv/a
echo 'one' > /srv/a/b.txt

Train, dev and test have no word and no person in common.

Not here: the problems (generate_files.py and its siblings), their wordings (phrases.py).
"""

import posixpath
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_WORDS = """
amber anchor apple arrow aspen atlas badger bamboo banjo barley basil beacon birch bison blossom bramble breeze bronze
cactus camel candle canyon cedar cherry cinder citrus clover cobalt comet copper coral cotton cricket crystal cypress
daisy delta denim desert dolphin dragon drift ember falcon feather fennel fern fiddle finch flint forest fossil fox
galaxy garnet ginger glacier gopher granite grape gravel harbor hazel heron hickory hornet indigo iris island ivory
jasmine jasper jungle juniper kestrel kettle kiwi lagoon lantern larch laurel lemon lichen lilac linen lizard lobster
lotus lunar magnet mango maple marble marlin meadow melon mercury meteor mint mirror misty monsoon mosaic moss mulberry
mustard nectar nickel nimbus nutmeg oasis ocean olive onyx opal orbit orchid osprey otter oyster paddle panther papaya
parsley pebble pepper petal pigeon pine pixel plum polar poplar prairie prism puma quail quartz quince rabbit raven reef
ripple river robin rocket rosemary ruby saddle saffron sage salmon sandal sapphire sequoia shale sienna silver slate
sparrow spruce squid stone summit sunset swift tango teal thistle thunder tiger timber topaz trellis tulip tundra turnip
umber valley vanilla velvet violet walnut willow winter wolf yarrow yonder zephyr zinnia
""".split()
_PEOPLE = """
ada aldo alma amos anna arno bernd bella boris bruno carla cedric clara conny dario delia doris edgar edith elias elsa
emil erika felix fiona frida gerda gino greta gus hanna helga henry hugo ida igor ines irma ivan jana jonas judith karl
kira klaus lars lea leo lina luca lydia magnus mara marco mila moritz nadia nils nora olaf olga oscar otto paula pedro
petra rita rolf rosa ruben sara silas sofia stella sven tanja theo tilda toni ulla urban vera viktor wanda wilma xenia
yuri zelda
""".split()
_SHARES = {"train": (0.0, 0.64), "dev": (0.64, 0.82), "test": (0.82, 1.0)}
_ROOTS = ("/srv", "/opt", "/data", "/var/lib", "/home", "/var/spool", "/usr/local/share", "/root")


def share(words: Sequence[str], split: str) -> list[str]:
    """The part of a list that a split has for itself; spread over the list, which is in order."""
    low, high = _SHARES[split]
    mixed = list(words)
    random.Random("os").shuffle(mixed)
    return mixed[round(low * len(mixed)) : round(high * len(mixed))]


class World:
    """Draws names that do not repeat within one problem."""

    def __init__(self, rng: random.Random, split: str) -> None:
        self.rng = rng
        self._words = share(_WORDS, split)
        self._people = share(_PEOPLE, split)
        self._used: set[str] = set()
        self.base = f"{rng.choice(_ROOTS)}/{self.word()}"
        """The folder that the problem is about."""

    def word(self) -> str:
        """A word that was not drawn before."""
        return self._fresh(lambda: self.rng.choice(self._words))

    def words(self, count: int) -> list[str]:
        """So many words."""
        return [self.word() for _ in range(count)]

    def token(self) -> str:
        """A word with a number, e.g. `cedar-4711`: too many of them to guess."""
        return self._fresh(lambda: f"{self.rng.choice(self._words)}-{self.rng.randint(1000, 9999)}")

    def file(self, ending: str) -> str:
        """A file name, e.g. `cedar47.csv`."""
        return self._fresh(lambda: f"{self.rng.choice(self._words)}{self.rng.randint(2, 99)}{ending}")

    def user(self) -> str:
        """A user name, e.g. `nora41`."""
        return self._fresh(lambda: f"{self.rng.choice(self._people)}{self.rng.randint(10, 99)}")

    def person(self) -> str:
        """A person's name that was not drawn before."""
        return self._fresh(lambda: self.rng.choice(self._people))

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return self.rng.randint(low, high)

    def number_apart(self, low: int, high: int, taken: set[int]) -> int:
        """A number that is not taken yet; it is then."""
        number = next(n for n in iter(lambda: self.rng.randint(low, high), None) if n not in taken)
        taken.add(number)
        return number

    def pick(self, options: Sequence[Any], count: int | None = None) -> Any:
        """One of the options, or so many of them."""
        return self.rng.choice(options) if count is None else self.rng.sample(options, count)

    def date(self, first: int = 2021, last: int = 2024) -> str:
        """A moment of those years, `2022-03-04 11:22:33`; early enough to be past everywhere."""
        day = f"{self.number(first, last)}-{self.number(1, 12):02}-{self.number(1, 28):02}"
        return f"{day} {self.number(0, 23):02}:{self.number(0, 59):02}:{self.number(0, 59):02}"

    def tree(self, count: int, depth: int = 2) -> list[str]:
        """Folders: the base itself and `count` below it, each in one that came before."""
        folders = [self.base]
        for _ in range(count):
            parents = [f for f in folders if f.count("/") - self.base.count("/") < depth]
            folders.append(f"{self.rng.choice(parents)}/{self.word()}")
        return folders

    def _fresh(self, draw: Callable[[], str]) -> str:
        for _ in range(500):
            name = draw()
            if name not in self._used:
                self._used.add(name)
                return name
        raise RuntimeError("the words of a split are used up [os generator]. Let the maker draw fewer.")


@dataclass
class Setup:
    """Collects the lines of a bash script; folders are made before their files."""

    lines: list[str] = field(default_factory=list)
    _made: set[str] = field(default_factory=set)

    def folder(self, path: str) -> None:
        """A folder and those above it."""
        if path not in self._made:
            self._made.add(path)
            self.lines.append(f"mkdir -p {shlex.quote(path)}")

    def file(self, path: str, text: str) -> None:
        """A file with that text."""
        self.folder(posixpath.dirname(path))
        body = text if text.endswith("\n") else f"{text}\n"
        if text and body.count("\n") == 1 and "'" not in body:
            self.lines.append(f"echo '{body[:-1]}' > {shlex.quote(path)}") if "\\" not in body else self._long(
                path, body
            )
        elif text:
            self._long(path, body)
        else:
            self.lines.append(f": > {shlex.quote(path)}")

    def empty(self, folder: str, names: Sequence[str]) -> None:
        """Empty files in one folder."""
        self.folder(folder)
        if names:
            self.lines.append(f"cd {shlex.quote(folder)} && touch -- {' '.join(map(shlex.quote, names))}")

    def sized(self, path: str, size: int) -> None:
        """A file of so many bytes."""
        self.folder(posixpath.dirname(path))
        self.lines.append(f"head -c {size} /dev/zero | tr '\\0' x > {shlex.quote(path)}")

    def run(self, line: str) -> None:
        """A line of its own."""
        self.lines.append(line)

    def daemon(self, path: str, body: str, arguments: str = "", variables: str = "") -> None:
        """A script that runs in the background under its own name; `body` opens descriptor 9 once it is ready."""
        self.file(path, f"#!/bin/bash\n{body}")
        self.lines.append(f"chmod 755 {path}")
        self.lines.append(f"{variables} setsid {path} {arguments} </dev/null >/dev/null 2>&1 &".strip())
        self.lines.append("for i in $(seq 500); do [ -e /proc/$!/fd/9 ] && break; sleep 0.02; done")

    def script(self) -> str:
        """The whole."""
        return "\n".join(["set -e", *self.lines])

    def _long(self, path: str, body: str) -> None:
        self.lines.append(f"cat > {shlex.quote(path)} <<'END'\n{body}END")


Conditions = list[Mapping[str, Any]]
"""What must hold at the end, see state.py."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem before it is worded."""

    fields: Mapping[str, Any]
    """What the wording names."""
    setup: Setup
    plan: Sequence[str]
    """Commands of a solution, one call each; where there is an answer, the last one prints it."""
    answer: str | int | None = None
    state: Conditions = field(default_factory=list)
    """Where there is no answer."""


Maker = Callable[[World], Problem]


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem; its name is that of its wording."""

    name: str
    family: str
    level: str
    make: Maker
    unseen: bool = False
    """Kept from train."""
