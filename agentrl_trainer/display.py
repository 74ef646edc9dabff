"""How a run shows itself while it goes on: plain lines, or a live bar on a terminal.

Not here: what is written to the run's folder (report.py).
"""

import sys
from typing import Any, Protocol

from agentrl_trainer.evaluation import EvalResult
from agentrl_trainer.metrics import Metrics


class Display(Protocol):
    """Shows the progress of one run."""

    def note(self, text: str) -> None:
        """One line that stays."""
        ...

    def step(self, step: int, figures: Metrics) -> None:
        """An optimizer step is done."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was; safe to repeat."""
        ...


class Silent:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def step(self, step: int, figures: Metrics) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain:
    """One line per step, for logs."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def note(self, text: str) -> None:
        """Prints it at once, also into a pipe."""
        print(text, flush=True)

    def step(self, step: int, figures: Metrics) -> None:
        """Prints the line of the step."""
        self.note(f"step {step:>{len(str(self._steps))}}/{self._steps}  {step_line(figures)}")

    def close(self) -> None:
        """Nothing is open."""


class Live:
    """A bar with the figures of the last step; notes scroll above it."""

    def __init__(self, steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )  # fmt: skip
        self._bar = self._progress.add_task("waiting for rollouts", total=steps)
        self._progress.start()

    def note(self, text: str) -> None:
        """Prints it above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def step(self, step: int, figures: Metrics) -> None:
        """Moves the bar."""
        self._progress.update(self._bar, completed=step, description=step_line(figures))

    def close(self) -> None:
        """Stops redrawing; the bar stays as it is."""
        self._progress.stop()


def make_display(kind: str, steps: int) -> Display:
    """The display that the configuration's `progress` names; `auto` is live on a terminal."""
    if kind == "none":
        return Silent()
    if kind == "rich" or (kind == "auto" and sys.stdout.isatty()):
        return Live(steps)
    return Plain(steps)


def step_line(figures: Metrics) -> str:
    """The figures that tell at a glance how a step went."""
    tasks = sorted(name.removeprefix("success/") for name in figures if name.startswith("success/"))
    parts = [f"{task} success {figures[f'success/{task}']:.2f}" for task in tasks]
    for name, form in (
        ("batch/trajectories", "{:.0f} trajectories"),
        ("lag/mean", "lag {:.1f}"),
        ("loss", "loss {:+.3f}"),
        ("entropy", "entropy {:.2f}"),
        ("tokens_per_s", "{:.0f} tok/s"),
        ("time/wait_s", "waited {:.1f} s"),
    ):
        if figures.get(name) is not None:  # a step without trained tokens has no entropy
            parts.append(form.format(figures[name]))
    return " · ".join(parts)


def eval_line(results: list[EvalResult]) -> str:
    """An evaluation in one line."""
    return " · ".join(f"{r.task} {r.decoding} {r.success:.2f}" for r in results)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows with equal keys as aligned text.

    >>> print(table([{"task": "db", "before": 0.25}, {"task": "kg", "before": 0.5}]))
    task  before
    db    0.25
    kg    0.50
    """
    if not rows:
        return ""
    cells = [[str(key) for key in rows[0]], *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
