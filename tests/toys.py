"""Small tasks that many tests share: real ToolEpisodes, with state, randomness and every way to misbehave."""

import copy
import threading
import time
from typing import Any

from agentbench_fc.episode import Expert, Reply, Sample, ToolEpisode, ToolTask, make_task, tool
from agentbench_fc.errors import InfrastructureError, TaskError
from agentbench_fc.messages import ToolCall


class Counter(ToolEpisode):
    """Reach a target with `add`; `roll` adds a random number, so that seeds matter; `submit` ends it."""

    max_turns = 12
    finish_tool = "submit"

    def start(self) -> str:
        self.total = 0
        return f"Reach {self.sample.data['target']}."

    @tool
    def add(self, number: int) -> str:
        """Adds a number.

        Args:
            number: What to add.
        """
        self.total += number
        return f"The total is {self.total}."

    @tool
    def roll(self) -> str:
        """Adds a random number from 1 to 6."""
        return self.add(self.rng.randint(1, 6))

    @tool
    def submit(self) -> Reply:
        """Ends the episode."""
        return self.finish(f"Ended at {self.total}.", reward=float(self.total == self.sample.data["target"]))


class ForkingCounter(Counter):
    """The same, with a native fork."""

    def fork(self) -> "ForkingCounter":
        return copy.deepcopy(self)


def counter_expert(sample: Sample) -> Expert:
    """Adds one by one."""
    for number in range(sample.data["target"]):
        yield ToolCall(f"c{number}", "add", '{"number": 1}')
    yield ToolCall("end", "submit", "{}")


def counter_task(episode: type[ToolEpisode] = Counter) -> ToolTask:
    """Targets 1 to 5 for training, 6 and 7 held out."""
    samples: dict[str, list[dict[str, Any]]] = {
        "train": [{"target": n} for n in range(1, 6)],
        "dev": [{"target": 6}, {"target": 7}],
    }
    return make_task(episode, samples=samples, name="counter", expert=counter_expert)


class Rude(ToolEpisode):
    """Every way in which a tool can misbehave."""

    max_turns = 30
    max_output_chars = 1000
    call_timeout_s = 0.8
    start_timeout_s = 2.0

    def start(self) -> str:
        self.release, self.entered = threading.Event(), threading.Event()
        self.closed = 0
        if self.sample.data.get("start") == "raise":
            raise KeyError("no such file")
        if self.sample.data.get("start") == "hang":
            time.sleep(3.0)
        return "Go."

    @tool
    def raises(self, kind: str) -> str:
        """Raises."""
        errors: dict[str, BaseException] = {
            "zero": ZeroDivisionError("division by zero"),
            "exit": SystemExit(0),
            "task": TaskError("broken data [x]. Mend it."),
            "infrastructure": InfrastructureError("the backend is gone [x]. Restart it."),
            "recursion": RecursionError("maximum recursion depth exceeded"),
        }
        raise errors[kind]

    @tool
    def hangs(self) -> str:
        """Hangs until released."""
        self.entered.set()
        self.release.wait(5)
        return "late"

    @tool
    def prints(self, size: int) -> str:
        """Returns a long text."""
        return "x" * size

    @tool
    def surrogate(self) -> str:
        """Returns text that is not text."""
        return "bad \ud800 text"

    @tool
    def pays(self, amount: float) -> Reply:
        """Gives a reward."""
        return Reply("paid", reward=amount)

    @tool
    def returns(self, what: str) -> Any:
        """Returns something that is no reply."""
        return {"none": None, "number": 3, "list": [1, "é"]}[what]

    @tool
    def ends(self) -> Reply:
        """Ends the episode."""
        return self.finish("bye", reward=1.0)

    def close(self) -> None:
        self.closed += 1


def rude_task(**data: Any) -> ToolTask:
    """One sample of `Rude`."""
    return make_task(Rude, samples={"train": [data]})
