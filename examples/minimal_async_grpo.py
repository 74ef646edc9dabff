"""The whole algorithm in one file, top to bottom: `python examples/minimal_async_grpo.py` learns in under a minute.

Two tasks of different length, one small transformer, rollouts that never wait for the trainer. In this order: the
environments, the policy, its engines, trajectories sampled across policies, groups into a bounded queue, advantages
normalized per task over tokens, the clipped loss with each token's own behaviour log-prob, the training loop.

Not here: everything that a real run needs beside it (agentrl_trainer): chat templates, TRL, checkpoints, many engines.
Source: AgentRL, arXiv 2510.04206; GRPO, arXiv 2402.03300; the loss's denominator DAPO, arXiv 2503.14476.
"""

import asyncio
import copy
import json
import queue
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentbench_fc import LocalClient, Reply, ToolCall, ToolEpisode, make_task, tool
from agentbench_fc.messages import assistant

ITEMS, BOXES = ["ant", "bee", "cow", "dog", "elk", "fox"], ["box1", "box2", "box3", "box4"]
GROUP = 8  # trajectories per sample, K
BATCH = 96  # a step waits for so many trajectories and takes whatever there is
MAX_LAG = 2  # hard bound: an older token of the fresh engine is masked
STALE_EVERY = 4  # steps between two updates of the stale engine
TURN = 2  # tokens of an agent turn: a tool and a word


# 1. Two environments. `say` takes one turn, `find` takes three; neither knows how it is trained.
class Say(ToolEpisode):
    """Repeat a word."""

    max_turns = 2

    def start(self) -> str:
        """What is to be said."""
        return f"say {self.sample.data['item']}"

    @tool
    def answer(self, word: str) -> Reply:
        """Ends the episode; right or wrong."""
        return self.finish(reward=float(word == self.sample.data["item"]))


class Find(Say):
    """Open a box, which names another box, which holds the item."""

    max_turns = 5

    def start(self) -> str:
        """Where to begin."""
        return f"find {self.sample.data['first']}"

    @tool
    def open(self, word: str) -> str:
        """Looks into a box."""
        data = self.sample.data
        return str({data["first"]: data["second"], data["second"]: data["item"]}.get(word, "nothing"))


PAIRS = [(a, b) for a in BOXES for b in BOXES if a != b]
HIDDEN = [{"first": a, "second": b, "item": item} for a, b in PAIRS for item in ITEMS]
TASKS = {
    "say": make_task(Say, samples={"train": [{"item": item} for item in ITEMS]}),
    "find": make_task(Find, samples={"train": HIDDEN}),
}
VOCABULARY = ["<pad>", "<other>", "say", "find", "answer", "open", "nothing", *BOXES, *ITEMS]
IDS = {word: i for i, word in enumerate(VOCABULARY)}


def encode(text: str | None) -> list[int]:  # only what is observed; sampled ids are kept as they came
    return [IDS.get(word, IDS["<other>"]) for word in (text or "").split()[:3]]


