"""InferenceEngine: the trainer's only door to inference. Token ids in, token ids out.

An engine does not know text, messages or tasks. Every sampled token comes back with its log-prob under the
distribution it was drawn from and with the version of the weights that drew it.

Not here: which engine takes a turn (pool.py); text <-> ids (chat/).
Source: interface after the AgentRL paper (arXiv 2510.04206) and SGLang's native /generate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from agentbench_fc.errors import CallerError


class ContextFull(CallerError):
    """Prompt and new tokens exceed the engine's context: end the session as `agent context limit`."""


FinishReason = Literal["stop", "length", "abort"]
EngineRole = Literal["fresh", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to continue a sequence. No top-p or top-k: they would bias the importance ratio."""

    max_tokens: int
    temperature: float = 0.8
    """0 is greedy; log-probs are then those of temperature 1."""
    stop_ids: tuple[int, ...] = ()
    """Generation ends after one of these; it is part of the output."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """N sampled tokens."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """(N,) natural, of the distribution sampled (after temperature)."""
    versions: tuple[int, ...]
    """(N,) weight version per token; they differ when weights changed on the way."""
    finish_reason: FinishReason


class InferenceEngine(Protocol):
    """Samples tokens and takes new weights."""

    name: str
    role: EngineRole

    @property
    def version(self) -> int:
        """Version of the weights it holds now."""
        ...

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """Continues `ids` (T,) by at most `sampling.max_tokens` tokens.

        Raises:
            ContextFull: T + max_tokens exceeds the context; end the session as `agent context limit`.
            CallerError: these are no ids of the engine's model; a bug or a wrong tokenizer.
            InfrastructureError: no answer within `timeout_s` seconds; safe to repeat on another engine.
        """
        ...

    async def update_weights(self, path: Path, version: int) -> None:
        """Takes the safetensors weights in `path`; requests in flight end as `abort` or carry two versions."""
        ...

    async def health(self) -> bool:
        """Whether it would answer a request now."""
        ...

    async def aclose(self) -> None:
        """Frees everything; safe to repeat."""
        ...


@runtime_checkable
class Revivable(Protocol):
    """An engine that can be brought back after its end."""

    async def revive(self) -> None:
        """Brings it back with whatever weights: new ones follow.

        Raises:
            InfrastructureError: it does not come back; another attempt may.
            CallerError: it never will.
        """
        ...
