"""The real loop against the simulator: how much of the predicted throughput is left when everything really runs.

    python benchmarks/async_efficiency.py

The rollout process, its scheduler, players, client, sessions and tool calls, the wire between the processes and the
trainer's queue are real; an engine that sleeps by the simulator's law and an environment that sleeps stand for the
model and the world, a sleeping trainer for the optimizer. Same places, batch, lag bound and latencies on both sides.
What is lost is what our code costs. The bound: at least 90 % of the prediction.
"""

import argparse
import dataclasses
import logging
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import async_sim
import virtual_time

from agentbench_fc.client import LocalClient
from agentbench_fc.episode import Reply, ToolEpisode, make_task, tool
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import load_config
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.policy import policy_path
from agentrl_trainer.queue import TrajectoryQueue
from agentrl_trainer.rollout import process
from agentrl_trainer.rollout.plan import SamplePlan
from agentrl_trainer.rollout.worker import Worker

BOUND = 0.9
PROFILE = async_sim.Profile((4, 10), 0.3, 0.5, 0.2)
PLACES = 32
SATURATION = 32.0
BATCH = 64
CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'


class Sleeper(ToolEpisode):
    """Answers late; ends after a number of turns."""

    max_turns = 99

    def start(self) -> str:
        """Draws how long it will take."""
        self.left = self.rng.randint(*PROFILE.turns)
        return "Wait."

    @tool
    def wait(self) -> str | Reply:
        """Waits."""
        time.sleep(self.rng.expovariate(1 / PROFILE.environment_s))
        self.left -= 1
        return "Go on." if self.left else self.finish("Done.", reward=float(self.rng.random() < 0.5))


TASK = make_task(Sleeper, samples={"train": [{"n": n} for n in range(97)]}, name="sleeper")


class SleepingEngine:
    """Says the same call after the time that the simulator's engine would take."""

    name = "sleeping"
    role: EngineRole = "fresh"
    version = 0

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)
        self._law = async_sim.Engine(SATURATION)

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """Sleeps, then calls the tool."""
        mean = math.log(PROFILE.work_s) - PROFILE.spread**2 / 2
        await self._law.generate(random.Random(sampling.seed).lognormvariate(mean, PROFILE.spread))
        n = len(self._ids)
        return Completion(self._ids, (-1.0,) * n, (self.version,) * n, "stop")

    async def update_weights(self, path: Path, version: int) -> None:
        """Takes nothing but the number."""
        self.version = version

    async def health(self) -> bool:
        """It cannot fail."""
        return True

    async def aclose(self) -> None:
        """Nothing is held."""


class SleepingWorker(Worker):
    """A worker of the rollout process whose engine sleeps."""

    @classmethod
    async def open(cls, config: RunConfig, *, done: Sequence[str], logs: Path) -> "SleepingWorker":
        """Loads the tokenizer and this file's task."""
        renderer = ChatRenderer(policy_path(config.model))
        client = LocalClient(max_concurrency=config.places)
        name = config.tasks[0].name
        plan = SamplePlan({name: (1.0, await client.samples(name, "train"))}, seed=config.seed, done=done)
        return cls(
            config,
            client,
            renderer,
            EnginePool([SleepingEngine([*renderer._encode(CALL), renderer.stop_ids[0]])]),
            plan,
        )


def real(train_s: float, steps: int) -> float:
    """Trajectories per second of the real loop, its first third left out."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            overrides=[
                f"tasks={Path(__file__).resolve()}:TASK", f"output={folder}", f"group_size={async_sim.GROUP}",
                f"rollout.max_episodes={PLACES}", f"batch.min_trajectories={BATCH}",
                f"batch.max_trajectories={BATCH}", "staleness.max_lag=2", "engines.cross_policy=none",
                "sampling.max_context=4000", "batch.micro_batch_tokens=4000", "rollout.queue_groups=16",
            ]
        )  # fmt: skip
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        rollouts = process.RolloutProcess(config, module="async_efficiency").start()
        queue = TrajectoryQueue(rollouts, capacity=config.rollout.queue_groups).start()
        try:
            rollouts.publish(Path(folder), 0, stale=False)
            consumed, began = 0, 0.0
            for version in range(steps):
                if version == steps // 3:
                    consumed, began = 0, time.monotonic()
                batch = queue.get_batch(BATCH, BATCH, version=version, deadline_s=120)
                time.sleep(len(batch.trajectories) * train_s + async_sim.SYNC_S)
                rollouts.consumed(batch.counted)
                rollouts.publish(Path(folder), version + 1, stale=False)
                consumed += len(batch.trajectories)
            return consumed / (time.monotonic() - began)
        finally:
            queue.close()
            rollouts.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    base = async_sim.Setting(
        profiles=[PROFILE], saturation=SATURATION, train_s=0.0, max_lag=2, steps=options.steps, batch=BATCH,
        places=PLACES,
    )  # fmt: skip
    alone = virtual_time.run(async_sim.generation(base, 40 * BATCH))
    good = True
    print(f"{PROFILE}, {PLACES} places, batch {BATCH}, K = {SATURATION:g}, load {os.getloadavg()[0]:.1f}")
    for name, speed in (("balanced", 1.0), ("training-bound", 0.5)):
        train_s = 1 / (alone * speed) - async_sim.SYNC_S / BATCH
        setting = dataclasses.replace(base, train_s=train_s)
        seeds = range(5)  # the draws differ, so the prediction is a mean
        outcomes = [virtual_time.run(async_sim.training(dataclasses.replace(setting, seed=seed))) for seed in seeds]
        predicted = sum(outcome.per_s for outcome in outcomes) / len(outcomes)
        measured = real(train_s, options.steps)
        share = measured / predicted
        good &= share >= BOUND
        print(f"{name}: {measured:.2f} trajectories/s of {predicted:.2f} predicted, {share:.1%} (bound {BOUND:.0%})")
    return int(not good)


if __name__ == "__main__":
    if "--socket" in sys.argv:
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        process.main(SleepingWorker)
    sys.exit(main())
