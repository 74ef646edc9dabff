"""Session: the one turn loop of all tasks.

>>> from agentbench_fc.episode import ToolEpisode, make_task, tool
>>> class Guess(ToolEpisode):
...     def start(self):
...         return "Guess my number."
...     @tool
...     def guess(self, number: int):
...         '''Guesses.'''
...         return self.finish("Right.", reward=1.0) if number == self.sample.data["number"] else "Wrong."
>>> task = make_task(Guess, samples={"train": [{"number": 7}]})
>>> session = Session(task, task.samples("train")[0])
>>> session.start().messages
[{'role': 'user', 'content': 'Guess my number.'}]
>>> turn = session.interact([assistant(None, [ToolCall("c1", "guess", '{"number": 7}')])])
>>> turn.messages, str(turn.status), turn.reward, turn.success
([{'role': 'tool', 'tool_call_id': 'c1', 'content': 'Right.'}], 'completed', 1.0, True)

Guarantees, whatever a model sends: exactly one tool message for each call; arguments reach a task only after its JSON
schema; a bad call costs a turn, not the episode; nothing of a model's making raises. What only a client can get wrong
(order, roles, a finished session) raises a `CallerError`.

Not here: leases, concurrency and many sessions (client.py); what a status means for training (rewards.py); the file
format of transcripts (transcript.py).
"""

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentbench_fc.arguments import bounded, read_arguments
from agentbench_fc.deadlines import Call, CallThreads, DeadlinePassed, Escaped, OneThread
from agentbench_fc.episode import Episode, Reply, Sample, Task, Turn
from agentbench_fc.errors import AgentBenchError, CallerError, Conflict, Gone, InfrastructureError, TaskError
from agentbench_fc.messages import (
    AgentTurn,
    Message,
    ToolCall,
    assistant,  # noqa: F401  (the doctest's)
    clean_text,
    read_agent_messages,
    tool_result,
    user,
)
from agentbench_fc.record import Counters, Played, compare, handed_out
from agentbench_fc.replies import checked_opening, checked_reply
from agentbench_fc.rewards import Status, settle

logger = logging.getLogger(__name__)

CANCEL_WAIT_S = 1.0

_shared_threads = CallThreads()  # idle threads end by themselves, so that one pool can serve a whole process


@dataclass(slots=True)
class _Step:
    """What one turn gathers while it is played."""

    messages: list[Message] = field(default_factory=list)
    reward: float | None = None
    success: bool | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    ended: Status | None = None


