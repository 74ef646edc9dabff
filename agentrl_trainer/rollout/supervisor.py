"""The rollout side that outlives its process: a dead one is started again, with what it needs to go on.

    rollouts = SupervisedRollouts(start, done=cursor.done, restarts=3, counted=…)

The new process gets the ids of the groups that were consumed or have reached the trainer, so that none is played twice,
and draws again what was in flight, so that none is lost; then the weights that the engines of each lag held, and the
newest; and how much waits for a step already. A process that says itself why it cannot go on is not started again:
repeating would not help.

Not here: the process (process.py); engines that die alone (engines/pool.py).
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentbench_fc.errors import InfrastructureError
from agentrl_trainer.staleness import due
from agentrl_trainer.types import Group

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Died(InfrastructureError):
    """The rollout process is gone or does not answer, and has not said why; another one may do better."""


class Handle(Protocol):
    """One rollout process that was started: `RolloutProcess`."""

    def get_group(self, timeout: float) -> Group | None:
        """The next finished group, or None after `timeout` seconds."""
        ...

    def consumed(self, trajectories: int) -> None:
        """So many counted trajectories went into the step that the next `publish` ends."""
        ...

    def publish(self, path: Path, version: int, stale: bool) -> None:
        """Hands over weights."""
        ...

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        """Plays held-out episodes."""
        ...

    def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        """Lets engines sample behind ids."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """What it does just now."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class SupervisedRollouts:
    """A handle over a succession of processes. Its methods may be called from several threads.

    Args:
        start: Starts a process that does not draw the groups with these ids.
        done: Ids of groups that were consumed before this run.
        restarts: Deaths that are made good.
        counted: What a group counts towards a batch.
        stale_lags: Of the stale engines, the versions between two of their updates; (1,): they take all that is
            published to them.
    """

    def __init__(
        self,
        start: Callable[[Collection[str]], Handle],
        *,
        done: Collection[str],
        restarts: int,
        counted: Callable[[Group], int],
        stale_lags: Sequence[int] = (1,),
    ) -> None:
        self._start = start
        self._counted = counted
        self._left = restarts
        self._out = set(done)
        self._pending = 0
        self._weights: tuple[Path, int] | None = None
        self._stale_lags = stale_lags
        self._stale: dict[int, tuple[Path, int]] = {}  # by lag
        self._taking = threading.Lock()  # a group is recorded before anyone may start a process without it
        self._lock = threading.RLock()
        self._generation = 0
        self._reviving = False
        self._closed = False
        self._handle = start(self._out)

    def get_group(self, timeout: float) -> Group | None:
        """The next finished group, or None after `timeout` seconds; None too when a process had to be started."""
        with self._taking:
            handle, generation = self._present()
            try:
                group = handle.get_group(timeout)
            except Died as error:
                death = error
            else:
                if group is not None:
                    with self._lock:
                        self._out.add(group.id)
                        self._pending += self._counted(group)
                return group
        self._revive(generation, death)
        return None

    def consumed(self, trajectories: int) -> None:
        """So many counted trajectories went into the step that the next `publish` ends."""
        with self._lock:
            self._pending -= trajectories
            self._handle.consumed(trajectories)

    def publish(self, path: Path, version: int, stale: bool) -> None:
        """Hands over weights; a process that is started meanwhile gets them too."""
        with self._lock:
            self._weights = (path, version)
            if stale:
                self._stale |= dict.fromkeys(due(version, self._stale_lags, self._stale), (path, version))
        handle, generation = self._present()
        try:
            handle.publish(path, version, stale)
        except Died as error:
            self._revive(generation, error)

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        """Plays held-out episodes; from the beginning where the process died over them."""
        return self._insist(lambda handle: handle.evaluate(task, split, n, temperature, seed))

    def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        """Lets engines sample behind ids."""
        return self._insist(lambda handle: handle.probe(ids, count, temperature, stale=stale))

    def stats(self) -> Mapping[str, Any]:
        """What the process does just now."""
        if self._reviving:
            return {"rollout process": "is started again", "restarts_left": self._left}
        try:
            return self._handle.stats()
        except Died as error:  # whoever waits for groups will start another one
            return {"rollout process": str(error)}

    def close(self) -> None:
        """Ends the present process; safe to repeat."""
        self._closed = True
        self._handle.close()

    def _insist(self, ask: Callable[[Handle], T]) -> T:
        while True:
            handle, generation = self._present()
            try:
                return ask(handle)
            except Died as error:
                self._revive(generation, error)

    def _present(self) -> tuple[Handle, int]:
        with self._lock:
            return self._handle, self._generation

    def _revive(self, generation: int, death: Died) -> None:
        """Starts another process unless someone else has done so.

        Raises:
            Died: no restarts are left, or this was closed.
        """
        with self._taking, self._lock:
            while generation == self._generation:
                if self._closed or not self._left:
                    raise death
                self._left -= 1
                logger.warning("the rollout process is started again, %d restarts left: %s", self._left, death)
                self._reviving = True
                try:
                    self._handle.close()
                    self._handle = self._start(self._out)
                    self._go_on()
                    self._generation += 1
                except Died as error:
                    death = error
                finally:
                    self._reviving = False
            if self._closed:
                self._handle.close()

    def _go_on(self) -> None:
        """Brings a new process to where the dead one was."""
        if self._weights is None:
            return
        self._handle.consumed(-self._pending)
        held = set(self._stale.values())
        for path, version in sorted(held | {self._weights}, key=lambda weights: weights[1]):
            self._handle.publish(path, version, stale=(path, version) in held)
