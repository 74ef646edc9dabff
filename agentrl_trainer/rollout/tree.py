"""Tree mode: an episode is branched at one of its turns into siblings of different policies.

A trunk is played to its end; a turn of it is chosen; copies of its session as it stood before that turn go on, each
with a turn of another policy of the pool. What comes back are rows of one group: each leaf with only its own turns
under the mask, and the common turns as a row of their own whose reward is the mean of its leaves. `SIBLINGS` in their
metrics says with whom a row is compared: leaves with their siblings, trunks with the other trunks of the group. So no
token is trained on twice, and a turn is credited for what came of it and not for what had been decided before.

Not here: one episode (trajectory.py); how rows become advantages (rows.py).
Source: forks of sessions are agentbench_fc's; credit by comparison within a tree as in RTMC, arXiv 2604.11037.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentrl_trainer.engines.pool import CrossPolicy
from agentrl_trainer.rollout.trajectory import EpisodeSpec, Player
from agentrl_trainer.types import INNER, NO_ENGINE, NO_VERSION, POLICIES, SIBLINGS, Trajectory


async def play_tree(
    player: Player,
    spec: EpisodeSpec,
    rng: random.Random,
    *,
    branches: int,
    temperature: float,
    cross_policy: CrossPolicy,
    deadline_s: float,
) -> list[Trajectory]:
    """Plays one trunk and its siblings.

    Args:
        player: Of the episodes.
        spec: Of the trunk; its replica is the number of the tree within the group.
        rng: Of everything drawn here.
        branches: Leaves, the trunk's own end included.
        temperature: Of the sampling.
        cross_policy: What a draw decides, before and after the branching turn.
        deadline_s: For the trunk, and for each sibling.
    """
    first = spec.replica * branches
    own = replace(spec, replica=first)
    trunk = await player.play(own, rng, temperature=temperature, cross_policy=cross_policy, deadline_s=deadline_s)
    turns = int(trunk.turns.max(initial=0))
    if not trunk.usable or not turns:
        return [trunk]
    turn = rng.randint(1, turns)
    async with asyncio.TaskGroup() as tasks:
        siblings = [
            tasks.create_task(
                player.branch(
                    replace(spec, replica=first + number), random.Random(rng.getrandbits(62)), trunk, turn,
                    ahead=number, temperature=temperature, cross_policy=cross_policy, deadline_s=deadline_s,
                )
            )
            for number in range(1, branches)
        ]  # fmt: skip
    found = [row for task in siblings if (row := task.result()) is not None]
    return tree_rows([trunk, *found], turn, tree=spec.replica)


def tree_rows(leaves: Sequence[Trajectory], turn: int, *, tree: int) -> list[Trajectory]:
    """The rows of one tree.

    Args:
        leaves: Whole trajectories with the same tokens before `turn`, the trunk first.
        turn: Where they part, from 1; at the first turn nothing is common but the prompt.
        tree: Its number within the group.
    """
    usable = [leaf for leaf in leaves if leaf.usable and leaf.reward is not None]
    if turn == 1 or len(usable) < 2:
        return list(leaves)
    trunk = leaves[0]
    common = int(np.flatnonzero(trunk.turns >= turn)[0])
    rows = [_part(leaf, common, len(leaf.ids), turn - 1, None) for leaf in leaves]
    for row in rows:
        row.metrics[SIBLINGS] = f"{tree}@{turn}"
    inner = _part(trunk, 0, common, 0, turn - 1)
    inner.replica = -1 - tree
    inner.reward = float(np.mean([leaf.reward for leaf in usable if leaf.reward is not None]))
    inner.raw_reward = float(np.mean([leaf.raw_reward for leaf in usable if leaf.raw_reward is not None] or [0.0]))
    inner.success = None
    inner.metrics[INNER] = True
    return [*rows, inner]


def _part(row: Trajectory, start: int, end: int, first_draw: int, last_draw: int | None) -> Trajectory:
    """A row's tokens up to `end`, with those before `start` off the mask."""
    on = row.mask[:end] & (np.arange(end) >= start)
    metrics = dict(row.metrics)
    if POLICIES in metrics and len(metrics[POLICIES]) > 1:  # one draw a turn; else the one holds for all
        metrics[POLICIES] = metrics[POLICIES][first_draw:last_draw]
    return replace(
        row,
        ids=row.ids[:end],
        mask=on,
        logprobs=np.where(on, row.logprobs[:end], 0.0).astype(np.float32),
        versions=np.where(on, row.versions[:end], NO_VERSION).astype(np.int32),
        engines=np.where(on, row.engines[:end], NO_ENGINE).astype(np.int8),
        turns=row.turns[:end],
        metrics=metrics,
    )
