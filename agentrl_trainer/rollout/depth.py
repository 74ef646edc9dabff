"""How many trajectories may be on their way at once: enough that the trainer never waits, and no more.

>>> depth = Depth(batch=64, max_lag=2, group_size=8)
>>> depth.target                     # a batch in training, the next one, and a group to spare
136
>>> for _ in range(30):
...     depth.published(ready=96)    # more than a batch lies ready whenever the trainer comes for one
>>> depth.target
64
>>> for _ in range(20):
...     depth.published(ready=8)     # the trainer has to wait
>>> depth.target                     # never more than the bound of the lag allows: three batches
192

What is on its way is what plays, what is finished and waits, and what the step under way has taken. Its amount decides
the lag: by Little's law a trajectory is consumed about `target / batch` steps after its admission. Depth beyond what
keeps the trainer busy buys staleness and nothing else, so the target follows what lies ready when a step ends: less
than a batch raises it at once, more lowers it slowly.

Not here: whether a group may start (scheduler.py).
Source: the hard bound is AReaL's capacity rule, arXiv 2505.24298, over whole groups and with consumed trajectories in
the place of versions times batch size, since a dynamic batch has no fixed size; the control below it is ours.
"""

RISE = 0.5
"""Share of what was missing that is added; two steps later the effect shows."""
FALL = 0.125
"""Share of what was too much that is taken away: a long tail must not starve the trainer after one rich step."""
LATE = 0.02
"""Share of tokens that may be too old once their group is done."""
MEMORY = 0.8
"""Of that share, per step: some five steps count."""


class Depth:
    """The present target, in trajectories."""

    def __init__(self, *, batch: int, max_lag: int, group_size: int, auto: bool = True) -> None:
        """Begins with room for two batches and a group, within the bound.

        Args:
            batch: Trajectories that a step takes at least.
            max_lag: Bound of the lag in versions: `max_lag + 1` batches are the most that may be on their way.
            group_size: Trajectories of a group, the spare above a batch.
            auto: False keeps the target at its bound.
        """
        self._batch = batch
        self._spare = group_size
        self._auto = auto
        self.most = (max_lag + 1) * batch
        self._target = float(min(self.most, 2 * batch + group_size) if auto else self.most)

    @property
    def target(self) -> int:
        """Trajectories that may be on their way; a group may start as long as there are fewer."""
        return round(self._target)

    def published(self, *, ready: int) -> None:
        """A step has ended while `ready` finished trajectories waited for the next one."""
        if not self._auto:
            return
        missing = self._batch + self._spare - ready
        moved = self._target + missing * (RISE if missing > 0 else FALL)
        self._target = min(float(self.most), max(float(self._batch), moved))


class Spread:
    """How many groups may be in flight, of which some only wait for their last members.

    More groups than places for whole ones keep places busy; too many, and a group is old before its last member is
    done. So the limit grows as long as hardly any token is too old to be trained on by then, and shrinks when more are.
    """

    def __init__(self, *, groups: int, auto: bool = True) -> None:
        """Begins with as many groups as there are places for.

        Args:
            groups: For which there are places; the limit stays between that and four times of it.
            auto: False sets no limit.
        """
        self._least = groups
        self._most = 4 * groups if auto else 1 << 30
        self._late = 0.0
        self.limit = groups if auto else self._most
        """Groups that may be in flight."""

    def published(self, *, tokens: int, late: int) -> None:
        """A step has ended, during which groups with so many tokens finished, so many of them too old."""
        if not tokens:
            return
        self._late = MEMORY * self._late + (1 - MEMORY) * late / tokens
        if self._late > LATE and late:
            self.limit = max(self._least, self.limit - max(1, self.limit // 8))
        elif self._late < 0.8 * LATE:
            self.limit = min(self._most, self.limit + max(1, self.limit // 8))
