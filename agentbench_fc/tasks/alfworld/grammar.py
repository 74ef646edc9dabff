"""A game's text grammar, parsed by TextWorld's own parser once per machine and kept as JSON in the cache folder.

A grammar is a list of symbols for each command and each rule. A symbol is one of

    ["text", "You open the "]                      plain text
    ["rule", "list_separator"]                     the first rule of that name whose condition holds
    ["value", "r.name"]                            an expression on the variables
    ["each", symbol, query or null]                the symbol, once for each answer of the query
    ["list", symbol]                               the same, with commas and "and" between

and a query is a list of `[predicate, [[variable, type], ...]]`, all of which have to hold.

Not here: what a grammar yields in a state (text.py); which grammars are accepted (gamefile.py).
"""

import hashlib
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated
from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.alfworld.gamefile import Game
from agentbench_fc.tasks.alfworld.native import INSTALL

MADE_BY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
"""Names this module's files in the cache: what another version of it has made is never read."""
Symbol = list[Any]
Query = list[Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to write a text; `condition` is a query, or None where it always holds."""

    symbols: list[Symbol]
    condition: Query | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """How a command reads, and what is answered to it."""

    template: list[Symbol]
    feedback: list[Symbol]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A parsed grammar."""

    actions: dict[str, Action]
    rules: dict[str, list[Rule]]


class Grammars:
    """Parsed grammars by hash, from memory, disk or TextWorld's parser. Not for several threads at once."""

    def __init__(self, *, kept: int = 8) -> None:
        self._kept = kept
        self._parsed: OrderedDict[str, Grammar] = OrderedDict()

    def of(self, game: Game) -> Grammar:
        """The grammar of a game, still without its goal sentence.

        Raises:
            TaskError: it cannot be parsed.
            CallerError: the parser is not installed.
        """
        key = game.grammar_hash
        if key not in self._parsed:
            self._parsed[key] = _from_disk(game)
            if len(self._parsed) > self._kept:
                self._parsed.popitem(last=False)
        return self._parsed[key]


def parse(game: Game) -> Grammar:
    """Parses a game's grammar; nothing is cached.

    Raises:
        TaskError: it cannot be parsed.
        CallerError: the parser is not installed.
    """
    try:
        from textworld.envs.pddl.logic import GameLogic
        from textworld.envs.pddl.textgen import ContextSensitiveGrammar
    except ImportError as error:
        raise CallerError(f"TextWorld cannot be imported: {error} [task alfworld]. {INSTALL}.") from error

    def symbols(text: str) -> list[Symbol]:
        if not text:
            return []
        parsed = ContextSensitiveGrammar.parse(json.dumps({"it": [{"rhs": text}]}))
        return [_symbol(symbol) for symbol in parsed._rules["it"][0].rhs]

    try:
        logic = GameLogic(game.domain, game.grammar)
        actions = {
            name: Action(symbols(action.template), symbols(action.feedback_rule))
            for name, action in logic.actions.items()
        }
        rules = {
            name: [Rule([_symbol(symbol) for symbol in way.rhs], _query(way.condition)) for way in ways]
            for name, ways in logic.grammar._rules.items()
        }
    except Exception as error:  # the parser raises many kinds
        raise TaskError(
            f"the game's grammar cannot be parsed: {type(error).__name__}: {error!s:.300} [{game.where}]. "
            "Download or generate it again."
        ) from error
    return Grammar(actions, rules)


def _symbol(symbol: Any) -> Symbol:
    kind = type(symbol).__name__
    if kind == "TerminalSymbol":
        return ["text", str(symbol.symbol)]
    if kind == "NonterminalSymbol":
        return ["rule", str(symbol.symbol)]
    if kind == "EvalSymbol":
        return ["value", str(symbol.expression)]
    if kind == "ConditionalSymbol":
        return ["each", _symbol(symbol.expression), _query(symbol.given)]
    if kind == "ListSymbol":
        return ["list", _symbol(symbol.symbol)]
    raise ValueError(f"a symbol of kind {kind}")


def _query(text: str | None) -> Query | None:
    if not text:
        return None
    from textworld.logic import Rule as Parsed

    return [
        [predicate.name, [[variable.name, variable.type] for variable in predicate.parameters]]
        for predicate in Parsed.parse_conjunctive_query(text).preconditions
    ]


def _from_disk(game: Game) -> Grammar:
    name = f"alfworld/grammars-{MADE_BY}-{_version()}/{game.grammar_hash}.json"
    path = generated(name, lambda: json.dumps(asdict(parse(game))).encode())
    try:
        return _read(path.read_bytes())
    except (ValueError, TypeError, KeyError):  # a damaged file: as if it were not there
        path.unlink(missing_ok=True)
        return _read(generated(name, lambda: json.dumps(asdict(parse(game))).encode()).read_bytes())


def _read(content: bytes) -> Grammar:
    data = json.loads(content)
    return Grammar(
        {name: Action(**action) for name, action in data["actions"].items()},
        {name: [Rule(**rule) for rule in rules] for name, rules in data["rules"].items()},
    )


def _version() -> str:
    try:
        return metadata.version("textworld")
    except metadata.PackageNotFoundError as error:
        raise CallerError(f"there is no textworld [task alfworld]. {INSTALL}.") from error
