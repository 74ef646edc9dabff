"""Leases: how long an open session may stay unused, and how long it may live at all.

>>> now = 0.0
>>> leases = Leases(idle_s=10, lifetime_s=100, clock=lambda: now)
>>> leases.open("a"); leases.open("b")
>>> now = 9.0; leases.renew("a")
>>> now = 11.0; leases.expired()
[('b', 'idle for 10 s')]

A lease that is held (a call is under way) is never idle. Both orders are kept sorted by construction, so that a check
costs as much as there is to expire, not as much as there is open. Safe to use from several threads.

Not here: what an expiry does to a session (client.py).
"""

import threading
from collections.abc import Callable

from agentbench_fc.errors import CallerError


class Leases:
    """Idle and absolute deadlines of any number of sessions.

    Args:
        idle_s: Longest time without a call, in seconds; None: no bound.
        lifetime_s: Longest time from the opening, in seconds; None: no bound.
        clock: Seconds, monotonic.
    """

    def __init__(self, *, idle_s: float | None, lifetime_s: float | None, clock: Callable[[], float]) -> None:
        for name, value in (("idle_timeout_s", idle_s), ("lifetime_s", lifetime_s)):
            if value is not None and not value > 0:
                raise CallerError(f"{name} is {value} [leases]. Use seconds > 0, or None for no bound.")
        self.idle_s = idle_s
        self.lifetime_s = lifetime_s
        self._clock = clock
        self._lock = threading.Lock()
        self._born: dict[str, float] = {}  # in order of birth
        self._used: dict[str, float] = {}  # in order of last use; without those that are held

    def __len__(self) -> int:
        return len(self._born)

    def open(self, key: str) -> None:
        """Begins a lease."""
        now = self._clock()
        with self._lock:
            self._born[key] = now
            self._used[key] = now

    def hold(self, key: str) -> None:
        """A call begins: the idle time stops."""
        with self._lock:
            self._used.pop(key, None)

    def renew(self, key: str) -> None:
        """A call ended, or the client asked: the idle time starts anew. A lease that is closed stays closed."""
        now = self._clock()
        with self._lock:
            if key in self._born:
                self._used.pop(key, None)
                self._used[key] = now

    def close(self, key: str) -> None:
        """Ends a lease; safe to repeat."""
        with self._lock:
            self._born.pop(key, None)
            self._used.pop(key, None)

    def expired(self) -> list[tuple[str, str]]:
        """The leases that have just run out, each with the reason in words; they are closed by this."""
        now = self._clock()
        out: list[tuple[str, str]] = []
        with self._lock:
            for order, bound, words in (
                (self._used, self.idle_s, "idle for"),
                (self._born, self.lifetime_s, "open for"),
            ):
                if bound is None:
                    continue
                while order:
                    key = next(iter(order))
                    if now < order[key] + bound:
                        break
                    self._born.pop(key, None)
                    self._used.pop(key, None)
                    out.append((key, f"{words} {bound:g} s"))
        return out

    def seconds_left(self, key: str) -> float | None:
        """Seconds until the lease runs out as things stand; None: it has no bound, or is not open."""
        now = self._clock()
        with self._lock:
            ends = []
            if self.lifetime_s is not None and key in self._born:
                ends.append(self._born[key] + self.lifetime_s)
            if self.idle_s is not None and key in self._used:
                ends.append(self._used[key] + self.idle_s)
        return max(min(ends) - now, 0.0) if ends else None

    def age(self, key: str) -> float:
        """Seconds since the lease was opened; 0 when it is not open."""
        now = self._clock()
        with self._lock:
            return now - self._born.get(key, now)
