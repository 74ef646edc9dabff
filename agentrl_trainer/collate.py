"""From trained rows to the tensors of TRL's GRPO loss: micro-batches by padded tokens.

Not here: which rows there are (rows.py); the loss (trainer.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl_trainer.rows import Rows

MicroBatch = dict[str, Tensor]


def micro_batches(rows: Rows, token_budget: int, *, pad_id: int) -> list[MicroBatch]:
    """Splits rows into micro-batches of at most `token_budget` padded tokens; a longer row is alone in its own.

    Rows of similar length share a micro-batch. Sequences are split into "prompt" and "completion" at the shortest
    prompt of the micro-batch, so that nothing is padded on the left; `tool_mask` says what is trained.

    Returns:
        For each: `prompt_ids`, `prompt_mask` (B, P), `completion_ids`, `completion_mask`, `tool_mask`,
        `old_per_token_logps` (B, C), `advantages` (B,), or (B, C) where the tokens of a row weigh differently, and
        `num_items_in_batch`, the trained tokens of all of them. Beside TRL's inputs `rows` (B,): which rows these are.
    """
    total = rows.tokens
    order = sorted(range(len(rows.trajectories)), key=lambda i: -len(rows.trajectories[i].ids))  # stable
    batches: list[list[int]] = []
    for i in order:
        longest = len(rows.trajectories[batches[-1][0]].ids) if batches else 0
        if batches and (len(batches[-1]) + 1) * longest <= token_budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [_collate(rows, members, total, pad_id) for members in batches]


def _collate(rows: Rows, members: Sequence[int], total: int, pad_id: int) -> MicroBatch:
    chosen = [rows.trajectories[i] for i in members]
    length = max(len(t.ids) for t in chosen)
    split = max(1, min(t.prompt_length for t in chosen))  # the first token of a sequence has no prediction
    ids = np.full((len(chosen), length), pad_id, dtype=np.int64)
    attention = np.zeros((len(chosen), length), dtype=np.int64)
    trained = np.zeros((len(chosen), length), dtype=np.int64)
    logprobs = np.zeros((len(chosen), length), dtype=np.float32)
    old = rows.old or rows.behaviours
    for row, (trajectory, i) in enumerate(zip(chosen, members, strict=True)):
        n = len(trajectory.ids)
        ids[row, :n] = trajectory.ids
        attention[row, :n] = 1
        trained[row, :n] = rows.masks[i]
        logprobs[row, :n] = np.where(rows.masks[i], old[i], 0.0)
    advantages = torch.tensor([rows.advantages[i] for i in members], dtype=torch.float32)
    if rows.weights is not None:
        weights = np.zeros((len(chosen), length), dtype=np.float32)
        for row, i in enumerate(members):
            weights[row, : len(rows.weights[i])] = rows.weights[i]
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
