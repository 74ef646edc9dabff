"""What ALFWorld's engine costs here and upstream: starts, steps, memory, and what is left behind.

    python benchmarks/alfworld_engine.py                    (12 generated games of the level normal)
    python benchmarks/alfworld_engine.py --games FOLDER     (game files below a folder, such as json_2.1.1)

Upstream is TextWorld's `PddlEnv` under ALFWorld's names, unmodified; both engines run in this process, game by game in
turns, and must give the same observations. Times are CPU seconds of this process, so that other work on the machine
does not count; a ratio is the median over the games, with its quartiles. Bounds: a start of a game that this process
has loaded is 30 times cheaper, one of a game that only the disk cache knows 5 times, a step 8 times. The first start
ever, which translates the game, stands beside them without a bound.

Memory is that of a process of the task's own pool: 300 episodes may add 5 MB and leave no deleted file mapped or open,
and 64 sessions, of as many games as there are, may take 400 MB.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from agentbench_fc.registry import tasks_root
from agentbench_fc.tasks.alfworld.engine import Engine, Game, Play
from agentbench_fc.tasks.alfworld.games import open_games
from agentbench_fc.tasks.alfworld.workers import Room, Workers

WARM, COLD, STEP = 30.0, 5.0, 8.0
GROWTH_MB, LIVE_MB = 5.0, 400.0
EPISODES, LIVE = 300, 64
STEPS = 12
TIMEOUT_S = 120.0
P = ParamSpec("P")
T = TypeVar("T")


def timed(run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    start = time.process_time()
    result = run(*args, **kwargs)
    return result, time.process_time() - start


@dataclass
class Ratios:
    """Upstream's seconds over ours, one pair for each game."""

    name: str
    bound: float | None
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def told(self) -> bool:
        """Prints the ratio; whether it is within the bound."""
        low, middle, high = statistics.quantiles([old / new for old, new in self.pairs], n=4)
        old, new = (statistics.median(seconds) * 1e3 for seconds in zip(*self.pairs, strict=True))
        bound = "" if self.bound is None else f", bound {self.bound:g}x"
        print(f"{self.name}: {middle:.0f}x [{low:.0f}, {high:.0f}]{bound}  ({old:.2f} ms upstream, {new:.2f} ms here)")
        return self.bound is None or middle >= self.bound


def upstream_env() -> Any:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ALFWORLD_DATA", folder)  # its import makes the folder that this names
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))


def opened(env: Any, path: Path) -> None:
    env.load(str(path))
    env.reset()


def started(engine: Engine, path: Path) -> Play:
    return engine.start(Game.load(path))


def compare(paths: Sequence[Path]) -> list[Ratios]:
    first, cold, warm, step = (
        Ratios("first start ever", None),
        Ratios("start from the disk cache", COLD),
        Ratios("start of a loaded game", WARM),
        Ratios("step", STEP),
    )
    env = upstream_env()
    Engine().start(Game.load(paths[0]))  # imports, and the grammar's parser
    for number, path in enumerate(paths):
        _, old_start = timed(opened, env, path)
        never = Engine()
        _, seconds = timed(started, never, path)
        if number:  # the first game has been translated already
            first.pairs.append((old_start, seconds))
        never.close()
        engine = Engine()
        engine.start(Game.load(paths[number - 1]))  # an engine at work, which knows another game
        _, seconds = timed(started, engine, path)
        cold.pairs.append((old_start, seconds))
        play, seconds = timed(started, engine, path)
        warm.pairs.append((old_start, seconds))
        rng = random.Random(number)
        old_steps, new_steps = [], []
        for _ in range(STEPS):
            command = rng.choice(play.seen.admissible)
            (state, _, done), old = timed(env.step, command)
            seen, new = timed(play.step, command)
            assert (state.feedback, state["admissible_commands"], done) == (
                seen.feedback,
                list(seen.admissible),
                seen.won,
            ), path
            old_steps.append(old)
            new_steps.append(new)
        step.pairs.append((sum(old_steps) / STEPS, sum(new_steps) / STEPS))
        engine.close()
    return [first, cold, warm, step]


def held(pid: int) -> int:
    """Deleted files that a process maps or holds open."""
    process = Path(f"/proc/{pid}")
    maps = {line.split()[4] for line in (process / "maps").read_text().splitlines() if line.endswith("(deleted)")}
    opened = [os.readlink(link) for link in (process / "fd").iterdir()]
    return len(maps) + len([name for name in opened if name.endswith("(deleted)")])


def rss_mb(workers: Workers) -> tuple[float, int]:
    child = workers.pool.pin(timeout_s=TIMEOUT_S)
    found = child.rss_bytes / 2**20, child.pid
    workers.pool.unpin(child)
    return found


def win(room: Room, walkthrough: Sequence[str]) -> None:
    for command in walkthrough:
        room.step(command, timeout_s=TIMEOUT_S)
    assert room.seen.won
    room.close()


def memory(contents: Sequence[dict[str, Any]]) -> bool:
    workers = Workers(1)

    def start(number: int) -> Room:
        return workers.start(contents[number % len(contents)], where=f"game {number}", timeout_s=TIMEOUT_S)

    def episodes(count: int) -> None:
        for number in range(count):
            win(start(number), contents[number % len(contents)]["walkthrough"])

    episodes(2 * len(contents))  # fills what is kept on purpose
    before, pid = rss_mb(workers)
    held_before, files = held(pid), len(os.listdir(f"/proc/{pid}/fd"))
    episodes(EPISODES)
    after, pid_after = rss_mb(workers)
    left = held(pid) - held_before + len(os.listdir(f"/proc/{pid}/fd")) - files
    print(f"{EPISODES} episodes: {after - before:+.1f} MB of {before:.0f}, bound {GROWTH_MB:g} MB; files left: {left}")
    rooms = [start(number) for number in range(LIVE)]
    for room in rooms:
        room.step("look", timeout_s=TIMEOUT_S)
    live, _ = rss_mb(workers)
    print(f"{LIVE} live sessions of {min(LIVE, len(contents))} games: {live:.0f} MB, bound {LIVE_MB:g} MB")
    workers.close()
    return pid == pid_after and after - before < GROWTH_MB and left == 0 and live < LIVE_MB


@contextlib.contextmanager
def cache() -> Iterator[None]:
    """A cache folder of its own, so that first starts are first ones."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENTBENCH_FC_CACHE"] = folder
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, help="a folder with game.tw-pddl files; by default generated games")
    parser.add_argument("--count", type=int, default=12, help="games to compare (default 12)")
    args = parser.parse_args()
    with cache():
        games = open_games(tasks_root() / "alfworld", level="normal")
        samples = games.samples("train")[:LIVE]
        if args.games is None:
            paths = [games.path(sample) for sample in samples[: args.count]]
        else:
            every = sorted(args.games.rglob("game.tw-pddl"))
            paths = every[:: max(1, len(every) // args.count)][: args.count]
        print(f"{len(paths)} games, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        good = [ratios.told() for ratios in compare(paths)]
        good.append(memory([dict(games.content(sample)) for sample in samples]))
    sys.exit(0 if all(good) else "over a bound")


if __name__ == "__main__":
    main()
