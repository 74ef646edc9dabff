"""A rate limit per address: a bucket of tokens each, refilled evenly.

>>> now = 0.0
>>> limit = RateLimit(2.0, burst=2, clock=lambda: now)
>>> [limit.take("a") for _ in range(3)], limit.take("b")
([True, True, False], True)
>>> now = 0.5
>>> limit.take("a")
True

Not here: limits of size (http.py).
"""

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_KEYS = 10_000
"""Addresses remembered; the one unused for longest is forgotten first."""


class RateLimit:
    """At most `rate` takes per second and key, and `burst` at once."""

    def __init__(self, rate: float, *, burst: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst if burst is not None else max(rate, 1.0)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Whether the key may go on; if so, one token is gone."""
        now = self._clock()
        left, since = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        allowed = left >= 1.0
        self._buckets[key] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        return allowed
