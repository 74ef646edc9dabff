"""Cross-policy sampling at inference: each policy alone, trajectories of mixed policies, and steps of mixed policies.

    config = EvalConfig(tasks=("db",), policies=(fresh, stale), repeats=16, out=Path("runs/eval/pool"))
    print((await evaluate_pool(config)).to_markdown())

Every arm plays the same samples as often, so that pass@k compares at equal cost: whether policies that draw turn by
turn reach more samples within k tries than the better one alone does. Each arm is an evaluation of its own in a folder
of its own, and goes on after a kill as any other.

Not here: one evaluation (evaluate.py); the draw (agents.py).
Source: AgentRL, arXiv 2510.04206, figure 8a.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentbench_fc.client import Client
from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, InfrastructureError, did_you_mean
from agentbench_fc.evaluate import EvalConfig, OnResult, Served, evaluate
from agentbench_fc.evaluation.report import Report, percent, table
from agentbench_fc.evaluation.scores import TaskScores

MIXED = ("mixed trajectories", "mixed steps")


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The reports of all arms, by name: the policies, then the mixtures."""

    arms: Mapping[str, Report]

    @property
    def exit_code(self) -> int:
        """That of the worst arm."""
        return max(report.exit_code for report in self.arms.values())

    @property
    def planned(self) -> int:
        """Episodes of all arms."""
        return sum(report.planned for report in self.arms.values())

    @property
    def scored(self) -> int:
        """Those with a score."""
        return sum(report.scored for report in self.arms.values())

    def to_dict(self) -> dict[str, Any]:
        """The reports as JSON values."""
        return {"v": 1, "arms": {name: report.to_dict() for name, report in self.arms.items()}}

    def to_markdown(self) -> str:
        """One table a task: an arm a row."""
        lines = ["# Cross-policy sampling: pass@k of each policy and of their mixtures"]
        for task in dict.fromkeys(scores.task for report in self.arms.values() for scores in report.scores):
            rows = {name: own for name, report in self.arms.items() for own in report.scores if own.task == task}
            ks = sorted({k for own in rows.values() for k in own.pass_at})
            head = ["arm", "samples", "episodes", "success", *(f"pass@{k}" for k in ks)]
            lines += ["", f"## {task}", "", *table(head, [_row(name, own, ks) for name, own in rows.items()])]
        lines += [
            "",
            "In %; mean ± standard deviation of the repeats' means. `mixed trajectories` draws a policy for a whole "
            "episode, `mixed steps` for every turn; both uniformly.",
            "",
        ]
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """Writes pool.json and pool.md.

        Raises:
            InfrastructureError: the folder cannot be written.
        """
        try:
            text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
            (folder / "pool.json").write_text(text + "\n", encoding="utf-8")
            (folder / "pool.md").write_text(self.to_markdown(), encoding="utf-8")
        except OSError as error:
            raise InfrastructureError(f"the report was not written: {error} [{folder}]. Free some space.") from error


async def evaluate_pool(
    config: EvalConfig,
    *,
    api_key: str | None = None,
    tasks: Mapping[str, Task] | None = None,
    client: Client | None = None,
    on_result: OnResult | None = None,
) -> PoolReport:
    """Plays what is missing of every arm, one arm after the other, and writes the reports.

    Args:
        config: With `policies`; `out` becomes the folder of all arms.
        api_key: Of all endpoints.
        tasks: As in `evaluate`.
        client: Likewise.
        on_result: Likewise; it counts within an arm.

    Raises:
        CallerError: there is no pool; otherwise as `evaluate`.
        InfrastructureError: an endpoint cannot be reached at all.
    """
    if not config.policies:
        raise CallerError("there are no policies to compare [eval]. Give --policy twice or more.")
    reports: dict[str, Report] = {}
    for name, arm in arms(config):
        reports[name] = await evaluate(arm, api_key=api_key, tasks=tasks, client=client, on_result=on_result)
    report = PoolReport(reports)
    report.write(config.out)
    return report


def arms(config: EvalConfig) -> Iterator[tuple[str, EvalConfig]]:
    """The evaluations that a pool means, by name."""
    for policy in config.policies:
        alone = replace(config, policies=(), model=policy.model, base_url=policy.base_url)
        yield policy.name, replace(alone, out=config.out / f"policy-{policy.name}")
    yield MIXED[0], replace(config, mix="trajectory", out=config.out / "mixed-trajectories")
    yield MIXED[1], replace(config, mix="step", out=config.out / "mixed-steps")


def read_policy(text: str) -> Served:
    """The policy in `NAME=MODEL@URL`.

    >>> read_policy("fresh=qwen@http://localhost:8000/v1")
    Served(name='fresh', model='qwen', base_url='http://localhost:8000/v1')

    Raises:
        CallerError: it is not written so.
    """
    name, equals, rest = text.partition("=")
    model, at, url = rest.rpartition("@")
    if not (equals and at and name.strip() and model.strip() and url.startswith(("http://", "https://"))):
        raise CallerError(f"{text!r} is no policy [--policy]. Write NAME=MODEL@http://host:port/v1.")
    if not all(c.isalnum() or c in "-_." for c in name) or name in MIXED:
        raise CallerError(f"{name!r} cannot be a policy's name [--policy]. {did_you_mean(name, ['fresh', 'stale'])}")
    return Served(name=name, model=model, base_url=url)


def _row(name: str, own: TaskScores, ks: Sequence[int]) -> list[str]:
    at = [f"{100 * own.pass_at[k]:.1f}" if k in own.pass_at else "–" for k in ks]
    return [name, str(own.samples), str(own.episodes), percent(own.success), *at]
