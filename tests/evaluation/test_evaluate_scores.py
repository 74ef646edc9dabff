"""Scores against their slow definitions, and the results file."""

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError, Conflict
from agentbench_fc.evaluation.report import Report
from agentbench_fc.evaluation.results import MODEL_ERROR, EpisodeResult, Key, ResultsFile, read_results
from agentbench_fc.evaluation.scores import macro_average, pass_at_k, percentiles, summarize


def result(sample: str = "t/dev/0", repeat: int = 0, reward: float | None = 1.0, **changes: Any) -> EpisodeResult:
    values: dict[str, Any] = {"status": "completed", "success": None if reward is None else reward == 1.0}
    return EpisodeResult(task="t", sample=sample, repeat=repeat, seed=0, reward=reward, **(values | changes))


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_success(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("case", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_outside_its_domain_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(*case)


@given(st.lists(st.floats(0, 100), min_size=1))
def test_percentiles_are_values_that_so_many_do_not_exceed(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    for share, value in zip((0.5, 0.95, 0.99), found, strict=True):
        assert value in values
        assert sum(v <= value for v in values) >= share * len(values) - 1e-9
        assert sum(v < value for v in values) < share * len(values)


outcomes = st.sampled_from([0.0, 0.5, 1.0, None])


@given(st.lists(st.lists(outcomes, min_size=3, max_size=3), min_size=1, max_size=5), st.randoms())
def test_a_summary_is_its_definition_in_any_order(table: list[list[float | None]], rng: Any) -> None:
    rows = [
        result(f"t/dev/{i}", repeat, reward)
        if reward is not None
        else result(f"t/dev/{i}", repeat, None, status=MODEL_ERROR, kind="cut")
        for i, rewards in enumerate(table)
        for repeat, reward in enumerate(rewards)
    ]
    rng.shuffle(rows)
    scores = summarize("t", rows)
    flat = [reward for rewards in table for reward in rewards]
    known = [reward for reward in flat if reward is not None]
    assert (scores.episodes, scores.scored) == (len(flat), len(known))
    assert scores.reward.mean == (pytest.approx(statistics.fmean(known)) if known else None)
    assert scores.reward_all.mean == pytest.approx(sum(known) / len(flat))
    assert scores.success_all.mean == pytest.approx(sum(reward == 1.0 for reward in known) / len(flat))
    columns = [[r for r in column if r is not None] for column in zip(*table, strict=True)]
    means = [statistics.fmean(column) for column in columns if column]
    assert scores.reward.std == (pytest.approx(statistics.stdev(means)) if len(means) > 1 else None)
    for k in (1, 2, 3):
        groups = [g for row in table if len(g := [r for r in row if r is not None]) >= k]
        assert scores.pass_at_samples[k] == len(groups)
        if groups:
            expected = statistics.fmean(pass_at_k(len(g), g.count(1.0), k) for g in groups)
            assert scores.pass_at[k] == pytest.approx(expected)
    assert scores.errors == ({"model error: cut": len(flat) - len(known)} if len(known) < len(flat) else {})


def test_only_what_says_something_about_the_model_is_scored() -> None:
    scored = ["completed", "task limit reached", "agent context limit", "agent invalid action"]
    unscored = ["cancelled", "task error", "unknown", "env init failed", MODEL_ERROR]
    assert [result(status=status, reward=0.0).scored for status in scored + unscored] == [True] * 4 + [False] * 5


def test_rates_tokens_and_latencies_add_up() -> None:
    rows = [
        result(repeat=0, turns=4, calls=3, invalid_calls=1, no_call_turns=1, env_s=(1.0, 0.1, 0.3), model_s=(2.0,)),
        result(repeat=1, turns=2, calls=2, prompt_tokens=5, metrics={"f1": 0.5}, env_s=(3.0,), tries=2),
    ]
    scores = summarize("t", rows)
    assert scores.turns == 3
    assert scores.invalid_call_rate == pytest.approx(1 / 5)
    assert scores.no_call_rate == pytest.approx(1 / 6)
    assert (scores.prompt_tokens, scores.completion_tokens, scores.retries) == (5, None, 2)
    assert scores.start_latency is not None
    assert scores.start_latency.p50 == 1.0
    assert scores.step_latency is not None
    assert scores.step_latency.p99 == 0.3
    assert scores.metrics == {"f1": 0.5}
    empty = summarize("t", [])
    assert (empty.turns, empty.invalid_call_rate, empty.model_latency, empty.success.mean) == (None,) * 4


def report(*rows: EpisodeResult, planned: int | None = None) -> Report:
    options = {"player": "noop", "split": "dev", "repeats": 1, "seed": 0, "profile": "default", "prompt": "default"}
    scores = (summarize("t", rows),)
    return Report(options=options | {"tasks": ["t"]}, planned=planned or len(rows), scores=scores, seconds=1.0)


def test_the_exit_code_says_whose_fault_a_missing_score_is() -> None:
    broken = result(repeat=1, reward=None, status="task error", fault="task")
    lost = result(repeat=2, reward=None, status="unknown", fault="worker", error="a|b\nc")
    assert report(result()).exit_code == 0
    assert report(result(), broken).exit_code == 3
    assert report(result(), broken, lost).exit_code == 4
    assert report(result(), planned=2).exit_code == 4


def test_the_page_says_what_is_missing() -> None:
    page = report(
        result(), result(repeat=1, reward=None, status="unknown", fault="worker", error="a|b\nc")
    ).to_markdown()
    assert "**1 of 2 episodes have no score**" in page
    assert "| t | unknown: worker | 1 | a\\|b c |" in page
    assert "Unfinished: 1 of 2" in report(result(), planned=2).to_markdown()


def test_the_mean_of_tasks_weighs_each_task_alike() -> None:
    scores = [summarize("t", [result()]), summarize("t", [result(reward=0.0)] * 5)]
    assert macro_average(scores)["success"] == 0.5
    assert macro_average([*scores, summarize("t", [])])["success"] is None


def test_results_survive_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    rows = [result(repeat=n, metrics={"f1": 0.1}, env_s=(0.1, 0.2), error="ü\n") for n in range(3)]
    with ResultsFile(path, {"a": (1, 2)}) as results:
        for row in rows:
            results.add(row)
    whole = path.read_bytes()
    for size in range(len(whole) - 40, len(whole)):
        path.write_bytes(whole[:size])
        with ResultsFile(path, {"a": [1, 2]}) as results:
            assert results.done == {row.key: row for row in rows[:2]}
            results.add(rows[2])
        assert path.read_bytes() == whole
    assert read_results(path) == rows
    with ResultsFile(path, {"a": [1, 2]}) as results:
        results.add(result(repeat=1, reward=0.0))
    assert [row.reward for row in read_results(path)] == [1.0, 0.0, 1.0], "a later line replaces an earlier one"
    assert Key("t", "t/dev/0", 1) in {row.key for row in rows}


def test_even_the_first_line_may_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"type": "run", "v"')
    with ResultsFile(path, {}) as results:
        results.add(result())
    assert read_results(path) == [result()]


def test_results_of_another_run_are_refused_by_the_option_that_differs(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, {"model": "a", "seed": 0}):
        pass
    with (
        pytest.raises(CallerError, match="seed was 0, now 1 .*results.jsonl.*--out"),
        ResultsFile(path, {"model": "a", "seed": 1}),
    ):
        pass
    with (
        pytest.raises(CallerError, match='parser was null, now "hermes"'),
        ResultsFile(path, {"model": "a", "seed": 0, "parser": "hermes"}),
    ):
        pass


@pytest.mark.parametrize(
    "content", ["hello\n", "hello", "[]\n", '{"type": "start", "v": 1}\n', '{"type":"run","v":1,"options":{}}\n{}\n']
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    with pytest.raises(CallerError, match="Choose another --out"), ResultsFile(path, {}):
        pass
    assert path.read_text() == content


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, {}), pytest.raises(Conflict, match="another run"), ResultsFile(path, {}):
        pass


def test_results_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, {}) as results:
        results.add(result(error="bad \ud800 text"))
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line)
