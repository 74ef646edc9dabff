"""What can be had without reading, on every generated task: everything for the expert, nothing for the others.

Run with `-s` to see the figures that the tasks' cards give.
"""

import statistics
from collections.abc import Iterator

import pytest

from agentbench_fc.episode import Task
from agentbench_fc.players import best_constant, fixed, make_player, play
from agentbench_fc.registry import load_task

EPISODES = 60
ALL = 1_000_000


@pytest.fixture(scope="module", params=["db", "kg", pytest.param("webshop", marks=pytest.mark.full)])
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    loaded = load_task(request.param)
    yield loaded
    loaded.close()


def mean_reward(task: Task, player: str, split: str, limit: int = EPISODES) -> float:
    policy, samples = make_player(player, task), task.samples(split)[:limit]
    score = statistics.fmean(play(task, sample, policy).raw_reward for sample in samples)
    print(f"{task.spec.name}/{split}: {player} {100 * score:.2f} % of {len(samples)}")
    return score


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_wins_and_the_noop_gets_nothing(task: Task, split: str) -> None:
    assert mean_reward(task, "expert", split) >= 0.99
    assert mean_reward(task, "noop", split) == 0.0
    assert mean_reward(task, "random", split) <= 0.05


def test_the_best_constant_gets_less_than_5_percent(task: Task) -> None:
    best = best_constant(task, limit=EPISODES)
    print(f"{task.spec.name}: best of {best.candidates} constants, {100 * best.score:.1f} % where learnt: {best.moves}")
    for split in ("dev", "test"):
        samples = task.samples(split)[:300]
        score = statistics.fmean(play(task, sample, fixed(best.moves)).raw_reward for sample in samples)
        print(f"{task.spec.name}/{split}: constant {100 * score:.2f} % of {len(samples)}")
        assert score < 0.05


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_wins_every_generated_sample(task: Task, split: str) -> None:
    assert mean_reward(task, "expert", split, ALL) >= 0.99
    assert mean_reward(task, "noop", split, ALL) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("split", ["dev", "test"])
def test_even_the_constant_chosen_on_the_very_samples_gets_less_than_5_percent(task: Task, split: str) -> None:
    best = best_constant(task, split=split, limit=ALL)
    print(f"{task.spec.name}/{split}: best of {best.candidates} constants {100 * best.score:.2f} %: {best.moves}")
    assert best.score < 0.05
