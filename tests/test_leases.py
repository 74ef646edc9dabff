"""Leases on a clock that only the test moves."""

import random

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.leases import Leases


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_unused_lease_runs_out_and_a_used_one_does_not() -> None:
    clock = Clock()
    leases = Leases(idle_s=10, lifetime_s=100, clock=clock)
    for key in "abc":
        leases.open(key)
    leases.hold("c")
    clock.now += 9
    leases.renew("b")
    assert leases.expired() == []
    assert leases.seconds_left("a") == 1
    assert leases.seconds_left("b") == 10
    assert leases.seconds_left("c") == 91
    clock.now += 1
    assert leases.expired() == [("a", "idle for 10 s")]
    assert leases.expired() == []
    assert (leases.seconds_left("a"), leases.age("a"), leases.age("b")) == (None, 0, 10)


def test_the_lifetime_ends_a_lease_however_much_it_is_used() -> None:
    clock = Clock()
    leases = Leases(idle_s=10, lifetime_s=25, clock=clock)
    leases.open("a")
    leases.open("held")
    leases.hold("held")
    for _ in range(4):
        clock.now += 6
        leases.renew("a")
        assert leases.expired() == []
    assert leases.seconds_left("a") == 1
    clock.now += 1
    assert leases.expired() == [("a", "open for 25 s"), ("held", "open for 25 s")]
    leases.renew("held")
    assert len(leases) == 0
    clock.now += 100
    assert leases.expired() == []


def test_without_bounds_nothing_runs_out() -> None:
    clock = Clock()
    leases = Leases(idle_s=None, lifetime_s=None, clock=clock)
    leases.open("a")
    clock.now += 1e9
    assert leases.expired() == []
    assert leases.seconds_left("a") is None


@pytest.mark.parametrize("bounds", [{"idle_s": 0, "lifetime_s": 1}, {"idle_s": 1, "lifetime_s": -1}])
def test_impossible_bounds_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(CallerError, match="Use seconds > 0"):
        Leases(**bounds, clock=Clock())


def test_against_the_slow_definition_on_random_histories() -> None:
    rng = random.Random(0)
    for _ in range(50):
        clock = Clock()
        leases = Leases(idle_s=7, lifetime_s=30, clock=clock)
        born: dict[str, float] = {}
        used: dict[str, float | None] = {}  # None: held
        for step in range(120):
            clock.now += rng.choice([0, 1, 2, 5])
            key = rng.choice(list(born) or ["none"])
            match rng.randrange(5):
                case 0:
                    born[f"s{step}"] = used[f"s{step}"] = clock.now
                    leases.open(f"s{step}")
                case 1 if key in born:
                    used[key] = None
                    leases.hold(key)
                case 2 if key in born:
                    used[key] = clock.now
                    leases.renew(key)
                case 3 if key in born:
                    del born[key], used[key]
                    leases.close(key)
                case 4:
                    due = {
                        k
                        for k, begun in born.items()
                        if clock.now >= begun + 30 or ((last := used[k]) is not None and clock.now >= last + 7)
                    }
                    assert {k for k, _ in leases.expired()} == due
                    for k in due:
                        del born[k], used[k]
            assert len(leases) == len(born)
