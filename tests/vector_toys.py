"""What the tests of the vector env share: episodes that wait at gates, actions, and envs of them."""

import threading
from typing import Any

from toys import counter_task

from agentbench_fc.envs.vector import AgentVectorEnv
from agentbench_fc.episode import Task, ToolEpisode, make_task, tool
from agentbench_fc.errors import InfrastructureError, TaskError

ADD = {"name": "add", "arguments": {"number": 1}}
SUBMIT = {"name": "submit", "arguments": {}}


class Gate(ToolEpisode):
    """`wait` answers when its gate opens; gates are shared by name through the sample's data."""

    max_turns = 50
    call_timeout_s = 20.0

    def start(self) -> str:
        if self.sample.data.get("broken"):
            raise InfrastructureError("no backend [gate]. Start it.")
        return "Go."

    @tool
    def wait(self, gate: int, word: str) -> str:
        """Waits.

        Args:
            gate: Which gate.
            word: What to answer.
        """
        self.sample.data["entered"].release()
        assert self.sample.data["gates"][gate].wait(15)
        return word

    @tool
    def fail(self) -> str:
        """Fails."""
        raise TaskError("the data are broken [gate]. Mend them.")

    @tool
    def meet(self, count: int) -> str:
        """Waits until so many are here.

        Args:
            count: How many.
        """
        barrier: threading.Barrier = self.sample.data["barrier"]
        assert barrier.parties == count
        barrier.wait(15)
        return "met"


class Gates:
    """A task of `Gate` episodes and the gates themselves."""

    def __init__(self, count: int = 4) -> None:
        self.gates = [threading.Event() for _ in range(count)]
        self.entered = threading.Semaphore(0)
        """One for each call of `wait` that has begun."""
        data = {"gates": self.gates, "entered": self.entered, "barrier": threading.Barrier(16)}
        samples = {"train": [data], "broken": [data | {"broken": True}]}
        self.task = make_task(Gate, samples=samples)

    @staticmethod
    def wait(gate: int, word: str) -> dict[str, Any]:
        return {"name": "wait", "arguments": {"gate": gate, "word": word}}


def vector_env(task: Task | str | None = None, num_envs: int = 3, **options: Any) -> AgentVectorEnv:
    return AgentVectorEnv(task or counter_task(), num_envs, **options)


def said(observations: Any) -> list[str]:
    return [" ".join(str(message["content"]) for message in messages) for messages in observations]
