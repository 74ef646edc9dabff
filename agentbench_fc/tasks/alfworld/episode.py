"""One chore: the opening, the one tool, and when it ends.

In profile `default` an action counts to the letter, and anything else is answered by "Nothing happens." In profile
`agentbench` an action that is not possible is replaced by the nearest one that is, as AgentBench does without saying
so; what was really done stands in the metrics. There, three equal actions in a row end the episode.

Not here: the game (engine.py), its process (workers.py), lists and nearness of actions (rules.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentbench_fc.episode import Reply, Sample
from agentbench_fc.errors import TaskError
from agentbench_fc.messages import Message, system, user
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.alfworld.engine import Seen
from agentbench_fc.tasks.alfworld.games import Games
from agentbench_fc.tasks.alfworld.rules import ListMode, listed, nearest
from agentbench_fc.tasks.alfworld.workers import Room, Workers

REPEATS = 3
FREE_STEPS = 3
"""AgentBench looks for repeats only after so many actions."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all episodes of a task share."""

    games: Games
    workers: Workers
    prompts: Mapping[str, str]
    max_turns: int
    start_timeout_s: float
    call_timeout_s: float
    repair: bool = False
    """Play the nearest possible action, end at three equal ones: AgentBench's way."""
    actions: ListMode = "full"
    subgoal_reward: float = 0.0
    """How much of the reward the steps before the last are worth together."""
    trust: bool = False


class AlfworldEpisode:
    """A session of a game; what it knows beside the game is what the player said."""

    def __init__(self, sample: Sample, rules: Rules) -> None:
        self._sample = sample
        self._rules = rules
        self._room: Room | None = None
        self._said: list[str] = []
        self._nothing = 0
        self._repaired = 0
        self._paid = 0.0

    def start(self) -> list[Message]:
        """The rules, then the room, the task and what can be done."""
        rules = self._rules
        content = rules.games.content(self._sample)
        self._room = rules.workers.start(
            content,
            where=self._sample.id,
            trust=rules.trust,
            shaped=rules.subgoal_reward > 0,
            timeout_s=rules.start_timeout_s,
        )
        opening = [system(rules.prompts["system"].format(max_turns=rules.max_turns))]
        if rules.actions == "grouped" and "grouped" in rules.prompts:
            opening = [system(f"{opening[0]['content']}\n\n{rules.prompts['grouped']}")]
        seen = self._room.seen
        paragraphs = seen.feedback.split("\n\n")[1:]  # the first one welcomes
        room = ("\n" if rules.repair else "\n\n").join(paragraphs)
        return [*opening, user(self._written("user", room, seen))]

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Takes an action."""
        rules, room = self._rules, self._living()
        said = str(arguments["action"])
        action, repaired = said, False
        if rules.repair:
            action = said.strip().lower().split("\n")[0]
            if action not in room.seen.admissible and (near := nearest(action, room.seen.admissible)) is not None:
                action, repaired = near, True
        seen = room.step(action, timeout_s=rules.call_timeout_s)
        self._said.append(said)
        self._nothing += not seen.acted
        self._repaired += repaired
        metrics: dict[str, Any] = {
            "task_type": self._sample.data.get("task_type", ""),
            "actions": len(self._said),
            "nothing_happened": self._nothing,
        }
        if rules.repair:
            metrics |= {"repaired": self._repaired, "executed_action": action}
        content = self._written("step", _told(seen), seen)
        if rules.repair and len(self._said) > FREE_STEPS and len(set(self._said[-REPEATS:])) == 1:
            return Reply(content, 0.0, success=False, done=True, metrics=metrics, status=Status.INVALID_ACTION)
        return Reply(content, self._earned(room), seen.won or None, done=seen.won, metrics=metrics)

    def say(self, text: str) -> Reply | None:
        """A turn without a call: the profile's own words for it, where it has any."""
        words = self._rules.prompts.get("no_call")
        return None if words is None else Reply(words)

    def fork(self) -> "AlfworldEpisode":
        """A copy that goes on from here, in the same process."""
        twin = AlfworldEpisode(self._sample, self._rules)
        twin._room = self._living().fork(timeout_s=self._rules.call_timeout_s)
        twin._said = list(self._said)
        twin._nothing, twin._repaired, twin._paid = self._nothing, self._repaired, self._paid
        return twin

    def close(self) -> None:
        """Ends the game."""
        if self._room is not None:
            self._room.close()

    def _living(self) -> Room:
        if self._room is None:
            raise TaskError(f"the episode has not started [{self._sample.id}]. Call start first.")
        return self._room

    def _earned(self, room: Room) -> float | None:
        """What the newest action adds to the reward; all together a game that is won earns 1."""
        due = 1.0 if room.seen.won else max(self._paid, self._rules.subgoal_reward * room.progress)
        earned, self._paid = due - self._paid, due
        return earned or None

    def _written(self, prompt: str, observation: str, seen: Seen) -> str:
        actions = listed(seen.admissible, self._rules.actions)
        return self._rules.prompts[prompt].format(observation=observation, actions=actions)


def _told(seen: Seen) -> str:
    """The feedback, without the number of a place that no player can use."""
    return seen.feedback.partition(". ")[2] if seen.feedback.startswith("You arrive at loc ") else seen.feedback
