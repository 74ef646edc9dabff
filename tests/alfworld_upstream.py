"""ALFWorld's own engine, unmodified, served by a child process: its imports set variables and make folders."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

ODD = ("", "jump", "go to nowhere 1", " look ", "LOOK", "take", "go to  fridge 1")


class Upstream:
    """Plays games as TextWorld's `PddlEnv` under ALFWorld's names does."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv

        self._env: Any = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))

    def trace(self, *, path: str, steps: int, seed: int) -> list[list[Any]]:
        """Plays a game's walkthrough, then random commands: `[command, feedback, admissible, won]` for each."""
        self._env.load(path)
        state = self._env.reset()
        rng = random.Random(seed)
        seen = [["", state.feedback, state["admissible_commands"], state["won"]]]
        for command in json.loads(Path(path).read_text(encoding="utf-8"))["walkthrough"]:
            seen.append(self._step(command))
        for _ in range(steps):
            known = seen[-1][2]
            seen.append(self._step(rng.choice(known) if rng.random() < 0.9 else rng.choice(ODD)))
        return seen

    def names(self, *, ids: list[str]) -> dict[str, str]:
        """What a player reads for ids."""
        from types import SimpleNamespace

        from alfworld.agents.utils.misc import Demangler

        demangler = Demangler(game_infos={name: SimpleNamespace(id=name) for name in ids})
        return {name: demangler.demangle_alfred_name(name) for name in ids}

    def _step(self, command: str) -> list[Any]:
        state, score, done = self._env.step(command)
        assert score == done == state["won"]
        return [command, state.feedback, state["admissible_commands"], state["won"]]

    def close(self) -> None:
        """Frees the library."""
        from fast_downward import close_lib

        close_lib(self._env.unwrapped.downward_lib)
