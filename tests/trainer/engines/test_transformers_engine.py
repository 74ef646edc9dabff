"""Sampled tokens carry the log-prob of one full pass of the weights that drew them: alone, batched, across updates."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, ContextFull, Sampling
from agentrl_trainer.engines.decoder import draw
from agentrl_trainer.engines.kv import PrefixStore, shared_prefix
from agentrl_trainer.engines.transformers import TransformersEngine


@pytest.fixture
async def engine(model_folder: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(model_folder, max_context=256)
    yield engine
    await engine.aclose()


def prompts(count: int, seed: int = 0, shared: int = 20) -> list[list[int]]:
    """Ragged prompts; every second one begins like the first."""
    rng = random.Random(seed)
    head = [rng.randrange(3, 300) for _ in range(shared)]
    return [head * (i % 2) + [rng.randrange(3, 300) for _ in range(rng.randrange(1, 50))] for i in range(count)]


def full_pass(folder: Path, ids: list[int], temperature: float) -> torch.Tensor:
    """(T, V) log-probs of one forward pass of the plain model: the slow definition."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits / temperature, -1)


def assert_exact(folders: dict[int, Path], prompt: list[int], completion: Completion, temperature: float) -> None:
    ids = [*prompt, *completion.ids]
    passes = {version: full_pass(folders[version], ids, temperature) for version in set(completion.versions)}
    for i, (token, logprob, version) in enumerate(
        zip(completion.ids, completion.logprobs, completion.versions, strict=True)
    ):
        expected = passes[version][len(prompt) + i - 1, token].item()
        assert logprob == pytest.approx(expected, abs=1e-4)


async def test_behaviour_log_probs_equal_a_full_pass_alone_and_in_a_ragged_batch(
    engine: TransformersEngine, model_folder: Path
) -> None:
    given = prompts(9)
    sampling = [Sampling(max_tokens=5 + 3 * i, temperature=0.8, seed=i, stop_ids=(2,)) for i in range(9)]
    batched = await asyncio.gather(
        *(engine.generate(p, s, timeout_s=120) for p, s in zip(given, sampling, strict=True))
    )
    for prompt, options, together in zip(given, sampling, batched, strict=True):
        assert_exact({0: model_folder}, prompt, together, 0.8)
        alone = await engine.generate(prompt, options, timeout_s=120)
        assert alone.ids == together.ids
        np.testing.assert_allclose(alone.logprobs, together.logprobs, atol=1e-4)
        assert (together.finish_reason == "stop") == (together.ids[-1] == 2)


