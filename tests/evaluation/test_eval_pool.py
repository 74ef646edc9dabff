"""A pool of policies: each alone, mixed by trajectory and by step, with results that say who played and go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI
from toys import counter_task

from agentbench_fc.errors import CallerError
from agentbench_fc.evaluate import EvalConfig, Served, evaluate
from agentbench_fc.evaluation.pool import MIXED, PoolReport, arms, evaluate_pool, read_policy
from agentbench_fc.evaluation.results import read_results
from agentbench_fc.messages import Message, ToolCall, assistant


def adder(messages: list[Message], tools: list[str]) -> Message:
    """Knows how to begin and never ends."""
    return assistant(None, [ToolCall(f"c{len(messages)}", "add", '{"number": 1}')])


def closer(messages: list[Message], tools: list[str]) -> Message:
    """Ends at once."""
    return assistant(None, [ToolCall("end", "submit", "{}")])


def pooled(out: Path, adding: str, closing: str, **changes: Any) -> EvalConfig:
    policies = (Served(name="adder", model="a", base_url=adding), Served(name="closer", model="c", base_url=closing))
    values: dict[str, Any] = {"samples": ("counter/train/0",), "repeats": 24}
    return EvalConfig(
        **({"tasks": ("counter",), "split": "train", "out": out, "policies": policies} | values | changes)
    )


async def test_steps_of_two_policies_reach_what_neither_reaches_nor_mixed_trajectories_do(tmp_path: Path) -> None:
    async with FakeOpenAI(adder) as adding, FakeOpenAI(closer) as closing:
        settings = pooled(tmp_path, adding.url, closing.url)
        report = await evaluate_pool(settings, tasks={"counter": counter_task()})
        requests = len(adding.bodies) + len(closing.bodies)
        again = await evaluate_pool(settings, tasks={"counter": counter_task()})
        assert len(adding.bodies) + len(closing.bodies) == requests, "what was played is not played again"
    pass_at = {name: arm.scores[0].pass_at for name, arm in report.arms.items()}
    assert list(pass_at) == ["adder", "closer", *MIXED]
    assert pass_at["adder"][24] == pass_at["closer"][24] == pass_at["mixed trajectories"][24] == 0
    assert pass_at["mixed steps"][24] == 1
    assert 0.05 < pass_at["mixed steps"][1] < 0.5  # a quarter: first the one, then the other
    assert again.to_markdown() == report.to_markdown()
    assert report.exit_code == 0
    assert report.scored == report.planned == 4 * 24

    step = read_results(tmp_path / "mixed-steps" / "results.jsonl")
    assert all(len(row.policies) == row.turns for row in step)
    assert {row.policies for row in step if row.success} == {("adder", "closer")}
    whole = read_results(tmp_path / "mixed-trajectories" / "results.jsonl")
    assert {len(set(row.policies)) for row in whole} == {1}
    assert {row.policies[0] for row in whole} == {"adder", "closer"}
    text = (tmp_path / "pool.md").read_text()
    assert "| mixed steps | 1 | 24 |" in text
    assert json.loads((tmp_path / "pool.json").read_text())["arms"]["closer"]["planned"] == 24
    head = (tmp_path / "mixed-steps" / "report.md").read_text().splitlines()[0]
    assert head == "# adder and closer, drawn per step, on counter"


async def test_the_draw_follows_from_the_seed_and_the_address_may_move(tmp_path: Path) -> None:
    async with FakeOpenAI(adder) as adding, FakeOpenAI(closer) as closing, FakeOpenAI(adder) as moved:
        draws = []
        for number, url in enumerate((adding.url, moved.url)):
            settings = pooled(tmp_path / str(number), url, closing.url, repeats=6)
            await evaluate(settings, tasks={"counter": counter_task()})
            draws.append([row.policies for row in read_results(settings.out / "results.jsonl")])
        assert draws[0] == draws[1]
        settings = pooled(tmp_path / "0", moved.url, closing.url, repeats=6)
        await evaluate(settings, tasks={"counter": counter_task()})  # the same run, at another address
        other = pooled(tmp_path / "0", moved.url, closing.url, repeats=6, mix="trajectory")
        with pytest.raises(CallerError, match='mix was "step", now "trajectory"'):
            await evaluate(other, tasks={"counter": counter_task()})


def test_every_arm_plays_the_same_samples_as_often(tmp_path: Path) -> None:
    settings = pooled(tmp_path, "http://a/v1", "http://b/v1", seed=3)
    found = dict(arms(settings))
    assert {(arm.repeats, arm.seed, arm.samples, arm.split) for arm in found.values()} == {
        (24, 3, ("counter/train/0",), "train")
    }
    assert len({arm.out for arm in found.values()}) == 4
    assert [found[name].mix for name in MIXED] == ["trajectory", "step"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fresh", "is no policy"),
        ("fresh=m", "is no policy"),
        ("fresh=m@host:1", "is no policy"),
        ("=m@http://h", "is no policy"),
        ("a/b=m@http://h", "cannot be a policy's name"),
    ],
)
def test_a_policy_that_is_written_otherwise_is_refused(text: str, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        read_policy(text)
    assert read_policy("a=org/m@v2@http://h:1/v1").model == "org/m@v2"


async def test_a_pool_needs_two_policies_of_different_names(tmp_path: Path) -> None:
    one = Served(name="a", model="m", base_url="http://h")
    for policies, extra in (((one,), {}), ((one, one), {}), ((one, one), {"model": "m", "base_url": "http://h"})):
        with pytest.raises(CallerError, match="two or more|either a model or a player"):
            EvalConfig(tasks=("counter",), out=tmp_path, policies=policies, **extra)
    with pytest.raises(CallerError, match="no policies to compare"):
        await evaluate_pool(EvalConfig(tasks=("counter",), out=tmp_path, player="expert"))
    assert PoolReport({}).planned == 0
