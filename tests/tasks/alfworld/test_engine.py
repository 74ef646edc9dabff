"""The engine on its own: sessions that share a game, bad input, and what stays behind."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alfworld_toys import contents, need_engine

from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, TaskError
from agentbench_fc.tasks.alfworld import grammar as grammar_module
from agentbench_fc.tasks.alfworld import translation
from agentbench_fc.tasks.alfworld.engine import NOTHING, Engine, Game, Play, Seen
from agentbench_fc.tasks.alfworld.native import Library, library_file, separable
from agentbench_fc.tasks.alfworld.translation import translate

ODD = ["", " ", "fly", "look around", "x" * 100_000, "\x00\x1b[2J\x07", "去冰箱 1", "go to fridge 1; look", "{r.name}"]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    need_engine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(loaded=4)
    yield engine
    engine.close()


def games(count: int) -> list[Game]:
    return [Game.read(content) for content in contents(count)]


def walk(play: Play, steps: int, seed: int) -> list[Seen]:
    """Random commands, some of them odd, and what is seen."""
    rng = random.Random(seed)
    seen = [play.seen]
    for _ in range(steps):
        command = rng.choice(seen[-1].admissible) if rng.random() < 0.9 else rng.choice(ODD)
        seen.append(play.step(command))
    return seen


def test_a_walkthrough_wins_and_the_start_has_not_won(engine: Engine) -> None:
    for game in games(6):
        play = engine.start(game)
        assert not play.seen.won
        assert game.goal in play.seen.feedback
        for command in game.walkthrough:
            assert not play.seen.won
            assert command in play.seen.admissible
            play.step(command)
        assert play.seen.won
        assert play.moves == len(game.walkthrough)


@pytest.mark.parametrize("command", ODD, ids=range(len(ODD)))
def test_what_is_not_admissible_changes_nothing(engine: Engine, command: str) -> None:
    play = engine.start(games(1)[0])
    before = play.seen
    seen = play.step(command)
    assert (seen.feedback, seen.acted, seen.admissible, seen.won) == (NOTHING, False, before.admissible, False)
    assert play.moves == 0
    assert play.step("look").feedback.startswith("You are in the middle of a room")


def test_blanks_around_a_command_do_not_count(engine: Engine) -> None:
    assert engine.start(games(1)[0]).step("  look\n").acted


def test_interleaved_sessions_give_the_serial_traces(engine: Engine) -> None:
    six = games(6)
    serial = [walk(engine.start(six[n % 6]), 25, n) for n in range(32)]
    plays = [engine.start(six[n % 6]) for n in range(32)]
    rngs = [random.Random(n) for n in range(32)]
    traces = [[play.seen] for play in plays]
    order = random.Random(0)
    for _ in range(25):
        for n in order.sample(range(32), 32):  # six games and four places: games are thrown out and come back
            admissible = traces[n][-1].admissible
            command = rngs[n].choice(admissible) if rngs[n].random() < 0.9 else rngs[n].choice(ODD)
            traces[n].append(plays[n].step(command))
    assert traces == serial
    assert engine.loads > 6


def test_threads_share_an_engine(engine: Engine) -> None:
    three = games(3)
    serial = [walk(engine.start(three[n % 3]), 20, n) for n in range(16)]
    traces: dict[int, list[Seen]] = {}

    def run(n: int) -> None:
        traces[n] = walk(engine.start(three[n % 3]), 20, n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [traces[n] for n in range(16)] == serial


def test_a_fork_goes_its_own_way(engine: Engine) -> None:
    game = games(1)[0]
    play = engine.start(game)
    for command in game.walkthrough[:-1]:
        play.step(command)
    twin = play.fork()
    assert twin.seen == play.seen
    assert twin.step(game.walkthrough[-1]).won
    other = play.step("inventory")
    assert not other.won
    assert "carrying: a" in other.feedback
    assert "not carrying" in twin.step("inventory").feedback
    assert walk(play.fork(), 20, 1) == walk(play.fork(), 20, 1)


def test_a_game_that_was_thrown_out_comes_back_where_it_was() -> None:
    engine = Engine(loaded=1)
    first, second = games(2)
    expected = walk(engine.start(first), 12, 5)
    play = engine.start(first)
    rng = random.Random(5)
    for seen in expected[1:]:
        engine.start(second)
        command = rng.choice(play.seen.admissible) if rng.random() < 0.9 else rng.choice(ODD)
        assert play.step(command) == seen
    engine.close()
    assert play.step("look").acted  # even after a close: it loads again
    engine.close()


def test_texts_do_not_depend_on_hash_seeds(tmp_path: Path) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(contents(1)[0]), encoding="utf-8")
    code = (
        "import sys\nfrom agentbench_fc.tasks.alfworld.engine import Engine, Game\n"
        "play = Engine().start(Game.load(sys.argv[1]))\nprint(play.seen)\n"
        "for command in play.game.walkthrough: print(play.step(command))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def held_inodes() -> int:
    """Deleted files that this process still maps or holds open."""
    maps = {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("(deleted)")}
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that lists them
            continue
    return len(maps) + len([link for link in links if link.endswith("(deleted)")])


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_stays_behind() -> None:
    before = held_inodes()
    engine = Engine(loaded=4)
    six = games(6)

    def episodes(count: int) -> None:
        for n in range(count):
            play = engine.start(six[n % 6])
            for command in play.game.walkthrough:
                play.step(command)
            assert play.seen.won

    episodes(60)  # fills what is kept on purpose
    held, memory, open_files = held_inodes(), rss_mb(), len(os.listdir("/proc/self/fd"))
    episodes(120)
    assert held_inodes() <= held <= before + 4 * 4 + 4
    assert rss_mb() - memory < 5
    assert len(os.listdir("/proc/self/fd")) == open_files
    engine.close()
    assert held_inodes() == before
    for _ in range(3):  # opening anew after a close used to crash with other copies of the library
        engine = Engine(loaded=40)
        for content in contents(6):
            for n in range(6):
                engine.start(Game.read({**content, "pddl_problem": content["pddl_problem"] + f"\n;{n}"}))
        engine.close()


# game files


def test_a_game_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no game file .*game\.tw-pddl"):
        Game.load(tmp_path / "game.tw-pddl")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"grammar": 1}', '{"pddl_domain": "", "pddl_problem": ""}', "[" * 100_000, '"\\ud800'],
    ids=range(8),
)
def test_a_damaged_file_is_the_data_s_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match=r"game\.tw-pddl"):
        Game.load(path)


def test_a_cut_file_is_the_data_s_fault(tmp_path: Path) -> None:
    path = tmp_path / "game.tw-pddl"
    whole = json.dumps(contents(1)[0]).encode()
    for cut in (1, 1000, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(TaskError, match="cut or damaged"):
            Game.load(path)
    path.write_bytes(b"\xff\xfe" + whole)
    with pytest.raises(TaskError, match="cannot be read"):
        Game.load(path)


def changed(**parts: Any) -> dict[str, Any]:
    return {**contents(1)[0], **parts}


def test_only_known_grammars_load() -> None:
    grammar = contents(1)[0]["grammar"]
    evil = grammar.replace("You open the {r.name}.", "You open the {__import__('os').system('true')}.")
    assert evil != grammar
    with pytest.raises(CallerError, match="grammar is not known.*trust_games"):
        Game.read(changed(grammar=evil))
    assert Game.read(changed(grammar=evil), trust=True).grammar_hash != Game.read(changed()).grammar_hash


def test_a_goal_sentence_cannot_bring_code_in() -> None:
    content = contents(1)[0]
    goal = Game.read(content).goal
    for bad in ("{r.name}", "#intro#", "a [b]", 'a." }], "x": [{ "rhs": "b', "a\\n", " a", "", "b" * 500):
        with pytest.raises((TaskError, CallerError), match=r"goal|grammar is not known"):
            Game.read(changed(grammar=content["grammar"].replace(goal, bad)))
    with pytest.raises(TaskError, match="0 goals"):
        Game.read(changed(grammar=content["grammar"].replace("Your task is to", "Please")))


def test_expressions_of_a_trusted_grammar_are_read_not_run(engine: Engine, tmp_path: Path) -> None:
    grammar = contents(1)[0]["grammar"]
    witness = tmp_path / "ran"
    for expression in (f"open('{witness}', 'w')", "r.__class__", "().__class__", "1 + 1", "r.name * 9", "x.name"):
        evil = grammar.replace("You arrive at {r.name}.", f"You arrive at {{{expression}}}.")
        assert evil != grammar
        play = engine.start(Game.read(changed(grammar=evil), trust=True))
        with pytest.raises(TaskError, match=r"expression|parsed"):
            play.step(play.seen.admissible[0])
    assert not witness.exists()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("pddl_problem", ""),
        ("pddl_problem", "(define (problem x)"),
        ("pddl_problem", "(" * 50_000),
        ("pddl_domain", "nonsense"),
        ("pddl_domain", "(define (domain alfred))"),
    ],
    ids=["empty", "cut", "deep", "no domain", "empty domain"],
)
def test_wrong_pddl_is_the_data_s_fault(engine: Engine, part: str, value: str) -> None:
    with pytest.raises(TaskError, match="cannot be translated.*here"):
        engine.start(Game.read(changed(**{part: value}), where="here"))
    assert engine.start(games(1)[0]).step("look").acted  # and the engine goes on


def test_long_names_do_not_reach_the_library(engine: Engine) -> None:
    content = contents(1)[0]
    long = content["pddl_problem"].replace("loc_bar_", f"loc_bar_{'1' * 2000}")  # the library has room for 1024
    play = engine.start(Game.read(changed(pddl_problem=long)))
    for command in content["walkthrough"]:
        play.step(command)
    assert play.seen.won
    before, help_, after = content["pddl_domain"].partition("(:action help")
    wide = after.replace("(?a - agent)", f"(?a {' '.join(f'?b{n}' for n in range(600))} - agent)", 1)
    with pytest.raises(TaskError, match="too many words"):
        engine.start(Game.read(changed(pddl_domain=before + help_ + wide)))


def test_ids_are_ascii(engine: Engine) -> None:
    problem = contents(1)[0]["pddl_problem"].replace("loc_bar_1", "loc_bar_ä")
    with pytest.raises(TaskError, match="Non-ASCII"):
        engine.start(Game.read(changed(pddl_problem=problem)))


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ("(isReceptacleObject TennisRacket_bar_01)", "can never be reached"),
        ("(objectType TennisRacket_bar_01 TennisRacketType)", "is reached at the start"),
    ],
)
def test_a_game_with_nothing_to_do_is_named(engine: Engine, goal: str, words: str) -> None:
    problem, _, _ = contents(1)[0]["pddl_problem"].partition("(:goal")
    with pytest.raises(TaskError, match=rf"the goal of the game {words} \[here\]"):
        engine.start(Game.read(changed(pddl_problem=f"{problem}(:goal {goal}))"), where="here"))


def test_domain_and_grammar_have_to_fit(engine: Engine) -> None:
    grammar = contents(1)[0]["grammar"].replace("action OpenObject", "action UncoverObject")
    with pytest.raises(TaskError, match=r"no words for openobject \[here\]"):
        engine.start(Game.read(changed(grammar=grammar), where="here", trust=True))


def test_copies_of_the_library_are_small_and_share_nothing() -> None:
    whole = library_file().read_bytes()
    copy = separable(whole)
    assert len(copy) < len(whole) / 10
    assert separable(b"MZ, of another system") == b"MZ, of another system"
    first, second = Library(copy), Library(copy)
    task = translate(games(1)[0]).sas.encode()
    start = first.load(task)
    second.load(translate(games(2)[1]).sas.encode())
    operators = first.applicable(start)
    assert first.apply(start, operators[0]) >= 0
    second.close()
    second.close()
    assert first.applicable(start) == operators
    first.close()


KILLED = """
import ctypes, os, signal, sys
from agentbench_fc.tasks.alfworld.native import Library

