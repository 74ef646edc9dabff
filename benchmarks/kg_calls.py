"""What a KG tool call costs: the embedded store against Virtuoso with the same graph.

    python benchmarks/kg_calls.py                       (starts a private Virtuoso on loopback)
    python benchmarks/kg_calls.py --endpoint URL        (asks one that holds the generated world)

Each run plays the gold plans of the same samples call by call, each with empty caches, through the episode that a
session uses; the replies must be equal. Runs alternate. A call's time is its shortest of all runs: on a busy machine a
process that computes is interrupted far more often than one that waits for a server. Only calls that ask the graph are
compared (lists and answers; making a variable asks nothing). The bound: of a typical one, the median, an embedded call
takes at most 1/20 of the time of one on Virtuoso. The sum of all calls stands beside it; there the few lists of large
sets weigh most. The last line tells what a query in a child process costs against one in this process, without a bound.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import truediv
from pathlib import Path
from typing import Any, cast

from agentbench_fc.episode import Sample
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.kg.backend import OxigraphBackend
from agentbench_fc.tasks.kg.endpoint import EndpointBackend
from agentbench_fc.tasks.kg.episode import KGEpisode, Rules
from agentbench_fc.tasks.kg.generate import generated_world
from agentbench_fc.tasks.kg.plans import MAKES_VARIABLE, PARAMETERS, read_action
from agentbench_fc.tasks.kg.task import KGTask

MAX_SHARE = 1 / 20
Run = Callable[[], tuple[list[str], list[float]]]
"""Plays all plans: the replies, and the seconds of each call that asks the graph."""


def player(rules: Rules, samples: Sequence[Sample]) -> Run:
    """Plays the gold plans on a backend, with nothing remembered from before."""
    backend = cast(Any, rules.backend)

    def run() -> tuple[list[str], list[float]]:
        replies: list[str] = []
        seconds: list[float] = []
        for sample in samples:
            backend.predicates.cache_clear()  # else a call that an earlier sample made is answered from memory on both
            backend.members.cache_clear()
            episode = KGEpisode(sample, rules)
            calls = [read_action(action) for action in sample.data["actions"]]
            made = sum(name in MAKES_VARIABLE for name, _ in calls)
            for name, values in [*calls, ("submit_answer", [f"#{made - 1}"])]:
                arguments = dict(zip(PARAMETERS.get(name, ("variable",)), values, strict=True))
                start = time.perf_counter()
                reply = episode.call(name, arguments)
                if name not in MAKES_VARIABLE:
                    seconds.append(time.perf_counter() - start)
                replies.append(f"{reply.content} {reply.metrics}")
            assert reply.success, sample.id
        return replies, seconds

    return run


@dataclass(frozen=True)
class Comparison:
    """Two ways over alternating pairs of runs."""

    quartiles: tuple[float, float, float]
    """Of slow over fast, call by call."""
    summed: float
    """Slow over fast, all calls together."""
    slow_ms: float
    fast_ms: float


def compare(slow: Run, fast: Run, pairs: int) -> Comparison:
    """Times two ways of playing the same calls."""
    assert slow()[0] == fast()[0], "a faster wrong answer is no claim"  # also the warm-up
    runs: dict[Run, list[list[float]]] = {slow: [], fast: []}
    for i in range(pairs):
        for run in (slow, fast) if i % 2 else (fast, slow):
            runs[run].append(run()[1])
    slowest, fastest = ([min(call) for call in zip(*runs[run], strict=True)] for run in (slow, fast))
    low, median, high = statistics.quantiles(map(truediv, slowest, fastest), n=4)
    count = len(fastest)
    return Comparison(
        (low, median, high), sum(slowest) / sum(fastest), sum(slowest) / count * 1e3, sum(fastest) / count * 1e3
    )


@contextmanager
def virtuoso(graph: Path) -> Iterator[tuple[str, str | None]]:
    """Address and named graph of a private Virtuoso that holds the file."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from kg_virtuoso import GRAPH, Virtuoso, installed  # type: ignore[import-not-found]

    if not installed():
        sys.exit("no virtuoso-t and isql-vt here: apt-get install virtuoso-opensource-7-bin, or give --endpoint")
    server = Virtuoso()
    try:
        server.load(graph.read_bytes())
        yield server.url, GRAPH
    finally:
        server.close()


@contextmanager
def given(url: str, graph: str | None) -> Iterator[tuple[str, str | None]]:
    yield url, graph


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--endpoint", help="address of a server that holds the generated world")
    parser.add_argument("--graph", help="its named graph")
    options = parser.parse_args()
    task = cast(KGTask, load_task("kg"))
    rules = task._rules
    samples = task.samples("test")[: options.samples]
    file = generated_world(tasks_root() / "kg")[0].graph()
    children = OxigraphBackend(cheap_steps=0)
    children.load(file)
    embedded = player(rules, samples)
    in_child = player(replace(rules, backend=children), samples)
    print(
        f"{len(samples)} gold plans a run, {options.pairs} interleaved pairs, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    with given(options.endpoint, options.graph) if options.endpoint else virtuoso(file) as (url, graph):
        remote = player(replace(rules, backend=EndpointBackend(url, graph=graph)), samples)
        there = compare(remote, embedded, options.pairs)
    low, median, high = there.quartiles
    print(
        f"a call on Virtuoso: {median:.0f}x [{low:.0f}, {high:.0f}] the time of one on the embedded store, "
        f"bound {1 / MAX_SHARE:.0f}x; all calls {there.summed:.0f}x, "
        f"{there.slow_ms:.2f} ms and {there.fast_ms:.3f} ms each"
    )
    child = compare(in_child, embedded, options.pairs)
    print(
        f"a query in a child: {child.quartiles[1]:.1f}x the time of one in this process, "
        f"{child.slow_ms - child.fast_ms:.3f} ms more"
    )
    children.close()
    task.close()
    return int(median < 1 / MAX_SHARE)


if __name__ == "__main__":
    sys.exit(main())
