"""The task through sessions: players, profiles, prompts, levels and what goes wrong without a sandbox."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from os_boxes import engine  # noqa: F401
from os_task_kinds import kind  # noqa: F401

from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
from agentbench_fc.tasks.os import generate

THREADS = 3
LEVELS = generate.LEVELS


@pytest.fixture(scope="module")
def load(kind: str) -> Iterator[Callable[..., Task]]:  # noqa: F811
    made: dict[str, Task] = {}

    def load(**options: Any) -> Task:
        key = repr(options)
        if key not in made:
            made[key] = load_task("os", backend=kind, warm=2, **options)
        return made[key]

    yield load
    for task in made.values():
        task.close()


def one_of_each(task: Task) -> list[Sample]:
    """The first sample of every kind of problem, over dev and test."""
    found: dict[str, Sample] = {}
    for split in ("dev", "test"):
        for sample in task.samples(split):
            found.setdefault(sample.data["template"], sample)
    return list(found.values())


def lost(task: Task, samples: Sequence[Sample], player: str) -> dict[str, Any]:
    policy = make_player(player, task)

    def outcome(sample: Sample) -> tuple[str, Any]:
        last = play(task, sample, policy).last
        return sample.id, None if last.reward == 1.0 else (last.status, last.metrics.get("difference", last.messages))

    with ThreadPoolExecutor(THREADS) as threads:
        return {name: reason for name, reason in threads.map(outcome, samples) if reason is not None}


def test_the_expert_wins_every_kind_of_problem(load: Callable[..., Task], kind: str) -> None:  # noqa: F811
    task = load()
    samples = one_of_each(task)
    assert len(samples) == len(generate.TEMPLATES)
    assert lost(task, samples if kind == "oci" else samples[::6], "expert") == {}


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_wins_everything(load: Callable[..., Task], split: str) -> None:
    task = load()
    samples = task.samples(split)
    assert len(lost(task, samples, "expert")) <= 0.01 * len(samples)


@pytest.mark.full
@pytest.mark.parametrize("split", ["dev", "test"])
def test_doing_nothing_wins_nothing_at_all(load: Callable[..., Task], split: str) -> None:
    task = load()
    assert len(lost(task, task.samples(split), "noop")) == len(task.samples(split))


def test_doing_nothing_wins_nothing(load: Callable[..., Task]) -> None:
    task = load()
    states = [sample for sample in one_of_each(task) if sample.data["checks"]][::4]
    assert len(lost(task, states, "noop")) == len(states)
    finish = make_fixed_finish(task, states[0])
    assert finish == 0.0


def make_fixed_finish(task: Task, sample: Sample) -> float | None:
    """The reward for ending at once with `finish_action`."""
    from agentbench_fc.players import fixed

    return play(task, sample, fixed([("finish_action", '{"thought": "Done."}')])).last.reward


def test_the_expert_wins_in_agentbenchs_profile(load: Callable[..., Task]) -> None:
    task = load(profile="agentbench")
    assert lost(task, one_of_each(task)[::10], "expert") == {}


LIE = "printf '#!/bin/sh\\necho 640\\nexit 0\\n' > /tmp/lie; chmod 755 /tmp/lie; for p in {}; do cp /tmp/lie $p; done"


def filled(trick: str, sample: Sample) -> str:
    """The trick, with the path and the text that the sample's first condition names."""
    condition = sample.data["checks"][0]["conditions"][0]
    path = condition.get("path", "")
    folder, _, name = path.rpartition("/")
    for key, value in {"PATH": path, "FOLDER": folder, "NAME": name, "TEXT": condition.get("text", "")}.items():
        trick = trick.replace(f"<{key}>", value)
    return trick


