"""A Hugging Face causal model as a continuous batch: rows join, get one token a round, and leave; plain torch.

A row's next token always comes from the weights held now and from keys and values that these weights computed: new
weights make every row compute its whole sequence again. So the log-prob of a token is that of one full forward pass.

Not here: threads, requests and deadlines (transformers.py).
"""

import inspect
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, FinishReason, Sampling
from agentrl_trainer.engines.kv import Ids, KeyValueRows, PrefixStore, shared_prefix

PASS_TOKENS = 4096
"""Padded tokens of one prefill pass; more would only cost memory."""
WORTH_WAITING = 16
"""A row waits for another's prefill when it then need not compute so many tokens itself."""
CHECK_TOLERANCE = 2e-3
"""Log-prob by which decoding and a full pass in float32 may differ at the start; a wrong layer differs by far more."""
Row = int
"""Index of a running sequence, in the batch and in the cache."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request in the batch."""

    ids: list[int]
    sampling: Sampling
    rng: random.Random
    cached: int = 0
    """Tokens whose keys and values are valid."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    source: int | None = None
    """Key of the stored prefix that it continues."""
    given: Ids = field(init=False)

    def __post_init__(self) -> None:
        self.given = np.array(self.ids, dtype=np.int32)

    @property
    def prompt(self) -> int:
        """Number of tokens that were given."""
        return len(self.given)

    @property
    def completion(self) -> Completion:
        """What was sampled so far."""
        new = tuple(self.ids[self.prompt :])
        return Completion(new, tuple(self.logprobs), tuple(self.versions), self.finish_reason or "abort")


class Decoder:
    """The model, its batch and its prefix store. One thread at a time."""

    def __init__(
        self, path: Path, *, max_context: int, device: str = "cpu", dtype: str = "float32", cache_bytes: int = 1 << 28
    ) -> None:
        """Loads the model and checks that it decodes as it reads.

        Raises:
            CallerError: no such model, or one whose attention this engine does not reproduce.
        """
        self.device = torch.device(device)
        self.path = path
        self._model = _load(path, self.device, dtype)
        parameters = inspect.signature(self._model.forward).parameters
        self._parameter = "cache" if "cache" in parameters else "past_key_values"  # renamed within transformers 5
        limit = getattr(self._model.config, "max_position_embeddings", None) or max_context
        self.context = min(limit, max_context)
        self.vocabulary: int = self._model.get_output_embeddings().weight.shape[0]
        self.version = 0
        self.sequences: list[Generation] = []
        self._cache = KeyValueRows()
        self._store = PrefixStore(cache_bytes)
        self._check()

    def add(self, sequence: Generation) -> None:
        """Takes a sequence into the batch; its first token comes with the next round."""
        self.sequences.append(sequence)

    def remove(self, sequence: Generation) -> None:
        """Drops a sequence; its keys and values are kept as a prefix."""
        row = self.sequences.index(sequence)
        if sequence.cached:
            ids = np.array(sequence.ids[: sequence.cached], dtype=np.int32)
            self._store.add(self._cache.save(row, ids), instead_of=sequence.source)
        last = len(self.sequences) - 1
        if row != last:  # rows stay contiguous, so that decoding reads them as one view
            self._cache.copy(last, row, self.sequences[last].cached)
            self.sequences[row] = self.sequences[last]
        self.sequences.pop()

    @torch.inference_mode()
    def round(self) -> list[Generation]:
        """One more token for every sequence; returns those that are finished, already removed."""
        waiting = [row for row, s in enumerate(self.sequences) if len(s.ids) - s.cached > 1]
        ready = [row for row, s in enumerate(self.sequences) if len(s.ids) - s.cached == 1]
        for wave in self._waves(waiting):
            self._advance(wave)
        if ready:
            self._advance(ready)
        finished = [s for s in self.sequences if s.finish_reason is not None]
        for sequence in finished:
            self.remove(sequence)
        return finished

    def load_weights(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Takes new weights; every sequence goes on with them from its next token.

        Raises:
            CallerError: names or shapes are those of another model; the present weights stay.
        """
        own = self._model.state_dict(keep_vars=True)
        wrong = [n for n, t in tensors.items() if n not in own or own[n].shape != t.shape]
        given = {own[name].data_ptr() for name in tensors if name in own}
        missing = [name for name, tensor in own.items() if tensor.data_ptr() not in given]
        if wrong or missing:
            raise CallerError(
                f"version {version} holds the weights of another model: {[*wrong, *missing][:3]} do not match "
                f"[{self.path}]. Publish weights of the model that the engine was started with."
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
        self.version = version
        self._store.clear()
        for sequence in self.sequences:
            sequence.cached, sequence.source = 0, None

    def _waves(self, rows: list[Row]) -> Iterator[list[Row]]:
        """The rows in batches to be prefilled one after the other, so that what they share is computed once."""
        arrays = {row: np.array(self.sequences[row].ids, dtype=np.int32) for row in rows}
        while rows:
            for row in rows:
                self._reuse(row, arrays[row])
            wave: list[Row] = []
            longest = 0
            for row in sorted(rows, key=lambda r: len(self.sequences[r].ids) - self.sequences[r].cached):
                pending = len(self.sequences[row].ids) - self.sequences[row].cached
                gain = self.sequences[row].cached + WORTH_WAITING
                if any(shared_prefix(arrays[row], arrays[other], gain) > gain for other in wave):
                    continue
                longest = max(longest, pending)
                if wave and longest * (len(wave) + 1) > PASS_TOKENS:
                    break
                wave.append(row)
            rows = [row for row in rows if row not in wave]
            yield wave

    def _reuse(self, row: Row, ids: Ids) -> None:
        """Copies the longest prefix that is known, from the store or another row. The last token is always computed."""
        sequence = self.sequences[row]
        known, usable = sequence.cached, ids[:-1]
        best: Row | None = None
        for other, candidate in enumerate(self.sequences):
            if other != row and candidate.cached > known:
                shared = shared_prefix(candidate.given[: candidate.cached], usable, known)
                if shared > known:
                    best, known = other, shared
        if stored := self._store.longest(usable, known):
            key, known = stored
            entry = self._store.get(key)
            self._cache.load(row, entry, known)
            sequence.source = key if known == len(entry.ids) else None
        elif best is not None:
            self._cache.copy(best, row, known)
        sequence.cached = known

    def _advance(self, rows: list[Row]) -> None:
        """One forward pass over what these rows have not computed, and one sampled token for each."""
        chosen = [self.sequences[row] for row in rows]
        logits = self._forward(rows, [s.ids[s.cached :] for s in chosen], [s.cached for s in chosen])
        temperatures = torch.tensor([s.sampling.temperature for s in chosen], device=self.device)
        uniforms = torch.tensor([s.rng.random() for s in chosen], dtype=torch.float64, device=self.device)
        tokens, logprobs = draw(logits, temperatures, uniforms)
        for sequence, token, logprob in zip(chosen, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.cached = len(sequence.ids)
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(self.version)
            if token in sequence.sampling.stop_ids:
                sequence.finish_reason = "stop"
            elif len(sequence.ids) - sequence.prompt >= sequence.sampling.max_tokens:
                sequence.finish_reason = "length"

    def _forward(self, rows: list[Row], tokens: list[list[int]], starts: list[int]) -> Tensor:
        """Logits (B, V) behind the last token of each row."""
        counts = [len(t) for t in tokens]
        width = self._cache.place(rows, starts, counts, self.device)
        longest = max(counts)
        ids = torch.tensor([t + [0] * (longest - len(t)) for t in tokens], device=self.device)
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(longest, device=self.device)
        seen = torch.arange(width, device=self.device) <= positions[:, :, None]
        last = sorted(set(counts))
        output = self._model(
            input_ids=ids,
            attention_mask=seen[:, None],
            position_ids=positions.clamp(max=self.context - 1),  # padding may lie behind the last position
            logits_to_keep=torch.tensor([count - 1 for count in last], device=self.device),
            use_cache=True,
            **{self._parameter: self._cache},
        )
        column = torch.tensor([last.index(count) for count in counts], device=self.device)
        logits: Tensor = output.logits[torch.arange(len(rows), device=self.device), column]
        return logits

    @torch.inference_mode()
    def _check(self) -> None:
        """Decodes two ragged rows against the model's own full pass: a layer that we serve wrongly shows here."""
        rng = random.Random(0)
        size = max(3, min(24, self.context - 1))
        rows = [[rng.randrange(self.vocabulary) for _ in range(n)] for n in (size, size // 2)]
        try:
            self._forward([0, 1], [r[:-1] for r in rows], [0, 0])
            got = torch.log_softmax(self._forward([0, 1], [r[-1:] for r in rows], [len(r) - 1 for r in rows]), -1)
            for i, row in enumerate(rows):
                whole = self._model(input_ids=torch.tensor([row], device=self.device), use_cache=False).logits[0, -1]
                difference = (torch.log_softmax(whole, -1) - got[i]).abs().max().item()
                if not difference <= (CHECK_TOLERANCE if got.dtype == torch.float32 else 0.5):
                    raise CallerError(
                        f"decoding differs from a full pass by {difference:.2g} in log-prob [{self.path}]. "
                        "This engine serves models of plain full attention: use another engine for this one."
                    )
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            raise CallerError(
                f"the model cannot be decoded: {error} [{self.path}]. "
                "This engine serves causal models of plain full attention: use another engine for this one."
            ) from error


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Samples one token a row by inverting the distribution's sum, and gives the log-prob it was drawn with.

    Args:
        logits: (B, V).
        temperatures: (B,); 0 is greedy, with the log-probs of temperature 1.
        uniforms: (B,) in [0, 1), one a row, so that a row's draw does not depend on its neighbours.

    Returns:
        (B,) tokens and (B,) natural log-probs.
    """
    scale = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    goal = uniforms[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, goal, right=True).clamp(max=logits.shape[-1] - 1)[:, 0]
    tokens = torch.where(temperatures > 0, sampled, logits.argmax(-1))
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors file or files.

    Raises:
        InfrastructureError: there is no whole snapshot.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        index = path / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.is_file():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        tensors: dict[str, Tensor] = {}
        for name in names:
            tensors |= load_file(path / name)
        return tensors
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InfrastructureError(f"weights cannot be read: {error!r} [{path}]. Publish them again.") from error


def _load(path: Path, device: torch.device, dtype: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise CallerError(
            f"no causal model can be loaded: {error} [{path}]. Give a folder with config.json and model.safetensors."
        ) from error
    return model.to(device).eval().requires_grad_(False)
