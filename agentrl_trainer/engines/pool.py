"""The pool of fresh and stale engines: who takes a turn, who gets new weights, who is out of service.

Cross-policy sampling: at every environment step the policy is drawn uniformly over {fresh, stale}, whatever the number
of engines of each kind; within the kind the least loaded engine takes the turn. Stale engines that lag differently are
a policy each, and a mix may give policies other weights.

An engine that died is brought back a few times (`restarts`) and gets the newest weights of its kind before it serves
again; meanwhile the others serve, and where it is the only fresh one, turns wait for it within their deadlines.

Not here: when weights are published (weights.py); log-probs and ratios (the trainer's).
Source: AgentRL, arXiv 2510.04206.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, EngineRole, InferenceEngine, Revivable, Sampling
from agentrl_trainer.engines.mix import PolicyMix

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
CrossPolicy = Literal["step", "trajectory", "none"]
ABORT_PAUSE_S = 0.05
"""After an abort without a token the engine is changing weights: do not ask again at once."""
REVIVE_PAUSE_S = 0.5
"""Before the second attempt to bring an engine back; twice as long before each further one."""


class NoEngineLeft(InfrastructureError):
    """Every fresh engine is out of service: nothing can follow the trainer any more."""


class _Snapshot(NamedTuple):
    path: Path
    version: int


class EnginePool:
    """Engines by index: the fresh ones first, then the stale ones."""

    def __init__(
        self,
        fresh: Sequence[InferenceEngine],
        stale: Sequence[InferenceEngine] = (),
        *,
        restarts: int = 0,
        stale_lags: Sequence[int] = (),
        weights: Sequence[float] = (),
        adaptive: bool = False,
    ) -> None:
        """Takes the engines over.

        Args:
            fresh: Those that follow the trainer.
            stale: Those that lag.
            restarts: How often each may be brought back; only those that are `Revivable`.
            stale_lags: Of each stale engine, the steps between two of its updates; empty: they are updated together.
            weights: Of the policies, the fresh one first, then the stale ones by rising lag; empty: equal.
            adaptive: Whether the weights follow what each policy brings to the groups (mix.py).

        Raises:
            CallerError: there is no fresh engine.
        """
        if not fresh:
            raise CallerError("a pool without a fresh engine [engines]. At least one must follow the trainer.")
        self.engines: tuple[InferenceEngine, ...] = (*fresh, *stale)
        self._kinds: dict[EngineRole, range] = {
            "fresh": range(len(fresh)),
            "stale": range(len(fresh), len(self.engines)),
        }
        lags = list(stale_lags) or [1] * len(stale)
        self._lags = dict(zip(self._kinds["stale"], lags, strict=True))
        self.policies: list[list[int]] = [
            list(self._kinds["fresh"]),
            *([i for i, own in self._lags.items() if own == lag] for lag in sorted(set(lags))),
        ]
        """Engines of each policy, the fresh one first."""
        plain = not weights and not adaptive and len(self.policies) < 3
        self.mix = None if plain else PolicyMix(len(self.policies), weights=weights, adaptive=adaptive)
        """How the policies are weighed; None: equally."""
        self._busy = [0] * len(self.engines)
        self._faults = [""] * len(self.engines)
        self._left = [restarts] * len(self.engines)
        self._reviving: dict[int, asyncio.Task[None]] = {}
        self._latest: dict[int, _Snapshot] = {}
        self._closing = False

    @property
    def version(self) -> int:
        """Newest weight version of a fresh engine."""
        return max(self.engines[i].version for i in self._kinds["fresh"])

    def draw(
        self, rng: random.Random, *, fresh_only: bool = False, role: EngineRole | None = None
    ) -> tuple[int, InferenceEngine]:
        """The engine for one turn: its index and itself.

        Args:
            rng: Of the draw.
            fresh_only: Without the stale ones.
            role: This kind, where one of it is in service.

        Raises:
            NoEngineLeft: no fresh engine is in service.
        """
        kinds: list[EngineRole] = ["fresh"] if fresh_only else ["fresh", "stale"]
        alive = [[i for i in self._kinds[kind] if not self._faults[i]] for kind in kinds]
        if not alive[0]:
            alive[0] = [i for i in self._kinds["fresh"] if i in self._reviving]
        if not alive[0]:
            raise NoEngineLeft(f"no fresh engine is left [pool]. One of them: {self._faults[0]} Start the run again.")
        wanted = alive[kinds.index(role)] if role in kinds else []
        members = wanted or (self._weighed(rng) if self.mix and not fresh_only else None)
        members = members or rng.choice([kind for kind in alive if kind])
        index = min(members, key=lambda i: self._busy[i])
        return index, self.engines[index]

    def _weighed(self, rng: random.Random) -> list[int]:
        """The engines in service of a policy drawn by weight; empty: none has both."""
        assert self.mix is not None
        alive = [[i for i in own if not self._faults[i] or i in self._reviving] for own in self.policies]
        weights = [weight if own else 0.0 for weight, own in zip(self.mix.weights, alive, strict=True)]
        return rng.choices(alive, weights)[0] if sum(weights) > 0 else []

    def choices(self) -> list[tuple[float, int]]:
        """Weight and weight version of each policy that a draw could pick just now."""
        weights = self.mix.weights if self.mix else [1 / len(self.policies)] * len(self.policies)
        offered = [self._offered(own) for own in self.policies]
        return [
            (weight, self.engines[own[0]].version) for weight, own in zip(weights, offered, strict=True) if own
        ] or [(1.0, self.version)]

    def _offered(self, own: Sequence[int]) -> list[int]:
        """The engines of a policy that serve; else those that a draw would wait for."""
        waits = self.mix is not None or own is self.policies[0]
        return [i for i in own if not self._faults[i]] or [i for i in own if waits and i in self._reviving]

    def policy_of(self, index: int) -> int:
        """The policy that an engine belongs to."""
        return next(number for number, own in enumerate(self.policies) if index in own)

    def draw_of(self, policy: int) -> int | None:
        """The least loaded engine in service of one policy; None: there is none."""
        alive = [i for i in self.policies[policy] if not self._faults[i]]
        return min(alive, key=lambda i: self._busy[i]) if alive else None

    def picker(self, rng: random.Random, mode: CrossPolicy) -> Callable[[], int]:
        """Gives the engine index of each turn of one trajectory: drawn per `step`, once per `trajectory`, or fresh."""
        if mode != "trajectory":
            return lambda: self.draw(rng, fresh_only=mode == "none")[0]
        kept = -1

        def same() -> int:
            nonlocal kept
            if kept < 0 or self._faults[kept]:
                kept = self.draw(rng)[0]
            return kept

        return same

    async def generate(self, index: int, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """One turn on engine `index`, to its end even across weight updates that abort it.

        Raises:
            ContextFull: the context is full.
            InfrastructureError: the engine failed or did not answer in time; it may be out of service now.
        """
        return await self.call(
            index,
            lambda engine, left_s: generate_until_done(engine, ids, sampling, timeout_s=left_s),
            timeout_s=timeout_s,
        )

    async def call(
        self, index: int, ask: Callable[[InferenceEngine, float], Awaitable[Answer]], *, timeout_s: float
    ) -> Answer:
        """Asks engine `index` for anything; its load and its faults are the pool's.

        Args:
            index: As drawn.
            ask: Gets the engine and the seconds that are left.
            timeout_s: For all, waiting for an engine that is being brought back included.

        Raises:
            InfrastructureError: the engine failed or did not answer in time; it may be out of service now.
        """
        end = time.monotonic() + timeout_s
        if self._faults[index]:
            await self._wait_for(index, timeout_s)
        self._busy[index] += 1
        try:
            return await ask(self.engines[index], end - time.monotonic())
        except InfrastructureError as error:
            await self._examine(index, error)
            raise
        finally:
            self._busy[index] -= 1

    async def update(self, path: Path, version: int, roles: Iterable[EngineRole] = ("fresh",)) -> None:
        """Gives the weights in `path` to all engines of these kinds.

        Raises:
            CallerError: the weights are those of another model.
            NoEngineLeft: no fresh engine could take them.
        """
        roles = tuple(roles)
        taking = [i for role in roles for i in self._kinds[role] if self._due(i, version)]
        self._latest |= dict.fromkeys(taking, _Snapshot(path, version))
        targets = [i for i in taking if not self._faults[i]]
        refusals: list[CallerError] = []

        async def one(index: int) -> None:
            engine = self.engines[index]
            for again in (True, False):
                try:
                    return await engine.update_weights(path, version)
                except InfrastructureError as error:
                    alive = await engine.health()
                    if not (alive and again):  # with old weights it must not sample on
                        return self._out(index, str(error), revive=not alive)
                except CallerError as error:
                    return refusals.append(error)

        async with asyncio.TaskGroup() as tasks:
            for index in targets:
                tasks.create_task(one(index))
        if refusals:
            raise refusals[0]
        fresh = self._kinds["fresh"]
        if all(self._faults[i] for i in fresh) and (coming := [t for i, t in self._reviving.items() if i in fresh]):
            await asyncio.wait(coming)  # bounded by their restarts
        self.draw(random.Random(0), fresh_only=True)

    def _due(self, index: int, version: int) -> bool:
        """Whether an engine takes this version; every one takes its first."""
        return index not in self._latest or version % self._lags.get(index, 1) == 0

    async def probe(
        self, ids: Sequence[int], sampling: Sampling, roles: Iterable[EngineRole], *, timeout_s: float
    ) -> dict[str, Completion]:
        """What each engine of these kinds samples behind `ids`, by its name; those that fail are left out."""
        answers: dict[str, Completion] = {}

        async def one(index: int) -> None:
            try:
                answers[self.engines[index].name] = await self.generate(index, ids, sampling, timeout_s=timeout_s)
            except InfrastructureError as error:
                logger.warning("engine %s did not answer the probe: %s", self.engines[index].name, error)

        async with asyncio.TaskGroup() as tasks:
            for index in [i for role in roles for i in self._kinds[role] if not self._faults[i]]:
                tasks.create_task(one(index))
        return answers

    def stats(self) -> list[dict[str, object]]:
        """Name, role, version, load and fault of each engine."""
        return [
            {"name": e.name, "role": e.role, "version": e.version, "busy": busy, "fault": fault}
            for e, busy, fault in zip(self.engines, self._busy, self._faults, strict=True)
        ]

    async def aclose(self) -> None:
        """Closes all engines."""
        self._closing = True
        for task in self._reviving.values():
            task.cancel()
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(engine.aclose())

    async def _examine(self, index: int, error: InfrastructureError) -> None:
        if not self._faults[index] and not await self.engines[index].health():
            self._out(index, str(error))

    def _out(self, index: int, fault: str, *, revive: bool = True) -> None:
        if self._faults[index]:
            return
        self._faults[index] = fault
        engine = self.engines[index]
        if revive and self._left[index] and not self._closing and isinstance(engine, Revivable):
            logger.warning("engine %s is out of service, %d restarts left: %s", engine.name, self._left[index], fault)
            task = asyncio.create_task(self._revive(index, engine), name=f"revive-{engine.name}")
            self._reviving[index] = task
            task.add_done_callback(lambda _: self._reviving.pop(index, None))
        else:
            logger.error("engine %s is out of service: %s", engine.name, fault)

    async def _revive(self, index: int, engine: Revivable) -> None:
        """Brings an engine back and gives it the weights that it was due last, as long as there are restarts left."""
        served, pause = self.engines[index], REVIVE_PAUSE_S
        while self._left[index]:
            self._left[index] -= 1
            try:
                await engine.revive()
                # newer weights may be published while it takes these
                while (latest := self._latest.get(index)) and served.version != latest.version:
                    await served.update_weights(*latest)
            except InfrastructureError as error:
                self._faults[index] = str(error)
                logger.warning("engine %s did not come back, %d restarts left", served.name, self._left[index])
                await asyncio.sleep(pause)
                pause *= 2
            except CallerError as error:
                self._faults[index] = str(error)
                break
            else:
                self._faults[index] = ""
                logger.warning("engine %s serves again, with version %d", served.name, served.version)
                return
        logger.error("engine %s stays out of service: %s", served.name, self._faults[index])

    async def _wait_for(self, index: int, timeout_s: float) -> None:
        """Until an engine that is being brought back serves again.

        Raises:
            InfrastructureError: it does not, or not in time.
        """
        if (task := self._reviving.get(index)) is not None:
            await asyncio.wait({task}, timeout=timeout_s)
        if self._faults[index]:
            raise InfrastructureError(self._faults[index])


async def generate_until_done(
    engine: InferenceEngine, ids: Sequence[int], sampling: Sampling, *, timeout_s: float
) -> Completion:
    """Generates, and after an abort sends prompt and tokens so far again with what is left of the budget.

    Raises:
        ContextFull: the context is full.
        InfrastructureError: not done within `timeout_s` seconds, or the engine failed.
    """
    deadline = time.monotonic() + timeout_s
    done = Completion((), (), (), "abort")
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise InfrastructureError(
                f"not done within {timeout_s:g} s, {len(done.ids)} tokens came [{engine.name}]. Try another engine."
            )
        rest = replace(
            sampling,
            max_tokens=sampling.max_tokens - len(done.ids),
            seed=None if sampling.seed is None else sampling.seed + len(done.ids),
        )
        part = await engine.generate([*ids, *done.ids], rest, timeout_s=left_s)
        done = Completion(
            done.ids + part.ids, done.logprobs + part.logprobs, done.versions + part.versions, part.finish_reason
        )
        if done.finish_reason != "abort":
            return done
        if len(done.ids) >= sampling.max_tokens:
            return replace(done, finish_reason="length")
        if not part.ids:
            await asyncio.sleep(min(ABORT_PAUSE_S, left_s))