# 2. The policy: a transformer of two layers.
class Policy(nn.Module):
    """Logits of the next token at every place."""

    def __init__(self, width: int = 48, heads: int = 4, layers: int = 2, context: int = 24) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(VOCABULARY), width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) ids to (B, T, V) logits; padding stands on the right, where a causal mask hides it."""
        causal = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        hidden = self.blocks(self.words(ids) + self.places.weight[: ids.size(1)], mask=causal, is_causal=True)
        return self.head(hidden)  # type: ignore[no-any-return]


def padded(rows: Iterable[Sequence[float]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


Turn = tuple[list[int], list[float], int]  # ids, log-probs, weight version


# 3. An engine: ids in, ids out, with log-prob and weight version of each; waiting requests are decoded together.
class Engine:
    """Samples from one copy of the policy."""

    def __init__(self, policy: Policy) -> None:
        self.weights = (copy.deepcopy(policy), 0)
        self.waiting: list[tuple[list[int], asyncio.Future[Turn]]] = []

    async def generate(self, ids: list[int]) -> Turn:
        """One agent turn behind `ids`."""
        answer: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self.waiting.append((ids, answer))
        if len(self.waiting) == 1:
            await asyncio.sleep(0.002)  # others may join
            requests, self.waiting = self.waiting, []
            for (_, future), result in zip(requests, self._decode([row for row, _ in requests]), strict=True):
                future.set_result(result)
        return await answer

    @torch.no_grad()
    def _decode(self, rows: list[list[int]]) -> list[Turn]:
        policy, version = self.weights
        turns: list[Turn] = [([], [], version) for _ in rows]
        for _ in range(TURN):
            so_far = [[*row, *ids] for row, (ids, _, _) in zip(rows, turns, strict=True)]
            last = torch.tensor([len(row) - 1 for row in so_far])
            logprobs = policy(padded(so_far))[torch.arange(len(rows)), last].log_softmax(-1)
            chosen = torch.multinomial(logprobs.exp(), 1)
            for (ids, known, _), token, logprob in zip(turns, chosen, logprobs.gather(1, chosen), strict=True):
                ids.append(int(token))
                known.append(float(logprob))
        return turns


# 4. and 5. One coroutine per trajectory; at every step the policy is drawn anew from {fresh, stale}.
class Token(NamedTuple):
    """An observed token, or a sampled one with what its ratio and its lag need."""

    id: int
    sampled: bool = False
    logprob: float = 0.0
    version: int = -1
    fresh: bool = False


@dataclass
class Trajectory:
    """One episode; its tokens are only ever appended."""

    task: str
    tokens: list[Token]
    reward: float = 0.0
    advantage: float = 0.0


async def rollout(client: LocalClient, engines: list[Engine], task: str, sample: int, latency_s: float) -> Trajectory:
    turn = await client.start_sample(task, sample, split="train", seed=0)
    tokens = [Token(i) for i in encode(turn.messages[-1]["content"])]
    while not turn.finish:
        number = random.randrange(len(engines))  # cross-policy sampling: 0 is the fresh engine
        ids, logprobs, version = await engines[number].generate([token.id for token in tokens])
        tokens += [Token(i, True, logprob, version, number == 0) for i, logprob in zip(ids, logprobs, strict=True)]
        call = ToolCall(f"call_{turn.turn}", VOCABULARY[ids[0]], json.dumps({"word": VOCABULARY[ids[1]]}))
        await asyncio.sleep(random.expovariate(1 / latency_s))  # a real environment takes its time
        turn = await client.interact(turn.session_id, [assistant(None, [call])], turn=turn.turn + 1)
        tokens += [] if turn.finish else [Token(i) for i in encode(turn.messages[-1]["content"])]
    return Trajectory(task, tokens, turn.reward or 0.0)


# 6. Whole groups into a bounded queue, from a thread of its own. Admission paces: what is in flight or waits never
# exceeds MAX_LAG + 1 batches, so a trajectory is trained on at most MAX_LAG versions after its start.
class Rollouts(threading.Thread):
    """Keeps groups in flight until stopped."""

    def __init__(self, policy: Policy, latency_s: float) -> None:
        super().__init__(daemon=True)
        self.engines, self.latency_s, self.stopped = [Engine(policy), Engine(policy)], latency_s, False
        self.groups: queue.Queue[list[Trajectory]] = queue.Queue()
        self.room = threading.Semaphore((MAX_LAG + 1) * BATCH // GROUP)

    def run(self) -> None:
        """The event loop of all episodes."""
        asyncio.run(self._admit())

    async def _admit(self) -> None:
        number = 0
        async with LocalClient(tasks=TASKS) as client, asyncio.TaskGroup() as tasks:
            while not self.stopped:
                if self.room.acquire(blocking=False):
                    tasks.create_task(self._group(client, list(TASKS)[number % len(TASKS)]))
                    number += 1
                await asyncio.sleep(0.002)

    async def _group(self, client: LocalClient, task: str) -> None:
        sample = random.randrange(len(TASKS[task].samples("train")))
        members = (rollout(client, self.engines, task, sample, self.latency_s) for _ in range(GROUP))
        self.groups.put(await asyncio.gather(*members))

    def batch(self) -> list[list[Trajectory]]:
        """Waits for BATCH trajectories, then drains the queue."""
        taken = [self.groups.get(timeout=60) for _ in range(BATCH // GROUP)]
        while not self.groups.empty():
            taken.append(self.groups.get())
        self.room.release(len(taken))
        return taken


# 7. Advantages: relative to the group, then mean 0 and deviation 1 over the trained tokens of each task.
def advantages(groups: list[list[Trajectory]]) -> list[Trajectory]:
    kept = []
    for group in groups:
        rewards = torch.tensor([t.reward for t in group])
        if rewards.max() > rewards.min():
            for t, a in zip(group, (rewards - rewards.mean()) / rewards.std(correction=0), strict=True):
                t.advantage = float(a)
            kept += group
    for task in TASKS:
        own = [t for t in kept if t.task == task]
        tokens = torch.tensor([t.advantage for t in own for token in t.tokens if token.sampled])
        if own and tokens.std(correction=0) > 1e-6:
            for t in own:
                t.advantage = float((t.advantage - tokens.mean()) / tokens.std(correction=0))
    return kept


# 8. The loss: each token's ratio to the policy that sampled it, clipped; the mean is over all trained tokens.
def loss_of(policy: Policy, batch: list[Trajectory], version: int) -> tuple[Tensor, dict[str, float]]:
    ids = padded([[token.id for token in t.tokens] for t in batch])
    sampled, old, versions, fresh = (
        padded([[float(token[column]) for token in t.tokens[1:]] for t in batch]) for column in range(1, 5)
    )
    mask, own, lag = sampled > 0, fresh > 0, version - versions
    late = mask & own & (lag > MAX_LAG)
    trained = mask & ~late
    logprobs = policy(ids)[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    ratio = torch.exp(logprobs - old)
    advantage = torch.tensor([t.advantage for t in batch])[:, None]
    objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
    weights = ratio[trained].detach()
    ess = float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))
    figures = {"lag": float(lag[trained & own].mean()), "masked": float(late.sum() / mask.sum()), "ess": ess}
    return -objective[trained].sum() / trained.sum(), figures


# 9. The trainer: a little imitation, so that chance finds some rewards; then take what there is, step, publish. The
# rollouts go on meanwhile.
def warm_start(policy: Policy, steps: int) -> None:
    texts = ["find {first} open {first} {second} open {second} {item} answer {item}".format(**row) for row in HIDDEN]
    texts += [f"say {item} answer {item}" for item in ITEMS] * 8
    ids = padded([[IDS[word] for word in text.split()] for text in texts])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    for _ in range(steps):
        chosen = ids[torch.randint(len(ids), (32,))]
        optimizer.zero_grad()
        loss = F.cross_entropy(policy(chosen)[:, :-1].transpose(1, 2), chosen[:, 1:], ignore_index=0)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def main(steps: int = 50, warm_steps: int = 35, latency_s: float = 0.005, seed: int = 0) -> list[dict[str, float]]:
    torch.manual_seed(seed)
    random.seed(seed)
    torch.set_num_threads(1)
    policy, started, history = Policy(), time.monotonic(), []
    warm_start(policy, warm_steps)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    rollouts = Rollouts(policy, latency_s)
    rollouts.start()
    for step in range(steps):
        groups = rollouts.batch()
        every = [t for group in groups for t in group]
        success = {name: [t.reward for t in every if t.task == name] for name in TASKS}
        history.append({name: sum(rewards) / len(rewards) for name, rewards in success.items() if rewards})
        figures: dict[str, float] = {}
        if batch := advantages(groups):
            optimizer.zero_grad()
            loss, figures = loss_of(policy, batch, step)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        for engine in rollouts.engines[: 1 if (step + 1) % STALE_EVERY else 2]:
            engine.weights = (copy.deepcopy(policy), step + 1)  # whole: a turn under way ends with the old ones
        texts = [f"{name} {value:.2f}" for name, value in (history[-1] | figures).items()]
        print(f"step {step + 1:2d}  {len(every)} trajectories  {'  '.join(texts)}")
    rollouts.stopped = True
    rollouts.join(timeout=30)
    print(f"{time.monotonic() - started:.0f} s")
    return history


if __name__ == "__main__":
    main()
