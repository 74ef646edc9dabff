"""Does the quick start learn from its rewards? Runs of it, and what they are to be held against.

    python -m agentrl_trainer.run seed=0 output=runs/real-0            the run itself
    python benchmarks/learning.py permuted seed=0 output=runs/permuted-0
    python benchmarks/learning.py imitation --out runs/imitation-0
    python benchmarks/learning.py page runs docs/results/quickstart.md

`permuted` is the same run whose trajectories get the rewards of others of their task, dealt out at random: same
statistics, same budget, and no word about what was done well. `imitation` goes on with supervised training on the
demonstrations that the start was made of. `page` writes the table and the plot of all runs in a folder; a run's name
begins with its kind.
"""

import argparse
import json
import random
import statistics
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentbench_fc.errors import AgentBenchError
from agentrl_trainer import launch
from agentrl_trainer.checkpoint import Cursor
from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import load_config
from agentrl_trainer.report import read_metrics
from agentrl_trainer.types import Group

KINDS = {
    "real": "reinforcement",
    "permuted": "rewards permuted within the task",
    "imitation": "supervised training goes on",
}
DECODINGS = {"sampled": "T = 0.8", "greedy": "greedy"}
POOL = 96
"""Newest rewards of a task among which they are dealt out: about three steps of it."""


