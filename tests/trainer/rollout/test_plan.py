"""The order of samples is a function of the seed, and the pacing rule bounds the lag and never starves the trainer."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentrl_trainer.rollout.depth import Depth, Spread
from agentrl_trainer.rollout.plan import SamplePlan

TASKS = {"a": (3.0, [f"a/{i}" for i in range(5)]), "b": (1.0, ["b/0", "b/1"]), "off": (0.0, ["off/0"])}


def test_tasks_come_by_weight_and_every_sample_once_an_epoch() -> None:
    plan = SamplePlan(TASKS, seed=1)
    draws = [plan.next() for _ in range(40)]
    assert Counter(d.task for d in draws) == {"a": 30, "b": 10}
    for start in range(0, 40, 4):
        assert Counter(d.task for d in draws[start : start + 4]) == {"a": 3, "b": 1}  # even in a small batch
    of_a = [d.sample_id for d in draws if d.task == "a"]
    epochs = [of_a[i : i + 5] for i in range(0, 30, 5)]
    assert all(sorted(epoch) == TASKS["a"][1] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_a_resumed_plan_gives_what_was_not_done_and_nothing_twice() -> None:
    whole = [SamplePlan(TASKS, seed=1)]
    draws = [whole[0].next() for _ in range(30)]
    done = {d.group_id for d in random.Random(0).sample(draws, 12)}
    again = SamplePlan(TASKS, seed=1, done=done)
    assert [again.next() for _ in range(18)] == [d for d in draws if d.group_id not in done]
    assert SamplePlan(TASKS, seed=2).next() != draws[0]


def test_members_of_a_group_share_the_environments_seed_but_not_their_draws() -> None:
    draw = SamplePlan(TASKS, seed=1).next()
    assert draw.rng(0).random() == draw.rng(0).random()
    assert len({draw.rng(i).random() for i in range(8)}) == 8


def test_a_plan_without_samples_is_refused() -> None:
    with pytest.raises(CallerError, match="weight above 0"):
        SamplePlan({"off": (0.0, ["x"])}, seed=0)
    with pytest.raises(CallerError, match="no samples"):
        SamplePlan({"a": (1.0, [])}, seed=0)


@given(
    max_lag=st.integers(0, 4),
    group_size=st.integers(2, 9),
    batch=st.integers(1, 40) | st.sampled_from([12, 24, 36]),
    max_running=st.integers(1, 12),
    seed=st.integers(0, 1000),
    failures=st.booleans(),
    auto=st.booleans(),
)
def test_lag_is_bounded_and_the_trainer_never_starves(
    max_lag: int, group_size: int, batch: int, max_running: int, seed: int, failures: bool, auto: bool
) -> None:
    """A trainer that takes everything that waits, up to three batches, against groups that finish in order."""
    rng = random.Random(seed)
    depth = Depth(batch=batch, max_lag=max_lag, group_size=group_size, auto=auto)
    running: deque[tuple[int, int]] = deque()  # admitted version, usable members
    queue: deque[tuple[int, int]] = deque()
    version = waiting = 0
    # only a part of one group can stand above the bound, and only where groups do not fill batches exactly
    slack = -(-(group_size - 1) // batch) if failures or batch % group_size else 0
    for _ in range(400):
        while len(running) < max_running and waiting + len(running) * group_size < depth.target:
            running.append((version, group_size - (rng.randrange(group_size) if failures else 0)))
        if running and (rng.random() < 0.7 or sum(u for _, u in queue) < batch):
            done = running.popleft()
            queue.append(done)
            waiting += done[1]
            continue
        have = sum(usable for _, usable in queue)
        assert have >= batch, "nothing runs, nothing may start, and the trainer waits: a deadlock"
        taken = 0
        while queue and (taken < batch or taken + queue[0][1] <= 3 * batch):
            admitted, usable = queue.popleft()
            taken += usable
            assert version - admitted <= max_lag + slack
        version += 1
        waiting -= taken
        depth.published(ready=waiting)
        assert batch <= depth.target <= (max_lag + 1) * batch


@given(seed=st.integers(0, 1000), ahead=st.integers(1, 9))
def test_tasks_at_their_limit_are_passed_over_in_order_and_never_lost(seed: int, ahead: int) -> None:
    rng = random.Random(seed)
    plan, plain = SamplePlan(TASKS, seed=seed), SamplePlan(TASKS, seed=seed)
    got: list[str] = []
    for _ in range(60):
        full = [name for name in ("a", "b") if rng.random() < 0.4]
        draw = plan.next(full, ahead=ahead)
        if draw is not None:
            assert draw.task not in full
            got.append(draw.group_id)
        assert draw or full
    for _ in range(ahead):  # nothing is full any more: those passed over come first
        last = plan.next(ahead=ahead)
        assert last is not None
        got.append(last.group_id)
    assert len(set(got)) == len(got)
    assert {draw.group_id for draw in (plain.next() for _ in range(len(got) - ahead)) if draw} <= set(got)


def test_more_groups_are_in_flight_as_long_as_hardly_a_token_gets_too_old() -> None:
    spread = Spread(groups=8)
    for _ in range(40):
        spread.published(tokens=1000, late=0)
    assert spread.limit == 32, "four times as many"
    spread.published(tokens=0, late=0)
    assert spread.limit == 32, "nothing has finished"
    for _ in range(40):
        spread.published(tokens=1000, late=100)
    assert spread.limit == 8, "never fewer than there are places for"
    for _ in range(60):  # a group that is late now and then, in all 1 %, does not stop it
        spread.published(tokens=1000, late=10)
    assert spread.limit == 32
    assert Spread(groups=8, auto=False).limit > 1_000_000
