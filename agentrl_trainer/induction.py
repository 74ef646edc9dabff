"""Gives a fresh model the heads that copy: what followed this token the last time is what follows it now.

The circuit has two layers. A head of the first looks one token back and notes what stands there. Heads of the second
look for the place whose note is the present token, and repeat what stands at that place. Training finds this by itself
only after some 1,500 steps on a plateau; where it is planted, a hundred steps make it good.

It is a start, not a cage: these are ordinary weights of an ordinary model, and training goes on from them.

Not here: the training (copy_pretraining.py).
Source: induction heads, Olsson et al. 2022, arXiv 2209.11895; the construction is ours.
"""

import math
from typing import TYPE_CHECKING, Any

from agentbench_fc.errors import CallerError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QUIET = 0.05
"""What is left of all other heads and layers: a token must still be legible when the second layer reads it."""
NEAR = (1.0, 1.0, 0.7, 0.5)
"""How much the fastest rotations weigh where a head looks one token back: they alone tell neighbours apart."""
SLOW = 0.02
"""Radians per token below which a rotation hardly turns what is compared over a few hundred tokens."""
CONSTANT = 3.0
"""The entry that all tokens have in common, in deviations of the others; queries that ask for a place need one."""
LOOK_BACK, MATCH, REPEAT = 2.0, 4.0, 8.0
"""Sharpness of the two kinds of head, and how loudly the second repeats."""


def plant_induction_heads(model: "PreTrainedModel", *, seed: int = 0) -> None:
    """Writes the heads into the first two layers of a fresh model, in place.

    Args:
        model: Of a Qwen3 kind: rotary positions, normalized queries and keys, tied embeddings.
        seed: Of the directions in which notes are written.

    Raises:
        CallerError: the model is too small, or of another kind.
    """
    import torch

    config = model.config
    width, size = config.hidden_size, getattr(config, "head_dim", 0)
    if config.model_type != "qwen3" or config.num_hidden_layers < 2 or config.num_attention_heads < 2:
        raise CallerError("no place for induction heads [make_tiny]. Use a Qwen3 with two layers of two heads or more.")
    if 2 * size >= width or config.num_key_value_heads != config.num_attention_heads:
        raise CallerError(
            f"head_dim is {size} of hidden_size {width} [make_tiny]. Notes and tokens must fit side by side: "
            "use less than half, and as many key heads as query heads."
        )
    generator = torch.Generator().manual_seed(seed)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(QUIET)
            layer.mlp.down_proj.weight.mul_(QUIET)
        embedding = model.get_input_embeddings().weight
        scale = embedding.std().item()
        embedding[:, 0] = CONSTANT * scale
        directions = _directions(width, generator)
        token, note = directions[:size], directions[size : 2 * size]
        speeds = config.rope_parameters["rope_theta"] ** (-torch.arange(size // 2) / (size // 2))
        _look_back(first, token, note * scale, speeds)
        _match(second, token, note, speeds)
        for head in range(2):
            rows = slice(head * size, (head + 1) * size)
            part = torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:size]
            second.v_proj.weight[rows] = part
            second.o_proj.weight[:, rows] = part.T * scale * REPEAT


def _directions(width: int, generator: "torch.Generator") -> "torch.Tensor":
    """Orthogonal unit rows that leave out the constant entry."""
    import torch

    rows = torch.zeros(width - 1, width)
    rows[:, 1:] = torch.linalg.qr(torch.randn(width - 1, width - 1, generator=generator))[0]
    return rows


def _look_back(attention: Any, token: "torch.Tensor", note: "torch.Tensor", speeds: "torch.Tensor") -> None:
    """Head 0: every query is the same, and every key is it turned by one token, so the token before fits best."""
    import torch

    size = token.shape[0]
    weight = torch.zeros(size // 2)
    weight[: len(NEAR)] = torch.tensor(NEAR)
    for projection, turned in ((attention.q_proj, 0.0), (attention.k_proj, 1.0)):
        projection.weight[:size] = 0
        projection.weight[:size, 0] = torch.cat(
            [weight * torch.cos(turned * speeds), weight * torch.sin(turned * speeds)]
        )
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(math.sqrt(LOOK_BACK))
    attention.v_proj.weight[:size] = token
    attention.o_proj.weight[:, :size] = note.T


def _match(attention: Any, token: "torch.Tensor", note: "torch.Tensor", speeds: "torch.Tensor") -> None:
    """Heads 0 and 1: a query is the present token and a key is a note, compared where rotations are slow."""
    size = token.shape[0]
    slow = [pair for pair, speed in enumerate(speeds.tolist()) if speed < SLOW]
    entries = [*slow, *(pair + size // 2 for pair in slow)]
    for head in range(2):  # each compares other parts: together they read most of a note
        rows = slice(head * size, (head + 1) * size)
        parts = [(head * len(entries) + n) % size for n in range(len(entries))]
        for projection, read in ((attention.q_proj, token), (attention.k_proj, note)):
            projection.weight[rows] = 0
            projection.weight[[head * size + entry for entry in entries]] = read[parts]
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(math.sqrt(MATCH))
