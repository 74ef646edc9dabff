"""Teaches a fresh model to copy before it sees any task: random sequences that repeat themselves.

Supervised training alone gives a tiny model the form of a tool call and the wrong name in it. A random sequence that
repeats has nothing to learn but "what followed this token the last time?", and that is what a policy needs to take
names out of its prompt and its observations. The ability comes suddenly, after some hundreds of steps without progress.

Not here: training on transcripts (warmstart.py).
Source: induction heads, Olsson et al. 2022, arXiv 2209.11895.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

IGNORED = -100
SHORTEST_PERIOD = 6
FEWEST_WORDS = 8
WINDOW = 20
"""Steps that the loss is averaged over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStage:
    """A stretch of pretraining with sequences of one length, until copying is good enough."""

    length: int
    """Tokens per sequence; half of it is how far back the model learns to look."""
    batch: int
    max_steps: int
    few: bool = False
    """Let each sequence draw from a few words of its own, so that one word does not tell the next: names are spelt."""
    loss: float
    """Nats per copied token, averaged over WINDOW steps, at which the stage ends."""


STAGES = (
    CopyStage(length=64, batch=16, max_steps=400, loss=0.45),
    CopyStage(length=192, batch=6, max_steps=60, loss=0.3),
)


def copy_batch(
    vocabulary: "torch.Tensor", stage: CopyStage, generator: "torch.Generator"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Random periodic sequences, each with a period of its own, and labels from the second period on.

    Returns:
        (batch, length) each: ids, labels. Labels are IGNORED where nothing can be known.
    """
    import torch

    shape = (stage.batch, stage.length)
    draws = torch.rand(shape, generator=generator)
    if stage.few:  # log-uniform sizes: most sequences then say the same word in several contexts
        smallest = math.log(FEWEST_WORDS)
        exponent = torch.rand((stage.batch, 1), generator=generator) * (math.log(len(vocabulary)) - smallest)
        draws = draws * (exponent + smallest).exp() / len(vocabulary)
        shuffled = torch.rand((stage.batch, len(vocabulary)), generator=generator).argsort(1)
        fresh = vocabulary[shuffled.gather(1, (draws * len(vocabulary)).long())]
    else:
        fresh = vocabulary[(draws * len(vocabulary)).long()]
    period = torch.randint(SHORTEST_PERIOD, stage.length // 2 + 1, (stage.batch, 1), generator=generator)
    position = torch.arange(stage.length).expand(shape)
    ids = fresh.gather(1, position % period)
    return ids, ids.masked_fill(position < period, IGNORED)


def pretrain_copying(
    model: "PreTrainedModel",
    vocabulary: Sequence[int],
    *,
    stages: Sequence[CopyStage] = STAGES,
    learning_rate: float = 2e-3,
    warmup_steps: int = 20,
    seed: int = 0,
) -> list[int]:
    """Trains the model in place and returns the steps that each stage took; `max_steps` means that it fell short.

    Args:
        model: A fresh causal model.
        vocabulary: The ids that sequences are made of; leave out control tokens.
        stages: Done one after the other, from short to long: a model that cannot copy learns it fastest on short ones.
        learning_rate: Constant after the warm-up; a stage after the first takes half of it.
        warmup_steps: Steps of linear warm-up.
        seed: Of the sequences.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    words = torch.as_tensor(list(vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    taken: list[int] = []
    model.train()
    for number, stage in enumerate(stages):
        recent: deque[float] = deque(maxlen=WINDOW)
        step = 0
        while step < stage.max_steps and not (len(recent) == WINDOW and sum(recent) / WINDOW < stage.loss):
            warm = min(1.0, (sum(taken) + step + 1) / warmup_steps)
            optimizer.param_groups[0]["lr"] = learning_rate * warm * (1.0 if number == 0 else 0.5)
            ids, labels = copy_batch(words, stage, generator)
            with torch.autocast(model.device.type, torch.bfloat16):
                loss = model(input_ids=ids.to(model.device), labels=labels.to(model.device)).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recent.append(loss.item())
            step += 1
            if step % 100 == 0:
                logger.info("copying: %d tokens, step %d, loss %.3f", stage.length, step, sum(recent) / len(recent))
        logger.info("copying: %d tokens, %d steps, loss %.3f", stage.length, step, sum(recent) / len(recent))
        taken.append(step)
    model.eval()
    return taken
