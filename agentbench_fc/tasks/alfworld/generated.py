"""Generated games as splits: made when they are asked for, checked against the manifest when they are opened.

The default set is fixed by `manifest.json`, one sha256 for every 90 games: a changed generator is noticed, not shipped
by accident. `python -m agentbench_fc.tasks.alfworld.generated` rewrites the manifest; `generate_into` writes games as
ALFWorld's own programs read them.

Not here: how one game is made (generate.py), its files (pddl.py).
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from agentbench_fc.cache import generated
from agentbench_fc.episode import Sample
from agentbench_fc.errors import NotFound, TaskError, did_you_mean
from agentbench_fc.tasks.alfworld.generate import TASK_TYPES, Game, make_game
from agentbench_fc.tasks.alfworld.pddl import Wheel, dumped, find_wheel, game_file, problem, traj_data
from agentbench_fc.tasks.alfworld.scenes import LEVELS, SAME_SPLIT, World, read_world

TRAIN_GAMES = 1_800
VALID_GAMES = 180
BLOCK = 90
"""Games for each hash of the manifest; a multiple of the 18 pairs of task type and level."""
SPLITS = ("train", "valid_seen", "valid_unseen")


class GeneratedGames:
    """The generated games of one seed.

    Args:
        folder: The task's data folder, with world.yaml and manifest.json.
        level: Only games of this level; ids stay.
        task_type: Only games of this kind; ids stay.
        seed: Of rooms and games.
        train_games: Size of `train`, before level and task type take their part.
    """

    def __init__(
        self,
        folder: Path,
        *,
        level: str | None = None,
        task_type: str | None = None,
        seed: int = 0,
        train_games: int = TRAIN_GAMES,
    ) -> None:
        self._folder, self._seed = folder, seed
        self._sizes = {split: train_games if split == "train" else VALID_GAMES for split in SPLITS}
        kinds = range(len(TASK_TYPES) * len(LEVELS))
        self._kinds = [
            kind for kind in kinds if task_type in (None, TASK_TYPES[kind % 6]) and level in (None, LEVELS[kind // 6])
        ]
        self._verified: set[tuple[str, int]] = set()
        self._verifying = threading.Lock()
        self.splits = {
            "train": "games in 26 scenes of each kind of room",
            "valid_seen": "other tasks in the same scenes",
            "valid_unseen": "games in 4 other scenes of each kind of room",
        }
        self.source = f"generated games, seed {seed}"

    @cached_property
    def world(self) -> World:
        """What rooms are made of."""
        return read_world(self._folder / "world.yaml")

    @cached_property
    def _wheel(self) -> Wheel:
        return find_wheel()

    @cached_property
    def _place(self) -> str:
        texts = (self._folder / "world.yaml").read_text(encoding="utf-8"), self._wheel.domain, self._wheel.grammar
        return f"alfworld/{self._seed}-{_hash(chr(0).join(texts).encode())[:12]}"

    def samples(self, split: str) -> Sequence[Sample]:
        """The games of a split, made one by one as they are asked for; `dev` and `test` are the two valid ones."""
        split = SAME_SPLIT.get(split, split)
        if split not in SPLITS:
            raise NotFound(f"no split {split!r} [task alfworld]. {did_you_mean(split, SPLITS)}")
        return _Numbered(self, split, self._sizes[split], self._kinds)

    def game(self, split: str, number: int) -> Game:
        """One game, before it is written down."""
        return make_game(self.world, split, number, seed=self._seed)

    def content(self, sample: Sample) -> Mapping[str, Any]:
        """What its `game.tw-pddl` holds.

        Raises:
            InfrastructureError: the package `alfworld` is not installed.
            TaskError: the game is not the one that the manifest knows.
        """
        number = int(sample.id.rpartition("/")[2])
        self.verify(sample.split, number)
        return game_file(self.world, self.game(sample.split, number), self._wheel)

    def path(self, sample: Sample) -> Path:
        """Its `game.tw-pddl` in the cache, with `traj_data.json` beside it."""
        game = self.game(sample.split, int(sample.id.rpartition("/")[2]))
        content, place = dumped(self.content(sample)), f"{self._place}/{sample.split}/{game.folder}"
        about = dumped(traj_data(game))
        generated(f"{place}/traj_data.json", lambda: about, sha256=_hash(about))
        return generated(f"{place}/game.tw-pddl", lambda: content, sha256=_hash(content))

    def block_hash(self, split: str, block: int) -> str:
        """The sha256 of a block of games, without the texts of the package `alfworld`."""
        numbers = range(block * BLOCK, (block + 1) * BLOCK)
        digest = hashlib.sha256()
        for game in (self.game(split, number) for number in numbers):
            digest.update(json.dumps([problem(self.world, game), game.folder, game.wording, game.walkthrough]).encode())
        return digest.hexdigest()

    def verify(self, split: str, number: int) -> None:
        """Makes sure that the games around a number are those that the manifest knows; beyond it nothing is known.

        Raises:
            TaskError: they are not.
        """
        block = number // BLOCK
        hashes = read_manifest(self._folder) if self._seed == 0 else {}
        if block >= len(hashes.get(split, ())):
            return
        with self._verifying:
            if (split, block) in self._verified:
                return
            found = self.block_hash(split, block)
            if found != hashes[split][block]:
                raise TaskError(
                    f"generated games do not match their manifest: {found} is not {hashes[split][block]} "
                    f"[{split}, games {block * BLOCK} to {block * BLOCK + BLOCK - 1}]. "
                    "Reinstall the package, or rewrite the manifest if you changed the generator."
                )
            self._verified.add((split, block))


class _Numbered(Sequence[Sample]):
    """The samples of a split: every number whose task type and level are wanted."""

    def __init__(self, games: GeneratedGames, split: str, size: int, kinds: Sequence[int]) -> None:
        self._games, self._split, self._kinds = games, split, kinds
        rounds, rest = divmod(size, 18)
        self._size = rounds * len(kinds) + sum(kind < rest for kind in kinds)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        position = range(self._size)[index]
        rounds, at = divmod(position, len(self._kinds))
        number = rounds * 18 + self._kinds[at]
        return Sample(
            f"alfworld/{self._split}/{number}", position, self._split, _Data(self._games, self._split, number)
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self._size))


class _Data(Mapping[str, Any]):
    """What a sample knows of its game, which is only made when it is asked for: ids alone cost nothing."""

    def __init__(self, games: GeneratedGames, split: str, number: int) -> None:
        self._games, self._split, self._number = games, split, number

    @cached_property
    def _all(self) -> dict[str, Any]:
        return sample_data(self._games.game(self._split, self._number))

    def __getitem__(self, key: str) -> Any:
        return self._all[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


def sample_data(game: Game) -> dict[str, Any]:
    """What a sample knows of its game."""
    return {
        "game": f"{game.split}/{game.folder}/game.tw-pddl",
        "task_type": game.goal.task_type,
        "level": game.level,
        "goal": {"object": game.goal.thing, "receptacle": game.goal.place},
        "walkthrough": list(game.walkthrough),
    }


def generate_into(folder: Path, out: Path, *, split: str, games: int, seed: int = 0, level: str | None = None) -> int:
    """Writes games as `<out>/<split>/<task>/<trial>/`, which `AlfredTWEnv` reads; gives their number.

    Raises:
        NotFound: no such split.
        InfrastructureError: the package `alfworld` is not installed, or the folder cannot be written.
    """
    made = GeneratedGames(folder, seed=seed, level=level, train_games=games * (1 if level is None else 3))
    samples = made.samples(split)[:games]
    for sample in samples:
        place = out / str(sample.data["game"])
        place.parent.mkdir(parents=True, exist_ok=True)
        game = made.game(split, int(sample.id.rpartition("/")[2]))
        place.write_bytes(dumped(made.content(sample)))
        (place.parent / "traj_data.json").write_bytes(dumped(traj_data(game)))
    return len(samples)


def read_manifest(folder: Path) -> Mapping[str, Sequence[str]]:
    """Split -> the sha256 of each block of its games; nothing where there is no manifest."""
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    games: Mapping[str, Sequence[str]] = json.loads(path.read_text(encoding="utf-8"))["games"]
    return games


def write_manifest(folder: Path) -> None:
    """Rewrites manifest.json and samples.jsonl after a deliberate change of the generator."""
    games = GeneratedGames(folder)
    sizes = {"train": TRAIN_GAMES, "valid_seen": VALID_GAMES, "valid_unseen": VALID_GAMES}
    hashes = {split: [games.block_hash(split, n) for n in range(size // BLOCK)] for split, size in sizes.items()}
    manifest = {"seed": 0, "games_per_hash": BLOCK, "games": hashes}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    shown = [games.samples("train")[number] for number in (0, 1, 8, 9, 16, 17)]
    rows = [json.dumps({"id": sample.id, **sample.data}, ensure_ascii=False) for sample in shown]
    (folder / "samples.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    from agentbench_fc.registry import tasks_root

    write_manifest(tasks_root() / "alfworld")
