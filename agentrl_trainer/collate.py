"""From trained rows to the tensors of TRL's GRPO loss: micro-batches by padded tokens.

Not here: which rows there are (rows.py); the loss (trainer.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl_trainer.rows import Rows

MicroBatch = dict[str, Tensor]


FILLER = -1
"""In the place of a row's number: a row of nothing, so that all processes have equally many."""


def micro_batches(rows: Rows, token_budget: int, *, pad_id: int, rank: int = 0, ranks: int = 1) -> list[MicroBatch]:
    """Splits rows into micro-batches of at most `token_budget` padded tokens; a longer row is alone in its own.

    Rows of similar length share a micro-batch. Sequences are split into "prompt" and "completion" at the shortest
    prompt of the micro-batch, so that nothing is padded on the left; `tool_mask` says what is trained.

    Args:
        rows: Of the whole batch, the same in every process.
        token_budget: Of one process.
        pad_id: For places without a token.
        rank: The process that asks.
        ranks: How many there are; each gets as many micro-batches and rows.

    Returns:
        For each: `prompt_ids`, `prompt_mask` (B, P), `completion_ids`, `completion_mask`, `tool_mask`,
        `old_per_token_logps` (B, C), `advantages` (B,), or (B, C) where the tokens of a row weigh differently, and
        `num_items_in_batch`, the trained tokens of the batch. Beside TRL's inputs: `rows` (B,), which rows these are,
        and `tokens`, the trained tokens of this micro-batch in all processes.
    """
    total = rows.tokens
    order = sorted(range(len(rows.trajectories)), key=lambda i: -len(rows.trajectories[i].ids))  # stable
    batches = []
    while order:
        count = max(1, token_budget // len(rows.trajectories[order[0]].ids))
        taken, order = order[: count * ranks], order[count * ranks :]
        own = taken[rank::ranks]
        own += [FILLER] * (-(-len(taken) // ranks) - len(own))
        tokens = sum(int(rows.masks[i].sum()) for i in taken)
        batches.append(_collate(rows, own, total, pad_id) | {"tokens": torch.tensor(float(tokens))})
    return batches


def _collate(rows: Rows, members: Sequence[int], total: int, pad_id: int) -> MicroBatch:
    real = [i for i in members if i != FILLER]
    chosen = [rows.trajectories[i] for i in real]
    length = max([2, *(len(t.ids) for t in chosen)])
    # the first token of a sequence has no prediction
    split = max(1, min((t.prompt_length for t in chosen), default=1))
    shape = (len(members), length)
    ids = np.full(shape, pad_id, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    trained = np.zeros(shape, dtype=np.int64)
    logprobs = np.zeros(shape, dtype=np.float32)
    weights = np.zeros(shape, dtype=np.float32)
    old = rows.old or rows.behaviours
    for row, (trajectory, i) in enumerate(zip(chosen, real, strict=True)):
        n = len(trajectory.ids)
        ids[row, :n] = trajectory.ids
        attention[row, :n] = 1
        trained[row, :n] = rows.masks[i]
        logprobs[row, :n] = np.where(rows.masks[i], old[i], 0.0)
        if rows.weights is not None:
            weights[row, :n] = rows.weights[i]
    attention[len(real) :, :2] = 1  # attention to nothing is not a number
    advantages = torch.tensor([0.0 if i == FILLER else rows.advantages[i] for i in members], dtype=torch.float32)
    if rows.weights is not None:
        advantages = advantages[:, None] * torch.from_numpy(weights[:, split:])
    return {
        "prompt_ids": torch.from_numpy(ids[:, :split]),
        "prompt_mask": torch.from_numpy(attention[:, :split]),
        "completion_ids": torch.from_numpy(ids[:, split:]),
        "completion_mask": torch.from_numpy(attention[:, split:]),
        "tool_mask": torch.from_numpy(trained[:, split:]),
        "old_per_token_logps": torch.from_numpy(logprobs[:, split:]),
        "advantages": advantages,
        "num_items_in_batch": torch.tensor(float(total)),
        "rows": torch.tensor(list(members)),
    }
