"""A random two-layer policy in a folder, trajectories of random ids, and a scripted rollout side."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl_trainer.types import NO_ENGINE, NO_VERSION, Group, Trajectory

VOCABULARY = 64


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-config model of two layers with a word-level tokenizer, as Hugging Face saves them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_trajectory(
    *,
    rng: np.random.Generator,
    prompt: int = 5,
    turns: Iterable[tuple[int, int]] = ((4, 3), (3, 0)),
    reward: float | None = 0.0,
    version: int = 0,
    engine: int = 0,
    logprobs: Callable[[np.ndarray], np.ndarray] | None = None,
    **fields: Any,
) -> Trajectory:
    """A trajectory of random ids: per turn so many sampled and so many observed tokens.

    `logprobs` maps ids (T,) to their log-probs (T,); without it they are random.
    """
    mask, turn_of = [False] * prompt, [0] * prompt
    for number, (sampled, observed) in enumerate(turns, start=1):
        mask += [True] * sampled + [False] * observed
        turn_of += [number] * (sampled + observed)
    on = np.array(mask)
    ids = rng.integers(3, VOCABULARY, len(mask)).astype(np.int32)
    behaviour = logprobs(ids) if logprobs else rng.uniform(-5, -1, len(mask))
    defaults: dict[str, Any] = {
        "task": "db", "sample_id": "db/train/0", "group_id": "g0", "replica": 0, "status": "completed",
        "success": bool(reward), "raw_reward": reward,
    }  # fmt: skip
    return Trajectory(
        **(defaults | fields),
        ids=ids,
        prompt_length=prompt,
        mask=on,
        logprobs=np.where(on, behaviour, 0).astype(np.float32),
        versions=np.where(on, version, NO_VERSION).astype(np.int32),
        engines=np.where(on, engine, NO_ENGINE).astype(np.int8),
        turns=np.array(turn_of, dtype=np.int16),
        reward=reward,
    )


def make_group(trajectories: list[Trajectory], number: int = 0, **fields: Any) -> Group:
    """A group around trajectories; they take over its id."""
    for replica, trajectory in enumerate(trajectories):
        trajectory.group_id, trajectory.replica = f"g{number}", replica
    first = trajectories[0]
    return Group(
        id=f"g{number}", task=first.task, sample_id=first.sample_id, trajectories=trajectories,
        **({"admitted_version": 0} | fields),
    )  # fmt: skip


class ScriptedRollouts:
    """The rollout side's interface over a function that makes the n-th group at the newest published version."""

    def __init__(self, make: Callable[[int, int], Group | None]) -> None:
        self._make = make
        self.number = 0
        self.published: list[tuple[int, bool]] = []
        self.snapshots: list[Path] = []
        self.evaluations: list[tuple[Any, ...]] = []
        self.trained: list[int] = []
        self.closed = False

    def start(self) -> "ScriptedRollouts":
        return self

    def get_group(self, timeout: float) -> Group | None:
        if not self.published or (group := self._make(self.number, self.published[-1][0])) is None:
            time.sleep(min(timeout, 0.01))
            return None
        self.number += 1
        return group

    def publish(self, path: Path, version: int, stale: bool) -> None:
        self.published.append((version, stale))
        self.snapshots.append(path)

    def consumed(self, trajectories: int) -> None:
        self.trained.append(trajectories)

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        self.evaluations.append((task, split, n, temperature, seed))
        success = [i % 2 == 0 for i in range(n)]
        return [{"success": s, "raw_reward": float(s), "status": "completed", "turns": 2} for s in success]

    def stats(self) -> Mapping[str, Any]:
        return {"given": self.number}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="session", name="make_trajectory")
def _make_trajectory() -> Callable[..., Trajectory]:
    return make_trajectory


@pytest.fixture(scope="session", name="make_group")
def _make_group() -> Callable[..., Group]:
    return make_group


@pytest.fixture(scope="session", name="scripted")
def _scripted() -> type[ScriptedRollouts]:
    return ScriptedRollouts
