"""The engine: plays ALFWorld's games with TextWorld's state machine and grammar, many sessions in one process.

    engine = Engine()
    play = engine.start(Game.load("…/game.tw-pddl"))
    play.seen.feedback, play.seen.admissible
    play.step("go to fridge 1").feedback

Observations equal those of TextWorld's `PddlEnv` with ALFWorld's names, one by one. What is different is the work: a
game is translated once per machine and loaded once per process; its sessions share the loaded library and differ only
in the number of their state and in their facts, so that a start or a fork copies a few sets; texts of commands are made
once per game.

A process keeps a bounded number of games loaded. A session whose game had to leave comes back by playing its moves
again, which nobody notices.

Not here: files (gamefile.py), translation (translation.py), texts (text.py), processes (workers.py).
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.alfworld.gamefile import Game
from agentbench_fc.tasks.alfworld.grammar import Grammar, Grammars, Symbol
from agentbench_fc.tasks.alfworld.naming import display_names
from agentbench_fc.tasks.alfworld.native import Library, library_file, separable
from agentbench_fc.tasks.alfworld.text import Entity, Facts, Place, Thing, View, Writer
from agentbench_fc.tasks.alfworld.translation import Translation, Translations, read_atom, read_operator

__all__ = ["NOTHING", "Engine", "Game", "Play", "Seen"]

NOTHING = "Nothing happens."
LOADED = 64
"""Games loaded at once in a process; each takes a few MB."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a player sees after the start or a command."""

    feedback: str
    admissible: tuple[str, ...]
    """Commands that do something now, sorted."""
    won: bool
    acted: bool = True
    """Whether the command was one of the admissible ones."""


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of a game, as far as it has been met."""

    command: str | None
    """None: it depends on the state."""
    action: str
    mapping: dict[Place, Thing]
    effects: int


class _Board:
    """A game that is ready to be played: what all its sessions share."""

    def __init__(self, game: Game, translation: Translation, grammar: Grammar) -> None:
        if unknown := sorted(set(translation.parameters) - set(grammar.actions)):
            raise TaskError(
                f"the grammar has no words for {', '.join(unknown)} [{game.where}]. "
                "Domain and grammar are of different releases; download or generate the game again."
            )
        names = display_names({thing for _, *arguments in translation.facts for thing in arguments})
        objects = translation.objects
        entities = {thing: Entity(thing, names.get(thing, thing), kind) for thing, kind in objects.items()}
        self.game = game
        self.key = (game.key, game.grammar_hash, game.goal)
        self.library: Library | None = None
        self.loading = 0
        """Counts the times that it was loaded: a state's number holds for one of them."""
        self.first = 0
        """The number of the initial state."""
        self._operators: dict[int, _Operator] = {}
        self._writer = Writer(grammar, game.goal, entities, translation.types)
        self.facts: Facts = {}
        self.seen: Seen | None = None
        """What every session of this game sees first."""
        self.commands: dict[str, int] = {}
        self._grammar = grammar
        self._objects = objects
        self._parameters = translation.parameters
        self._words = translation.words
        self._fluents = frozenset(translation.fluents)
        self._effects: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
        for predicate, *arguments in translation.facts:
            self.add(self.facts, predicate, tuple(arguments))

    def add(self, facts: Facts, predicate: str, arguments: tuple[str, ...]) -> None:
        """Makes a fact true."""
        facts.setdefault(self._signature(predicate, arguments), set()).add(arguments)

    def drop(self, facts: Facts, predicate: str, arguments: tuple[str, ...]) -> None:
        """Makes a fact untrue."""
        facts.get(self._signature(predicate, arguments), set()).discard(arguments)

    def _signature(self, predicate: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        return predicate, tuple(self._objects[thing] for thing in arguments)

    def effects(self, library: Library, state: int, number: int) -> list[tuple[str, tuple[str, ...]]]:
        """The facts that an operator makes true."""
        if number not in self._effects:
            count = self._operators[number].effects
            self._effects[number] = [read_atom(name, self._words) for name in library.effects(state, number, count)]
        return self._effects[number]

    def load(self, library: Library, task: bytes) -> None:
        """Loads the game into a library."""
        self.first = library.load(task)
        self.library = library
        self.loading += 1

    def intro(self) -> str:
        """The first feedback."""
        return self._writer.write([["rule", "intro"]], View(self.facts, {}))

    def look_up(self, library: Library, state: int, facts: Facts) -> dict[str, int]:
        """Command -> operator, for the operators that apply now; of several with one command the first counts."""
        numbers = library.applicable(state)
        if any(number not in self._operators for number in numbers):
            for number, (name, effects) in library.described(len(numbers)).items():
                if number not in self._operators:
                    self._operators[number] = self._operator(name, effects)
        commands: dict[str, int] = {}
        for number in numbers:
            operator = self._operators[number]
            commands.setdefault(operator.command or self._command(operator, facts), number)
        return commands

    def _operator(self, name: str, effects: int) -> _Operator:
        action, *arguments = read_operator(name, self._words)
        mapping: dict[Place, Thing] = {
            (parameter, kind): (thing, kind)
            for (parameter, kind), thing in zip(self._parameters[action], arguments, strict=False)
        }
        operator = _Operator(None, action, mapping, effects)
        if self._depends_on_state(self._grammar.actions[action].template):
            return operator
        return _Operator(self._command(operator, self.facts), action, mapping, effects)

    def _command(self, operator: _Operator, facts: Facts) -> str:
        return self._writer.write(self._grammar.actions[operator.action].template, View(facts, operator.mapping))

    def _depends_on_state(self, symbols: list[Symbol]) -> bool:
        for kind, inner, *query in symbols:
            if kind == "rule":
                return True  # it may, and the known grammars have none here
            if kind in ("each", "list") and self._depends_on_state([inner]):
                return True
            if any(predicate.removeprefix("not_") in self._fluents for predicate, _ in (query and query[0]) or ()):
                return True
        return False

    def feedback(self, number: int, facts: Facts) -> str:
        """What is answered to an operator, in the state that it led to."""
        operator = self._operators[number]
        return self._writer.write(self._grammar.actions[operator.action].feedback, View(facts, operator.mapping))


class Play:
    """One session of a game; made by `Engine.start`."""

    def __init__(self, engine: "Engine", board: _Board, seen: Seen) -> None:
        self._engine = engine
        self._board = board
        self._loading = board.loading
        self._state = board.first
        self._facts = _copied(board.facts)
        self._moves: list[int] = []
        self._commands = board.commands
        self.seen = seen
        """The newest observation."""

    @property
    def game(self) -> Game:
        """What is played."""
        return self._board.game

    @property
    def facts(self) -> Facts:
        """What is true now; not to be changed."""
        return self._facts

    @property
    def moves(self) -> int:
        """Commands that did something so far."""
        return len(self._moves)

    def step(self, command: str) -> Seen:
        """Plays a command; one that is not admissible changes nothing."""
        with self._engine.lock:
            number = self._commands.get(command.strip())
            if number is None:
                self.seen = replace(self.seen, feedback=NOTHING, acted=False)
                return self.seen
            library = self._library()
            effects = self._board.effects(library, self._state, number)
            self._state = library.apply(self._state, number)
            for predicate, arguments in effects:
                self._board.drop(self._facts, _opposite(predicate), arguments)
                self._board.add(self._facts, predicate, arguments)
            self._moves.append(number)
            self._commands = self._board.look_up(library, self._state, self._facts)
            feedback = self._board.feedback(number, self._facts)
            self.seen = Seen(feedback, tuple(sorted(self._commands)), library.is_goal(self._state))
            return self.seen

    def fork(self) -> "Play":
        """An independent session in the present state."""
        with self._engine.lock:
            twin = Play(self._engine, self._board, self.seen)
            twin._loading, twin._state = self._loading, self._state
            twin._facts = _copied(self._facts)
            twin._moves = list(self._moves)
            twin._commands = self._commands
            return twin

    def _library(self) -> Library:
        """The library with this game; the state is found again if it was loaded anew since the last move."""
        library = self._engine.loaded(self._board)
        if self._loading != self._board.loading:
            self._state = self._board.first
            for number in self._moves:
                self._state = library.apply(self._state, number)
            self._loading = self._board.loading
        return library


class Engine:
    """Games that are loaded in this process, and their sessions. Safe to use from several threads, one at a time.

    Args:
        loaded: So many games stay loaded at once.
    """

    def __init__(self, *, loaded: int = LOADED) -> None:
        if loaded < 1:
            raise CallerError(f"an engine with {loaded} games loaded cannot play [task alfworld]. Use 1 or more.")
        self.lock = threading.Lock()
        self.loads = 0
        """Times that a game was loaded."""
        self._limit = loaded
        self._translations = Translations()
        self._grammars = Grammars()
        self._boards: OrderedDict[tuple[str, str, str], _Board] = OrderedDict()
        """Those that are loaded, the one used last at the end."""
        self._known: WeakValueDictionary[tuple[str, str, str], _Board] = WeakValueDictionary()
        """Those too that had to leave, as long as they have sessions."""
        self._content: bytes | None = None

    def start(self, game: Game) -> Play:
        """A session at the beginning of a game.

        Raises:
            TaskError: the game's PDDL or grammar is wrong.
            CallerError: what plays it is not installed.
            InfrastructureError: the library cannot be loaded.
        """
        with self.lock:
            key = (game.key, game.grammar_hash, game.goal)
            board = self._known.get(key)
            if board is None:
                board = _Board(game, self._translations.of(game), self._grammars.of(game))
                self._known[key] = board
            library = self.loaded(board)
            if board.seen is None:
                board.commands = board.look_up(library, board.first, board.facts)
                board.seen = Seen(board.intro(), tuple(sorted(board.commands)), library.is_goal(board.first))
            return Play(self, board, board.seen)

    def loaded(self, board: _Board) -> Library:
        """The library with a game, which takes the place of the game that was used least recently if it must."""
        if board.library is None:
            task = self._translations.of(board.game).sas.encode("ascii")
            board.load(self._free_library(), task)
            self.loads += 1
            self._boards[board.key] = board
        self._boards.move_to_end(board.key)
        assert board.library is not None
        return board.library

    def _free_library(self) -> Library:
        if len(self._boards) >= self._limit:
            _, oldest = self._boards.popitem(last=False)
            assert oldest.library is not None
            library, oldest.library = oldest.library, None
            return library
        if self._content is None:
            self._content = separable(library_file().read_bytes())
        return Library(self._content)

    def close(self) -> None:
        """Unloads everything; sessions can load it again."""
        with self.lock:
            while self._boards:
                _, board = self._boards.popitem()
                if board.library is not None:
                    board.library.close()
                    board.library = None


def _copied(facts: Facts) -> Facts:
    return {signature: set(known) for signature, known in facts.items()}


def _opposite(predicate: str) -> str:
    return predicate.removeprefix("not_") if predicate.startswith("not_") else f"not_{predicate}"