class Killed:
    def __init__(self, path):
        assert open(path, "rb").read() == b"a copy"
        os.kill(os.getpid(), signal.SIGKILL)

ctypes.CDLL = Killed
Library(b"a copy")
"""


def test_a_process_that_is_killed_while_it_loads_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_runs_nothing_from_memory_plays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    one, other = Engine(), Engine()
    assert one.start(games(1)[0]).seen == other.start(games(1)[0]).seen
    one.close()
    other.close()
    with pytest.raises(InfrastructureError, match=f"cannot be loaded.*{tmp_path}.*Point TMPDIR"):
        Library(b"no library")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_grammar_is_the_data_s_fault(engine: Engine) -> None:
    goal = '"rhs": "Your task is to: look."'
    with pytest.raises(TaskError, match="cannot be parsed"):
        engine.start(Game.read(changed(grammar=f"grammar :: {goal}"), trust=True))


def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    game = games(1)[0]
    first = Engine()
    expected = first.start(game).seen
    first.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    for damage in (b"", b"junk", None):
        for path in files:
            path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
        engine = Engine()
        assert engine.start(game).seen == expected
        engine.close()


@pytest.mark.parametrize("module", [translation, grammar_module])
def test_what_another_version_has_cached_is_not_read(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest().startswith(module.MADE_BY)
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    for made_by in (module.MADE_BY, "another"):
        monkeypatch.setattr(module, "MADE_BY", made_by)
        engine = Engine()
        engine.start(games(1)[0])
        engine.close()
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3


def test_an_engine_needs_room() -> None:
    with pytest.raises(CallerError, match="0 games"):
        Engine(loaded=0)