class Session:
    """One episode of one sample, driven by assistant messages. One call at a time; a second at once is a `Conflict`.

    Args:
        task: Opens the episode.
        sample: Which problem.
        seed: Equal sample, seed and messages give an equal episode.
        session_id: A random one by default.
        options: What `load_task` needs beside the spec to make the task again; transcripts carry it.
        threads: Helper threads for calls with a deadline; shared by the process by default.
    """

    def __init__(
        self,
        task: Task,
        sample: Sample,
        *,
        seed: int = 0,
        session_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        threads: CallThreads | None = None,
    ) -> None:
        self.id = session_id or secrets.token_hex(8)
        self.task = task
        self.sample = sample
        self.seed = seed
        self.options = dict(options or {})
        self.status = Status.RUNNING
        self.raw_reward = 0.0
        self.counters = Counters()
        self.log: list[Played] = []
        self.parent: tuple[str, int] | None = None
        """Session and turn that this one was forked from."""
        self._own_thread = OneThread() if task.spec.affinity == "thread" else None
        self._threads = self._own_thread or threads or _shared_threads
        self._episode: Episode | None = None
        self._busy = threading.Lock()
        self._stuck: Call | None = None
        self._cancel: tuple[Status, str] | None = None

    @property
    def turn(self) -> int:
        """Number of the last turn; -1 before the start."""
        return len(self.log) - 1

    @property
    def finished(self) -> bool:
        """Whether the session takes no further turn."""
        return self.status is not Status.RUNNING

    @property
    def last(self) -> Turn:
        """The newest turn.

        Raises:
            Conflict: the session has not started.
        """
        return handed_out(self._newest)

    @property
    def _newest(self) -> Turn:
        if not self.log:
            raise Conflict(f"the session has not started {self._where()}. Call start first.")
        return self.log[-1].turn

    def start(self) -> Turn:
        """Opens the episode and returns turn 0, the prompt. A task that cannot start gives `env init failed`.

        Raises:
            Conflict: it was started already.
        """
        with self._exclusive():
            if self.log:
                raise Conflict(f"the session was started already {self._where()}. Send turn {self.turn + 1}.")
            step = _Step()
            try:
                self._episode, opening = self._open()
                step.messages = checked_opening(opening, self._where())
            except (Exception, SystemExit, GeneratorExit) as error:  # whatever a task's own code raises at its start
                logger.warning("start failed, session=%s sample=%s", self.id, self.sample.id, exc_info=True)
                self._fail(step, error, Status.INIT_FAILED)
            return self._record((), step)

    def interact(self, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """Plays one agent turn.

        Args:
            messages: Assistant messages; usually one.
            turn: The number of this turn, `last + 1`. Repeating the last number returns the stored reply, so a
                request can be sent again after a lost answer. None: no check.

        Raises:
            CallerError: the messages are not assistant messages.
            Conflict: another call is under way, or the turn is out of order.
            Gone: the session has finished.
        """
        with self._exclusive():
            last = self._newest
            if turn is not None and turn == last.turn and self.log[-1].sent:
                return handed_out(last)
            if self.finished or self._episode is None:
                why = f"has finished as {self.status!s}" if self.finished else "was closed"
                reason = f": {last.metrics['reason']}" if "reason" in last.metrics else ""
                raise Gone(f"the session {why}{reason} {self._where()}. Start another one.")
            if turn is not None and turn != last.turn + 1:
                raise Conflict(
                    f"turn {turn} is out of order, the last one is {last.turn} {self._where()}. "
                    f"Send turn {last.turn + 1}, or fork."
                )
            agent = bounded(read_agent_messages(messages))
            sent = tuple(agent.to_messages())
            step = self._play(agent)
            if step.ended is None:
                step.ended = self._limit_reached(last.turn + 1)
            return self._record(sent, step)

    def cancel(self, status: Status | str = Status.CANCELLED, reason: str = "cancelled by the client") -> Turn:
        """Ends the session as `cancelled`, or as `agent context limit`. A finished session stays as it is.

        While a call is under way, the session ends with that call.

        Raises:
            CallerError: another status.
        """
        if status not in {Status.CANCELLED, Status.CONTEXT_LIMIT}:
            raise CallerError(f"a client cannot end a session as {status!s} {self._where()}. Use 'cancelled'.")
        free = self._busy.acquire(timeout=CANCEL_WAIT_S)
        if not self.finished:
            self._cancel = (Status(status), reason)
        if free:
            self._busy.release()
        self._carry_out_cancel()
        if self.finished:
            return self.last
        return Turn(self.id, self.turn + 1, [], [], Status(status), True, None, None, {"reason": reason})

    def fork(self, turn: int | None = None, *, session_id: str | None = None) -> "Session":
        """An independent session that stands where this one stood after `turn` (by default: stands now).

        Natively where the task can, by replay of the recorded messages otherwise. This session is not touched.

        Raises:
            CallerError: no such turn, or the session had finished by then.
            TaskError: the replay did not give the recorded observations: the sample is volatile.
        """
        with self._exclusive():
            newest = self._newest.turn
            at = newest if turn is None else turn
            if not 0 <= at <= newest:
                raise CallerError(f"there is no turn {at} {self._where()}. Turns 0 to {newest} exist.")
            if self.log[at].turn.finish:
                raise CallerError(f"turn {at} ended the session {self._where()}. Fork at an earlier turn.")
            child = Session(
                self.task,
                self.sample,
                seed=self.seed,
                session_id=session_id,
                options=self.options,
                threads=self._threads,  # an affine session makes its own
            )
            child.parent = (self.id, at)
            if not (at == newest and self._fork_natively(child)):
                child._rebuild(self.log[: at + 1])
            return child

    def close(self) -> None:
        """Frees the episode; safe to repeat."""
        episode, self._episode = self._episode, None
        if episode is not None:
            if self._stuck is not None and not self._stuck.wait(0):
                logger.warning("closing session=%s while a call of it still hangs", self.id)
            try:
                self._within(episode.close, self.task.spec.call_timeout_s)
            except (Exception, SystemExit, GeneratorExit):  # an end must not fail because a task cannot clean up
                logger.exception("closing the episode failed, session=%s", self.id)
        if self._own_thread is not None:
            self._own_thread.close()

    # the start

    def _open(self) -> tuple[Episode, list[Message]]:
        spec = self.task.spec
        _ = spec.validators  # a wrong schema fails here, at the start

        def open_and_start() -> tuple[Episode, list[Message]]:
            episode = self.task.open(self.sample, self.seed)
            try:
                return episode, episode.start()
            except BaseException:
                episode.close()
                raise

        if spec.call_timeout_s is None and self._own_thread is None:
            return open_and_start()
        call = self._threads.run(open_and_start, spec.start_timeout_s, on_late=lambda made: made[0].close())
        if not call.wait(0):
            raise InfrastructureError(f"the start took over {spec.start_timeout_s:g} s {self._where()}. Try again.")
        opened: tuple[Episode, list[Message]] = call.outcome()
        return opened

    # one turn

    def _play(self, agent: AgentTurn) -> _Step:
        step = _Step()
        if not agent.calls:
            self._say(agent.text, step)
        for position, call in enumerate(agent.calls):
            if step.ended is not None:
                content = "Not run: the episode had ended before this call."
                self.counters.surplus_calls += 1
            elif position and self.task.spec.calls_per_turn == "first":
                content = "Not run: only the first call of a turn is run. Send one call per turn."
                self.counters.surplus_calls += 1
            else:
                content = self._call(call, step)
            step.messages.append(tool_result(call.id, content))
        return step

    def _say(self, text: str, step: _Step) -> None:
        reply = self._guarded(lambda episode: episode.say(text), step)
        if isinstance(reply, Reply):
            if content := self._settle_reply(reply, step):
                step.messages.append(user(content))
        elif reply is not None:
            step.messages.append(user(reply))
        elif step.ended is None:
            self.counters.no_call_turns += 1
            names = ", ".join(self.task.spec.validators)
            step.messages.append(user(f"There was no tool call in that turn. Call one of these tools: {names}."))

    def _call(self, call: ToolCall, step: _Step) -> str:
        self.counters.calls += 1
        try:
            arguments = read_arguments(self.task.spec.validators, call)
        except ValueError as error:
            self.counters.invalid_calls += 1
            return f"Error: {error}"
        reply = self._guarded(lambda episode: episode.call(call.name, arguments), step)
        if isinstance(reply, Reply):
            return self._settle_reply(reply, step)
        return reply if reply is not None else "Error: the tool gave no result."

    def _settle_reply(self, reply: Reply, step: _Step) -> str:
        if reply.reward is not None:
            total = self.raw_reward + reply.reward
            if not (math.isfinite(total) and -1e-9 <= total <= 1 + 1e-9):
                fault = TaskError(f"the reward {reply.reward} leaves [0, 1] {self._where()}. Mend the task.")
                self._fail(step, fault, Status.TASK_ERROR)
                return "Error: the task failed."
            self.raw_reward = min(max(total, 0.0), 1.0)
            step.reward = (step.reward or 0.0) + reply.reward
        if reply.success is not None:
            step.success = reply.success
        step.metrics |= reply.metrics
        if reply.done:
            step.ended = Status(reply.status)
        return self._cut(clean_text(reply.content))

    def _cut(self, text: str) -> str:
        limit = self.task.spec.max_output_chars
        if len(text) <= limit:
            return text
        return f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"

    # running a task's code

    def _guarded(self, act: Callable[[Episode], Reply | None], step: _Step) -> Reply | str | None:
        """Runs a piece of the task's code: its reply, None, or the text of what went wrong."""
        assert self._episode is not None
        episode = self._episode
        timeout = self.task.spec.call_timeout_s
        try:
            if self._stuck is not None and not self._stuck.wait(timeout or 0):
                raise InfrastructureError(f"an earlier call still hangs {self._where()}. Start another session.")
            self._stuck = None
            reply = self._within(lambda: act(episode), timeout)
            return None if reply is None else checked_reply(reply, self._where())
        except DeadlinePassed:
            self.counters.timeouts += 1
            return f"Error: the call did not finish within {timeout:g} seconds."
        except (TaskError, InfrastructureError) as error:
            logger.warning("episode failed, session=%s", self.id, exc_info=True)
            self._fail(step, error, Status.TASK_ERROR)
            return "Error: the environment failed; the episode has ended."
        except (Exception, SystemExit, GeneratorExit) as error:  # any tool may raise anything; the model gets to see it
            self.counters.tool_errors += 1
            logger.info("tool raised, session=%s", self.id, exc_info=True)
            own = isinstance(error, (AgentBenchError, Escaped))
            text = str(error) if own else f"{type(error).__name__}: {error}"
            return self._cut(clean_text(f"Error: {text[:2000]}"))

    def _within(
        self, fn: Callable[[], Any], timeout_s: float | None, on_late: Callable[[Any], None] | None = None
    ) -> Any:
        """The result of `fn`; past the deadline a DeadlinePassed, and the call is kept in `_stuck`."""
        if timeout_s is None and self._own_thread is None:
            return fn()
        call = self._stuck = self._threads.begin(fn, on_late)  # before the wait, which Ctrl-C can break off
        if not self._threads.finish(call, threading.TIMEOUT_MAX if timeout_s is None else timeout_s):
            raise DeadlinePassed
        self._stuck = None
        return call.outcome()

    # the end

    def _limit_reached(self, turn: int) -> Status | None:
        cap = self.task.spec.max_invalid_calls
        if cap is not None and self.counters.invalid > cap:
            return Status.INVALID_ACTION
        return Status.LIMIT_REACHED if turn >= self.task.spec.max_turns else None

    def _fail(self, step: _Step, error: BaseException, status: Status) -> None:
        fault = error.fault if isinstance(error, AgentBenchError) else "task"
        step.ended = status
        step.metrics |= {"fault": fault, "reason": str(error) or type(error).__name__}

    def _record(self, sent: tuple[Message, ...], step: _Step) -> Turn:
        if self._cancel is not None and step.ended is None:
            step.ended, reason = self._cancel
            step.metrics["reason"] = reason
        reward, success, metrics = step.reward, None, dict(step.metrics)
        if step.ended is not None:
            self.status = step.ended
            if settle(self.status, self.raw_reward).trained:
                reward = reward or 0.0
                success = step.success if step.success is not None else self.raw_reward >= 1.0
            metrics |= {"turns": len(self.log) if sent else max(self.turn, 0), "raw_reward": self.raw_reward}
            metrics |= {name: getattr(self.counters, name) for name in Counters.__dataclass_fields__}
        turn = Turn(
            self.id,
            len(self.log),
            step.messages,
            list(self.task.spec.tools),
            self.status,
            self.finished,
            reward,
            success,
            metrics,
        )
        self.log.append(Played(sent, turn))
        if self.finished:
            self.close()
        return handed_out(turn)

    # forks

    def _fork_natively(self, child: "Session") -> bool:
        if self._episode is None or (self._stuck is not None and not self._stuck.wait(0)):
            return False
        try:
            episode = self._within(self._episode.fork, self.task.spec.call_timeout_s, on_late=_close_late)
        except DeadlinePassed:
            return False
        except AgentBenchError:
            raise
        except Exception as error:  # a task's own code
            raise TaskError(f"the task's fork raised {error!r} {self._where()}. Mend it, or return None.") from error
        if episode is None:
            return False
        child._episode = episode
        child.raw_reward = self.raw_reward
        child.counters = replace(self.counters)
        child.log = [Played(p.sent, replace(p.turn, session_id=child.id)) for p in self.log]
        return True

    def _rebuild(self, log: Sequence[Played]) -> None:
        try:
            for played in log:
                turn = self.interact(played.sent, played.turn.turn) if played.sent else self.start()
                if difference := compare(played.turn, turn):
                    raise TaskError(f"turn {turn.turn} came out differently: {difference} {self._where()}.")
        except BaseException:
            self.close()
            raise

    def _exclusive(self) -> "_Exclusive":
        return _Exclusive(self)

    def _carry_out_cancel(self) -> None:
        """Ends the session if that was asked for and no call is under way; such a call does it as it ends.

        Both the asker and the call come here after the lock was free, so that one of them sees the other's part.
        """
        if self._cancel is not None and not self.finished and self._busy.acquire(blocking=False):
            try:
                if not self.finished:
                    self._record((), _Step())
            finally:
                self._busy.release()

    def _where(self) -> str:
        return f"[session {self.id}, {self.sample.id}]"


def _close_late(forked: Episode | None) -> None:
    """A copy that came after the deadline is nobody's."""
    if forked is not None:
        forked.close()


class _Exclusive:
    """Holds a session's lock, or raises Conflict at once: a second caller must not wait on the first one's model."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        if not self._session._busy.acquire(blocking=False):
            raise Conflict(f"another call is under way {self._session._where()}. Wait for its answer.")

    def __exit__(self, *_: object) -> None:
        self._session._busy.release()
        self._session._carry_out_cancel()
