"""The bounded pool of daemon threads."""

import subprocess
import sys
import threading
import time
from concurrent.futures import wait

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.pool import Pool


def test_results_errors_and_the_bound() -> None:
    pool = Pool(3, "test-pool")
    running, peak, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3)  # nobody gets on before three are at work

    def job() -> str:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        three.wait(60)
        with lock:
            running -= 1
        return threading.current_thread().name

    futures = [pool.submit(job) for _ in range(42)]
    assert len({future.result(60) for future in futures}) == 3 == peak
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(10)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit).result(10)
    assert pool.submit(lambda: 5).result(10) == 5
    pool.close()


def test_threads_are_made_only_when_all_are_busy() -> None:
    pool = Pool(8, "test-lazy")
    for _ in range(50):
        pool.submit(int).result(10)
    assert sum(t.name.startswith("test-lazy") for t in threading.enumerate()) <= 2
    pool.close()


def test_a_waiting_job_can_be_cancelled_and_a_closed_pool_fails_the_rest() -> None:
    pool, begun, release = Pool(1, "test-close"), threading.Event(), threading.Event()
    first = pool.submit(lambda: begun.set() or release.wait(10))
    assert begun.wait(10)
    cancelled, waiting = pool.submit(lambda: 1), pool.submit(lambda: 2)
    assert cancelled.cancel()
    pool.close()
    pool.close()
    with pytest.raises(CallerError, match="was closed"):
        waiting.result(10)
    with pytest.raises(CallerError, match="was closed"):
        pool.submit(int)
    release.set()
    assert first.result(10) is True
    wait([first], 10)


def test_a_pool_of_no_threads_is_refused() -> None:
    with pytest.raises(CallerError, match="Use 1 or more"):
        Pool(0, "none")


def test_a_stuck_job_does_not_keep_the_interpreter() -> None:
    code = (
        "import time; from agentbench_fc.pool import Pool; Pool(1, 'x').submit(lambda: time.sleep(60)); time.sleep(.1)"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
    assert time.monotonic() - began < 45
