"""Evaluates a model behind an OpenAI-compatible endpoint: `evaluate_endpoint.py http://host:8000/v1 MODEL [TASK …]`.

The same from the shell: `agentbench-fc eval --task db --split dev --model MODEL --base-url http://localhost:8000/v1`.
"""

import asyncio
import sys
from pathlib import Path

from agentbench_fc.evaluate import EvalConfig, evaluate


async def main(base_url: str, model: str, *tasks: str) -> None:
    config = EvalConfig(
        tasks=tasks or ("db", "kg"),
        split="dev",
        model=model,
        base_url=base_url,
        limit=20,  # samples of each task
        repeats=4,
        temperature=0.8,
        concurrency=16,
        out=Path("runs/eval") / model.replace("/", "-"),  # run it again to continue after an interruption
    )
    report = await evaluate(config)
    print(report.to_markdown())
    for scores in report.scores:
        print(f"{scores.task}: success {scores.success.mean} ± {scores.success.std}, pass@4 {scores.pass_at.get(4)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
