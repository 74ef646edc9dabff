"""The ids of one trajectory as they came, with mask, log-prob, version, engine and turn of every token.

>>> buffer = TokenBuffer([5, 6])
>>> buffer.append_sampled(Completion((7, 9), (-0.1, -0.2), (3, 3), "stop"), engine_index=0, turn=1)
>>> buffer.append_observed([9, 8], turn=1)  # 9 ends the turn and was sampled already
>>> buffer.ids
[5, 6, 7, 9, 8]

Append-only: what is trained on is what was sampled. A turn that was cut before its end-of-turn token gets that token
from the observation behind it, unmasked, since no policy sampled it.

Whether anything did change is checked, not believed: what each engine was given and what it sampled leaves a checksum,
and `drift` counts the sampled tokens whose checksum the ids do not give any more. It must be 0.

Not here: text (template.py); tensors (collate.py).
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_trainer.engines.base import Completion
from agentrl_trainer.types import NO_ENGINE, NO_VERSION, Trajectory


class TokenBuffer:
    """Grows by sampled and observed tokens; nothing in it ever changes."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_length = len(prompt_ids)
        self.ids: list[int] = list(prompt_ids)
        self._mask = [False] * len(self.ids)
        self._logprobs = [0.0] * len(self.ids)
        self._versions = [NO_VERSION] * len(self.ids)
        self._engines = [NO_ENGINE] * len(self.ids)
        self._turns = [0] * len(self.ids)
        self._checksum = _checksum(0, self.ids)
        self._seals: list[tuple[int, int, int]] = []
        self.repaired_turns = 0
        """Turns that ended without their end-of-turn token, which came in off the mask."""

    def __len__(self) -> int:
        return len(self.ids)

    def append_sampled(self, completion: Completion, engine_index: int, turn: int) -> None:
        """Appends what an engine sampled in agent turn `turn`, from 1."""
        count = len(completion.ids)
        if not count == len(completion.logprobs) == len(completion.versions):
            raise ValueError(
                f"{count} ids, {len(completion.logprobs)} log-probs, {len(completion.versions)} versions [turn {turn}]."
            )
        self.ids += completion.ids
        self._mask += [True] * count
        self._logprobs += completion.logprobs
        self._versions += completion.versions
        self._engines += [engine_index] * count
        self._turns += [turn] * count
        self._checksum = _checksum(self._checksum, completion.ids)
        self._seals.append((len(self.ids), count, self._checksum))

    def append_observed(self, ids: Sequence[int], turn: int) -> None:
        """Appends what the environment answered to turn `turn`: ids from the end-of-turn token on.

        Where the policy sampled that token itself, it is not doubled; where it did not (the turn was cut, or ended by
        another stop token), it comes in here, off the mask.
        """
        sampled_end = self._mask[-1:] == [True] and self._turns[-1] == turn and self.ids[-1:] == list(ids[:1])
        self.repaired_turns += not sampled_end
        self._add_observed(ids[1:] if sampled_end else ids, turn)

    @classmethod
    def before(cls, trajectory: Trajectory, turn: int) -> "TokenBuffer":
        """What a trajectory held before agent turn `turn`, to go on from in another way."""
        buffer = cls(trajectory.ids[: trajectory.prompt_length].tolist())
        for number in range(1, turn):
            own = trajectory.turns == number
            sampled = np.flatnonzero(own & trajectory.mask)
            completion = Completion(
                tuple(trajectory.ids[sampled].tolist()),
                tuple(trajectory.logprobs[sampled].tolist()),
                tuple(trajectory.versions[sampled].tolist()),
                "stop",
            )
            buffer.append_sampled(completion, int(trajectory.engines[sampled[0]]), number)
            buffer._add_observed(trajectory.ids[own & ~trajectory.mask].tolist(), number)
        return buffer

    def _add_observed(self, ids: Sequence[int], turn: int) -> None:
        new = list(ids)
        self._checksum = _checksum(self._checksum, new)
        self.ids += new
        self._mask += [False] * len(new)
        self._logprobs += [0.0] * len(new)
        self._versions += [NO_VERSION] * len(new)
        self._engines += [NO_ENGINE] * len(new)
        self._turns += [turn] * len(new)

    @property
    def drift(self) -> int:
        """Sampled tokens that are not, or stand not behind, what was sampled: 0, or there is a bug."""
        drift, at, checksum = 0, 0, 0
        for length, count, sealed in self._seals:
            checksum = _checksum(checksum, self.ids[at:length])
            at = length
            drift += count * (checksum != sealed)
        return drift

    def to_trajectory(self, **facts: Any) -> Trajectory:
        """The trajectory; `facts` are the fields of `Trajectory` that are not tokens."""
        return Trajectory(
            ids=np.array(self.ids, dtype=np.int32),
            prompt_length=self.prompt_length,
            mask=np.array(self._mask, dtype=np.bool_),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            versions=np.array(self._versions, dtype=np.int32),
            engines=np.array(self._engines, dtype=np.int8),
            turns=np.array(self._turns, dtype=np.int16),
            **facts,
        )


def _checksum(before: int, ids: Sequence[int]) -> int:
    return zlib.crc32(np.array(ids, dtype=np.int32).tobytes(), before)
