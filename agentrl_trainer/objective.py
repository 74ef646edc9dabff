"""What is optimized and how: the configuration's sections for the optimizer, off-policy tokens and advantages.

>>> OffPolicy(ratio="paper", mode="decoupled")
Traceback (most recent call last):
agentbench_fc.errors.CallerError: ratio=paper has no ratio that could be decoupled, bounded or masked [off_policy]. ...

Not here: the other sections (config.py); the arithmetic (offpolicy.py, mixture.py, advantages.py, normalization.py).
Source: docs/algorithms.md names paper and equation of each option.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from agentbench_fc.errors import CallerError


def check_number(value: Any, name: str, advice: str, *, low: float, strict: bool = False) -> None:
    """Refuses what is no number, below `low`, or not finite.

    Raises:
        CallerError: it is; `advice` says what to use.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise CallerError(f"{name.rpartition('.')[2]} is {value!r} [{name}]. It must be a number. {advice}")
    if not math.isfinite(value) or value < low or (strict and value == low):
        raise CallerError(f"{name.rpartition('.')[2]} is {value} [{name}]. {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """AdamW, its schedule, and the clipped objective."""

    learning_rate: float = 3e-4
    """Peak; for a full-size model use 1e-6."""
    warmup_steps: int = 3
    """Steps of linear rise."""
    schedule: Literal["constant_with_warmup", "linear", "cosine"] = "cosine"
    """What follows the rise; a short run ends calmer where the rate falls to zero."""
    weight_decay: float = 0.0
    """AdamW's decoupled decay."""
    beta1: float = 0.9
    """AdamW's momentum."""
    beta2: float = 0.99
    """AdamW's second-moment decay; short runs want it below 0.999."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    loss_type: Literal["dapo", "cispo", "vespo"] = "dapo"
    """Those that divide by the tokens of the whole batch, so that micro-batches add up exactly."""
    epsilon: float = 0.2
    """Lower clip of the importance ratio."""
    epsilon_high: float = 0.28
    """Upper clip."""
    delta: float = 4.0
    """Cap of the ratio where the advantage is negative (dual clip): one stale token must not outweigh a batch."""
    kl: float = 0.0
    """Weight of the KL term against the initial model; above 0 a copy of it is kept."""

    def __post_init__(self) -> None:
        check_number(self.learning_rate, "optimization.learning_rate", "Use more than 0.", low=0, strict=True)
        check_number(self.warmup_steps, "optimization.warmup_steps", "Use 0 or more.", low=0)
        check_number(self.weight_decay, "optimization.weight_decay", "Use 0 or more.", low=0)
        check_number(self.max_grad_norm, "optimization.max_grad_norm", "Use more than 0.", low=0, strict=True)
        check_number(self.kl, "optimization.kl", "Use 0 or more.", low=0)
        for name in ("epsilon", "epsilon_high"):
            check_number(getattr(self, name), f"optimization.{name}", "Use more than 0, e.g. 0.2.", low=0, strict=True)
        if not self.delta > 1 + self.epsilon_high:
            raise CallerError(
                f"delta is {self.delta} [optimization.delta]. "
                f"It caps what the upper clip leaves: use more than 1 + epsilon_high = {1 + self.epsilon_high:g}."
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise CallerError(f"{name} is {getattr(self, name)} [optimization.{name}]. Use a value in [0, 1).")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """What makes up for tokens that another policy sampled than the one that is trained; see docs/algorithms.md."""

    ratio: Literal["conditional", "mixture", "paper"] = "conditional"
    """The denominator of a token's ratio: the engine that sampled it (`conditional`), the whole pool as it was drawn
    from (`mixture`: less variance, one more forward pass per version), or none (`paper`: stale counts as fresh)."""
    mode: Literal["behavior", "decoupled"] = "behavior"
    """`behavior`: the clip is around the sampling policy. `decoupled`: around the policy at the start of the step, and
    the ratio to the sampling policy is a weight (one more forward pass)."""
    correction: Literal["none", "truncate", "mask"] = "none"
    """What happens to a ratio beyond the bounds: nothing; it is set to the bound (only `decoupled`: in `behavior` the
    clip and `delta` do it); or its tokens leave the loss and its denominator."""
    level: Literal["token", "turn"] = "token"
    """Whose ratio is held against the bounds: each token's own, or that of its whole agent turn."""
    turn_ratio: Literal["mean", "product"] = "mean"
    """A turn's ratio: the geometric mean of its tokens', or their exact product, which long turns let explode."""
    max_ratio: float = 2.0
    """Upper bound of the ratio."""
    min_ratio: float = 0.0
    """Lower bound of the ratio."""
    m2_threshold: float = 0.0
    """Mean squared log-ratio that a batch may keep: above it, the tokens with the largest leave the loss
    (M2PO; 0.04 is its value). 0: off."""

    def __post_init__(self) -> None:
        for name in ("min_ratio", "m2_threshold"):
            check_number(getattr(self, name), f"off_policy.{name}", "Use 0 or more.", low=0)
        check_number(self.max_ratio, "off_policy.max_ratio", "Use 1 or more: an unchanged policy has ratio 1.", low=1)
        if self.min_ratio >= 1:
            raise CallerError(
                f"min_ratio is {self.min_ratio} [off_policy.min_ratio]. "
                "Use less than 1: an unchanged policy has ratio 1."
            )
        if self.ratio == "paper" and (self.mode, self.correction, self.m2_threshold) != ("behavior", "none", 0):
            raise CallerError(
                "ratio=paper has no ratio that could be decoupled, bounded or masked [off_policy]. "
                "Use ratio=conditional or mixture, or leave mode, correction and m2_threshold at their defaults."
            )
        if self.correction == "truncate" and self.mode == "behavior":
            raise CallerError(
                "correction=truncate with mode=behavior [off_policy]. There the clip and optimization.delta bound the "
                "ratio: use mode=decoupled, or correction=mask."
            )

    @property
    def needs_survey(self) -> bool:
        """Whether the whole batch's log-probs must be known before its first gradient."""
        masks = self.correction != "none" or self.m2_threshold > 0
        return self.mode == "decoupled" or self.ratio == "mixture" or masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """From rewards to advantages: within the group, then within the task."""

    group_scale: Literal["std", "none"] = "std"
    """`std`: (reward - mean) / std of the group (GRPO); `none`: only the mean is subtracted."""
    task: Literal["batch", "stream", "global", "none"] = "batch"
    """`batch`: zero mean and unit deviation over the trained tokens of each task in the batch (AgentRL); `stream`: by
    running statistics of each task; `global`: over all tasks together, for comparison only."""
    center: bool = True
    """False: a task's advantages are scaled only, so no sign can flip."""
    spread: Literal["std", "mad"] = "std"
    """What is scaled to 1: the deviation, or 1.4826 times the median absolute deviation from the median, which a few
    extreme rewards do not move (where it is 0, the deviation)."""
    decay: float = 0.9
    """Of the running statistics, per batch that holds the task; 0 is the last batch alone, 1 never forgets."""
    floor: float = 0.0
    """The least that is divided by; above 0 a nearly constant task is not blown up to unit deviation."""
    exclude_zero_variance: bool = True
    """Groups whose rewards are all equal keep advantage 0 and stay out of the task's statistics; False: the paper."""
    tolerance: float = 1e-6
    """Rewards this close are equal."""

    def __post_init__(self) -> None:
        check_number(self.tolerance, "normalization.tolerance", "Use 0 or more.", low=0)
        check_number(self.floor, "normalization.floor", "Use 0 or more.", low=0)
        if not 0 <= self.decay <= 1:
            raise CallerError(f"decay is {self.decay} [normalization.decay]. Use a value from 0 to 1.")
