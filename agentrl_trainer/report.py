"""What a run leaves in its folder: metrics.jsonl line by line, then curve.png, summary.json and summary.txt.

`metrics.jsonl` holds one object per line: `{"kind": "step", "step": 3, …}` or `{"kind": "eval", "step": 0, …}`. It is
written as the run goes on, so it is whole up to the moment of any crash.

Not here: the display while it runs (display.py); what the figures mean (metrics.py).
"""

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentbench_fc.errors import CallerError
from agentrl_trainer.disk import writing
from agentrl_trainer.display import Display, eval_line, table
from agentrl_trainer.evaluation import EvalResult
from agentrl_trainer.metrics import Metrics

METRICS = "metrics.jsonl"
CURVE = "curve.png"
SUMMARY = "summary"
Record = dict[str, Any]


class RunReport:
    """Collects the figures of one run.

    Args:
        folder: The run's folder.
        display: Where progress is shown.
        resumed_at: The step a resumed run goes on from; later lines of the file are taken back.
    """

    def __init__(self, folder: Path, display: Display, *, resumed_at: int | None = None) -> None:
        self.folder = folder
        self._display = display
        self._path = folder / METRICS
        self._started = time.monotonic()
        kept = [] if resumed_at is None else [r for r in read_metrics(self._path) if r["step"] <= resumed_at]
        with writing(METRICS, folder):
            self._path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def step(self, step: int, figures: Metrics) -> None:
        """Takes the figures of an optimizer step."""
        self._write({"kind": "step", "step": step, "seconds": self._seconds(), **_finite(figures)})
        self._display.step(step, figures)

    def evaluation(self, step: int, results: Sequence[EvalResult]) -> None:
        """Takes the scores after `step` optimizer steps."""
        for result in results:
            self._write({"kind": "eval", "step": step, "seconds": self._seconds(), **result.to_dict()})
        self._display.note(f"evaluation after {step} steps: {eval_line(list(results))}")

    def finish(self) -> str:
        """Writes curve and summary; returns the summary as text."""
        records = read_metrics(self._path)  # not kept in memory: a run may take any number of steps
        content = summary(records)
        text = summary_text(content)
        with writing("the summary", self.folder):
            (self.folder / f"{SUMMARY}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            (self.folder / f"{SUMMARY}.txt").write_text(text + "\n", encoding="utf-8")
            if any(record["kind"] == "step" for record in records):
                plot_curves(records, self.folder / CURVE)
        return text

    def _write(self, record: Record) -> None:
        with writing(METRICS, self.folder), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)


