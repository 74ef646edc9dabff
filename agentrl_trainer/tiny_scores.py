"""What a policy folder scores on held-out samples, sampled and greedy: the figures of its manifest and card.

Episodes are played as in a training run, by the same player, renderer and engine, in this process and without training.

Not here: evaluation within a run (evaluation.py); evaluation of an endpoint (agentbench_fc.evaluate).
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.client import LocalClient
from agentbench_fc.registry import load_task
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.engines.transformers import TransformersEngine
from agentrl_trainer.rollout.trajectory import EpisodeSpec, Player, PlayOptions
from agentrl_trainer.types import Trajectory

MAX_NEW_TOKENS = 96
MAX_CONTEXT = 1024
DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One task under one temperature."""

    success: float
    episodes: int
    turns: float
    """Mean agent turns."""
    tokens: float
    """Mean length of an episode, prompt included."""


def score(
    folder: Path,
    tasks: Mapping[str, Mapping[str, Any]],
    *,
    prompt: str = "compact",
    split: str = "dev",
    samples: int = 128,
    temperatures: Sequence[float] = (0.8, 0.0),
    seed: int = 0,
    threads: int = 1,
) -> dict[str, dict[float, Score]]:
    """Plays the first `samples` samples of a split, once each.

    Draws are seeded, but which requests share a batch is a matter of timing and changes the last bits of log-probs: two
    runs agree up to a few sampled episodes.

    Args:
        folder: Model and tokenizer.
        tasks: Options by task name.
        prompt: Prompt style of all tasks.
        split: Held-out samples.
        samples: Per task and temperature.
        temperatures: 0 is greedy.
        seed: Of all draws.
        threads: CPU threads of torch.

    Raises:
        CallerError: no model there, an unknown task or option.
    """
    return asyncio.run(_score(folder, tasks, prompt, split, samples, temperatures, seed, threads))


async def _score(
    folder: Path,
    tasks: Mapping[str, Mapping[str, Any]],
    prompt: str,
    split: str,
    samples: int,
    temperatures: Sequence[float],
    seed: int,
    threads: int,
) -> dict[str, dict[float, Score]]:
    engine = TransformersEngine(folder, max_batch=32, threads=threads, seed=seed)
    client = LocalClient()
    player = Player(
        client,
        ChatRenderer(folder),
        EnginePool([engine]),
        PlayOptions(max_new_tokens=MAX_NEW_TOKENS, max_context=MAX_CONTEXT, generate_timeout_s=DEADLINE_S),
    )
    try:
        results: dict[str, dict[float, Score]] = {}
        for task, options in tasks.items():
            specs = [
                EpisodeSpec(task=task, sample_id=sample_id, split=split, seed=seed, prompt=prompt, options=options)
                for sample_id in _sample_ids(task, prompt, split, samples, options)
            ]
            results[task] = {t: await _play(player, specs, t, seed) for t in temperatures}
        return results
    finally:
        await client.aclose()
        await engine.aclose()


def _sample_ids(task: str, prompt: str, split: str, samples: int, options: Mapping[str, Any]) -> list[str]:
    loaded = load_task(task, prompt=prompt, **options)
    try:
        return [sample.id for sample in loaded.samples(split)[:samples]]
    finally:
        loaded.close()


async def _play(player: Player, specs: Sequence[EpisodeSpec], temperature: float, seed: int) -> Score:
    """The deadline is one for all: a policy that does not end its turns must not hold the build for ever."""
    played = await asyncio.gather(
        *(
            player.play(spec, random.Random(f"{spec.sample_id}/{seed}"), temperature=temperature, deadline_s=DEADLINE_S)
            for spec in specs
        )
    )
    return _summary(played)


def _summary(played: Sequence[Trajectory]) -> Score:
    count = max(len(played), 1)
    return Score(
        success=round(sum(bool(t.success) for t in played) / count, 4),
        episodes=len(played),
        turns=round(sum(t.metrics["turns"] for t in played) / count, 2),
        tokens=round(sum(len(t.ids) for t in played) / count, 1),
    )
