"""Supervised training of a model of a million parameters on one core: a loop that leaves out all that it can.

It does what warmstart.py does with TRL's SFTTrainer, in half the time: at this size, logits of tokens that are not
learnt, entropies and metrics cost more than the model itself.

Not here: training a user's model (warmstart.py), what is learnt (demonstrations.py).
"""

import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

IGNORED = -100
POOL = 32
"""Batches that are drawn together and sorted by length, so that little is padded."""

Row = dict[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """How to train."""

    steps: int
    learning_rate: float
    """Highest; warmed up linearly over a twentieth of the steps, on a cosine to zero."""
    batch_size: int = 16
    seed: int = 0
    """Of the order of rows."""


def imitate(model: "PreTrainedModel", rows: Sequence[Row], how: Imitation) -> float:
    """Trains the model in place and returns the loss of the last tenth of the steps, in nats per learnt token.

    Args:
        model: A causal model.
        rows: `input_ids` and `labels` of each conversation (`warmstart.tokenize`).
        how: Steps, rate, order.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=how.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    batches = _batches(rows, how)
    losses: list[float] = []
    model.train()
    for step in range(how.steps):
        ids, labels = _padded(next(batches))
        warm = min(1.0, (step + 1) / max(1.0, how.steps / 20))
        optimizer.param_groups[0]["lr"] = how.learning_rate * warm * (1 + math.cos(math.pi * step / how.steps)) / 2
        targets = labels[:, 1:]
        learnt = targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16):
            states = model.base_model(input_ids=ids).last_hidden_state[:, :-1]
            logits = model.get_output_embeddings()(states[learnt])
        loss = torch.nn.functional.cross_entropy(logits.float(), targets[learnt])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            logger.info("imitation: step %d, loss %.4f", step + 1, sum(losses[-50:]) / 50)
    model.eval()
    last = losses[-max(1, how.steps // 10) :]
    return sum(last) / len(last)


def _batches(rows: Sequence[Row], how: Imitation) -> Iterator[list[Row]]:
    """Endless; each row once per round, rows of like length together."""
    rng = random.Random(how.seed)
    order = list(range(len(rows)))
    while True:
        rng.shuffle(order)
        for start in range(0, len(order), how.batch_size * POOL):
            pool = sorted(order[start : start + how.batch_size * POOL], key=lambda i: len(rows[i]["input_ids"]))
            batches = [pool[at : at + how.batch_size] for at in range(0, len(pool), how.batch_size)]
            rng.shuffle(batches)
            for batch in batches:
                yield [rows[i] for i in batch]


def _padded(batch: Sequence[Row]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Padded at the end: a causal model does not see it, so no mask is needed."""
    import torch

    length = max(len(row["input_ids"]) for row in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED)
    for number, row in enumerate(batch):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        labels[number, : len(row["labels"])] = torch.tensor(row["labels"])
    return ids, labels