class Permuted:
    """A rollout side whose rewards have lost their owners; all else is the wrapped one's."""

    def __init__(self, rollouts: Any, seed: int) -> None:
        self._rollouts = rollouts
        self._rng = random.Random(seed)
        self._pools: dict[str, deque[float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rollouts, name)

    def get_group(self, timeout: float) -> Group | None:
        """A group with as many rewards as it has, drawn without replacement from the task's newest ones."""
        group: Group | None = self._rollouts.get_group(timeout)
        if group is None:
            return None
        pool = self._pools.setdefault(group.task, deque(maxlen=POOL))
        pool.extend(t.reward for t in group.usable if t.reward is not None)
        dealt = iter(self._rng.sample(list(pool), len(group.usable)))
        group.trajectories = [
            replace(t, reward=next(dealt)) if t.usable and t.reward is not None else t for t in group.trajectories
        ]
        return group


def permuted(settings: Sequence[str]) -> int:
    """One run of the control."""
    config = load_config(None, settings)
    start = launch._start_rollouts

    def dealt(config: RunConfig, cursor: Cursor, output: Path) -> Any:
        return Permuted(start(config, cursor, output), config.seed)

    launch._start_rollouts = dealt
    print(launch.train(config))
    return 0


def imitation(out: Path, steps: int, seed: int, samples: int) -> int:
    """Goes on with the last phase of `make_tiny`, on new names and slips, and scores before and after."""
    import torch

    from agentrl_trainer.imitation import imitate
    from agentrl_trainer.make_tiny import Recipe, demonstrations
    from agentrl_trainer.tiny_asset import FOLDER, load_asset
    from agentrl_trainer.tiny_scores import score
    from agentrl_trainer.warmstart import tokenize

    torch.set_num_threads(1)
    recipe = Recipe(seed=seed + 1)
    options = {name: lesson.options for name, lesson in recipe.lessons.items()}
    model, tokenizer = load_asset()
    rows = tokenize(tokenizer, demonstrations(recipe, recipe.faulty, faulty=True), max_length=recipe.context)
    imitate(model, rows, replace(recipe.faulty.how, steps=steps, seed=seed))
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    lines = []
    for step, folder in ((0, FOLDER), (steps, out)):
        for task, scores in score(folder, options, samples=samples, seed=seed).items():
            for temperature, figures in scores.items():
                decoding = "sampled" if temperature else "greedy"
                lines.append({"kind": "eval", "step": step, "task": task, "decoding": decoding, "seconds": 0.0}
                             | {"episodes": figures.episodes, "success": figures.success})  # fmt: skip
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


def page(runs: Path, out: Path) -> int:
    """The table and the plot of all runs in a folder."""
    found: dict[str, list[list[dict[str, Any]]]] = {kind: [] for kind in KINDS}
    for file in sorted(runs.glob("*/metrics.jsonl")):
        kind = file.parent.name.partition("-")[0]
        if kind in found:
            found[kind].append(read_metrics(file))
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ["| run | task | decoding | before | after | gain |", "|---|---|---|---|---|---|"]
    for kind, records in found.items():
        for number, run in enumerate(records):
            for (task, decoding), (before, after) in _ends(run).items():
                lines.append(
                    f"| {KINDS[kind]}, {number} | {task} | {DECODINGS[decoding]} "
                    f"| {before:.2f} | {after:.2f} | {after - before:+.2f} |"
                )
    lines += ["", "| mean over runs and tasks | runs | gain at T = 0.8 | gain greedy |", "|---|---|---|---|"]
    for kind, records in found.items():
        if records:
            gains = " | ".join(_gain(records, decoding) for decoding in DECODINGS)
            lines.append(f"| {KINDS[kind]} | {len(records)} | {gains} |")
    lines += ["", *_staleness(found)]
    _plot(found, out.with_suffix(".png"))
    text = out.read_text(encoding="utf-8") if out.exists() else "<!-- figures -->\n"
    head = text.partition("<!-- figures -->")[0]
    out.write_text(f"{head}<!-- figures -->\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _staleness(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    """How old what was trained on was, by run."""
    lines = ["| run | minutes | largest lag | tokens masked as too old | trajectories of several versions |",
             "|---|---|---|---|---|"]  # fmt: skip
    for kind, records in found.items():
        for number, run in enumerate(records):
            steps = [record for record in run if record["kind"] == "step" and "lag/max" in record]
            if steps:
                masked, mixed = (statistics.mean(s[f"lag/{key}_share"] for s in steps) for key in ("masked", "mixed"))
                minutes = max(record["seconds"] for record in run if "seconds" in record) / 60
                largest = max(s["lag/max"] for s in steps)
                lines.append(
                    f"| {KINDS[kind]}, {number} | {minutes:.1f} | {largest:.0f} | {masked:.1%} | {mixed:.0%} |"
                )
    return lines


def _ends(run: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """First and last success by task and decoding."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in run:
        if record["kind"] == "eval":
            found.setdefault((record["task"], record["decoding"]), []).append(record["success"])
    return {key: (values[0], values[-1]) for key, values in found.items()}


def _gain(records: Sequence[Sequence[Mapping[str, Any]]], decoding: str) -> str:
    gains = [b - a for run in records for (_, kind), (a, b) in _ends(run).items() if kind == decoding]
    return f"{statistics.mean(gains):+.2f}" if gains else "–"


def _plot(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    colours = {"real": "tab:blue", "permuted": "tab:red", "imitation": "tab:gray"}
    for axis, task in zip(axes, ("db", "kg"), strict=True):
        for kind, records in found.items():
            for number, run in enumerate(records):
                key = f"success/{task}"
                steps = [(r["step"], r[key]) for r in run if r["kind"] == "step" and r.get(key) is not None]
                if steps:
                    axis.plot(*zip(*_smooth(steps), strict=True), color=colours[kind], alpha=0.35, linewidth=1)
                points = [(r["step"], r["success"]) for r in run
                          if r["kind"] == "eval" and (r["task"], r["decoding"]) == (task, "sampled")]  # fmt: skip
                label = KINDS[kind] if number == 0 else None
                axis.plot(*zip(*points, strict=True), "o-", color=colours[kind], label=label)
        axis.set(title=task, xlabel="step", ylim=(0, 1))
    axes[0].set_ylabel("success at T = 0.8")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _smooth(points: Sequence[tuple[int, float]], width: int = 5) -> list[tuple[int, float]]:
    values = [value for _, value in points]
    return [(step, statistics.mean(values[max(0, at - width + 1) : at + 1])) for at, (step, _) in enumerate(points)]


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("permuted").add_argument("settings", nargs="*", metavar="key=value")
    more = commands.add_parser("imitation")
    more.add_argument("--out", type=Path, required=True)
    more.add_argument("--steps", type=int, default=40)
    more.add_argument("--seed", type=int, default=0)
    more.add_argument("--samples", type=int, default=128)
    write = commands.add_parser("page")
    write.add_argument("runs", type=Path)
    write.add_argument("out", type=Path)
    given = parser.parse_args()
    try:
        if given.command == "permuted":
            return permuted(given.settings)
        if given.command == "imitation":
            return imitation(given.out, given.steps, given.seed, given.samples)
        return page(given.runs, given.out)
    except AgentBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
