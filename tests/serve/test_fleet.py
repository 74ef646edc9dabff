"""Who is trusted, who is chosen and who may start next: pure decisions on a virtual clock."""

from collections import Counter

import pytest
from client_toys import Clock
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError, NotFound, Unavailable
from agentbench_fc.serve.config import ControllerConfig
from agentbench_fc.serve.faults import SessionLost, WorkerSuspect
from agentbench_fc.serve.fleet import Fleet, State
from agentbench_fc.serve.limits import RateLimit
from agentbench_fc.serve.schema import Heartbeat, TaskLoad
from agentbench_fc.serve.waiting import StartQueue, Ticket


def beat(
    name: str = "w1", *, incarnation: str = "aaaaaa", taken: int = 0, capacity: int = 4, **fields: object
) -> Heartbeat:
    load = {"task": "toy", "capacity": capacity, "taken": taken, "digest": "d1"}
    load |= {key: fields.pop(key) for key in ("digest", "splits", "clients", "aliases") if key in fields}
    return Heartbeat.model_validate(
        {
            "worker_id": f"{name}-{incarnation}",
            "name": name,
            "address": "http://127.0.0.1:1",
            "version": "0",
            "tasks": [TaskLoad.model_validate(load)],
            **fields,
        }
    )


def fleet_of(clock: Clock, **config: float) -> Fleet:
    return Fleet(ControllerConfig(**{"heartbeat_s": 2.0, **config}), clock)


SESSION = "w1-aaaaaa.toy-0123456789abcdef"


def test_suspicion_comes_before_death_and_a_heartbeat_ends_both() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    member = fleet.heard(beat())
    for now, state in ((4.9, State.ALIVE), (5.0, State.SUSPECT), (11.9, State.SUSPECT), (12.0, State.DEAD)):
        clock.now = now
        died = fleet.tick()
        assert member.state is state
        assert died == ([member] if state is State.DEAD else [])
        assert (fleet.choose("toy") is member) == (state is State.ALIVE)
        if state is State.DEAD:
            with pytest.raises(SessionLost, match=r"dead: no sign of life for 12\.0 s"):
                fleet.home(SESSION)
        else:
            assert fleet.home(SESSION) is member
    again = fleet.heard(beat())
    assert (again is member, member.state, fleet.choose("toy")) == (True, State.ALIVE, member)
    assert [what for _, _, what in member.orders] == [SESSION]  # it was reported lost: it must not live on
    fleet.heard(beat(orders_done=1))
    assert member.orders == []
    for clock.now in (12 + 12 + 600, 12 + 12 + 604):
        fleet.tick()
    assert fleet.members == {}


def test_a_controller_that_stood_still_itself_asks_before_it_buries() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    lives, gone = fleet.heard(beat()), fleet.heard(beat("w2"))
    clock.now = 100
    assert fleet.tick() == []
    assert fleet.suspects() == [lives, gone]
    clock.now = 101
    fleet.answered(lives)  # the probe
    assert fleet.tick() == []
    clock.now = 104
    assert fleet.tick() == [gone]
    assert (lives.state, gone.state) == (State.ALIVE, State.DEAD)


def test_a_failed_call_raises_suspicion_and_an_answer_lays_it() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    member = fleet.heard(beat())
    fleet.doubt(member, "connection refused")
    assert (member.state, fleet.suspects(), fleet.choose("toy")) == (State.SUSPECT, [member], None)
    fleet.answered(member)
    assert fleet.choose("toy") is member
    fleet.heard(beat(leaving=True))
    fleet.answered(member)
    with pytest.raises(SessionLost, match="it was stopped"):
        fleet.home(SESSION)


def test_a_restarted_worker_is_another_one() -> None:
    fleet = fleet_of(Clock())
    old = fleet.heard(beat())
    new = fleet.heard(beat(incarnation="bbbbbb"))
    assert (old.state, new.state, fleet.replaced(old), fleet.replaced(new)) == (
        State.SUSPECT,
        State.ALIVE,
        True,
        False,
    )
    assert fleet.choose("toy") is new


def test_sessions_of_unknown_workers() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    with pytest.raises(NotFound):
        fleet.home("nobody")
    with pytest.raises(NotFound):
        fleet.home("a.b")
    with pytest.raises(WorkerSuspect):
        fleet.home(SESSION)  # the controller is young: the worker may report yet
    clock.now = 6
    with pytest.raises(SessionLost):
        fleet.home(SESSION)


def test_the_least_loaded_worker_is_chosen_and_reservations_count() -> None:
    fleet = fleet_of(Clock())
    small, large = fleet.heard(beat("w1", capacity=2)), fleet.heard(beat("w2", capacity=6, taken=1))
    chosen = Counter()  # type: ignore[var-annotated]
    kept = []
    while (member := fleet.choose("toy")) is not None:
        kept.append(fleet.reserve(member, "toy", "me"))
        chosen[member.id] += 1
    assert chosen == {small.id: 2, large.id: 5}
    assert fleet.held("toy") == {"me": 7}
    fleet.release(kept[0], started=False)
    assert fleet.choose("toy") is not None
    for each in kept[1:]:
        fleet.release(each, started=True)
    assert fleet.held("toy")["me"] == 6
    fleet.full(fleet.choose("toy") or small, "toy")
    assert fleet.choose("toy") is None
    fleet.heard(beat("w1", capacity=2))
    assert fleet.choose("toy") is small  # a heartbeat is the truth


