"""ALFWorld's own games: folders as its archives have them, AgentBench's lists of games, and what is wrong with either.

The layout is `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`. A split without a list is every game of its folder that
upstream would play, in the order of paths. A list is one of AgentBench's files, whose order and numbers are kept. The
files are only read; what was found in them is kept in the cache folder, by their sizes and times.

Not here: whether a game's grammar may be used (engine.py).
"""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated
from agentbench_fc.episode import Sample
from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, did_you_mean
from agentbench_fc.tasks.alfworld.generate import TASK_TYPES
from agentbench_fc.tasks.alfworld.scenes import SAME_SPLIT

LAYOUT = "json_2.1.1"
GAME = "game.tw-pddl"
KEYS = ("pddl_domain", "grammar", "pddl_problem")
SPLITS = {
    "train": "ALFWorld's train games",
    "valid_train": "ALFWorld's 200 train games for validation",
    "valid_seen": "ALFWorld's games in rooms of train",
    "valid_unseen": "ALFWorld's games in other rooms",
}
INDEX_FILES = {"dev": "dev.json", "std": "new_std.json", "standard": "standard.json", "train": "train_valid.json"}
"""Split -> AgentBench's file."""
RELEASES = {
    "move {o} to {r}": '2.1 ("move X to Y")',
    "put {o} in/on {r}": '0.2 ("put X in/on Y")',
}
"""How the grammar puts a thing down -> the release of the archives that says so."""
SHOWN = 5
MADE_BY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
"""Names this module's files in the cache: what another version of it has found is never read."""
_PUT = re.compile(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"')


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one game file."""

    game: str
    """Path below the folder of the layout."""
    fault: str = ""
    """Why it cannot be played; empty if it can."""
    solvable: bool = True
    """What the file says. ALFWorld leaves the others out, though most of them can be won."""
    release: str = ""
    sha256: str = ""
    walkthrough: tuple[str, ...] = ()

    @property
    def task_type(self) -> str:
        """Its task type, by the name of its folder."""
        return task_type(self.game)


class OfficialGames:
    """Games below a folder, in its own splits or in AgentBench's.

    Args:
        root: The folder with `json_2.1.1`, or that folder itself.
        index: AgentBench's `alfworld` folder, or one of its files; None: the folder's own splits.
        task_type: Only games of this kind; ids stay.
        allow_missing: Leave out games that cannot be played, instead of refusing the split.

    Raises:
        CallerError: there are no games, or no lists, in that place.
    """

    def __init__(
        self,
        root: Path,
        *,
        index: Path | None = None,
        task_type: str | None = None,
        allow_missing: bool = False,
    ) -> None:
        self.root = find_layout(root)
        self._task_type, self._allow_missing = task_type, allow_missing
        self._index = None if index is None else find_index(index)
        if self._index is None:
            self.splits: Mapping[str, str] = {
                split: text for split, text in SPLITS.items() if (self.root / split).is_dir()
            }
        else:
            self.splits = {split: f"AgentBench's list {path.name}" for split, path in self._index.items()}
        self._found: dict[str, list[Found]] = {}
        self._finding = threading.Lock()

    @cached_property
    def source(self) -> str:
        """The layout's name and the release that the first game shows."""
        first = next((path for split in SPLITS for path in (self.root / split).glob(f"*/*/{GAME}")), None)
        release = look_at(self.root, first.relative_to(self.root).as_posix()).release if first else "none"
        lists = ", AgentBench's lists" if self._index is not None else ""
        return f"ALFWorld's games {self.root.name}, release {release}{lists}"

    def samples(self, split: str) -> Sequence[Sample]:
        """The games of a split; `dev` and `test` are the two valid ones, where no list has that name.

        Raises:
            NotFound: no such split.
            CallerError: some of its games are missing or damaged, and `allow_missing` is off.
        """
        if split not in self.splits and SAME_SPLIT.get(split) in self.splits:
            split = SAME_SPLIT[split]
        found = self.found(split)
        faulty = [game for game in found if game.fault]
        if faulty and not self._allow_missing:
            shown = "; ".join(f"{game.game}: {game.fault}" for game in faulty[:SHOWN])
            more = f"; and {len(faulty) - SHOWN} more" if len(faulty) > SHOWN else ""
            raise CallerError(
                f"{len(faulty)} of {len(found)} games of {split!r} cannot be played [{self.root}]: {shown}{more}. "
                "Get archives that have them, or give allow_missing=true to play the others."
            )
        kept = [
            (number, game)
            for number, game in enumerate(found)
            if not game.fault
            and self._task_type in (None, game.task_type)
            and (game.solvable or self._index is not None)  # AgentBench plays what it lists
        ]
        return tuple(
            Sample(f"alfworld/{split}/{number}", index, split, sample_data(game))
            for index, (number, game) in enumerate(kept)
        )

    def found(self, split: str) -> Sequence[Found]:
        """Every game of a split with what is wrong with it, before anything is left out.

        Raises:
            NotFound: no such split.
        """
        if split not in self.splits:
            raise NotFound(f"no split {split!r} [{self.root}]. {did_you_mean(split, self.splits)}")
        with self._finding:
            if split not in self._found:
                self._found[split] = self._find(split)
            return self._found[split]

    def _find(self, split: str) -> list[Found]:
        if self._index is not None:
            return listing(self.root, read_index(self._index[split]))
        paths = sorted(path.relative_to(self.root).as_posix() for path in (self.root / split).glob(f"*/*/{GAME}"))
        return listing(self.root, [path for path in paths if task_type(path) in TASK_TYPES and "Sliced" not in path])

    def content(self, sample: Sample) -> Mapping[str, Any]:
        """What its `game.tw-pddl` holds.

        Raises:
            InfrastructureError: it cannot be read, or is no game.
        """
        return read_game(self.path(sample))

    def path(self, sample: Sample) -> Path:
        """Its `game.tw-pddl`."""
        return self.root / str(sample.data["game"])


def sample_data(game: Found) -> dict[str, Any]:
    """What a sample knows of its game; the folder's name says what is wanted."""
    parts = game.game.split("/")[-3].split("-")
    return {
        "game": game.game,
        "task_type": game.task_type,
        "level": None,
        "goal": {"object": parts[1], "receptacle": parts[-2]} if len(parts) == 5 else None,
        "walkthrough": list(game.walkthrough),
    }


def task_type(game: str) -> str:
    """The task type in a path `…/<task>/<trial>/game.tw-pddl`."""
    return game.split("/")[-3].partition("-")[0]


def find_layout(root: Path) -> Path:
    """The folder whose subfolders are splits.

    Raises:
        CallerError: there is none.
    """
    root = root.expanduser()
    if not root.is_dir():
        raise CallerError(f"no such folder: {root} [task alfworld, data]. Name the folder with {LAYOUT}.")
    for folder in (root, root / LAYOUT):
        if any((folder / split).is_dir() for split in SPLITS):
            return folder
    raise CallerError(
        f"there are no games in it [{root}]. It needs {LAYOUT}/<{'|'.join(SPLITS)}>/<task>/<trial>/{GAME}; "
        "alfworld-download gets them."
    )


def find_index(index: Path) -> Mapping[str, Path]:
    """Split -> AgentBench's list of it.

    Raises:
        CallerError: there is none.
    """
    index = index.expanduser()
    if index.is_file():
        names = {path: split for split, path in INDEX_FILES.items()}
        return {names.get(index.name, index.stem): index}
    found = {split: index / name for split, name in INDEX_FILES.items() if (index / name).is_file()}
    if not found:
        raise CallerError(
            f"there are no lists of games in it [{index}]. Name AgentBench's data/alfworld folder or one of "
            f"{', '.join(INDEX_FILES.values())}."
        )
    return found


def read_index(path: Path) -> list[str]:
    """The games of one of AgentBench's lists, in its order, as paths below the folder of the layout.

    Raises:
        CallerError: it is no such list.
    """
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
        games = [str(game).removeprefix(f"{LAYOUT}/") for group in groups.values() for game in group]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CallerError(f"the list of games cannot be read: {error} [{path}]. Get AgentBench's file.") from error
    for game in games:
        if len(game.split("/")) < 4 or ".." in game.split("/") or game.startswith("/") or not game.endswith(GAME):
            raise CallerError(f"{game!r:.120} is no game of the layout [{path}]. Use <split>/<task>/<trial>/{GAME}.")
    return games


def listing(root: Path, games: Sequence[str]) -> list[Found]:
    """What is known of some games; read anew only where files have changed."""
    stats = [_stat(root / game) for game in games]
    text = json.dumps([MADE_BY, str(root.resolve()), list(zip(games, stats, strict=True))])
    name = f"alfworld/listing-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    build = lambda: json.dumps([asdict(look_at(root, game)) for game in games]).encode()  # noqa: E731
    path = generated(name, build)
    try:
        return _read_listing(path)
    except (ValueError, TypeError, KeyError):  # a damaged file: as if it were not there
        path.unlink(missing_ok=True)
        return _read_listing(generated(name, build))


def _read_listing(path: Path) -> list[Found]:
    rows = json.loads(path.read_bytes())
    return [Found(**{**row, "walkthrough": tuple(row["walkthrough"])}) for row in rows]


def look_at(root: Path, game: str) -> Found:
    """Reads one game file."""
    path = root / game
    try:
        content = read_game(path)
    except InfrastructureError as error:
        return Found(game, fault=str(error).partition(" [")[0])
    walkthrough = content.get("walkthrough")
    put = _PUT.search(str(content["grammar"]))
    return Found(
        game,
        solvable=content.get("solvable") is True,
        release=RELEASES.get(put[1], "unknown") if put else "unknown",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        walkthrough=tuple(map(str, walkthrough)) if isinstance(walkthrough, list) else (),
    )


def read_game(path: Path) -> dict[str, Any]:
    """A `game.tw-pddl` as it is.

    Raises:
        InfrastructureError: it is not there, damaged, no game, or one of two in its folder.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InfrastructureError(f"the game is not there [{path}]. Get ALFWorld's archives that have it.") from error
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"the game cannot be read: {error} [{path}]. Get the file again.") from error
    lacking = [key for key in KEYS if not isinstance(content, dict) or not isinstance(content.get(key), str)]
    if lacking:
        raise InfrastructureError(f"it is no game: {', '.join(lacking)} missing [{path}]. Get the file again.")
    others = [other.name for other in path.parent.glob("*.tw-pddl") if other.name != path.name]
    if others:
        raise InfrastructureError(
            f"two games in one folder, with {others[0]} [{path}]. traj_data.json can only describe one; move the other."
        )
    return dict(content)


def report(games: OfficialGames, split: str) -> dict[str, Any]:
    """What a split holds: games of each kind, releases, a hash of the whole, and every game with a fault."""
    found = games.found(split)
    whole = [game for game in found if not game.fault]
    text = "\n".join(f"{game.sha256} {game.game}" for game in sorted(whole, key=lambda game: game.game))
    return {
        "split": split,
        "games": len(whole),
        "types": dict(sorted(Counter(game.task_type for game in whole).items())),
        "releases": dict(Counter(game.release for game in whole)),
        "said_unsolvable": sum(not game.solvable for game in whole),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "faults": {game.game: game.fault for game in found if game.fault},
    }


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
        return found.st_size, found.st_mtime_ns, sum(1 for _ in path.parent.glob("*.tw-pddl"))
    except OSError:
        return -1, -1, 0
