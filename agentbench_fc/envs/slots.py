"""One place of a vector env: at most one session, at most one call under way, and what came of it.

A reply belongs to the call that its place waits for, or to nobody: a call that was given up is forgotten together with
its session, so that no reply is ever taken for that of another turn.

Not here: which calls are made when (vector.py).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agentbench_fc.envs.choosing import Choice
from agentbench_fc.envs.scoring import Scored, Scoring
from agentbench_fc.episode import Turn
from agentbench_fc.errors import AgentBenchError, Gone
from agentbench_fc.messages import Message
from agentbench_fc.protocol import Client
from agentbench_fc.rewards import Status
from agentbench_fc.sync_client import SyncClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where sessions come from: the fixed arguments of `start_sample`."""

    task: str
    profile: str
    prompt: str
    options: dict[str, Any]

    async def start(self, client: Client, choice: Choice) -> tuple[Turn, str | None]:
        """A new session's turn 0 and, where it can be told, the id of its sample."""
        turn = await client.start_sample(
            self.task,
            choice.sample,
            split=choice.split,
            seed=choice.seed,
            profile=self.profile,
            prompt=self.prompt,
            options=self.options,
        )
        if isinstance(choice.sample, str):
            return turn, choice.sample
        try:
            return turn, (await client.renew(turn.session_id)).sample
        except AgentBenchError:  # it has ended already: the task could not start
            return turn, None
        except asyncio.CancelledError:  # nobody will learn the session's id
            await _cancel(client, turn.session_id)
            raise


class Result(NamedTuple):
    """What a call gave."""

    turn: Turn
    scored: Scored
    sample: str | None
    started: bool
    """It was a start."""


class Slot:
    """Drives one session after another.

    Args:
        number: Position in the vector env.
        client: Shared by all slots.
        source: Of the sessions.
        scoring: Of the turns.
        timeout_s: A call without an answer by then is given up, and its session with it.
        on_done: Called with the slot and the future when a call is answered; on the client's thread.
    """

    def __init__(
        self,
        number: int,
        client: SyncClient,
        source: Source,
        scoring: Scoring,
        timeout_s: float,
        on_done: "Callable[[Slot, Future[Any]], None]",
    ) -> None:
        self.number = number
        self.rng: np.random.Generator | None = None
        self.over = True
        """No episode is running: the next call is a start."""
        self.deadline = 0.0
        """Of the call under way; seconds, monotonic."""
        self.call: Future[tuple[Turn, str | None]] | None = None
        """The call under way."""
        self.error: Exception | None = None
        """Why the last call failed, if it did."""
        self._client, self._source, self._scoring = client, source, scoring
        self._timeout_s, self._on_done = timeout_s, on_done
        self._starting = False
        self._last: Turn | None = None
        self._earned = 0.0
        self._sample: str | None = None
        self._left: Future[None] | None = None
        """The cancelling of the session before."""

    @property
    def running(self) -> str | None:
        """The id of a session that is open, as far as this slot knows."""
        return None if self._last is None or self._last.finish else self._last.session_id

    def start(self, choice: Choice) -> None:
        """Begins a new session; one that still runs is cancelled, a call under way is given up."""
        left, source = self.leave(), self._source

        async def begin(client: Client) -> tuple[Turn, str | None]:
            if left is not None:  # its slot on a worker may be the one that the new session needs
                await asyncio.shield(asyncio.wrap_future(left))
            return await source.start(client, choice)

        self._starting = True
        self._begin(begin)

    def play(self, messages: list[Message]) -> None:
        """Begins the next turn. Of a session that could not start, the answer is its end once more."""
        assert self._last is not None
        assert self.call is None
        last, sample = self._last, self._sample
        self._starting = False

        async def turn(client: Client) -> tuple[Turn, str | None]:
            if last.finish:
                return last, sample
            return await client.interact(last.session_id, messages, last.turn + 1), sample

        self._begin(turn)

    def take(self) -> Result:
        """The answer to the call, which is done or past its deadline; a failure is an ending like any other."""
        assert self.call is not None
        call, self.call, self.error = self.call, None, None
        if call.done():
            try:
                turn, self._sample = call.result(0)
            except Exception as error:  # one session's fault must not reach the others
                self.error = error
                if not isinstance(error, AgentBenchError):
                    logger.exception("the call of env %d failed", self.number)
                turn = self._failed(error)
                self.leave()  # it may be open still, for all we know
        else:
            turn = self._failed(TimeoutError(f"no answer within {self._timeout_s:g} s"))
            self.call = call
            self.leave()
        scored = self._scoring.of(turn, 0.0 if self._starting else self._earned)
        self._last, self._earned = turn, scored.raw_reward
        self.over = turn.finish and not self._starting
        return Result(turn, scored, self._sample, self._starting)

    def leave(self) -> "Future[None] | None":
        """Gives up whatever runs; the future is done when its session is cancelled."""
        old = self.running
        if self.call is not None:
            self.call.cancel()  # a start is cancelled by the client itself, with the session that nobody will know
            self.call = None
        self._last, self._sample, self._earned, self.over = None, None, 0.0, True
        if old is not None:
            self._left = self._client.submit(lambda client: _cancel(client, old))
        return self._left

    def _begin(self, work: Callable[[Client], Coroutine[Any, Any, tuple[Turn, str | None]]]) -> None:
        self.over = False
        self.deadline = time.monotonic() + self._timeout_s
        self.call = self._client.submit(work)
        self.call.add_done_callback(lambda done: self._on_done(self, done))

    def _failed(self, error: Exception) -> Turn:
        return failed_turn(error, None if self._starting else self._last)


def failed_turn(error: Exception, last: Turn | None) -> Turn:
    """An ending in place of the reply that never came; `last` is the turn before, None at the start."""
    if last is None:
        session_id, number, status = "", 0, Status.INIT_FAILED
    else:
        session_id, number = last.session_id, last.turn + 1
        status = Status.CANCELLED if isinstance(error, Gone) else Status.TASK_ERROR
    fault = error.fault if isinstance(error, AgentBenchError) else "worker"
    reason = str(error) or type(error).__name__
    return Turn(session_id, number, [], [], status, True, None, None, {"fault": fault, "reason": reason})


async def _cancel(client: Client, session_id: str) -> None:
    try:
        await client.cancel(session_id)
    except AgentBenchError as error:  # it is gone, or will expire
        logger.info("cancel failed, session=%s: %s", session_id, error)
