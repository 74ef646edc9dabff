"""A task of one's own: `gym.make("agentbench-fc/Task-v0", task="examples/guess_number.py:TASK")` plays it."""

import copy
from typing import Self

from agentbench_fc import Reply, Sample, ToolCall, ToolEpisode, make_task, tool
from agentbench_fc.episode import Expert


class GuessNumber(ToolEpisode):
    """A number from 1 to 100 is hidden; each guess is answered by smaller, larger or right."""

    max_turns = 10

    def start(self) -> str:
        """The prompt."""
        return "I think of a number from 1 to 100. Find it."

    @tool
    def guess(self, number: int) -> Reply | str:
        """Guesses the number.

        Args:
            number: From 1 to 100.
        """
        hidden = self.sample.data["number"]
        if number == hidden:
            return self.finish("Right!", reward=1.0)
        return "Larger." if number < hidden else "Smaller."

    def fork(self) -> Self:
        """A copy is as good as the original, so a fork need not replay."""
        return copy.deepcopy(self)


def halve(sample: Sample) -> Expert:
    """The expert: guesses the middle of what is left, and learns only from the answers."""
    low, high = 1, 100
    for turn_number in range(GuessNumber.max_turns):
        middle = (low + high) // 2
        turn = yield ToolCall(f"guess_{turn_number}", "guess", f'{{"number": {middle}}}')
        if turn.messages[-1]["content"] == "Larger.":
            low = middle + 1
        else:
            high = middle - 1


TASK = make_task(
    GuessNumber,
    samples={"train": [{"number": n} for n in range(1, 101)], "dev": [{"number": 42}]},
    expert=halve,
)
