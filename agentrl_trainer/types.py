"""Trajectory and group: what crosses from the rollout process to the trainer. Numpy only.

Every per-token array has the length T of the whole sequence (prompt, sampled turns, observations), so that one mask
serves everywhere: `mask[t]` is True exactly where a policy sampled token t and the token may be trained on.

Not here: how tokens are collected (chat/), how they become tensors (collate.py).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_VERSION = -1
NO_ENGINE = -1
SIBLINGS = "siblings"
"""In a trajectory's metrics, tree mode: the members of its group with whom it is compared; absent: the others."""
INNER = "inner"
"""In a trajectory's metrics, tree mode: it is what several episodes have in common, no episode of its own."""
POLICIES = "policies"
"""In a trajectory's metrics: of each draw, weight and weight version of the policies that it could have picked."""


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """One episode as tokens, with what each sampled token needs for an exact importance ratio."""

    task: str
    sample_id: str
    group_id: str
    replica: int
    """0 … K-1 within the group."""
    ids: NDArray[np.int32]
    """(T,) prompt, then sampled and observed tokens as they came; never rendered again."""
    prompt_length: int
    """Tokens of the first prompt, ids[:prompt_length]."""
    mask: NDArray[np.bool_]
    """(T,) True: sampled by a policy. Prompt and observations are False."""
    logprobs: NDArray[np.float32]
    """(T,) natural behaviour log-prob under the engine that sampled the token, at its temperature; 0 off the mask."""
    versions: NDArray[np.int32]
    """(T,) weight version of that engine when it sampled the token; NO_VERSION off the mask."""
    engines: NDArray[np.int8]
    """(T,) index of the engine in the pool, 0 … ; NO_ENGINE off the mask."""
    turns: NDArray[np.int16]
    """(T,) agent turn of each token, from 1; 0 for the prompt; an observation has the turn that caused it."""
    status: str
    """agentbench_fc's status at the end."""
    reward: float | None
    """Shaped by agentbench_fc.rewards.settle; None: not usable."""
    raw_reward: float | None = None
    success: bool | None = None
    usable: bool = True
    """False: an infrastructure or task fault; no token or statistic of it may reach the loss."""
    fault: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.ids.shape
        for name in ("mask", "logprobs", "versions", "engines", "turns"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, ids {shape} [{self.group_id}].")

    @property
    def trained_tokens(self) -> int:
        """Number of tokens under the mask."""
        return int(self.mask.sum())


@dataclass(slots=True, kw_only=True)
class Group:
    """The K trajectories of one sample; advantages are relative to them."""

    id: str
    task: str
    sample_id: str
    trajectories: list[Trajectory]
    admitted_version: int
    """Newest fresh weight version when the group was admitted."""
    seconds: float = 0.0
    """Wall time from admission to the last trajectory."""

    @property
    def usable(self) -> list[Trajectory]:
        """Trajectories that may enter statistics and loss."""
        return [t for t in self.trajectories if t.usable and t.reward is not None]

    def informative(self, tolerance: float) -> bool:
        """Whether the rewards differ by more than `tolerance`: only then does the group say what is better."""
        rewards = [t.reward for t in self.usable if t.reward is not None]
        return len(rewards) > 1 and max(rewards) - min(rewards) > tolerance

    def counted(self, refill: float | None) -> int:
        """Trajectories that count towards a batch: the usable ones.

        Args:
            refill: Tolerance within which rewards are equal; such a group counts nothing, so that others are played
                in its place. None: every usable trajectory counts.
        """
        return len(self.usable) if refill is None or self.informative(refill) else 0
