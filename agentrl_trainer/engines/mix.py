"""How often each policy of the pool is drawn: equally, by given weights, or by what it has been good for.

>>> mix = PolicyMix(2, adaptive=True)
>>> mix.weights
[0.5, 0.5]
>>> for _ in range(200):       # the second policy is in the members that differ, the first in those that do not
...     mix.learn([([1.0, 0.0], 0.0), ([1.0, 0.0], 0.0), ([0.2, 0.8], 1.0)])
>>> mix.weights[1] > 0.6
True

A policy is the fresh engines, or those stale ones that lag alike. Its gain is the variance that it brings to groups:
each member has the share of its group's variance that its reward makes up, none in a group with equal rewards, and
divides it among the policies that sampled its turns. Gains are discounted means, so that weights follow the run; a
floor keeps every policy in play, or nothing more would be learnt of it.

Not here: the draw itself (pool.py); what the weights do to an importance ratio (mixture.py).
Source: AgentRL, arXiv 2510.04206, draws uniformly; the adaptive weights are ours.
"""

from collections.abc import Sequence

DISCOUNT = 0.98
"""Per group: half of what is known is from the last 34."""
FLOOR = 0.1
"""Least weight of a policy; with more than five, half of an equal share."""
PRIOR = 4.0
"""Members' worth of equal gains that every policy begins with."""


class PolicyMix:
    """Weights over policies, 0 the fresh one; they add up to 1."""

    def __init__(self, policies: int, *, weights: Sequence[float] = (), adaptive: bool = False) -> None:
        """Begins with `weights`, or equal ones.

        Args:
            policies: How many there are.
            weights: Not negative, in any unit.
            adaptive: Whether they follow the gains.
        """
        given = list(weights) or [1.0] * policies
        self.weights = [weight / sum(given) for weight in given]
        self.adaptive = adaptive
        self._gain = [PRIOR] * policies
        self._turns = [PRIOR] * policies

    def learn(self, members: Sequence[tuple[Sequence[float], float]]) -> None:
        """Takes one finished group into account.

        Args:
            members: Of each usable one, the share of its turns by policy, and its reward.
        """
        if not self.adaptive or len(members) < 2:
            return
        mean = sum(reward for _, reward in members) / len(members)
        deviations = [(reward - mean) ** 2 for _, reward in members]
        total = sum(deviations)
        for policy in range(len(self.weights)):
            self._gain[policy] *= DISCOUNT
            self._turns[policy] *= DISCOUNT
            for (shares, _), deviation in zip(members, deviations, strict=True):
                self._turns[policy] += shares[policy]
                if total > 0:
                    self._gain[policy] += shares[policy] * deviation / total * len(members)
        rates = [gain / turns for gain, turns in zip(self._gain, self._turns, strict=True)]
        floor = min(FLOOR, 0.5 / len(rates))
        left = 1.0 - floor * len(rates)
        whole = sum(rates)
        self.weights = [floor + left * (rate / whole if whole else 1 / len(rates)) for rate in rates]
