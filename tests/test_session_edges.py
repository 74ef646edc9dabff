"""The turn loop at its edges: task code that misbehaves, threads, forked processes, cancels that race with calls."""

import asyncio
import json
import os
import threading
import warnings
from typing import Any

import pytest
from toys import Counter, Rude, counter_task, rude_task

from agentbench_fc.deadlines import CallThreads, OneThread
from agentbench_fc.episode import Reply, ToolEpisode, ToolTask, make_task, tool
from agentbench_fc.errors import Conflict, Gone, InfrastructureError, TaskError
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session


def call(name: str, **arguments: Any) -> list[Message]:
    return [assistant(None, [ToolCall("c1", name, json.dumps(arguments))])]


def started(task: ToolTask, index: int = 0) -> Session:
    session = Session(task, task.samples("train")[index])
    session.start()
    return session


class Escapes(ToolEpisode):
    call_timeout_s: float | None = 5.0

    def start(self) -> str:
        if kind := self.sample.data.get("start"):
            raise ERRORS[kind]
        return "Go."

    @tool
    def escape(self, kind: str) -> str:
        """Raises what is no ordinary exception."""
        raise ERRORS[kind]


class DirectEscapes(Escapes):
    call_timeout_s = None


ERRORS: dict[str, BaseException] = {
    "timeout": TimeoutError("the socket timed out"),
    "exit": SystemExit(3),
    "generator": GeneratorExit(),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
}


@pytest.mark.parametrize("kind", list(ERRORS))
def test_nothing_that_a_tool_raises_on_a_helper_thread_escapes(kind: str) -> None:
    session = started(make_task(Escapes, samples={"train": [{}]}))
    turn = session.interact(call("escape", kind=kind))
    assert type(ERRORS[kind]).__name__ in str(turn.messages[0]["content"])
    assert (turn.finish, session.counters.tool_errors, session.counters.timeouts) == (False, 1, 0)


@pytest.mark.parametrize("kind", ["timeout", "exit", "generator"])
def test_nothing_that_a_tool_raises_without_a_deadline_escapes(kind: str) -> None:
    session = started(make_task(DirectEscapes, samples={"train": [{}]}))
    assert "Error: " in str(session.interact(call("escape", kind=kind)).messages[0]["content"])


@pytest.mark.parametrize("episode", [Escapes, DirectEscapes])
@pytest.mark.parametrize("kind", ["exit", "timeout"])
def test_a_start_that_wants_to_exit_is_a_failed_start(episode: type[ToolEpisode], kind: str) -> None:
    task = make_task(episode, samples={"train": [{"start": kind}]})
    assert Session(task, task.samples("train")[0]).start().status is Status.INIT_FAILED


class Wrong(ToolEpisode):
    def start(self) -> Any:
        return self.sample.data.get("opening", "Go.")

    @tool
    def answer(self, what: str) -> Any:
        """Returns a wrong reply."""
        return WRONG[what]


