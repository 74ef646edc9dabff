"""A session's turn -> what Gymnasium returns for it: reward, terminated, truncated and the info.

>>> scoring = Scoring(abnormal_penalty=0)
>>> from agentbench_fc.rewards import Status
>>> turn = Turn("s1", 4, [], [], Status.LIMIT_REACHED, True, 0.25, False)
>>> scoring.of(turn, earned=0.5)
Scored(reward=0.25, terminated=False, truncated=True, masked=False, raw_reward=0.75)

The sum of an episode's rewards is its shaped reward: with the default penalty the last step above gives -0.2 - 0.5. An
episode that failed through no fault of the agent is truncated with reward 0 and `masked` in its info: it should not be
trained on.

Not here: the table of statuses (rewards.py).
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.messages import ToolSpec
from agentbench_fc.rewards import ABNORMAL_PENALTY, settle

RewardKind = Literal["raw", "success"]


class Scored(NamedTuple):
    """What a turn means to Gymnasium."""

    reward: float
    terminated: bool
    truncated: bool
    masked: bool
    raw_reward: float
    """Earned so far, this turn included."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How turns are rewarded."""

    reward: RewardKind = "raw"
    """`raw`: what the task gives, in [0, 1]; `success`: 1 at the end of an episode that succeeded, else 0."""
    abnormal_penalty: float = ABNORMAL_PENALTY
    """Return of an episode that hit a limit or was invalid; 0: such an episode keeps its own reward."""

    def __post_init__(self) -> None:
        kinds = get_args(RewardKind)
        if self.reward not in kinds:
            raise CallerError(f"reward is {self.reward!r} [env]. {did_you_mean(str(self.reward), kinds)}")
        if not isinstance(self.abnormal_penalty, (int, float)) or not -1 <= self.abnormal_penalty <= 0:
            raise CallerError(f"abnormal_penalty is {self.abnormal_penalty!r} [env]. Use a number in [-1, 0].")

    def of(self, turn: Turn, earned: float) -> Scored:
        """Scores a turn, given the raw reward `earned` before it."""
        raw = min(max(earned + (turn.reward or 0.0), 0.0), 1.0)
        before = earned if self.reward == "raw" else 0.0
        if not turn.finish:
            return Scored(float(turn.reward or 0.0) if self.reward == "raw" else 0.0, False, False, False, raw)
        base = raw if self.reward == "raw" else float(bool(turn.success))
        outcome = settle(turn.status, base, abnormal_penalty=self.abnormal_penalty)
        reward = 0.0 if outcome.reward is None else outcome.reward - before
        return Scored(float(reward), outcome.terminated, outcome.truncated, not outcome.trained, raw)


def info_of(turn: Turn, scored: Scored, tools: list[ToolSpec], sample_id: str | None) -> dict[str, Any]:
    """The info of a step; nothing in it is shared with the session's own record."""
    return {
        "session_id": turn.session_id,
        "sample": sample_id,
        "turn": turn.turn,
        "tools": list(tools),
        "status": str(turn.status),
        "success": turn.success,
        "raw_reward": scored.raw_reward,
        "masked": scored.masked,
        "metrics": copy.deepcopy(turn.metrics),
    }