@pytest.mark.parametrize(
    ("template", "trick", "reward"),
    [
        ("write_file", "mkdir -p <FOLDER>; echo '<TEXT>' > /tmp/x; ln -s /tmp/x <PATH>", 0.0),
        ("write_file", "mkdir -p <PATH>; echo '<TEXT>' > <PATH>/x", 0.0),
        ("write_file", "mkdir -p <FOLDER>; mkfifo <PATH>; (echo '<TEXT>' > <PATH> &)", 0.0),
        ("write_file", "mkdir -p <FOLDER>; ln -s <FOLDER> /tmp/d; echo '<TEXT>' > /tmp/d/<NAME>", 1.0),
        (
            "write_file",
            "mkdir -p <FOLDER>; echo '<TEXT>' > <PATH>; rm -rf /usr/bin/python3* /usr/bin/stat /usr/lib/python3*",
            1.0,
        ),
        ("set_mode", LIE.format("/usr/bin/stat /usr/bin/python3 /usr/bin/ls"), 0.0),
        ("set_mode", "export LD_PRELOAD=/tmp/x.so PATH=/tmp; alias stat='echo 640'", 0.0),
        ("join_group", LIE.format("/usr/bin/id /usr/bin/getent"), 0.0),
        ("combine_numbers", LIE.format("/bin/bash"), 0.0),
    ],
    ids=["link", "folder", "fifo", "linked folder", "no python left", "liars", "shadows", "fake id", "fake bash"],
)
def test_no_trick_moves_an_end_state(load: Callable[..., Task], template: str, trick: str, reward: float) -> None:
    task = load()
    sample = next(sample for sample in one_of_each(task) if sample.data["template"] == template)
    session = Session(task, sample)
    session.start()
    for name, arguments in (
        ("bash_action", {"script": filled(trick, sample)}),
        ("finish_action", {"thought": "Done."}),
    ):
        turn = session.interact([assistant(None, [ToolCall("c1", name, json.dumps(arguments))])])
    assert turn.reward == reward


def test_a_session_is_replayed_from_its_messages(load: Callable[..., Task]) -> None:
    task = load()
    sample = next(s for s in task.samples("dev") if s.data["template"] == "text_in_archive")
    played = play(task, sample, make_player("expert", task))
    again = Session(task, sample)
    again.start()
    for turn in played.log[1:]:
        again.interact(turn.sent)
    assert [t.turn.messages for t in again.log] == [t.turn.messages for t in played.log]


def prompt_of(**options: Any) -> list[str]:
    from agentbench_fc.tasks.os.episode import OsEpisode
    from agentbench_fc.tasks.os.grading import Known

    task: Any = load_task("os", **options)
    episode = OsEpisode(task._rules, task.samples("dev")[0], None, Known(), {})  # type: ignore[arg-type]
    return [str(message["content"]) for message in episode.start()]


def test_the_prompts_of_the_profiles() -> None:
    question = load_task("os").samples("dev")[0].data["question"]
    system, asked = prompt_of(command_timeout_s=12)
    assert "a command has 12 seconds" in system
    assert asked == question
    assert len(prompt_of(prompt="compact")[0]) < 80
    system, asked = prompt_of(profile="agentbench")
    assert asked.endswith(f"\n\n{question}")
    assert asked != question


def test_a_level_keeps_ids_and_renumbers() -> None:
    everything, hard = load_task("os").samples("dev"), load_task("os", level="hard").samples("dev")
    assert {sample.data["level"] for sample in hard} == {"hard"}
    assert [sample.index for sample in hard] == list(range(80))
    by_id = {sample.id: sample for sample in everything}
    assert all(by_id[sample.id].data == sample.data for sample in hard)


def test_every_sample_has_an_expert() -> None:
    task = load_task("os")
    assert all(task.expert(sample) is not None for split in ("dev", "test") for sample in task.samples(split))


@pytest.mark.parametrize("seconds", [0, -1, 300, float("nan")])
def test_a_command_needs_less_time_than_a_call(seconds: float) -> None:
    with pytest.raises(CallerError, match="command_timeout_s"):
        load_task("os", command_timeout_s=seconds)


def test_without_a_sandbox_a_session_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    task = load_task("os", backend="docker")
    turn = Session(task, task.samples("dev")[0]).start()
    assert (turn.status, turn.metrics["fault"]) == ("env init failed", "environment")
    assert "docker" in turn.metrics["reason"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("backend", "podman"), ("backend", 7), ("warm", -1), ("warm", "two"), ("max_open", 0), ("max_open", "zero"),
     ("max_open", 1.5), ("warm", True), ("command_timeout_s", "long")],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_when_the_task_is_loaded(option: str, value: object) -> None:
    with pytest.raises(CallerError, match=f"{value!r}.*task os"):
        load_task("os", **{option: value})
