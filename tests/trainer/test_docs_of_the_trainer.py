"""What the documents say of options and figures: all of them, and nothing that does not exist."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import from_dict
from agentrl_trainer.metrics import batch_metrics, ratio_metrics
from agentrl_trainer.objective import Normalization, OffPolicy, Optimization
from agentrl_trainer.offpolicy import correct
from agentrl_trainer.queue import StepBatch
from agentrl_trainer.rows import train_rows
from agentrl_trainer.staleness import lag_report

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {"optimization": Optimization, "off_policy": OffPolicy, "normalization": Normalization}


def test_every_option_of_the_objective_has_its_equation() -> None:
    text = (DOCS / "algorithms.md").read_text()
    for name, section in SECTIONS.items():
        for field in dataclasses.fields(section):
            assert f"`{name}.{field.name}" in text, f"{name}.{field.name} is not in algorithms.md"


def test_every_option_that_the_documents_name_exists() -> None:
    config = RunConfig()
    for page in ("algorithms.md", "metrics.md"):
        for section, field in re.findall(r"`([a-z_]+)\.([a-z_0-9]+)(?:=[^`]*)?`", (DOCS / page).read_text()):
            if section == "trl" or not hasattr(config, section):
                continue  # a module, or a field of TRL's
            assert hasattr(getattr(config, section), field), f"{section}.{field} in {page}"
    settings = re.findall(
        r"`((?:off_policy|normalization|optimization)\.\w+=\w+)`", (DOCS / "algorithms.md").read_text()
    )
    assert len(settings) > 15
    for setting in settings:
        key, value = setting.split("=")
        section, field = key.split(".")
        partner = {"truncate": {"mode": "decoupled"}}.get(value, {})
        from_dict({section: {field: {"true": True, "false": False}.get(value, value), **partner}})


@pytest.fixture
def emitted(make_trajectory: Callable[..., Any], make_group: Callable[..., Any]) -> set[str]:
    """Names of a step with everything in it."""
    rng = np.random.default_rng(0)
    group = make_group([make_trajectory(rng=rng, reward=float(i % 2), engine=i % 2, version=i % 3) for i in range(6)])
    batch = StepBatch(groups=(group,), version=2, waited_s=0.0, left=0)
    bound: dict[str, int] = {"max_lag": 2, "fresh_engines": 1}
    rows = train_rows(batch.groups, Normalization(), version=2, **bound)
    logprobs = [t.logprobs + np.float32(0.1) for t in rows.trajectories]
    figures = batch_metrics(batch, rows, lag_report(batch.trajectories, 2, **bound))
    figures |= ratio_metrics(rows, logprobs, 2, 1) | correct(rows, logprobs, OffPolicy(mode="decoupled")).figures
    return set(figures)


def test_every_figure_is_explained(emitted: set[str]) -> None:
    text = (DOCS / "metrics.md").read_text()
    names = set(re.findall(r"`([a-z_]+/[a-z_0-9<>/]+|tokens_per_s|loss|grad_norm|entropy)`", text))
    patterns = [re.compile(re.sub(r"<\w+>", "[a-z_0-9]+", name) + "$") for name in names]
    unexplained = {name for name in emitted if not any(pattern.match(name) for pattern in patterns)}
    assert not unexplained
    assert len(emitted) > 35


def test_no_figure_is_explained_that_does_not_exist(emitted: set[str]) -> None:
    text = (DOCS / "metrics.md").read_text()
    named = set(re.findall(r"`((?:batch|lag|ratio|offpolicy|queue|chat)/[a-z_0-9]+)`", text))
    source = "".join(p.read_text() for p in (DOCS.parent / "agentrl_trainer").glob("*.py"))
    assert not {name for name in named if name not in emitted and f'"{name}"' not in source}
