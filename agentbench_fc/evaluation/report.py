"""The report of an evaluation: JSON for programs, Markdown for people.

Not here: what the numbers mean and how they come about (scores.py).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.errors import InfrastructureError, TaskError
from agentbench_fc.evaluation.scores import Percentiles, Spread, TaskScores, macro_average

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an evaluation, whole or so far."""

    options: Mapping[str, Any]
    planned: int
    scores: tuple[TaskScores, ...]
    seconds: float
    """Of this call; a run that was continued took longer."""

    @property
    def episodes(self) -> int:
        """Played so far."""
        return sum(each.episodes for each in self.scores)

    @property
    def scored(self) -> int:
        """Those with a score."""
        return sum(each.scored for each in self.scores)

    @property
    def exit_code(self) -> int:
        """0 when every planned episode has a score; else by fault: 3 if only tasks broke, 4 for all other reasons."""
        if self.scored == self.planned:
            return 0
        broken = sum(n for each in self.scores for reason, n in each.errors.items() if reason.endswith(": task"))
        return TaskError.exit_code if broken == self.planned - self.scored else InfrastructureError.exit_code

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "v": VERSION,
            "options": dict(self.options),
            "planned": self.planned,
            "episodes": self.episodes,
            "scored": self.scored,
            "seconds": round(self.seconds, 3),
            "macro_average": macro_average(self.scores),
            "tasks": {each.task: _plain(asdict(each)) for each in self.scores},
        }

    def to_markdown(self) -> str:
        """The report as a page."""
        return "\n".join(
            [*self._head(), "", *self._scores(), "", *self._ends(), "", *self._costs(), *self._errors(), ""]
        )

    def write(self, folder: Path) -> None:
        """Writes report.json and report.md.

        Raises:
            InfrastructureError: the folder cannot be written.
        """
        try:
            text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
            (folder / "report.json").write_text(text + "\n", encoding="utf-8", errors="replace")
            (folder / "report.md").write_text(self.to_markdown(), encoding="utf-8", errors="replace")
        except OSError as error:
            raise InfrastructureError(f"the report was not written: {error} [{folder}]. Free some space.") from error

    def _head(self) -> list[str]:
        options = self.options
        who = f"player {options['player']}" if options.get("player") else f"{options['model']}"
        if pool := options.get("policies"):
            who = f"{' and '.join(pool)}, drawn per {options['mix']},"
        facts = [f"split {options['split']}", f"{options['repeats']} repeats", f"seed {options['seed']}"]
        if not options.get("player"):
            facts += [f"temperature {options['temperature']}", f"max_tokens {options['max_tokens']}"]
        facts += [f"profile {options['profile']}", f"prompt {options['prompt']}"]
        lines = [f"# {who} on {', '.join(options['tasks'])}", "", f"{', '.join(facts)}."]
        if self.episodes < self.planned:
            lines += ["", f"**Unfinished: {self.episodes} of {self.planned} episodes were played.**"]
        if self.scored < self.episodes:
            lines += [
                "",
                f"**{self.episodes - self.scored} of {self.episodes} episodes have no score**, see Missing scores. "
                "`success` and `reward` are over scored episodes; `all` counts a missing score as 0.",
            ]
        return lines

    def _scores(self) -> list[str]:
        ks = sorted({k for each in self.scores for k in each.pass_at})
        head = ["task", "samples", "episodes", "scored", "success", "success, all", "reward", "reward, all"]
        head += [f"pass@{k}" for k in ks]
        rows = [
            [
                each.task,
                str(each.samples),
                str(each.episodes),
                str(each.scored),
                *(percent(s) for s in (each.success, each.success_all)),
                *(_share(s) for s in (each.reward, each.reward_all)),
                *(f"{100 * each.pass_at[k]:.1f}" if k in each.pass_at else "–" for k in ks),
            ]
            for each in self.scores
        ]
        if len(self.scores) > 1:
            means = macro_average(self.scores)
            cells = [percent(Spread(means[name], None)) for name in ("success", "success_all")]
            cells += [_share(Spread(means[name], None)) for name in ("reward", "reward_all")]
            rows.append(["mean of tasks", "", "", "", *cells, *("" for _ in ks)])
        note = "Success and pass@k in %; mean ± standard deviation of the repeats' means."
        return ["## Scores", "", *table(head, rows), "", note]

    def _ends(self) -> list[str]:
        names = sorted({status for each in self.scores for status in each.statuses})
        rows = [[each.task, *(str(each.statuses.get(name, 0)) for name in names)] for each in self.scores]
        return ["## How episodes ended", "", *table(["task", *names], rows)]

    def _costs(self) -> list[str]:
        head = ["task", "turns", "invalid calls", "turns without a call", "cut answers", "retries", "prompt tokens"]
        head += ["completion tokens", "model s", "start s", "step s"]
        rows = [
            [
                each.task,
                "–" if each.turns is None else f"{each.turns:.1f}",
                *(
                    "–" if rate is None else f"{100 * rate:.1f} %"
                    for rate in (each.invalid_call_rate, each.no_call_rate)
                ),
                str(each.cut_answers),
                str(each.retries),
                *("–" if n is None else f"{n:,}" for n in (each.prompt_tokens, each.completion_tokens)),
                *(_seconds(p) for p in (each.model_latency, each.start_latency, each.step_latency)),
            ]
            for each in self.scores
        ]
        lines = ["## Behaviour and cost", "", *table(head, rows), "", "Seconds: 50th / 95th / 99th percentile."]
        found = [(each.task, name, value) for each in self.scores for name, value in each.metrics.items()]
        if found:
            lines += ["", "## Metrics of the tasks", ""]
            lines += table(["task", "metric", "mean"], [[task, name, f"{value:.4g}"] for task, name, value in found])
        return lines

    def _errors(self) -> list[str]:
        rows = [
            [each.task, reason, str(count), each.error_examples.get(reason, "")[:300]]
            for each in self.scores
            for reason, count in each.errors.items()
        ]
        return ["", "## Missing scores", "", *table(["task", "reason", "episodes", "an example"], rows)] if rows else []


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]


def percent(spread: Spread) -> str:
    """A share in percent, with its deviation."""
    if spread.mean is None:
        return "–"
    return f"{100 * spread.mean:.1f}" + ("" if spread.std is None else f" ± {100 * spread.std:.1f}")


def _share(spread: Spread) -> str:
    if spread.mean is None:
        return "–"
    return f"{spread.mean:.3f}" + ("" if spread.std is None else f" ± {spread.std:.3f}")


def _seconds(latency: Percentiles | None) -> str:
    return "–" if latency is None else " / ".join(f"{value:.3g}" for value in latency)


def _plain(value: Any) -> Any:
    """Named tuples as objects, so that the JSON explains itself."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
