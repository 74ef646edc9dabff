"""One episode from its start to its trajectory: render once, then sample, parse, interact and append until the end.

Whatever a model does is answered by the session; whatever breaks is data: a trajectory that is not usable, with its
fault. Only errors that repeating cannot help (a wrong option, no engine left, a bug) leave this module.

Not here: which sample and how many at once (scheduler.py); text and ids (chat/).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, Conflict, Gone, InfrastructureError, NotFound, TaskError, Unavailable
from agentbench_fc.protocol import Client
from agentbench_fc.rewards import Status, settle
from agentrl_trainer.chat.buffer import TokenBuffer
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.engines.base import Completion, ContextFull, Sampling
from agentrl_trainer.engines.pool import CrossPolicy, EnginePool, NoEngineLeft
from agentrl_trainer.types import POLICIES, Trajectory

logger = logging.getLogger(__name__)
CANCEL_S = 5.0
"""How long the end of a broken episode may take; its lease ends it otherwise."""
BACKOFF_S = 0.2
FORK_PAUSE_S = 0.05
SESSION = "session"
"""In a trajectory's metrics: the session that played it."""
FULL_PAUSE_S = 0.5
"""Between two attempts to start while all slots are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """What is to be played."""

    task: str
    sample_id: str
    split: str | None = None
    seed: int = 0
    profile: str = "default"
    prompt: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict)
    group_id: str = ""
    replica: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """How episodes are played."""

    max_new_tokens: int
    max_context: int
    generate_timeout_s: float = 60.0
    retries: int = 2
    abnormal_penalty: float = -0.2


class _Broken(Exception):
    """An episode that cannot go on; `retry`: another attempt may go better."""

    def __init__(self, error: Exception, *, retry: bool) -> None:
        super().__init__(str(error))
        self.retry = retry


class Player:
    """Plays episodes of one policy pool; any number at once, each one coroutine."""

    def __init__(self, client: Client, renderer: ChatRenderer, pool: EnginePool, options: PlayOptions) -> None:
        self._client = client
        self._renderer = renderer
        self._pool = pool
        self._options = options
        self.phases: Counter[str] = Counter()
        """What the open episodes wait for just now: start, engine, environment."""
        self._open: set[_Attempt] = set()
        self.tokens = 0
        """Sampled since the start."""

    async def play(
        self,
        spec: EpisodeSpec,
        rng: random.Random,
        *,
        temperature: float,
        cross_policy: CrossPolicy = "step",
        deadline_s: float | None = None,
    ) -> Trajectory:
        """Plays one episode; faults of machines are tried again, then they make the trajectory unusable.

        Args:
            spec: What to play.
            rng: Of engine draws and token draws.
            temperature: 0 is greedy.
            cross_policy: What one draw from the pool decides.
            deadline_s: Seconds until the episode is cancelled and masked.

        Raises:
            CallerError: unknown task, sample or option.
            NoEngineLeft: nothing can sample any more.
        """
        attempt = _Attempt(self, spec, rng, temperature, cross_policy)
        tries = 0
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        return await attempt.run()
                    except _Broken as broken:
                        await attempt.abandon()
                        tries += 1
                        if not broken.retry or tries > self._options.retries:
                            return attempt.unusable(str(broken))
                        logger.info("episode is tried again, sample=%s: %s", spec.sample_id, broken)
                    attempt = _Attempt(self, spec, rng, temperature, cross_policy)
                    await asyncio.sleep(BACKOFF_S * 2**tries)
        except TimeoutError:
            await attempt.abandon()
            return attempt.unusable(f"not finished within {deadline_s:g} s (rollout.straggler_s)")
        except BaseException:  # cancelled, or an error that ends the run: the session must not stay behind
            await attempt.abandon()
            raise

    async def branch(
        self,
        spec: EpisodeSpec,
        rng: random.Random,
        trunk: Trajectory,
        turn: int,
        *,
        ahead: int,
        temperature: float,
        cross_policy: CrossPolicy,
        deadline_s: float,
    ) -> Trajectory | None:
        """Plays a finished episode again from one of its turns on, that turn by another policy.

        Args:
            spec: Of the new episode.
            rng: Of its draws.
            trunk: The finished one.
            turn: The agent turn, from 1, that is played anew.
            ahead: How many policies of the pool further the one of that turn is.
            temperature: 0 is greedy.
            cross_policy: What later draws decide.
            deadline_s: Seconds until it is cancelled and masked.

        Returns:
            None: the session could not be forked.
        """
        attempt = _Attempt(self, spec, rng, temperature, cross_policy)
        try:
            async with asyncio.timeout(deadline_s):
                if not await attempt.fork(trunk, turn, ahead):
                    return None
                try:
                    return await attempt.go_on()
                except _Broken as broken:
                    await attempt.abandon()
                    return attempt.unusable(str(broken))
        except TimeoutError:
            await attempt.abandon()
            return attempt.unusable(f"not finished within {deadline_s:g} s (rollout.straggler_s)")
        except BaseException:
            await attempt.abandon()
            raise

    def longest_waits(self, count: int) -> list[str]:
        """The open episodes that have waited longest for one thing: who, in which turn, for what, for how long."""
        now = time.monotonic()
        waiting = sorted((attempt for attempt in self._open if attempt.waits_for), key=lambda a: a.since)[:count]
        return [attempt.describe(now) for attempt in waiting]

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.phases[name] += 1
        try:
            yield
        finally:
            self.phases[name] -= 1


class _Attempt:
    """One try at one episode."""

    def __init__(
        self, player: Player, spec: EpisodeSpec, rng: random.Random, temperature: float, cross_policy: CrossPolicy
    ) -> None:
        self._player = player
        self._options = player._options
        self._client = player._client
        self._spec = spec
        self._rng = rng
        self._temperature = temperature
        self._pick = player._pool.picker(rng, cross_policy)
        several = len(player._pool.policies) > 1
        self._notes = {"none": 0, "trajectory": 1}.get(cross_policy, 1 << 15) if several else 0
        self._buffer = TokenBuffer([])
        self._session = ""
        self._number = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._engine = ""
        self._name = ""
        self._forced: int | None = None
        self._policies: list[list[tuple[float, int]]] = []  # what each draw could have picked, where that can vary
        self.waits_for = ""
        """What is under way; empty: nothing that can hang."""
        self.since = 0.0
        """When that began."""

    def describe(self, now: float) -> str:
        """What this episode waits for, for a person."""
        spec = self._spec
        what = f"{self.waits_for} {self._engine}" if self.waits_for == "engine" else self.waits_for
        place = f"turn {self._number}" if self._number else "its start"
        session = f" (session {self._session})" if self._session else ""
        return (
            f"{spec.group_id}/{spec.replica} {spec.sample_id} in {place} waits {now - self.since:.0f} s for {what}"
            f"{session}"
        )

    async def run(self) -> Trajectory:
        """Plays to the end.

        Raises:
            _Broken: a fault of a task or of machines.
        """
        turn = await self._start()
        self._session = self._name = turn.session_id
        if not turn.finish:  # a failed start has nothing to render
            self._buffer = TokenBuffer(self._player._renderer.render_prompt(turn.messages, turn.tools))
        return await self.go_on(turn)

    async def fork(self, trunk: Trajectory, turn: int, ahead: int) -> bool:
        """Stands where `trunk` stood before `turn`; False: its session cannot be forked."""
        with self._timed("start"):
            try:
                copy = await self._fork(str(trunk.metrics[SESSION]), turn - 1)
            except (CallerError, TaskError, InfrastructureError) as error:
                logger.warning("no branch of session %s at turn %d: %s", trunk.metrics[SESSION], turn, error)
                return False
        self._session = self._name = copy.session_id
        self._buffer = TokenBuffer.before(trunk, turn)
        self._number = turn - 1
        pool, sampled = self._player._pool, trunk.engines[(trunk.turns == turn) & trunk.mask]
        self._notes = 1 << 15
        self._policies = [list(draw) for draw in trunk.metrics.get(POLICIES, [])[: turn - 1]]
        self._policies += [pool.choices()] * (turn - 1 - len(self._policies))
        self._forced = (pool.policy_of(int(sampled[0])) + ahead) % len(pool.policies)
        return True

    async def _fork(self, session: str, turn: int) -> Turn:
        while True:
            try:
                return await self._client.fork(session, turn)
            except (Conflict, Unavailable):  # a sibling is forked just now, or all slots are taken
                await asyncio.sleep(FORK_PAUSE_S)  # bounded by the episode's deadline

    async def go_on(self, turn: Turn | None = None) -> Trajectory:
        """Plays from the present state to the end.

        Raises:
            _Broken: a fault of a task or of machines.
        """
        while turn is None or not turn.finish:
            turn = await self._play_turn()
        self._session = ""
        return self._finished(turn)

    async def abandon(self) -> None:
        """Ends an open session as cancelled, within a bounded time."""
        session, self._session = self._session, ""
        if not session:
            return
        try:
            async with asyncio.timeout(CANCEL_S):
                await self._client.cancel(session)
        except (TimeoutError, CallerError, TaskError, InfrastructureError) as error:
            logger.warning("an abandoned session was not ended, session=%s: %r", session, error)

    def unusable(self, fault: str) -> Trajectory:
        """What was played so far, masked."""
        return self._trajectory(status=str(Status.CANCELLED), reward=None, usable=False, fault=fault)

    async def _play_turn(self) -> Turn:
        """One agent turn; the environment's answer is appended unless the episode ends."""
        room = self._options.max_context - len(self._buffer)
        if room <= 0:
            return await self._out_of_context()
        self._number += 1
        try:
            index, completion = await self._sample(min(room, self._options.max_new_tokens))
        except ContextFull:  # the engine's own context is smaller still
            self._number -= 1
            return await self._out_of_context()
        self._buffer.append_sampled(completion, index, self._number)
        if completion.finish_reason == "length" and len(self._buffer) >= self._options.max_context:
            return await self._out_of_context()
        turn = await self._interact(completion)
        if turn.finish:
            return turn
        observed = self._player._renderer.observation_ids(turn.messages)
        if len(self._buffer) + len(observed) >= self._options.max_context:
            return await self._out_of_context()
        self._buffer.append_observed(observed, self._number)
        return turn

    async def _start(self) -> Turn:
        spec = self._spec
        with self._timed("start"):
            while True:
                try:
                    return await self._client.start_sample(
                        spec.task,
                        spec.sample_id,
                        split=spec.split,
                        seed=spec.seed,
                        profile=spec.profile,
                        prompt=spec.prompt,
                        options=dict(spec.options),
                    )
                except Unavailable:
                    await asyncio.sleep(FULL_PAUSE_S)  # bounded by the episode's deadline
                except (TaskError, InfrastructureError) as error:
                    raise _Broken(error, retry=isinstance(error, InfrastructureError)) from error

    async def _sample(self, max_tokens: int) -> tuple[int, Completion]:
        """Samples one turn; an engine that fails is replaced by another draw."""
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=self._temperature,
            stop_ids=self._player._renderer.stop_ids,
            seed=self._rng.getrandbits(62),
        )
        with self._timed("engine"):
            for left in reversed(range(self._options.retries + 1)):
                if self._number <= self._notes:
                    self._policies[self._number - 1 :] = [
                        self._player._pool.choices()
                    ]  # the last draw's, after a fault
                index, self._forced = self._draw(), None
                self._engine = self._player._pool.engines[index].name
                try:
                    completion = await self._player._pool.generate(
                        index, self._buffer.ids, sampling, timeout_s=self._options.generate_timeout_s
                    )
                except NoEngineLeft:
                    raise
                except InfrastructureError as error:
                    if not left:
                        raise _Broken(error, retry=True) from error
                else:
                    self._player.tokens += len(completion.ids)
                    return index, completion
        raise AssertionError("unreachable: the last try returns or raises")

    def _draw(self) -> int:
        """The engine of this turn; a branch begins with the one of its policy."""
        index = None if self._forced is None else self._player._pool.draw_of(self._forced)
        if index is None:
            return self._pick()
        self._policies[-1:] = [[(1.0, self._player._pool.engines[index].version)]]
        return index

    async def _interact(self, completion: Completion) -> Turn:
        messages = self._player._renderer.parse(completion.ids).to_messages()
        with self._timed("environment"):
            for left in reversed(range(self._options.retries + 1)):
                try:
                    return await self._client.interact(self._session, messages, turn=self._number)
                except (NotFound, Gone, Conflict) as error:  # a lost or expired session: begin again
                    raise _Broken(error, retry=True) from error
                except TaskError as error:
                    raise _Broken(error, retry=False) from error
                except InfrastructureError as error:  # naming the turn makes the call safe to repeat
                    if not left:
                        raise _Broken(error, retry=True) from error
                    await asyncio.sleep(BACKOFF_S)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _out_of_context(self) -> Turn:
        with self._timed("environment"):
            try:
                return await self._client.cancel(self._session, status=str(Status.CONTEXT_LIMIT))
            except (NotFound, Gone, Conflict, InfrastructureError, TaskError) as error:
                raise _Broken(error, retry=not isinstance(error, TaskError)) from error

    def _finished(self, turn: Turn) -> Trajectory:
        raw = turn.metrics.get("raw_reward", turn.reward)
        outcome = settle(turn.status, raw, abnormal_penalty=self._options.abnormal_penalty)
        fault = "" if outcome.trained else str(turn.metrics.get("reason") or turn.status)
        if not outcome.trained and turn.metrics.get("fault") in {"environment", "worker"}:
            raise _Broken(InfrastructureError(fault), retry=True)
        return self._trajectory(
            status=str(turn.status),
            reward=outcome.reward,
            raw_reward=raw,
            success=turn.success,
            usable=outcome.trained,
            fault=fault,
            metrics=turn.metrics,
        )

    def _trajectory(self, *, metrics: Mapping[str, Any] = {}, **facts: Any) -> Trajectory:
        spec = self._spec
        own: dict[str, Any] = {"drift": self._buffer.drift, "repaired_turns": self._buffer.repaired_turns}
        own |= {POLICIES: self._policies} if self._policies else {}
        own |= {SESSION: self._name}
        own |= {"turns": self._number} | {f"{name}_s": round(s, 4) for name, s in self._seconds.items()}
        return self._buffer.to_trajectory(
            task=spec.task,
            sample_id=spec.sample_id,
            group_id=spec.group_id,
            replica=spec.replica,
            metrics={**metrics, **own},
            **facts,
        )

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self.waits_for, self.since = name, time.monotonic()
        self._player._open.add(self)
        try:
            with self._player._phase(name):
                yield
        finally:
            self._player._open.discard(self)
            self.waits_for = ""
            self._seconds[name] += time.monotonic() - self.since
