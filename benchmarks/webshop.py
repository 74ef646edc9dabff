"""What a WebShop session costs, for a catalogue of 1,000 products and, with `--large`, of 1.18 million.

    python benchmarks/webshop.py [--large [PRODUCTS]] [--agents]

Prints, per catalogue: steps per second of scripted episodes, search, reset and purchase (medians), the time to open,
and the private memory of a fresh process that has opened it and played. The large catalogue is built in a stream; the
peak memory of the build is printed. Bounds that hold on any machine are checked, and a broken one exits with 1: opening
at most 50 times, and searching at most 200 times, what the small catalogue takes; under 150 MB private; under 2 GB to
build.

`--agents` prints how well scripted shoppers do on the levels of the generated catalogue, beside the original.
No ratio to the original engine is printed: it needs a JVM and its own environment. WebShop's text environment was
measured once on such a machine at 6.5-9 steps/s, 172-199 ms a search, 143-196 ms a purchase.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.session import Session
from agentbench_fc.tasks.webshop.catalogue import Catalogue
from agentbench_fc.tasks.webshop.generate import generate, generated_catalogue
from agentbench_fc.tasks.webshop.shop import Shop
from agentbench_fc.tasks.webshop.task import WebShopTask

FULL_SIZE = 1_181_436
BOUNDS = {"open": 50, "search": 200}
PRIVATE_MB = 150
BUILD_MB = 2048


def main() -> int:
    """Measures and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", nargs="?", type=int, const=FULL_SIZE, metavar="PRODUCTS")
    parser.add_argument("--agents", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    if options.build:
        print(json.dumps(build(options.build, options.large)))
        return 0
    if options.agents:
        print_agents()
        return 0
    return compare(options.large)


def compare(large: int | None) -> int:
    """Measures both catalogues in processes of their own and checks the bounds."""
    with tempfile.TemporaryDirectory(prefix="webshop-") as scratch:
        small = in_child("--build", scratch + "/small", "--large", "1000") and in_child("--measure", scratch + "/small")
        report("1,000 products", small)
        if not large:
            return 0
        built = in_child("--build", scratch + "/large", "--large", str(large))
        print(f"{large:,} products built in {built['seconds']:.0f} s, peak {built['peak_mb']:.0f} MB")
        big = in_child("--measure", scratch + "/large")
        report(f"{large:,} products", big)
    failures = [f"build took {built['peak_mb']:.0f} MB"] if built["peak_mb"] > BUILD_MB else []
    failures += [f"{big['private_mb']:.0f} MB private"] if big["private_mb"] > PRIVATE_MB else []
    for name, bound in BOUNDS.items():
        ratio = big[f"{name}_ms"] / small[f"{name}_ms"]
        print(f"{name}: {ratio:.1f}x the small catalogue (at most {bound}x)")
        failures += [f"{name} is {ratio:.0f}x"] if ratio > bound else []
    print("FAILED: " + "; ".join(failures) if failures else "all bounds hold")
    return bool(failures)


def in_child(*arguments: str) -> dict[str, Any]:
    """Runs this file with other arguments in a fresh process and reads its last line."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def build(folder: Path, products: int) -> dict[str, float]:
    """Writes a generated catalogue."""
    start = time.perf_counter()
    generate(tasks_root() / "webshop", folder, level="medium", seed=0, products=products)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.perf_counter() - start, "peak_mb": peak}


def measure(folder: Path) -> dict[str, float]:
    """Opens a catalogue and plays; times in milliseconds."""
    opened, catalogue = timed(lambda: Catalogue(folder))
    task = load_task("webshop", catalogue=str(folder), call_timeout_s=None)
    assert isinstance(task, WebShopTask)
    samples = [task.samples("train")[n] for n in range(0, 300)] if catalogue.goal_count > 2000 else task.samples("test")
    steps, start = 0, time.perf_counter()
    for sample in samples[:300]:
        steps += play(task, sample)
    per_second = steps / (time.perf_counter() - start)
    goals = [catalogue.goal(n) for n in range(200)]
    searches = [timed(lambda g=goal: catalogue._search(g.instruction))[0] for goal in goals]  # type: ignore[misc]
    resets = [timed(lambda s=sample: Session(task, s).start())[0] for sample in samples[:200]]  # type: ignore[misc]
    purchases = []
    for goal in goals:
        shop = Shop(catalogue, goal)
        shop.view = replace(shop.view, kind="item", asin=goal.asin)
        purchases.append(timed(lambda s=shop: s.click("buy now"))[0])  # type: ignore[misc]
    return {
        "open_ms": opened,
        "steps_per_s": per_second,
        "search_ms": statistics.median(searches),
        "reset_ms": statistics.median(resets),
        "buy_ms": statistics.median(purchases),
        "private_mb": private_mb(),
    }


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, and the result."""
    start = time.perf_counter()
    result = act()
    return (time.perf_counter() - start) * 1e3, result


def play(task: WebShopTask, sample: Any) -> int:
    """One expert episode; its number of steps."""
    session = Session(task, sample)
    turn = session.start()
    expert = task.expert(sample)
    move = next(expert)
    while True:
        assert isinstance(move, ToolCall)
        turn = session.interact([assistant(None, [move])])
        if turn.finish:
            return turn.turn
        move = expert.send(turn)


def private_mb() -> float:
    """Memory of this process alone, in MB: its dirty pages. Clean pages of the mapped files belong to every process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


def report(name: str, figures: dict[str, Any]) -> None:
    """One row."""
    print(
        f"{name}: {figures['steps_per_s']:,.0f} steps/s, search {figures['search_ms']:.2f} ms, "
        f"reset {figures['reset_ms']:.2f} ms, buy {figures['buy_ms']:.2f} ms, open {figures['open_ms']:.1f} ms, "
        f"{figures['private_mb']:.0f} MB private"
    )


def print_agents(goals: int = 300) -> None:
    """Scripted shoppers per level: mean reward and success in percent."""
    print("catalogue | target in top 1 / 10 / 50 | first hit | first hit, options | right item, no options | page 1")
    print("original 1k | .56 / .88 / .97 | 61.8 (23.3) | 71.7 (56.0) | 85.8 (45.7) | 26.2 (5.3)")
    for level in ("easy", "medium", "hard"):
        catalogue = generated_catalogue(tasks_root() / "webshop", level=level)
        ranks, agents = scripted(catalogue, goals)
        shares = " / ".join(f"{sum(rank < top for rank in ranks) / goals:.2f}".lstrip("0") for top in (1, 10, 50))
        cells = [f"{100 * statistics.mean(a):.1f} ({100 * sum(r == 1 for r in a) / goals:.1f})" for a in agents]
        print(f"{level} | {shares} | {' | '.join(cells)}")


def scripted(catalogue: Catalogue, count: int) -> tuple[list[int], list[list[float]]]:
    """Rank of the target, and the rewards of four shoppers, for the first goals."""
    rng = random.Random(0)
    ranks: list[int] = []
    agents: list[list[float]] = [[], [], [], []]

    def buy(goal: Any, asin: str, *, options: bool) -> float:
        shop = Shop(catalogue, goal)
        shop.view = replace(shop.view, kind="item", asin=asin)
        for values in catalogue.product(asin).options.values() if options else ():
            if named := [value for value in values if value in goal.instruction]:
                shop.click(max(named, key=len))
        shop.click("buy now")
        assert shop.score is not None
        return shop.score.reward

    for number in range(count):
        goal = catalogue.goal(number)
        found = list(catalogue.search(goal.instruction.lower()))
        ranks.append(found.index(goal.asin) if goal.asin in found else len(found))
        agents[0].append(buy(goal, found[0], options=False))
        agents[1].append(buy(goal, found[0], options=True))
        agents[2].append(buy(goal, goal.asin, options=False))
        agents[3].append(buy(goal, rng.choice(found[:10]), options=False))
    return ranks, agents


if __name__ == "__main__":
    sys.exit(main())
