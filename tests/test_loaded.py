"""The tasks that a client has loaded: shared loads, failures, and the end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from toys import counter_task

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.loaded import LoadedTasks


def at_once(load: Callable[[], Task]) -> "Future[Task]":
    """Loads before anybody can wait for it, as a thread does that comes first."""
    future: Future[Task] = Future()
    try:
        future.set_result(load())
    except NotFound as error:
        future.set_exception(error)
    return future


def test_a_load_that_fails_before_anybody_waits_holds_nobody_up() -> None:
    tasks = LoadedTasks({}, at_once)
    failed: list[Any] = []

    def ask() -> None:
        for _ in range(2):  # the second one loads anew
            failed.append(tasks.get("nothing", "default", "default", {}).exception(0))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert [type(error) for error in failed] == [NotFound, NotFound]
    assert tasks.names() == []


class Closing:
    """A task that tells when it is closed, and may fail at it."""

    def __init__(self, closed: list[str], name: str, *, fails: bool = False) -> None:
        self.spec = counter_task().spec
        self._closed, self._name, self._fails = closed, name, fails

    def close(self) -> None:
        self._closed.append(self._name)
        if self._fails:
            raise RuntimeError("it will not")


def test_a_load_that_ends_after_the_close_is_closed_too() -> None:
    late: Future[Any] = Future()
    tasks, closed = LoadedTasks({}, lambda load: late), list[str]()
    tasks.get("late", "default", "default", {})
    tasks.close()
    assert closed == []
    late.set_result(Closing(closed, "late"))
    assert closed == ["late"]
    with pytest.raises(CallerError, match="client was closed"):
        tasks.get("later", "default", "default", {})  # nobody would close it


def test_a_task_that_fails_to_close_keeps_none_of_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    tasks, closed = LoadedTasks({}, at_once), list[str]()
    for name in "abc":
        tasks.adopt(Closing(closed, name, fails=name != "c"), name, "default", "default", {})  # type: ignore[arg-type]
    tasks.close()
    tasks.close()
    assert closed == ["a", "b", "c"]
    assert "it will not" in caplog.text
