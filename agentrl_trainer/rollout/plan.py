"""Which sample comes next, and whether a group may start: pure decisions, no task, no client, no clock.

>>> plan = SamplePlan({"db": (1.0, ["db/train/0", "db/train/1"]), "kg": (1.0, ["kg/train/0"])}, seed=0)
>>> [plan.next().task for _ in range(4)]
['db', 'kg', 'db', 'kg']
>>> room(running=2, max_running=8, waiting=20, group_size=8, batch=32, max_lag=0)
0

Group n of a run is the same in every process: its id, sample and seed follow from the run's seed and n alone. A resumed
run skips the ids that were consumed.

Not here: running what was decided (scheduler.py).
Source: the capacity rule is AReaL's, arXiv 2505.24298, over whole groups and with consumed trajectories in the place of
versions times batch size, since a dynamic batch has no fixed size.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agentbench_fc.errors import CallerError


@dataclass(frozen=True, slots=True)
class Draw:
    """One group to be played: one sample, the same seed of the environment for all its members."""

    group_id: str
    task: str
    sample_id: str
    seed: int

    def rng(self, replica: int) -> random.Random:
        """The random numbers of one member: engine draws and token draws."""
        return random.Random(f"{self.group_id}/{self.seed}/{replica}")


class SamplePlan:
    """An endless, seeded order of groups: tasks by weight as evenly as possible, samples shuffled once an epoch."""

    def __init__(
        self, tasks: Mapping[str, tuple[float, Sequence[str]]], *, seed: int, done: Collection[str] = ()
    ) -> None:
        """Makes the order.

        Args:
            tasks: Name -> weight and sample ids; those of weight 0 are never drawn.
            seed: Of the whole run.
            done: Ids of groups that are not drawn again.

        Raises:
            CallerError: no task has a weight, or one has no samples.
        """
        self._tasks = {name: (weight, list(ids)) for name, (weight, ids) in tasks.items() if weight > 0}
        if not self._tasks:
            raise CallerError("no task has a weight above 0 [tasks]. Give at least one a share.")
        if empty := [name for name, (_, ids) in self._tasks.items() if not ids]:
            raise CallerError(f"the training split has no samples [tasks: {', '.join(empty)}]. Choose another split.")
        self._total = sum(weight for weight, _ in self._tasks.values())
        self._seed = seed
        self._done = frozenset(done)
        self._drawn = dict.fromkeys(self._tasks, 0)
        self._orders: dict[str, tuple[int, list[str]]] = {}
        self._number = 0

    def next(self) -> Draw:
        """The next group that is not done."""
        while True:
            draw = self._draw()
            if draw.group_id not in self._done:
                return draw

    def _draw(self) -> Draw:
        number, self._number = self._number, self._number + 1
        # the task that lags most behind its share comes next, so that even a small batch holds the mix
        task = max(
            self._tasks,
            key=lambda name: self._tasks[name][0] / self._total * (number + 1) - self._drawn[name],
        )
        sample = self._sample(task, self._drawn[task])
        self._drawn[task] += 1
        group_id = f"g{number:06d}"
        return Draw(group_id, task, sample, random.Random(f"{self._seed}/{group_id}").getrandbits(31))

    def _sample(self, task: str, count: int) -> str:
        ids = self._tasks[task][1]
        epoch, position = divmod(count, len(ids))
        known = self._orders.get(task)
        if known is None or known[0] != epoch:
            order = list(ids)
            random.Random(f"{self._seed}/{task}/{epoch}").shuffle(order)
            known = self._orders[task] = (epoch, order)
        return known[1][position]


def room(*, running: int, max_running: int, waiting: int, group_size: int, batch: int, max_lag: int) -> int:
    """How many groups may start now.

    Args:
        running: Groups in flight.
        max_running: Most groups in flight.
        waiting: Usable trajectories that are finished but whose step has not been published yet.
        group_size: Trajectories of a group.
        batch: Trajectories that a step takes at least.
        max_lag: Bound of the lag in versions. What is in flight or waiting never exceeds `max_lag + 1` batches (by more
            than a part of one group), so what starts now is consumed at most `max_lag` versions later.
    """
    free = (max_lag + 1) * batch - waiting - running * group_size
    return max(0, min(max_running - running, -(-free // group_size)))
