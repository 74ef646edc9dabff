"""Which sample comes next: pure decisions, no task, no client, no clock.

>>> plan = SamplePlan({"db": (1.0, ["db/train/0", "db/train/1"]), "kg": (1.0, ["kg/train/0"])}, seed=0)
>>> [plan.next().task for _ in range(4)]
['db', 'kg', 'db', 'kg']
>>> [plan.next(full={"kg"}).task for _ in range(2)], plan.next().task   # at its limit, passed over, made up for
(['db', 'db'], 'kg')

Group n of a run is the same in every process: its id, sample and seed follow from the run's seed and n alone. A resumed
run skips the ids that were consumed.

Not here: running what was decided (scheduler.py); how many may run (depth.py).
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agentbench_fc.errors import CallerError

PASSED_OVER = 16
"""Groups of tasks at their limit that others may overtake."""


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
        self._passed_over: list[Draw] = []

    def next(self, full: Collection[str] = (), *, ahead: int = PASSED_OVER) -> Draw | None:
        """The next group that is not done and whose task has room; those passed over come first.

        Args:
            full: Tasks that take no further group now.
            ahead: At most so many groups are passed over; then the others wait too, since the mix is promised.

        Returns:
            None: what comes next has to wait.
        """
        for place, draw in enumerate(self._passed_over):
            if draw.task not in full:
                return self._passed_over.pop(place)
        while len(self._passed_over) < max(1, ahead):
            draw = self._draw()
            if draw.group_id in self._done:
                continue
            if draw.task not in full:
                return draw
            self._passed_over.append(draw)
        return None

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
