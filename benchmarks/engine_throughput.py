"""Tokens per CPU second of the in-process engine, with and without the store of prefixes.

Agents come back turn after turn with everything they said before. The engine keeps the keys and values of earlier
turns until the weights change, so a turn costs its new tokens instead of its whole history. The workload: 32
trajectories in groups of 8 that share a prompt of 150 tokens, 5 turns of 25 sampled and 40 observed tokens, a random
model of 0.8 M parameters in float32, one thread. Tokens sampled greedily must be equal in both.

    python benchmarks/engine_throughput.py [pairs]
"""

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl_trainer.engines.base import Sampling
from agentrl_trainer.engines.transformers import TransformersEngine

VOCABULARY, PROMPT, TURNS, SAMPLED, OBSERVED = 1024, 150, 5, 25, 40
TRAJECTORIES, GROUP = 32, 8


def make_model(folder: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


async def play(model: Path, cache_bytes: int) -> tuple[float, list[list[int]]]:
    """Tokens per CPU second, and all sequences."""
    engine = TransformersEngine(model, max_context=1024, max_batch=TRAJECTORIES, cache_bytes=cache_bytes)

    async def trajectory(number: int) -> list[int]:
        rng = random.Random(number // GROUP)
        ids = [rng.randrange(VOCABULARY) for _ in range(PROMPT)]
        rng = random.Random(f"observations of {number}")
        for _ in range(TURNS):
            answer = await engine.generate(ids, Sampling(max_tokens=SAMPLED, temperature=0), timeout_s=300)
            ids += [*answer.ids, *(rng.randrange(VOCABULARY) for _ in range(OBSERVED))]
        return ids

    started = time.process_time()
    sequences = await asyncio.gather(*(trajectory(i) for i in range(TRAJECTORIES)))
    seconds = time.process_time() - started
    await engine.aclose()
    return TRAJECTORIES * TURNS * SAMPLED / seconds, sequences


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rates: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        for number in range(pairs):
            found = []
            for kept in (True, False) if number % 2 else (False, True):  # the order alternates: drift cancels
                rate, sequences = asyncio.run(play(model, (1 << 28) if kept else 0))
                rates[kept].append(rate)
                found.append(sequences)
            assert found[0] == found[1], "a faster wrong answer is no claim"
    low, median, high = statistics.quantiles([a / b for a, b in zip(rates[True], rates[False], strict=True)], n=4)
    print(
        f"stored prefixes against none: {median:.1f}x [{low:.1f}, {high:.1f}], {pairs} pairs, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    print(json.dumps({"tokens_per_cpu_s": {"stored": _median(rates[True]), "none": _median(rates[False])}}))


def _median(values: list[float]) -> int:
    return round(statistics.median(values))


if __name__ == "__main__":
    main()
