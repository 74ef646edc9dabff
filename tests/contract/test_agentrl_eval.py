"""AgentRL's own evaluation client, unchanged, plays our tasks through our controller."""

import asyncio
import json
from pathlib import Path
from typing import Any

from fake_openai import FakeOpenAI, expert_answers
from serve_stack import stack

from agentbench_fc.messages import Message, assistant
from agentbench_fc.registry import load_task

SAMPLES = 3
EVAL_TIMEOUT_S = 60.0


async def evaluate(python: Path, output: Path, *arguments: str) -> list[dict[str, Any]]:
    """Runs the client to its end; the results that it stored."""
    process = await asyncio.create_subprocess_exec(
        str(python), "-m", "agentrl.eval", *arguments, "--output", str(output),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=output,
    )  # fmt: skip
    try:
        async with asyncio.timeout(EVAL_TIMEOUT_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return await asyncio.to_thread(stored, output)


def stored(output: Path) -> list[dict[str, Any]]:
    """What the client wrote down, a row per sample and run."""
    (file,) = output.rglob("results.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def test_a_whole_evaluation_of_db_and_kg(agentrl_eval: Path, tmp_path: Path) -> None:
    played = {"dbbench-dev": ("db", "dev"), "kg-test": ("kg", "test")}
    experts, wrong = {}, {}
    for name, (task, split) in played.items():
        loaded = load_task(task)
        wrong[name] = loaded.samples(split)[1].id
        expert = expert_answers(loaded, split, limit=SAMPLES, gives_up=lambda sample, its=wrong[name]: sample == its)
        experts["execute_sql" if task == "db" else "get_relations"] = expert

    def answer(messages: list[Message], tools: list[str]) -> Message:
        mine = [expert for tool, expert in experts.items() if tool in tools]
        return mine[0](messages, tools) if mine else assistant("Hi.")  # the client says hello first

    async with FakeOpenAI(answer) as model, stack(refs=("db", "kg")) as served:
        rows = await evaluate(
            agentrl_eval, tmp_path, *played, "--controller", f"{served.url}/api", "--model", "fake",
            "--base-url", model.url, "--chat-completions", "--indices-range", f"0-{SAMPLES - 1}", "--runs", "2",
        )  # fmt: skip
        async with served.client() as client:
            assert await client.list_sessions() == []
            assert sum(worker.finished for worker in await client.list_workers()) == len(rows)
    outcomes = {(row["task"], row["index"]["int_value"], row["run"]): row for row in rows}
    assert set(outcomes) == {(name, index, run) for name in played for index in range(SAMPLES) for run in range(2)}
    for (_, index, _), row in outcomes.items():
        won = index != 1
        assert row["metric_reward"] == row["metric_score"] == row["metric_success_rate"] == float(won), row
        assert (row["status"] == "completed") == won, row
        assert json.loads(row["metrics"])["turns"] > 1
