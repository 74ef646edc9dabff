"""One episode against a real client: what comes out is what was sampled, and every fault is data or is told."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool, NoEngineLeft
from agentrl_trainer.rollout.trajectory import EpisodeSpec, Player, PlayOptions
from agentrl_trainer.types import POLICIES, Trajectory

CALL = '<tool_call>\n{{"name": "say_word", "arguments": {{"word": "{}"}}}}\n</tool_call>'
FAULTS: dict[str, int] = {}


class Talk(ToolEpisode):
    """Say the word; `break` fails the machines as often as FAULTS says."""

    max_turns = 6

    def start(self) -> str:
        if self.sample.data["word"] == "ghost":
            raise KeyError("no such ghost")
        return f"Say {self.sample.data['word']}."

    @tool
    def say_word(self, word: str) -> Reply:
        """Says a word."""
        if word == "break" and FAULTS["left"] > 0:
            FAULTS["left"] -= 1
            raise InfrastructureError("the disk is full.")
        if word != self.sample.data["word"]:
            return Reply(f"{word} is wrong.")
        return self.finish("Thanks.", reward=1.0)


class Scripted:
    """An engine that says prepared texts, turn by turn; `cut` leaves the end token out."""

    def __init__(
        self, renderer: ChatRenderer, texts: Sequence[str], *, role: EngineRole = "fresh", cut: bool = False
    ) -> None:
        self.name = f"scripted-{role}"
        self.role: EngineRole = role
        self.version = 7
        self._renderer = renderer
        self._texts = list(texts)
        self._cut = cut
        self.failures = 0
        self.alive = True
        self.delay_s = 0.0
        self.seen: list[list[int]] = []
        self.asked = asyncio.Event()

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        self.seen.append(list(ids))
        self.asked.set()
        await asyncio.sleep(self.delay_s)
        if self.failures:
            self.failures -= 1
            raise InfrastructureError("engine trouble.")
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        new = self._renderer._encode(text) + ([] if self._cut else [2])
        new = new[: sampling.max_tokens]
        reason = "stop" if new[-1] == 2 else "length"
        return Completion(tuple(new), tuple(-float(i) for i in new), (self.version,) * len(new), reason)

    async def update_weights(self, path: Path, version: int) -> None:
        self.version = version

    async def health(self) -> bool:
        return self.alive

    async def aclose(self) -> None: ...


@pytest.fixture(scope="module")
def renderer(chat_folder: Path) -> ChatRenderer:
    return ChatRenderer(chat_folder)


@pytest.fixture
async def client() -> AsyncIterator[LocalClient]:
    task = make_task(Talk, samples={"train": [{"word": "yes"}, {"word": "ghost"}, {"word": "break"}]}, name="talk")
    async with LocalClient(tasks={"talk": task}) as client:
        yield client
        assert await client.list_sessions() == []  # whatever happened, no session stays open


Play = Callable[..., object]


async def play(
    client: LocalClient, renderer: ChatRenderer, engines: Sequence[Scripted], *, sample: int = 0, **options: float
) -> Trajectory:
    pool = EnginePool([e for e in engines if e.role == "fresh"], [e for e in engines if e.role == "stale"])
    deadline = options.pop("deadline_s", None)
    sizes = {"max_new_tokens": 200, "max_context": 2000} | options
    player = Player(client, renderer, pool, PlayOptions(**sizes))  # type: ignore[arg-type]
    spec = EpisodeSpec(task="talk", sample_id=f"talk/train/{sample}", seed=1, group_id="g", replica=3)
    trajectory = await player.play(spec, random.Random(0), temperature=0.8, deadline_s=deadline)
    assert not +player.phases
    return trajectory


async def test_a_trajectory_holds_what_was_sampled_and_observed_in_order(
    client: LocalClient, renderer: ChatRenderer
) -> None:
    texts = [CALL.format("no"), "I think.", '<tool_call>{"name": "say_w', CALL.format("yes")]
    engine = Scripted(renderer, texts)
    row = await play(client, renderer, [engine])
    assert (row.status, row.reward, row.raw_reward, row.success, row.usable) == ("completed", 1.0, 1.0, True, True)
    assert (row.sample_id, row.group_id, row.replica) == ("talk/train/0", "g", 3)
    assert row.metrics["turns"] == 4
    assert row.metrics["invalid_calls"] == 1
    for number, text in enumerate(texts, start=1):
        own = row.ids[row.mask & (row.turns == number)].tolist()
        assert renderer.decode(own) == text + "<|im_end|>"
    assert row.logprobs[row.mask].tolist() == [-float(i) for i in row.ids[row.mask]]
    assert set(row.versions[row.mask].tolist()) == {7}
    assert set(row.engines[row.mask].tolist()) == {0}
    assert "no is wrong." in renderer.decode(row.ids[~row.mask].tolist())
    for ids in engine.seen:  # each turn went on from the very tokens before it
        assert row.ids[: len(ids)].tolist() == ids
    assert renderer.decode(row.ids[: row.prompt_length].tolist()).endswith("<|im_start|>assistant\n")


async def test_turns_come_from_both_kinds_of_engines(client: LocalClient, renderer: ChatRenderer) -> None:
    row = await play(client, renderer, [Scripted(renderer, ["Hm."]), Scripted(renderer, ["Ha."], role="stale")])
    assert (row.status, row.reward) == ("task limit reached", -0.2)
    assert set(row.engines[row.mask].tolist()) == {0, 1}


async def test_a_cut_turn_is_closed_off_the_mask(client: LocalClient, renderer: ChatRenderer) -> None:
    row = await play(client, renderer, [Scripted(renderer, ["Hm, well."], cut=True)], max_new_tokens=4)
    ends = np.flatnonzero(row.ids == 2)
    assert not row.mask[ends].any()
    assert row.trained_tokens == 6 * 4


@pytest.mark.parametrize("max_context", [40, *range(160, 260, 9)])
async def test_a_full_context_ends_the_session_as_such(
    client: LocalClient, renderer: ChatRenderer, max_context: int
) -> None:
    row = await play(client, renderer, [Scripted(renderer, ["Hm."])], max_context=max_context)
    assert (row.status, row.reward, row.usable) == ("agent context limit", -0.2, True)
    assert len(row.ids) <= max_context or row.prompt_length == len(row.ids)  # only a prompt cannot be cut


async def test_engine_trouble_moves_the_turn_to_another_draw(client: LocalClient, renderer: ChatRenderer) -> None:
    engine = Scripted(renderer, [CALL.format("yes")])
    engine.failures = 2
    row = await play(client, renderer, [engine])
    assert (row.reward, len(engine.seen)) == (1.0, 3)
    engine.failures = 100
    engine.alive = False
    with pytest.raises(NoEngineLeft, match="engine trouble"):
        await play(client, renderer, [engine])


async def test_faults_of_machines_are_tried_again_and_those_of_tasks_are_masked(
    client: LocalClient, renderer: ChatRenderer
) -> None:
    FAULTS["left"] = 1
    row = await play(client, renderer, [Scripted(renderer, [CALL.format("break")])], sample=2)
    assert (row.reward, row.usable, FAULTS["left"]) == (1.0, True, 0)
    FAULTS["left"] = 100
    row = await play(client, renderer, [Scripted(renderer, [CALL.format("break")])], sample=2, retries=1)
    assert (row.usable, row.reward, FAULTS["left"]) == (False, None, 98)
    assert "the disk is full" in row.fault
    row = await play(client, renderer, [Scripted(renderer, ["x"])], sample=1)
    assert (row.usable, row.reward, len(row.ids)) == (False, None, 0)
    assert "no such ghost" in row.fault


async def test_a_straggler_is_cancelled_and_masked(client: LocalClient, renderer: ChatRenderer) -> None:
    engine = Scripted(renderer, ["Hm."])
    engine.delay_s = 200
    row = await play(client, renderer, [engine], deadline_s=1.5)
    assert engine.seen, "it was under way"
    assert (row.usable, row.reward, row.status) == (False, None, "cancelled")
    assert "not finished within 1.5 s" in row.fault


async def test_a_cancelled_coroutine_ends_its_session(client: LocalClient, renderer: ChatRenderer) -> None:
    engine = Scripted(renderer, ["Hm."])
    engine.delay_s = 200
    task = asyncio.create_task(play(client, renderer, [engine]))
    await engine.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_wrong_sample_is_told_not_masked(client: LocalClient, renderer: ChatRenderer) -> None:
    with pytest.raises(CallerError, match="no sample 'talk/train/9'"):
        await play(client, renderer, [Scripted(renderer, ["x"])], sample=9)


async def test_what_each_draw_could_have_picked_is_noted_where_it_varies(
    client: LocalClient, renderer: ChatRenderer
) -> None:
    fresh = Scripted(renderer, [CALL.format("no")])
    stale = [Scripted(renderer, [CALL.format("no")], role="stale") for _ in range(2)]
    pool = EnginePool([fresh], stale, stale_lags=(2, 8), weights=(2, 1, 1))
    await pool.update(Path("v"), 8, ("fresh", "stale"))
    await pool.update(Path("v"), 10, ("fresh", "stale"))
    player = Player(client, renderer, pool, PlayOptions(max_new_tokens=200, max_context=2000))
    spec = EpisodeSpec(task="talk", sample_id="talk/train/0", seed=1, group_id="g", replica=0)
    for mode, draws in (("step", 6), ("trajectory", 1), ("none", 0)):
        row = await player.play(spec, random.Random(0), temperature=0.8, cross_policy=mode)  # type: ignore[arg-type]
        noted = row.metrics.get(POLICIES, [])
        assert noted == [[(0.5, 10), (0.25, 10), (0.25, 8)]] * draws
        assert row.metrics["turns"] == 6