async def test_greedy_follows_the_largest_logit_with_the_log_probs_of_temperature_1(
    engine: TransformersEngine, model_folder: Path
) -> None:
    prompt = prompts(1)[0]
    answer = await engine.generate(prompt, Sampling(max_tokens=12, temperature=0), timeout_s=120)
    table = full_pass(model_folder, [*prompt, *answer.ids], 1.0)
    assert list(answer.ids) == table[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert_exact({0: model_folder}, prompt, answer, 1.0)
    assert answer.finish_reason == "length"


async def test_a_later_turn_that_starts_from_stored_keys_is_exact(
    engine: TransformersEngine, model_folder: Path
) -> None:
    ids = prompts(1)[0]
    for turn in range(4):
        answer = await engine.generate(ids, Sampling(max_tokens=10, temperature=1.0), timeout_s=120)
        assert_exact({0: model_folder}, ids, answer, 1.0)
        ids = [*ids, *answer.ids, 7, 8, 9 + turn]
    siblings = [[*ids[:30], token] for token in (11, 12, 13)]  # leave the stored sequence on the way
    answers = await asyncio.gather(*(engine.generate(s, Sampling(max_tokens=6), timeout_s=120) for s in siblings))
    for sibling, answer in zip(siblings, answers, strict=True):
        assert_exact({0: model_folder}, sibling, answer, 0.8)


async def test_weights_change_in_flight_and_every_token_has_the_version_that_drew_it(
    engine: TransformersEngine, make_model: Callable[..., Path], model_folder: Path
) -> None:
    folders = {0: model_folder, 1: make_model(1), 2: make_model(2)}
    given = prompts(6)
    sampling = Sampling(max_tokens=150, temperature=0.9)
    decode, rounds = engine._decoder.round, iter(range(1, 10_000))
    limits = {50: 1, 100: 2}

    def paced() -> Any:
        """Goes on behind its 50th round once version 1 is there or waits, behind the 100th with version 2."""
        wanted, deadline = limits.get(next(rounds), 0), time.monotonic() + 60
        while engine.version < wanted and not engine._updates and time.monotonic() < deadline:
            time.sleep(0.001)
        return decode()

    engine._decoder.round = paced  # type: ignore[method-assign]
    requests = [asyncio.create_task(engine.generate(p, sampling, timeout_s=120)) for p in given]
    async with asyncio.timeout(60):
        while len(engine._running) < len(given):  # noqa: ASYNC110  (the engine's thread takes them)
            await asyncio.sleep(0.001)
    for version in (1, 2):
        await engine.generate([5], Sampling(max_tokens=20), timeout_s=120)  # 20 rounds have passed for everyone
        await engine.update_weights(folders[version], version)
        assert engine.version == version
    for prompt, request in zip(given, requests, strict=True):
        answer = await request
        assert list(answer.versions) == sorted(answer.versions)
        assert set(answer.versions) == {0, 1, 2}
        assert_exact(folders, prompt, answer, 0.9)


async def test_what_was_stored_before_an_update_is_not_used_behind_it(
    engine: TransformersEngine, make_model: Callable[..., Path], model_folder: Path
) -> None:
    folders = {0: model_folder, 1: make_model(1)}
    ids = prompts(1)[0]
    for version in (0, 1):
        await engine.update_weights(folders[version], version)
        answer = await engine.generate(ids, Sampling(max_tokens=4), timeout_s=120)
        assert set(answer.versions) == {version}
        assert_exact(folders, ids, answer, 0.8)
        ids = [*ids, *answer.ids]


async def test_sampled_frequencies_are_the_distribution(engine: TransformersEngine, model_folder: Path) -> None:
    prompt = prompts(1)[0]
    sampling = Sampling(max_tokens=1, temperature=0.7)
    draws = (replace(sampling, seed=seed) for seed in range(2000))
    answers = await asyncio.gather(*(engine.generate(prompt, draw, timeout_s=120) for draw in draws))
    expected = full_pass(model_folder, prompt, 0.7)[-1].exp().numpy()
    counts = np.bincount([a.ids[0] for a in answers], minlength=len(expected))
    top = np.argsort(-expected)[:10]
    deviation = (counts[top] - 2000 * expected[top]) / np.sqrt(2000 * expected[top] * (1 - expected[top]))
    assert np.abs(deviation).max() < 4.5


def test_draw_never_picks_an_impossible_token_and_maps_uniforms_by_the_cumulative_sum() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).repeat(4, 1)
    uniforms = torch.tensor([0.0, 0.49, 0.51, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = draw(logits, torch.ones(4), uniforms)
    assert tokens.tolist() == [1, 1, 3, 3]
    assert logprobs.tolist() == pytest.approx([np.log(0.5)] * 4)


async def test_a_request_beyond_the_context_or_the_vocabulary_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(ContextFull, match="exceed the context of 256"):
        await engine.generate([5] * 250, Sampling(max_tokens=7), timeout_s=1)
    assert len((await engine.generate([5] * 250, Sampling(max_tokens=6), timeout_s=120)).ids) == 6
    for ids in ([], [304], [-1]):
        with pytest.raises(CallerError, match="vocabulary"):
            await engine.generate(ids, Sampling(max_tokens=1), timeout_s=1)


async def test_a_deadline_frees_the_row_and_the_engine_goes_on(engine: TransformersEngine) -> None:
    with pytest.raises(InfrastructureError, match="no answer within"):
        await engine.generate([5, 6], Sampling(max_tokens=254, stop_ids=()), timeout_s=0.01)
    answer = await engine.generate([5, 6, 7], Sampling(max_tokens=3), timeout_s=120)
    assert len(answer.ids) == 3
    assert engine._running == {}


async def test_weights_of_another_model_are_refused_and_the_engine_keeps_its_own(
    engine: TransformersEngine, make_model: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(CallerError, match="weights of another model"):
        await engine.update_weights(make_model(3, hidden_size=16), 1)
    with pytest.raises(CallerError, match="weights of another model"):
        await engine.update_weights(make_model(3, num_hidden_layers=1), 1)
    with pytest.raises(InfrastructureError, match="cannot be read"):
        await engine.update_weights(tmp_path, 1)
    answer = await engine.generate([5, 6], Sampling(max_tokens=3), timeout_s=120)
    assert_exact({0: model_folder}, [5, 6], answer, 0.8)


async def test_a_failing_thread_fails_everyone_who_waits(engine: TransformersEngine) -> None:
    def broken() -> Any:
        raise RuntimeError("out of memory")

    engine._decoder.round = broken  # type: ignore[method-assign]  # the one fault that cannot be provoked from outside
    with pytest.raises(InfrastructureError, match="out of memory"):
        await engine.generate([5], Sampling(max_tokens=1), timeout_s=120)
    assert not await engine.health()
    with pytest.raises(InfrastructureError, match="has ended"):
        await engine.generate([5], Sampling(max_tokens=1), timeout_s=120)


def test_models_that_cannot_be_loaded_or_served_are_refused(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    with pytest.raises(CallerError, match="no causal model"):
        TransformersEngine(tmp_path)
    windowed = make_model(0, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(CallerError, match="plain full attention"):
        TransformersEngine(windowed)


def test_the_store_keeps_what_was_used_last_and_finds_the_longest_prefix() -> None:
    from agentrl_trainer.engines.kv import Prefix

    def entry(*ids: int) -> Prefix:
        return Prefix(np.array(ids, dtype=np.int32), [(torch.zeros(1, len(ids), 2), torch.zeros(1, len(ids), 2))])

    store = PrefixStore(max_bytes=entry(1, 2, 3).nbytes * 2)
    store.add(entry(1, 2, 3))
    store.add(entry(1, 2, 4))
    found = store.longest(np.array([1, 2, 4, 9], dtype=np.int32), 1)
    assert found is not None
    assert found[1] == 3
    store.get(1)
    store.add(entry(5, 6, 7))
    assert store.longest(np.array([1, 2, 4], dtype=np.int32), 2) is None  # the least recently used one went
    assert store.longest(np.array([1, 2, 3], dtype=np.int32), 2) == (1, 3)
    store.add(entry(1, 2), instead_of=1)
    assert len(store) == 2
    assert shared_prefix(np.array([1, 2], dtype=np.int32), np.array([1, 2, 3], dtype=np.int32)) == 2
