"""A game file: `game.tw-pddl`, JSON with a PDDL domain and problem, a text grammar and a walkthrough.

The grammar of a game file is code to TextWorld, which evaluates its expressions. Here expressions are read by a small
evaluator of our own (text.py), and still only grammars that are known by their hash load; the goal sentence, which
differs from game to game, has to be plain text. `trust=True` lets other grammars in.

Not here: what a game's parts mean (translation.py, grammar.py); where game files lie (games.py).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from agentbench_fc.errors import CallerError, NotFound, TaskError

MAX_FILE_BYTES = 8 * 2**20
"""The largest official game has 0.2 MB."""
NO_GOAL = "UNKNOWN GOAL"
"""Stands in a grammar in place of the goal sentence."""
_GOAL = re.compile(r'("rhs": "Your task is to: )([^"\n]*)(\.")')
_PLAIN = re.compile(r"[^;|\"<>\[\]#{}\\/\x00-\x1f\x7f]{1,400}")
KNOWN_GRAMMARS: Mapping[str, str] = {
    "c5b22f0f73309a7fd7c8e5b71de42ad4803b60766ab4a51cc2feb34162be036b": "alfworld 0.4.2, as installed",
    "cce0702cd250cc6af6c3ea047a21f6c4c1c8d29a1739efefb5221ef4c3dcac57": "the games of alfworld's release 0.4.2",
}
"""sha256 of a grammar without its goal -> where it comes from."""


@dataclass(frozen=True)
class Game:
    """The parts of one game, checked for their form."""

    domain: str
    problem: str
    grammar: str
    """Without its goal sentence; equal for all games of a release."""
    goal: str
    """The goal sentence, as in "put a clean knife in diningtable"."""
    walkthrough: tuple[str, ...] = ()
    where: str = "a game"
    """For messages: the file or sample."""

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Self:
        """Reads a game file.

        Args:
            path: The file.
            trust: Load grammars that are not known too.

        Raises:
            NotFound: there is no such file.
            TaskError: it is damaged.
            CallerError: its grammar is not known.
        """
        path = Path(path)
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise TaskError(f"the game file takes over {MAX_FILE_BYTES} bytes [{path}]. It is no game; remove it.")
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise NotFound(f"there is no game file [{path}]. Check the path, or list the split's games.") from error
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"the game file cannot be read: {error} [{path}]. Download it again.") from error
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"the game file is cut or damaged: {error} [{path}]. Download it again.") from error
        return cls.read(data, where=str(path), trust=trust)

    @classmethod
    def read(cls, data: Any, *, where: str = "a game", trust: bool = False) -> Self:
        """Takes the content of a game file; errors as in `load`."""
        if not isinstance(data, Mapping):
            raise TaskError(f"the game is a {type(data).__name__} [{where}]. A game file holds a JSON object.")
        for key in ("pddl_domain", "pddl_problem", "grammar"):
            if not isinstance(data.get(key), str):
                raise TaskError(f"the game has no text {key!r} [{where}]. Download or generate it again.")
        walkthrough = data.get("walkthrough") or ()
        if not isinstance(walkthrough, list | tuple) or not all(isinstance(command, str) for command in walkthrough):
            raise TaskError(f"the walkthrough is no list of commands [{where}]. Download or generate it again.")
        grammar, goal = _without_goal(data["grammar"], where)
        game = cls(data["pddl_domain"], data["pddl_problem"], grammar, goal, tuple(walkthrough), where)
        if not trust and game.grammar_hash not in KNOWN_GRAMMARS:
            raise CallerError(
                f"the game's grammar is not known: sha256 {game.grammar_hash[:16]}… [{where}]. A grammar is code: "
                "use games of a known release, or trust_games=True if you know where these come from."
            )
        return game

    @cached_property
    def grammar_hash(self) -> str:
        """sha256 of the grammar without its goal."""
        return hashlib.sha256(self.grammar.encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """Names the translation: equal domains and problems have equal ones."""
        return hashlib.sha256(f"{self.domain}\0{self.problem}".encode()).hexdigest()


def _without_goal(grammar: str, where: str) -> tuple[str, str]:
    found = _GOAL.findall(grammar)
    if len(found) != 1:
        raise TaskError(f"the grammar names {len(found)} goals, not one [{where}]. Download or generate it again.")
    goal = found[0][1]
    if not _PLAIN.fullmatch(goal) or goal != goal.strip():
        raise TaskError(f"the goal sentence is not plain text: {goal!r:.80} [{where}]. Use letters and commas.")
    return _GOAL.sub(rf"\g<1>{NO_GOAL}\g<3>", grammar), goal
