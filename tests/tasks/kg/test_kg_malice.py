"""Hostile input to the embedded store, in process and in a child; many sessions leave nothing behind."""

from collections.abc import Iterator

import kg_malice
import pytest
from kg_malice import attack, held, overgrow, still_works, wins
from kg_toys import film_session

from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.tasks.kg.backend import OxigraphBackend


@pytest.fixture(scope="module", params=["in process", "in a child"])
def backend(request: pytest.FixtureRequest) -> Iterator[OxigraphBackend]:
    store = OxigraphBackend(cheap_steps=0) if request.param == "in a child" else OxigraphBackend()
    store.load_lines(kg_malice.GRAPH)
    yield store
    store.close()


@pytest.mark.parametrize("text", kg_malice.TEXTS, ids=range(len(kg_malice.TEXTS)))
def test_hostile_texts_are_refused(backend: OxigraphBackend, text: str) -> None:
    session, neighbour = film_session(backend), film_session(backend)
    attack(session, text)
    still_works(session)
    still_works(neighbour)
    wins(backend)


def test_hostile_expressions_are_bounded(backend: OxigraphBackend) -> None:
    session = film_session(backend)
    overgrow(session)
    still_works(session)
    wins(backend)


def test_a_thousand_sessions_leave_nothing() -> None:
    task = load_task("kg")
    expert = make_player("expert", task)
    samples = task.samples("dev")

    def some(count: int) -> None:
        assert all(play(task, samples[n % len(samples)], expert).raw_reward == 1.0 for n in range(count))

    some(510)  # fills the cache of answers
    threads, files, memory = held()
    some(1000)
    after = held()
    assert after[0] <= threads + 1  # a helper thread may stay for the next call
    assert after[1] <= files
    assert after[2] - memory < 5e6
    task.close()