WRONG: dict[str, Any] = {
    "content": Reply(None),  # type: ignore[arg-type]
    "reward": Reply("x", reward="1"),  # type: ignore[arg-type]
    "metrics": Reply("x", metrics=3),  # type: ignore[arg-type]
    "running": Reply("x", done=True, status=Status.RUNNING),
    "status": Reply("x", done=True, status="fine"),  # type: ignore[arg-type]
    "nan": Reply("x", reward=float("nan")),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_wrong_reply_is_a_fault_of_the_task(what: str) -> None:
    turn = started(make_task(Wrong, samples={"train": [{}]})).interact(call("answer", what=what))
    assert (turn.status, turn.metrics["fault"], len(turn.messages)) == (Status.TASK_ERROR, "task", 1)


@pytest.mark.parametrize(
    "opening", [None, [], ["text"], [{"role": "user", "content": None}], [{"content": "x"}]], ids=str
)
def test_a_wrong_opening_is_a_failed_start(opening: Any) -> None:
    task = make_task(Wrong, samples={"train": [{"opening": opening}]})
    turn = Session(task, task.samples("train")[0]).start()
    assert (turn.status, turn.metrics["fault"]) == (Status.INIT_FAILED, "task")


def test_a_fork_that_raises_is_a_fault_of_the_task_and_leaves_the_session_usable() -> None:
    class BadFork(Counter):
        def fork(self) -> None:
            raise AttributeError("no state")

    session = started(counter_task(BadFork))
    with pytest.raises(TaskError, match="fork raised AttributeError"):
        session.fork()
    session.interact(call("add", number=1))
    assert session.interact(call("submit")).reward == 1.0


def test_a_cancelled_turn_is_no_stored_reply() -> None:
    session = started(counter_task())
    session.interact(call("add", number=1), turn=1)
    end = session.cancel(reason="expired: idle for 3 s")
    for turn in (1, 2, end.turn, None):
        with pytest.raises(Gone, match="cancelled: expired: idle for 3 s"):
            session.interact(call("add", number=1), turn=turn)


def test_a_closed_session_is_gone_but_can_be_forked() -> None:
    session = started(counter_task())
    session.interact(call("add", number=1))
    session.close()
    with pytest.raises(Gone, match="was closed"):
        session.interact(call("submit"))
    assert session.fork().interact(call("submit")).reward == 1.0


def test_no_cancel_is_lost_between_two_calls() -> None:
    task = counter_task()
    for _ in range(150):
        session = started(task)

        def play(session: Session = session) -> None:
            try:
                for _ in range(5):
                    session.interact(call("add", number=1))
            except (Gone, Conflict):  # a conflict where the cancel itself is just under way
                pass

        thread = threading.Thread(target=play)
        thread.start()
        session.cancel()
        thread.join(10)
        assert session.status is Status.CANCELLED
        assert sum(played.turn.finish for played in session.log) == 1


class Affine(ToolEpisode):
    affinity = "thread"

    def start(self) -> str:
        self.seen = {threading.get_ident()}
        return "Go."

    @tool
    def look(self) -> str:
        """Notes its thread."""
        self.seen.add(threading.get_ident())
        return "seen"

    def close(self) -> None:
        self.seen.add(threading.get_ident())


class AffineDirect(Affine):
    call_timeout_s = None


@pytest.mark.parametrize("episode", [Affine, AffineDirect])
def test_an_affine_session_stays_on_one_thread_which_ends_with_it(episode: type[ToolEpisode]) -> None:
    task = make_task(episode, samples={"train": [{}]})
    session = started(task)
    inner: Any = session._episode._inner  # type: ignore[union-attr]
    for _ in range(4):
        thread = threading.Thread(target=session.interact, args=(call("look"),))
        thread.start()
        thread.join(10)
    child = session.fork()
    session.cancel()
    assert len(inner.seen) == 1
    assert inner.seen.isdisjoint({threading.get_ident()})
    assert child.interact(call("look")).messages[0]["content"] == "seen"
    child.cancel()
    names = [t.name for t in threading.enumerate()]
    for thread in [t for t in threading.enumerate() if t.name == "agentbench-fc-affine"]:
        thread.join(5)
        assert not thread.is_alive(), names


def test_a_stuck_affine_call_holds_its_own_session_only() -> None:
    class Stuck(Rude):
        affinity = "thread"

    task = make_task(Stuck, samples={"train": [{}]})
    session, neighbour = started(task), started(task)
    assert "did not finish" in str(session.interact(call("hangs")).messages[0]["content"])
    assert neighbour.interact(call("ends")).reward == 1.0
    assert session.interact(call("ends")).status is Status.TASK_ERROR


def test_one_thread_keeps_the_order_and_frees_abandoned_calls() -> None:
    threads, release = OneThread(), threading.Event()
    late = threads.begin(lambda: release.wait(60))
    assert not threads.finish(late, 0.01)
    assert threads.abandoned == 1
    release.set()
    assert threads.run(lambda: 7, 60).outcome() == 7
    assert threads.abandoned == 0
    threads.close()
    threads.close()


def test_a_wait_that_is_broken_off_keeps_the_session_from_running_two_calls_at_once() -> None:
    class Broken(CallThreads):
        def finish(self, call: Any, timeout_s: float) -> bool:
            super().finish(call, 0.01)
            raise KeyboardInterrupt

    task = rude_task()
    session = started(task)
    session._threads = Broken()
    with pytest.raises(KeyboardInterrupt):
        session.interact(call("hangs"))
    session._threads = CallThreads()
    turn = session.interact(call("ends"))
    assert (turn.status, "still hangs" in turn.metrics["reason"]) == (Status.TASK_ERROR, True)


def test_calls_with_deadlines_work_in_a_forked_process() -> None:
    session = started(counter_task())
    session.interact(call("add", number=1))  # helper threads exist, and are idle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
        pid = os.fork()
    if pid == 0:
        try:
            code = 0 if session.interact(call("submit")).reward == 1.0 else 1
        except BaseException:
            code = 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_too_many_stuck_calls_end_a_session_as_a_fault_of_the_environment() -> None:
    threads, release = CallThreads(max_abandoned=1), threading.Event()
    assert not threads.finish(threads.begin(lambda: release.wait(60)), 0.01)
    with pytest.raises(InfrastructureError):
        threads.begin(lambda: 1)
    task = counter_task()
    session = Session(task, task.samples("train")[0], threads=threads)
    assert session.start().status is Status.INIT_FAILED
    release.set()


def test_a_fork_that_comes_after_its_deadline_is_closed() -> None:
    gate, closed = threading.Event(), threading.Event()

    class Heavy(Counter):
        call_timeout_s: float | None = 0.3

        def fork(self) -> "Heavy":
            gate.wait(20)
            copy = Heavy(self.sample, self.seed)
            copy.close = closed.set  # type: ignore[method-assign]
            return copy

    session = started(counter_task(Heavy))
    session.interact(call("add", number=1))
    child = session.fork()  # by replay, since the copy does not come
    assert child.last.messages == session.last.messages
    assert not closed.is_set()
    gate.set()
    assert closed.wait(60)
