"""Games in processes: sharing, death, renewal."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from alfworld_toys import contents, need_engine

from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, TaskError
from agentbench_fc.tasks.alfworld.engine import Engine, Game
from agentbench_fc.tasks.alfworld.workers import Room, Workers

TIMEOUT_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    need_engine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    """Two processes, with fewer places for games than there are games."""
    workers = Workers(2, loaded=3)
    yield workers
    workers.close()


def start(workers: Workers, number: int = 0, **options: Any) -> Room:
    return workers.start(contents(6)[number], where=f"game {number}", timeout_s=TIMEOUT_S, **options)


def walk(room: Room, steps: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [room.step(rng.choice(room.seen.admissible), timeout_s=TIMEOUT_S).feedback for _ in range(steps)]


def serial(number: int, steps: int, seed: int) -> list[str]:
    engine = Engine()
    play = engine.start(Game.read(contents(6)[number]))
    rng = random.Random(seed)
    feedback = [play.step(rng.choice(play.seen.admissible)).feedback for _ in range(steps)]
    engine.close()
    return feedback


def test_32_sessions_at_once_give_the_serial_traces(two: Workers) -> None:
    rooms = [start(two, n % 6) for n in range(32)]
    assert len({room.pid for room in rooms}) == 2
    traces: dict[int, list[str]] = {}

    def run(n: int) -> None:
        traces[n] = walk(rooms[n], 15, n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for room in rooms:
        room.close()
    assert [traces[n] for n in range(32)] == [serial(n % 6, 15, n) for n in range(32)]


def test_a_dead_process_takes_only_its_own_sessions(two: Workers) -> None:
    rooms = [start(two, n) for n in range(4)]
    lost = [room for room in rooms if room.pid == rooms[0].pid]
    kept = [room for room in rooms if room.pid != rooms[0].pid]
    assert len(lost) == len(kept) == 2
    assert rooms[0].pid is not None
    os.kill(rooms[0].pid, signal.SIGKILL)
    for room in lost:
        with pytest.raises(InfrastructureError):
            room.step("look", timeout_s=TIMEOUT_S)
        with pytest.raises(InfrastructureError):
            room.fork(timeout_s=TIMEOUT_S)
    for room in kept:
        assert room.step("look", timeout_s=TIMEOUT_S).acted
    new = start(two, 0)
    assert new.pid not in {kept[0].pid, lost[0].pid}
    for room in [*rooms, new]:
        room.close()


def test_a_process_is_renewed_without_losing_a_session() -> None:
    with_three = Workers(1, sessions=3)
    old = start(with_three)
    first = old.pid
    for _ in range(2):
        start(with_three).close()
    new = start(with_three)  # while the worn process still has a session
    assert new.pid != first
    assert old.pid == first
    assert old.step("look", timeout_s=TIMEOUT_S).acted
    old.close()
    assert new.step("look", timeout_s=TIMEOUT_S).acted
    new.close()
    assert with_three.pool.recycled == 1
    with_three.close()


def test_a_process_that_has_grown_is_renewed() -> None:
    small = Workers(1, max_rss_bytes=2**20)
    pids = set()
    for _ in range(2):
        room = start(small)
        pids.add(room.pid)
        room.close()
    assert len(pids) == 2
    small.close()


def test_a_process_forgets_what_has_ended() -> None:
    workers = Workers(1)
    kept = start(workers)
    for _ in range(3):
        start(workers).close()
    kept.step("look", timeout_s=TIMEOUT_S)
    child = workers.pool.pin(timeout_s=TIMEOUT_S)
    assert child.call("living", timeout_s=TIMEOUT_S) == 1
    workers.pool.unpin(child)
    workers.close()


def test_a_fork_lives_on_alone(two: Workers) -> None:
    room = start(two, 1)
    trace = walk(room, 5, 0)
    twin = room.fork(timeout_s=TIMEOUT_S)
    assert (twin.seen, twin.pid) == (room.seen, room.pid)
    room.close()
    room.close()
    assert walk(twin, 5, 1) == serial_after(1, 5, 0, 5, 1)
    assert trace == serial(1, 5, 0)
    twin.close()
    with pytest.raises(NotFound, match="closed"):
        room.step("look", timeout_s=TIMEOUT_S)


def serial_after(number: int, steps: int, seed: int, more: int, then: int) -> list[str]:
    engine = Engine()
    play = engine.start(Game.read(contents(6)[number]))
    rng = random.Random(seed)
    for _ in range(steps):
        play.step(rng.choice(play.seen.admissible))
    rng = random.Random(then)
    feedback = [play.step(rng.choice(play.seen.admissible)).feedback for _ in range(more)]
    engine.close()
    return feedback


def test_wrong_games_are_refused_and_the_process_goes_on(two: Workers) -> None:
    good = contents(6)[0]
    for content, kind, words in (
        ({**good, "pddl_problem": "(define"}, TaskError, r"cannot be translated.*\[game x\]"),
        ({**good, "grammar": good["grammar"].replace("open", "opne")}, CallerError, r"not known.*\[game x\]"),
        ({"pddl_domain": ""}, TaskError, "has no text"),
    ):
        with pytest.raises(kind, match=words):
            two.start(content, where="game x", timeout_s=TIMEOUT_S)
    room = start(two)
    assert room.step("look", timeout_s=TIMEOUT_S).acted
    room.close()


def test_a_deadline_ends_the_process_and_says_so() -> None:
    workers = Workers(1)
    room = start(workers)
    assert room.pid is not None
    os.kill(room.pid, signal.SIGSTOP)
    with pytest.raises(InfrastructureError, match=r"was killed: step took over 0\.5 s"):
        room.step("look", timeout_s=0.5)
    room.close()
    assert start(workers).step("look", timeout_s=TIMEOUT_S).acted
    workers.close()


def test_a_pool_needs_a_process() -> None:
    with pytest.raises(CallerError, match="0 processes"):
        Workers(0)
