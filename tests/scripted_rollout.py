"""A rollout process whose engine needs no model: it says one of a few prepared things, at once."""

import random
from collections.abc import Sequence
from pathlib import Path

from agentbench_fc.client import LocalClient
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.config import RunConfig
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.policy import policy_path
from agentrl_trainer.rollout import process
from agentrl_trainer.rollout.plan import SamplePlan
from agentrl_trainer.rollout.worker import Worker

CALL = '<tool_call>\n{"name": "say_word", "arguments": {"word": "yes"}}\n</tool_call>'
TEXTS = ("yes", "no", "well", "A word.", CALL)


class ScriptedEngine:
    """Draws by the request's seed."""

    def __init__(self, renderer: ChatRenderer, role: EngineRole) -> None:
        self.name = f"scripted-{role}"
        self.role = role
        self.version = -1
        self._texts = [(*renderer._encode(text), renderer.stop_ids[0]) for text in TEXTS]

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """One of the texts."""
        said = random.Random(sampling.seed).choice(self._texts)[: sampling.max_tokens]
        return Completion(said, (-1.5,) * len(said), (self.version,) * len(said), "stop")

    async def update_weights(self, path: Path, version: int) -> None:
        """Only the number counts."""
        self.version = version

    async def health(self) -> bool:
        """Always."""
        return True

    async def aclose(self) -> None:
        """Nothing is held."""


class ScriptedWorker(Worker):
    """Real sessions, real scheduling, no model."""

    @classmethod
    async def open(cls, config: RunConfig, *, done: Sequence[str], logs: Path) -> "ScriptedWorker":
        """Loads tokenizer and tasks."""
        renderer = ChatRenderer(policy_path(config.model))
        client = LocalClient(max_concurrency=config.places)
        samples = {task.name: (task.weight, await client.samples(task.name, task.split)) for task in config.tasks}
        pool = EnginePool([ScriptedEngine(renderer, "fresh")], [ScriptedEngine(renderer, "stale")])
        return cls(config, client, renderer, pool, SamplePlan(samples, seed=config.seed, done=done))


if __name__ == "__main__":
    process.main(ScriptedWorker)