def test_draining_workers_get_nothing_new() -> None:
    fleet = fleet_of(Clock())
    member = fleet.heard(beat(draining=True))
    assert fleet.choose("toy") is None
    assert fleet.home(SESSION) is member
    assert fleet.workers()[0].status == "draining"


def test_workers_must_agree_on_a_task() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    first = fleet.heard(beat("w1", splits={"train": "h1"}))
    clock.now = 1
    other = fleet.heard(beat("w2", incarnation="bbbbbb", capacity=100, digest="d2"))
    data = fleet.heard(beat("w3", incarnation="cccccc", capacity=100, splits={"train": "h2"}))
    assert fleet.choose("toy") is first
    assert "its spec d2 is not d1" in other.conflicts["toy"]
    assert "holds other data" in data.conflicts["toy"]
    assert "other data" in fleet.workers()[2].reason
    fleet.bury(first, "gone")
    fleet.heard(beat("w2", incarnation="bbbbbb", capacity=100, digest="d2"))
    assert fleet.choose("toy") is other


def test_aliases_name_the_same_task() -> None:
    fleet = fleet_of(Clock())
    fleet.heard(beat(aliases=["my.py:TASK"]))
    assert (fleet.canonical("my.py:TASK"), fleet.canonical("other"), fleet.known("other")) == ("toy", "other", False)


def test_periods_must_grow() -> None:
    for wrong in ({"heartbeat_s": 0}, {"suspect_after_s": 1.0}, {"dead_after_s": 2.0}):
        with pytest.raises(CallerError):
            ControllerConfig(**wrong)


# the queue


def nothing() -> None: ...


def test_a_slot_goes_to_the_client_that_holds_the_fewest() -> None:
    queue = StartQueue(100)
    for client in ("a", "a", "a", "b", "b", "c"):
        queue.push("toy", client, nothing)
    held = Counter({"a": 0, "b": 5, "c": 1})
    order = []
    while (ticket := queue.pop("toy", held)) is not None:
        order.append(ticket.client)
        held[ticket.client] += 1
    assert order == ["a", "a", "c", "a", "b", "b"]
    assert (len(queue), queue.tasks(), queue.waiting("toy")) == (0, [], 0)


def test_two_clients_end_with_equal_shares_whatever_they_ask_for() -> None:
    queue, held = StartQueue(10_000), Counter({"greedy": 20})
    for client, count in (("greedy", 500), ("modest", 30)):
        for _ in range(count):
            queue.push("toy", client, nothing)
    for _ in range(40):  # sessions of the first end one by one; each slot goes to whoever is behind
        held["greedy" if held["greedy"] >= held["modest"] else "modest"] -= 1
        ticket = queue.pop("toy", held)
        assert ticket is not None
        held[ticket.client] += 1
    assert held == {"greedy": 10, "modest": 10}


def test_a_full_queue_makes_room_for_whoever_has_least_in_it() -> None:
    queue, evicted = StartQueue(4), []
    for n in range(4):
        queue.push("toy", "greedy", lambda n=n: evicted.append(n))  # type: ignore[misc]
    with pytest.raises(Unavailable, match="4 starts are waiting"):
        queue.push("toy", "greedy", nothing)
    queue.push("toy", "modest", nothing)
    queue.push("other", "modest", nothing)
    assert (evicted, len(queue), queue.waiting("toy"), queue.waiting("other")) == ([3, 2], 4, 3, 1)
    with pytest.raises(Unavailable):
        queue.push("other", "modest", nothing)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "pop", "remove"]), st.sampled_from("xy"), st.sampled_from("abc")),
        max_size=60,
    )
)
def test_no_ticket_is_lost_or_doubled(steps: list[tuple[str, str, str]]) -> None:
    queue = StartQueue(8)
    inside: list[tuple[Ticket, list[str]]] = []
    for what, task, client in steps:
        if what == "push":
            evicted: list[str] = []
            try:
                ticket = queue.push(task, client, lambda evicted=evicted: evicted.append("out"))  # type: ignore[misc]
            except Unavailable:
                assert len(inside) == 8
                continue
            inside = [entry for entry in [*inside, (ticket, evicted)] if not entry[1]]
        elif what == "pop":
            popped = queue.pop(task, {})
            assert (popped is None) == all(ticket.task != task for ticket, _ in inside)
            inside = [entry for entry in inside if entry[0] is not popped]
        elif inside:
            assert queue.remove(inside.pop()[0])
        assert len(queue) == len(inside)
        assert sorted({ticket.task for ticket, _ in inside}) == sorted(queue.tasks())


def test_a_rate_limit_forgets_the_oldest_addresses() -> None:
    clock = Clock()
    limit = RateLimit(1.0, burst=1, clock=clock)
    assert [limit.take(str(n)) for n in range(11_000)] == [True] * 11_000
    assert len(limit._buckets) == 10_000
    assert limit.take("0")
    assert not limit.take("10999")
    clock.now = 1
    assert limit.take("10999")
