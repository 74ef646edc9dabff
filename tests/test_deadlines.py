"""Calls with deadlines on reused threads."""

import threading
import time

import pytest

from agentbench_fc.deadlines import CallThreads
from agentbench_fc.errors import InfrastructureError


def test_results_and_errors_come_back() -> None:
    threads = CallThreads()
    assert threads.run(lambda: 3, 5).result == 3

    def fail() -> None:
        raise KeyError("x")

    assert isinstance(threads.run(fail, 5).error, KeyError)


def test_threads_are_reused() -> None:
    threads = CallThreads()
    before = threading.active_count()
    names = set()
    for _ in range(100):  # a thread is idle again before its caller hears of the end
        names.add(threads.run(threading.get_ident, 60).result)
    assert threading.active_count() <= before + 3
    assert len(names) <= 3


def test_a_late_result_is_cleaned_up_and_its_thread_serves_again() -> None:
    threads, release, late = CallThreads(), threading.Event(), threading.Event()
    seen: list[str] = []

    def clean(result: str) -> None:
        seen.append(result)
        late.set()

    call = threads.run(lambda: release.wait(60) and "opened", 0.05, on_late=clean)
    assert not call.wait(0)
    assert threads.abandoned == 1
    release.set()
    assert late.wait(60)
    assert seen == ["opened"]
    deadline = time.monotonic() + 60
    while threads.abandoned and time.monotonic() < deadline:
        time.sleep(0.005)
    assert threads.abandoned == 0


def test_too_many_abandoned_calls_are_refused() -> None:
    threads, release = CallThreads(max_abandoned=2), threading.Event()
    for _ in range(2):
        threads.run(lambda: release.wait(60), 0.01)
    with pytest.raises(InfrastructureError, match="2 calls ran past their deadline"):
        threads.run(lambda: 1, 5)
    release.set()


def test_many_callers_at_once_get_their_own_results() -> None:
    threads = CallThreads()
    results: dict[int, int] = {}

    def caller(n: int) -> None:
        for i in range(50):
            results[n * 50 + i] = threads.run(lambda n=n, i=i: n * 50 + i, 60).result  # type: ignore[misc]

    callers = [threading.Thread(target=caller, args=(n,)) for n in range(16)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(120)
    assert results == {n: n for n in range(800)}
