"""Where games come from: generated ones, or ALFWorld's own files.

Not here: how a game is made (generate.py, pddl.py) and played (engine.py).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentbench_fc.episode import Sample
from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.tasks.alfworld.generate import TASK_TYPES
from agentbench_fc.tasks.alfworld.scenes import LEVELS


class Games(Protocol):
    """A set of games in splits. A sample's data names its `game`, `task_type`, `level`, `goal` and `walkthrough`."""

    @property
    def splits(self) -> Mapping[str, str]:
        """Name -> one line about it."""
        ...

    @property
    def source(self) -> str:
        """What the games are and of which version, for results."""
        ...

    def samples(self, split: str) -> Sequence[Sample]:
        """The games of a split.

        Raises:
            NotFound: no such split.
        """
        ...

    def content(self, sample: Sample) -> Mapping[str, Any]:
        """What the sample's `game.tw-pddl` holds.

        Raises:
            InfrastructureError: it cannot be read, or is no game.
        """
        ...

    def path(self, sample: Sample) -> Path:
        """The sample's `game.tw-pddl`; a generated game is written into the cache."""
        ...


def open_games(
    folder: Path,
    *,
    data: str | Path | None = None,
    index: str | Path | None = None,
    level: str | None = None,
    task_type: str | None = None,
    seed: int | None = None,
    train_games: int | None = None,
    allow_missing: bool = False,
) -> Games:
    """The games that the options of the task mean.

    Args:
        folder: The task's data folder.
        data: A folder with ALFWorld's games (`json_2.1.1/<split>/…`), or `official` for `$ALFWORLD_DATA`. None:
            generated games.
        index: AgentBench's lists of games: its `alfworld` folder or one of the files in it; `agentbench` means
            `$AGENTBENCH_DATA/alfworld`. None: every game of the folder.
        level: Only generated games of this level: `easy`, `normal` or `hard`.
        task_type: Only games of this kind.
        seed: Another set of generated rooms and games.
        train_games: How many generated games `train` has; there is no most.
        allow_missing: Leave out games that an index lists and the folder lacks, instead of refusing.

    Raises:
        CallerError: an option that does not exist or does not fit, a folder that is not there.
    """
    _check_word("task_type", task_type, TASK_TYPES)
    _check_word("level", level, LEVELS)
    for name, number, least in (("seed", seed, None), ("train_games", train_games, 1)):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or (least is not None and number < least)
        ):
            raise CallerError(
                f"{name} is {number!r:.80} [task alfworld]. Use a whole number{' above 0' * bool(least)}."
            )
    if data is None:
        if index is not None or allow_missing:
            raise CallerError(
                "index and allow_missing are for ALFWorld's own games [task alfworld]. Give data=official or a folder."
            )
        from agentbench_fc.tasks.alfworld.generated import TRAIN_GAMES, GeneratedGames

        return GeneratedGames(
            folder,
            level=level,
            task_type=task_type,
            seed=seed or 0,
            train_games=TRAIN_GAMES if train_games is None else train_games,
        )
    if (level, seed, train_games) != (None, None, None):
        raise CallerError("level, seed and train_games are for generated games [task alfworld]. Leave out data.")
    from agentbench_fc.tasks.alfworld.official import OfficialGames

    return OfficialGames(
        _place(data, "data", "official", "ALFWORLD_DATA", ""),
        index=None if index is None else _place(index, "index", "agentbench", "AGENTBENCH_DATA", "alfworld"),
        task_type=task_type,
        allow_missing=allow_missing,
    )


def _check_word(name: str, word: str | None, known: Sequence[str]) -> None:
    if word is not None and word not in known:
        raise CallerError(f"no {name} {word!r:.80} [task alfworld]. {did_you_mean(str(word), known)}")


def _place(given: str | Path, option: str, short: str, variable: str, below: str) -> Path:
    if not isinstance(given, (str, Path)) or not str(given):
        raise CallerError(f"{option} is {given!r:.80} [task alfworld]. Give a path, or {short!r}.")
    if given != short:
        return Path(given).expanduser()
    root = os.environ.get(variable)
    if not root:
        raise CallerError(f"{variable} is not set [task alfworld, {option}={short}]. Set it, or give a path.")
    return Path(root).expanduser() / below
