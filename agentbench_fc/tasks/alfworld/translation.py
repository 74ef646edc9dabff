"""From PDDL to a planning task: Fast Downward's translator, its result kept in memory and on disk.

Translating takes most of the time of a first start (up to a second for a large room), so what the engine needs of the
result is kept in the cache folder as compressed JSON, under the hash of domain and problem, and that of this module.
Anyone's file there is read as data, never run.

Not here: the state machine that runs a task (native.py).
"""

import contextlib
import hashlib
import io
import json
import re
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from agentbench_fc.cache import cache_dir, generated
from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.alfworld.gamefile import Game
from agentbench_fc.tasks.alfworld.native import INSTALL, NAME_BYTES

MADE_BY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
"""Names this module's files in the cache: what another version of it has made is never read."""
KEPT = 128
"""Translations kept in memory, compressed: about 0.1 MB each."""
MAX_FILES = 48
"""In each of 256 folders: training on ever new games keeps the cache below about 1 GB."""
TRIVIAL = "Atom dummy(val1)"
"""The translator writes a task of this one variable where it finds that there is nothing to be done."""
_NAMES = re.compile(
    r"^begin_operator\n(?P<operator>.*)$|^(?P<sign>Atom|NegatedAtom) (?P<predicate>[^(\n]*)\((?P<arguments>.*)\)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Translation:
    """What the engine needs of a translated problem."""

    sas: str
    """The task, in the format that the library reads. A word in its names is a number: names make up most of a task,
    and the library keeps them several times."""
    words: list[str]
    """What the numbers stand for."""
    types: dict[str, list[str]]
    """Type -> its supertypes."""
    objects: dict[str, str]
    """Id -> type."""
    parameters: dict[str, list[tuple[str, str]]]
    """Action -> names and types of its parameters."""
    facts: list[tuple[str, ...]]
    """Predicate and arguments of what is true at the start."""
    fluents: list[str]
    """Predicates that an action can change."""


class Translations:
    """Translations by game, from memory, disk or the translator. Not for several threads at once."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._packed: OrderedDict[str, bytes] = OrderedDict()

    def of(self, game: Game) -> Translation:
        """The translation of a game.

        Raises:
            TaskError: its PDDL is wrong.
            CallerError: the translator is not installed.
        """
        packed = self._packed.get(game.key)
        if packed is None:
            packed = self._packed[game.key] = self._from_disk(game)
            if len(self._packed) > self._kept:
                self._packed.popitem(last=False)
        self._packed.move_to_end(game.key)
        return _unpack(packed)

    def _from_disk(self, game: Game) -> bytes:
        name = f"alfworld/translations-{MADE_BY}-{_version()}/{game.key[:2]}/{game.key}.json.z"
        path = generated(name, lambda: _translated(game, cache_dir() / name))
        packed = path.read_bytes()
        try:
            _unpack(packed)
        except (zlib.error, ValueError, TypeError, KeyError):  # a damaged file: as if it were not there
            path.unlink(missing_ok=True)
            packed = generated(name, lambda: _translated(game, path)).read_bytes()
        return packed


def _translated(game: Game, path: Path) -> bytes:
    """A new file's content; where there are many already the oldest half of its folder goes first."""
    with contextlib.suppress(OSError):  # no folder yet, or another process clears it too
        files = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)
        if len(files) >= MAX_FILES:
            for file in files[: len(files) // 2]:
                file.unlink(missing_ok=True)
    return _pack(translate(game))


def translate(game: Game) -> Translation:
    """Translates a game; nothing is cached.

    Raises:
        TaskError: its PDDL is wrong.
        CallerError: the translator is not installed.
    """
    with _streams_kept():
        try:
            from fast_downward import pddl2sas
        except ImportError as error:
            raise CallerError(f"there is no fast_downward [task alfworld]. {INSTALL}.") from error
        try:
            task, sas = pddl2sas(game.domain, game.problem)
        except (Exception, SystemExit) as error:  # the translator ends the interpreter on some faults
            raise TaskError(
                f"the game's PDDL cannot be translated: {type(error).__name__}: {error!s:.300} [{game.where}]. "
                "Download or generate it again."
            ) from error
    return _read(task, sas, game.where)


def _read(task: Any, sas: str, where: str) -> Translation:
    if TRIVIAL in sas:
        how = "can never be reached" if "begin_goal\n1\n0 1\n" in sas else "is reached at the start"
        raise TaskError(f"the goal of the game {how} [{where}]. Leave the game out, or generate it again.")
    facts = []
    for atom in task.init:
        predicate = getattr(atom, "predicate", None)
        if predicate is not None and predicate != "=":
            facts.append((predicate, *atom.args))
    for values, initial in _variables(sas):
        name = _NAMES.fullmatch(values[initial])
        if name is not None and name["sign"] == "Atom":
            facts.append((name["predicate"], *_split(name["arguments"])))
    changed = {effect.literal.predicate for action in task.actions for effect in action.effects}
    short, words = _shortened(sas, where)
    return Translation(
        sas=short,
        words=words,
        types={kind.name: list(kind.supertype_names) for kind in reversed(task.types)},
        objects={thing.name: thing.type_name for thing in task.objects},
        parameters={
            action.name: [(parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters]
            for action in task.actions  # of several with one name the last counts, as in TextWorld
        },
        facts=sorted(set(facts)),
        fluents=sorted(changed),
    )


def _variables(sas: str) -> Iterator[tuple[list[str], int]]:
    """The value names of each variable, and the number of its initial value."""
    blocks = re.findall(r"^begin_variable\n.*\n.*\n\d+\n((?:.*\n)+?)end_variable$", sas, re.MULTILINE)
    state = re.search(r"^begin_state\n((?:\d+\n)*)end_state$", sas, re.MULTILINE)
    initial = state[1].split() if state is not None else []
    for block, value in zip(blocks, initial, strict=True):
        yield block.splitlines(), int(value)


def _shortened(sas: str, where: str) -> tuple[str, list[str]]:
    """The task with numbers for words in its names, and the words."""
    numbers: dict[str, str] = {}

    def number(word: str) -> str:
        return numbers.setdefault(word, str(len(numbers)))

    def short(found: re.Match[str]) -> str:
        if found["sign"] is None:
            name = " ".join(map(number, found["operator"].split()))
            whole = f"begin_operator\n{name}"
        else:
            whole = name = (
                f"{found['sign']} {number(found['predicate'])}({', '.join(map(number, _split(found['arguments'])))})"
            )
        if len(name) >= NAME_BYTES:
            raise TaskError(f"a name in the game has too many words [{where}]. Use actions with few parameters.")
        return whole

    return _NAMES.sub(short, sas), list(numbers)


def _split(arguments: str) -> list[str]:
    return [argument for argument in arguments.split(", ") if argument]


def read_operator(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Action and arguments of an operator's name.

    >>> read_operator("0 2 1", ["opened", "agent1", "fridge_bar_01"])
    ('opened', 'fridge_bar_01', 'agent1')
    """
    return tuple(words[int(number)] for number in name.split())


def read_atom(name: str, words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Predicate and arguments of an atom's name.

    >>> read_atom("NegatedAtom 0(2)", ["opened", "agent1", "fridge_bar_01"])
    ('not_opened', ('fridge_bar_01',))
    """
    sign, _, rest = name.partition(" ")
    predicate, _, arguments = rest[:-1].partition("(")
    word = words[int(predicate)]
    return (
        f"not_{word}" if sign == "NegatedAtom" else word,
        tuple(words[int(number)] for number in _split(arguments)),
    )


def _version() -> str:
    try:
        return metadata.version("fast-downward-textworld")
    except metadata.PackageNotFoundError as error:
        raise CallerError(f"there is no fast-downward-textworld [task alfworld]. {INSTALL}.") from error


def _pack(translation: Translation) -> bytes:
    body = json.dumps(asdict(translation), separators=(",", ":")).encode()
    return zlib.compress(hashlib.sha256(body).digest() + body, 3)


def _unpack(packed: bytes) -> Translation:
    content = zlib.decompress(packed)
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("a damaged translation")
    data = json.loads(body)
    data["facts"] = [tuple(fact) for fact in data["facts"]]
    data["parameters"] = {
        action: [(name, kind) for name, kind in parameters] for action, parameters in data["parameters"].items()
    }
    return Translation(**data)


@contextlib.contextmanager
def _streams_kept() -> Iterator[None]:
    """Gives back what the translator overwrites: the arguments and the output of the process."""
    arguments, output = sys.argv, sys.stdout
    sys.argv, sys.stdout = ["translate.py", "domain", "task"], io.StringIO()
    try:
        yield
    finally:
        sys.argv, sys.stdout = arguments, output
