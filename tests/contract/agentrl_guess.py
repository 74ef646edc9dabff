"""A task of AgentRL's own kind, run by its worker: guess a number between 1 and 100."""

import asyncio
import json
from typing import Any

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult

ROUNDS = 7
GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guesses.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


class Guess(Task):
    """Index n hides the number n + 40; the first index that is no number breaks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tools=[GUESS], full_async=True, **options)

    def get_indices(self) -> list[int | str]:
        """Numbers, and a word."""
        return [0, 1, 2, 3, "broken"]

    async def start_sample(self, index: int | str, session: Session) -> TaskSampleExecutionResult:
        """One game."""
        if index == "broken":
            raise KeyError("broken")
        hidden = 40 + int(index)
        session.inject([{"role": "system", "content": "Guess the number."}, {"role": "user", "content": "Go."}])
        for _ in range(ROUNDS):
            said = await session.action()
            calls = [call for message in said.messages for call in message.get("tool_calls") or []]
            if not calls:
                session.inject({"role": "user", "content": "Call the tool."})
            for call in calls:
                number = json.loads(call["function"]["arguments"])["number"]
                if number == 0:
                    await asyncio.sleep(1.0)  # a slow turn
                answer = "right" if number == hidden else "higher" if number < hidden else "lower"
                session.inject({"role": "tool", "tool_call_id": call["id"], "content": answer})
                if number == hidden:
                    session.inject(RewardHistoryItem(reward=1.0, score=1.0))
                    return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)
        session.inject(RewardHistoryItem(reward=0.0, score=0.0))
        return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)