def read_metrics(path: Path) -> list[Record]:
    """The lines of a metrics file; a last line that was cut by a crash is left out.

    Raises:
        CallerError: another line is not one of ours.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):  # only a line that ends in a newline is whole
        if not line:
            continue
        try:
            record = json.loads(line)
            records.append({"kind": record["kind"], "step": int(record["step"]), **record})
        except (ValueError, LookupError, TypeError) as error:
            raise CallerError(f"line {number} is damaged: {error!r} [{path}]. Remove it.") from error
    return records


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """The run in a few figures: scores before and after, statuses, lags, speed."""
    steps = [r for r in records if r["kind"] == "step"]
    evaluations = [r for r in records if r["kind"] == "eval"]
    scores = []
    for task, decoding in dict.fromkeys((r["task"], r["decoding"]) for r in evaluations):
        own = [r for r in evaluations if (r["task"], r["decoding"]) == (task, decoding)]
        first, last = own[0], own[-1]
        scores.append(
            {
                "task": task,
                "decoding": decoding,
                "episodes": last["episodes"],
                "success_before": first["success"] if first["step"] == 0 else None,
                "success_after": last["success"] if last["step"] > 0 else None,
                "reward_before": first["reward"] if first["step"] == 0 else None,
                "reward_after": last["reward"] if last["step"] > 0 else None,
            }
        )
    statuses: Counter[str] = Counter()
    for record in steps:
        for name, share in record.items():
            if name.startswith("status/"):
                total = record.get("batch/trajectories", 0) + record.get("batch/unusable", 0)
                statuses[name.removeprefix("status/")] += round(share * total)
    seconds = sum(r.get("time/train_s", 0) + r.get("time/wait_s", 0) for r in steps)
    tokens = sum(r.get("batch/trained_tokens", 0) for r in steps)
    return {
        "steps": max((r["step"] for r in steps), default=0),
        "scores": scores,
        "statuses": dict(statuses.most_common()),
        "trajectories": int(sum(r.get("batch/trajectories", 0) for r in steps)),
        "trained_tokens": int(tokens),
        "tokens_per_s": tokens / seconds if seconds else 0.0,
        "lag_mean": _mean(steps, "lag/mean"),
        "lag_max": int(max((r.get("lag/max", 0) for r in steps), default=0)),
        "masked_share": _mean(steps, "lag/masked_share"),
        "stale_share": _mean(steps, "lag/stale_share"),
        "mixed_share": _mean(steps, "lag/mixed_share"),
        "waited_share": sum(r.get("time/wait_s", 0) for r in steps) / seconds if seconds else 0.0,
    }


def summary_text(content: dict[str, Any]) -> str:
    """The summary as a table and a few lines."""
    rows = [
        {
            "task": score["task"], "decoding": score["decoding"], "episodes": score["episodes"],
            "success before": score["success_before"], "after": score["success_after"],
            "reward before": score["reward_before"], "after ": score["reward_after"],
        }
        for score in content["scores"]
    ]  # fmt: skip
    statuses = ", ".join(f"{name} {count}" for name, count in content["statuses"].items())
    lines = [
        f"{content['steps']} steps, {content['trajectories']} trajectories, {content['trained_tokens']} trained "
        f"tokens, {content['tokens_per_s']:.0f} tokens/s, {content['waited_share']:.0%} of the time spent waiting",
        f"lag: mean {content['lag_mean']:.2f}, max {content['lag_max']}, masked {content['masked_share']:.2%}; "
        f"{content['stale_share']:.0%} of tokens from stale engines, "
        f"{content['mixed_share']:.0%} of trajectories mix weight versions",
        f"statuses: {statuses or 'none'}",
    ]
    return "\n".join([*([table(rows), ""] if rows else []), *lines])


def plot_curves(records: Sequence[Record], path: Path) -> None:
    """One panel per task: success of the training batches, and of the held-out samples, over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    steps = [r for r in records if r["kind"] == "step"]
    evaluations = [r for r in records if r["kind"] == "eval"]
    tasks = sorted({name.removeprefix("success/") for r in steps for name in r if name.startswith("success/")})
    tasks = tasks or sorted({r["task"] for r in evaluations}) or ["no figures"]
    figure = Figure(figsize=(5 * len(tasks), 3.6), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        own = [r for r in steps if f"success/{task}" in r]
        panel.plot([r["step"] for r in own], [r[f"success/{task}"] for r in own], color="0.6", label="training batches")
        for decoding, marker in (("sampled", "o-"), ("greedy", "s--")):
            points = [r for r in evaluations if r["task"] == task and r["decoding"] == decoding]
            if points:
                label = f"held out, {decoding}"
                panel.plot([r["step"] for r in points], [r["success"] for r in points], marker, label=label)
        panel.set(title=task, xlabel="optimizer steps", ylabel="success", ylim=(-0.02, 1.02))
        panel.grid(alpha=0.3)
        panel.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=110)


def _mean(records: Sequence[Record], name: str) -> float:
    values = [r[name] for r in records if name in r]
    return sum(values) / len(values) if values else 0.0


def _finite(figures: Metrics) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {k: v if isinstance(v, (int, float)) and math.isfinite(v) else None for k, v in figures.items()}
