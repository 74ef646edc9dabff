"""Whole evaluations: players, a scripted endpoint that is right, one that misbehaves, and a run that is killed."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, expert_answers
from toys import Rude, counter_task

from agentbench_fc.envs.env import AgentEnv
from agentbench_fc.episode import Task, make_task
from agentbench_fc.errors import CallerError, InfrastructureError, NotFound
from agentbench_fc.evaluate import EvalConfig, derived_seed, evaluate
from agentbench_fc.evaluation.endpoint import Unreachable
from agentbench_fc.evaluation.report import Report
from agentbench_fc.evaluation.results import MODEL_ERROR, EpisodeResult, read_results
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.registry import load_task
from agentbench_fc.replay import replay_file

TOYS = Path(__file__).parent / "toys_as_task.py"


def config(out: Path, **changes: Any) -> EvalConfig:
    values: dict[str, Any] = {"tasks": ("counter",), "split": "train", "out": out, "repeats": 2, "timeout_s": 20.0}
    if "player" not in changes:
        values |= {"model": "fake", "base_url": "http://127.0.0.1:9/v1", "retries": 2, "backoff_s": 0.01}
    return EvalConfig(**(values | changes))


async def run(settings: EvalConfig, task: Task | None = None, **more: Any) -> Report:
    return await evaluate(settings, tasks={settings.tasks[0]: task or counter_task()}, **more)


def rows(out: Path) -> list[EpisodeResult]:
    return read_results(out / "results.jsonl")


async def test_players_get_what_they_deserve_and_the_reports_say_so(tmp_path: Path) -> None:
    expert = await run(config(tmp_path / "expert", player="expert"))
    assert expert.scores[0].success == (1.0, 0.0)
    assert expert.exit_code == 0
    noop = await run(config(tmp_path / "noop", player="noop"))
    assert noop.scores[0].reward == (0.0, 0.0)
    assert noop.scores[0].statuses == {"completed": 10}
    saved = json.loads((tmp_path / "expert" / "report.json").read_text())
    assert saved["tasks"]["counter"]["pass_at"] == {"1": 1.0, "2": 1.0}
    assert saved["planned"] == saved["scored"] == 10
    assert "# player expert on counter" in (tmp_path / "expert" / "report.md").read_text()


async def test_a_right_model_wins_and_is_accounted_for(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    async with FakeOpenAI(expert_answers(counter_task(), "train"), delay_s=0.01) as fake:
        settings = config(tmp_path, base_url=fake.url, concurrency=3)
        report = await run(settings, on_result=lambda result, done, planned: seen.append((done, planned)))
        assert fake.most_at_once == 3
    scores = report.scores[0]
    assert scores.success == (1.0, 0.0)
    assert scores.turns == 4.0  # 1 to 5 additions and the end
    assert (scores.prompt_tokens, scores.completion_tokens) == (4000, 400)
    assert scores.model_latency is not None
    assert scores.model_latency.p50 > 0.01
    assert seen == [(n, 10) for n in range(1, 11)]
    body = next(b for b in fake.bodies if len(b["messages"]) == 3)
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][2]["tool_call_id"] == body["messages"][1]["tool_calls"][0]["id"]


@pytest.mark.parametrize("name", ["db", "kg"])
async def test_a_right_model_wins_the_real_tasks_through_a_bad_network(tmp_path: Path, name: str) -> None:
    task = load_task(name)
    kinds = ["429:0.01", "500", "cut", "garbage", None]
    async with FakeOpenAI(
        expert_answers(task, "dev", limit=12), lambda n, body: kinds[len(str(body)) % 5] if n == 1 else None
    ) as fake:
        settings = config(tmp_path, tasks=(name,), split="dev", limit=12, base_url=fake.url, transcripts=True)
        report = await evaluate(settings)
    assert report.scores[0].success == (1.0, 0.0)
    assert report.scores[0].scored == 24
    assert report.scores[0].retries > 10
    replayed = replay_file(tmp_path / "transcripts.jsonl")
    assert (replayed.sessions, replayed.ok) == (24, True), replayed.to_text()


async def test_raw_text_is_parsed_and_goes_back_as_it_was(tmp_path: Path) -> None:
    right = expert_answers(counter_task(), "train")

    def raw(messages: list[Message], tools: list[str]) -> Message:
        as_calls = [{**m, "content": None} if m["role"] == "assistant" else m for m in messages]
        message = right(as_calls, tools)
        if "tool_calls" not in message:
            return message
        function = message["tool_calls"][0]["function"]
        call = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
        return assistant(f"Next.\n<tool_call>\n{call}\n</tool_call>")

    async with FakeOpenAI(raw) as fake:
        report = await run(config(tmp_path / "parsed", base_url=fake.url, parser="hermes", repeats=1))
        assert report.scores[0].success.mean == 1.0
        said = {m["content"] for b in fake.bodies for m in b["messages"] if m["role"] == "assistant"}
        assert 'Next.\n<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>' in said
        unparsed = await run(config(tmp_path / "unparsed", base_url=fake.url, repeats=1))
    assert unparsed.scores[0].success.mean == 0.0
    assert unparsed.scores[0].no_call_rate == 1.0


async def test_faults_that_pass_change_no_score(tmp_path: Path) -> None:
    kinds = ["429:0.01", "500:oops", "cut", "garbage", "503"]
    fault = lambda n, body: kinds[len(body["messages"]) % 5] if n == 1 else None  # noqa: E731
    async with FakeOpenAI(expert_answers(counter_task(), "train"), fault) as fake:
        report = await run(config(tmp_path, base_url=fake.url))
    assert report.scores[0].success == (1.0, 0.0)
    assert report.scores[0].retries > 10
    assert report.exit_code == 0


BROKEN = {1: "garbage", 2: "cut", 3: "hang", 4: "429:0.01"}
"""Target -> what goes wrong for good, at the second request."""


def breaks(n: int, body: Any) -> str | None:
    target = int(body["messages"][0]["content"].removeprefix("Reach ").rstrip("."))
    return BROKEN.get(target) if len(body["messages"]) == 3 else None


async def test_answers_that_cannot_be_had_are_counted_apart(tmp_path: Path) -> None:
    async with FakeOpenAI(expert_answers(counter_task(), "train"), breaks) as fake:
        settings = config(tmp_path, base_url=fake.url, timeout_s=1.5, retries=1, concurrency=8)
        report = await run(settings)
        scores = report.scores[0]
        assert (scores.episodes, scores.scored) == (10, 2)
        assert scores.statuses == {MODEL_ERROR: 8, "completed": 2}
        kinds = {f"{MODEL_ERROR}: {kind}": 2 for kind in ("cut", "garbage", "http 429", "timeout")}
        assert scores.errors == kinds
        assert scores.success.mean == 1.0, "over scored episodes"
        assert scores.success_all.mean == 0.2, "over all"
        assert report.exit_code == 4
        lost = [row for row in rows(tmp_path) if not row.scored]
        assert all(row.reward is None and row.success is None and row.error and row.fault == "model" for row in lost)
        page = report.to_markdown()
        assert "8 of 10 episodes have no score" in page

        before = len(fake.bodies)
        assert (await run(settings)).scores[0].scored == 2
        assert len(fake.bodies) == before, "nothing is missing, so nothing is played"
        fake.fault = lambda n, body: None
        again = await run(config(tmp_path, base_url=fake.url, retry_errors=True))
    assert (again.scores[0].scored, again.scores[0].success.mean, again.exit_code) == (10, 1.0, 0)


async def test_a_context_that_is_too_long_ends_the_episode_as_such(tmp_path: Path) -> None:
    fault = lambda n, body: "context" if len(body["messages"]) > 5 else None  # noqa: E731
    async with FakeOpenAI(expert_answers(counter_task(), "train"), fault) as fake:
        report = await run(config(tmp_path, base_url=fake.url, repeats=1))
    assert report.scores[0].statuses == {"agent context limit": 3, "completed": 2}
    assert report.scores[0].success.mean == 0.4, "it is a result of the model"
    assert report.exit_code == 0


async def test_a_refused_key_stops_at_once_and_records_nothing(tmp_path: Path) -> None:
    async with FakeOpenAI(expert_answers(counter_task(), "train"), lambda n, body: "401") as fake:
        with pytest.raises(CallerError, match="refuses the key"):
            await run(config(tmp_path, base_url=fake.url), api_key="wrong")
    assert rows(tmp_path) == []
    assert "Unfinished: 0 of 10" in (tmp_path / "report.md").read_text()


async def test_an_endpoint_that_goes_away_costs_no_episode(tmp_path: Path) -> None:
    answer = expert_answers(counter_task(), "train")
    async with FakeOpenAI(answer) as fake:
        gone = fake.url
    with pytest.raises(Unreachable):
        await run(config(tmp_path, base_url=gone, retries=0))
    assert rows(tmp_path) == []
    async with FakeOpenAI(answer) as fake:  # at another address: the run goes on
        report = await run(config(tmp_path, base_url=fake.url))
    assert report.scores[0].success == (1.0, 0.0)


async def test_bad_calls_are_the_model_s_and_never_break_the_evaluation(tmp_path: Path) -> None:
    moves = [
        assistant(None, [ToolCall("x", "add", "{")]),
        assistant(None, [ToolCall("x", "", "")]),
        assistant(None, [ToolCall("x", "add", '{"number": "one"}'), ToolCall("x", "nope", "{}")]),
        assistant(),
    ]
    async with FakeOpenAI(lambda messages, tools: moves[len(messages) % 4]) as fake:
        report = await run(config(tmp_path, base_url=fake.url, repeats=1))
    scores = report.scores[0]
    assert scores.statuses == {"task limit reached": 5}
    assert scores.invalid_call_rate == 1.0
    assert scores.reward.mean == 0.0


async def test_faults_of_the_environment_are_counted_by_whose_they_are(tmp_path: Path) -> None:
    samples: dict[str, list[dict[str, Any]]] = {"train": [{"start": "raise"}, {"start": "hang"}, {}]}
    task = make_task(type("Rude", (Rude,), {"call_timeout_s": 20.0, "start_timeout_s": 0.8}), samples=samples)

    def provoke(messages: list[Message], tools: list[str]) -> Message:
        return assistant(None, [ToolCall("x", "raises", '{"kind": "infrastructure"}')])

    async with FakeOpenAI(provoke) as fake:
        settings = config(tmp_path, base_url=fake.url, repeats=1, tasks=("rude",))
        report = await run(settings, task)
    assert report.scores[0].errors == {
        "env init failed: task": 1,
        "env init failed: environment": 1,
        "task error: environment": 1,
    }
    assert report.scores[0].scored == 0
    assert report.scores[0].success.mean is None
    assert report.exit_code == 4


async def test_samples_are_chosen_by_pattern_and_limit(tmp_path: Path) -> None:
    await run(config(tmp_path / "a", player="noop", samples=("counter/train/[13]", "counter/train/4"), repeats=1))
    assert [row.sample for row in rows(tmp_path / "a")] == ["counter/train/1", "counter/train/3", "counter/train/4"]
    await run(config(tmp_path / "b", player="noop", limit=2, repeats=1))
    assert [row.sample for row in rows(tmp_path / "b")] == ["counter/train/0", "counter/train/1"]
    with pytest.raises(NotFound, match="none matches counter/dev/0"):
        await run(config(tmp_path / "c", player="noop", samples=("counter/dev/0",)))


async def test_an_environment_has_one_seed_in_all_repeats_and_players_draw_anew(tmp_path: Path) -> None:
    await run(config(tmp_path, player="random", repeats=6))
    by_sample: dict[str, set[int]] = {}
    for row in rows(tmp_path):
        by_sample.setdefault(row.sample, set()).add(row.seed)
    assert all(len(seeds) == 1 for seeds in by_sample.values())
    assert len(set.union(*by_sample.values())) == 5
    assert len({row.turns for row in rows(tmp_path)}) > 1
    assert derived_seed(0, "a") != derived_seed(0, "a", 0) != derived_seed(1, "a", 0)


async def test_several_tasks_are_averaged_with_equal_weight(tmp_path: Path) -> None:
    tasks = {"counter": counter_task(), "other": counter_task()}
    settings = EvalConfig(tasks=("counter", "other"), split="dev", player="expert", out=tmp_path, repeats=1)
    report = await evaluate(settings, tasks=tasks)
    assert report.to_dict()["macro_average"]["success"] == 1.0
    assert "| mean of tasks |" in report.to_markdown()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"tasks": ()}, "at least one"),
        ({"tasks": ("db", "db")}, "each once"),
        ({"model": None}, "either a model or a player"),
        ({"player": "expert", "model": "m"}, "either a model or a player"),
        ({"base_url": None}, "needs an address"),
        ({"player": "exprt"}, "Did you mean 'expert'"),
        ({"parser": "hermess"}, "Did you mean 'hermes'"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CallerError, match=text):
        config(tmp_path, **changes)


async def test_changed_options_are_refused_by_name_but_not_those_of_speed(tmp_path: Path) -> None:
    await run(config(tmp_path, player="noop", repeats=1))
    await run(config(tmp_path, player="noop", repeats=1, concurrency=2, timeout_s=9))
    with pytest.raises(CallerError, match="repeats was 1, now 3"):
        await run(config(tmp_path, player="noop", repeats=3))
    changed = counter_task()
    changed.spec = type(changed.spec)(**{**vars(changed.spec), "max_turns": 5})
    with pytest.raises(CallerError, match="specs was"):
        await run(config(tmp_path, player="noop", repeats=1), changed)


def command(url: str, out: Path) -> list[str]:
    options = ["--split", "train", "--model", "fake", "--base-url", url, "--repeats", "4", "--concurrency", "2"]
    return [sys.executable, "-m", "agentbench_fc.cli", "eval", "--task", f"{TOYS}:TASK", *options, "--out", str(out)]


async def finished(url: str, out: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(*command(url, out), "--json", stdout=-1, stderr=-1)
    stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, stderr.decode()
    scores: dict[str, Any] = json.loads(stdout)["tasks"][f"{TOYS}:TASK"]
    return {name: value for name, value in scores.items() if "latency" not in name}


async def test_a_killed_run_goes_on_and_comes_to_the_same_totals(tmp_path: Path) -> None:
    answer = expert_answers(counter_task(), "train", gives_up=lambda sample_id: sample_id.endswith("3"))
    async with FakeOpenAI(answer, delay_s=0.02) as fake:
        whole = await finished(fake.url, tmp_path / "whole")
        out, results = tmp_path / "killed", tmp_path / "killed" / "results.jsonl"
        for enough in (3, 9):
            process = await asyncio.create_subprocess_exec(*command(fake.url, out), stdout=-3, stderr=-3)
            async with asyncio.timeout(60):
                while not results.exists() or len(results.read_bytes().splitlines()) <= enough:  # noqa: ASYNC110  (a file has no event)
                    await asyncio.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        with results.open("ab") as file:
            file.write(b'{"type": "episode", "task": "half a li')
        assert len(read_results(results)) < 20
        assert await finished(fake.url, out) == whole
    assert whole["success"]["mean"] == 0.8
    assert len(results.read_bytes().splitlines()) == 21, "no episode was recorded twice"


async def test_a_controller_that_is_not_there_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_fc.connecting.CONTACT_S", 0.5)
    with socket.socket() as taken:  # bound and not listening: nothing else answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match=f"no connection.*{url}"):
            await asyncio.wait_for(run(config(tmp_path, player="expert", url=url)), 20)
        with pytest.raises(InfrastructureError, match="agentbench-fc serve"):
            AgentEnv("kg", url=url)
    assert not (tmp_path / "results.jsonl").exists()
