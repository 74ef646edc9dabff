"""The canary: what engines say of a few tokens, held against the trainer's own log-probs, after each publication.

The first publication is checked before anything is sampled: engines that hold other weights, scale their log-probs
otherwise or sample from a cut distribution are refused then. Later ones are asked at once and judged when the next step
is about to change the weights, so that nobody waits for them. The difference of two weight versions a step apart is
below any tolerance: the canary finds other models, other numerics and stale caches, not a step too few.

Not here: the probe itself (rollout/process.py); the trainer's log-probs (trainer.py).
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.config import RunConfig
from agentrl_trainer.weights import Publish

logger = logging.getLogger(__name__)
TOKENS = 16
"""Sampled by each engine for one check."""
PROMPT = "Canary: the quick brown fox jumps over the lazy dog, 0123456789."
LogProbs = Callable[[Sequence[int], int], Sequence[float]]
"""Ids and a count -> the log-probs of the last `count` ids under the trainer's present weights."""


class Probe(Protocol):
    """`RolloutProcess.probe`."""

    def __call__(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        """Lets the engines sample behind `ids`."""
        ...


class Difference(NamedTuple):
    """Of one engine's log-probs from the trainer's."""

    engine: str
    mean: float
    largest: float


class Canary(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Stands between the publisher and the rollout side, and looks in before each optimizer step."""

    def __init__(
        self,
        publish: Publish,
        probe: Probe,
        logprobs: LogProbs,
        ids: Sequence[int],
        *,
        temperature: float,
        tolerance: float,
        note: Callable[[Mapping[str, float]], None],
        on_difference: Literal["error", "warn"] = "error",
    ) -> None:
        """Describes the checks.

        Args:
            publish: Hands a version to the engines.
            probe: Lets them sample.
            logprobs: The trainer's.
            ids: What they sample behind.
            temperature: The run's.
            tolerance: Mean difference that is no fault.
            note: Takes the figures of a check.
            on_difference: What a larger one does, after the start.
        """
        self._publish = publish
        self._probe = probe
        self._note = note
        self._logprobs = logprobs
        self._ids = list(ids)
        self._temperature = temperature
        self._tolerance = tolerance
        self._strict = on_difference == "error"
        self._started = False
        self._asked: tuple[int, Future[list[dict[str, Any]]]] | None = None

    def publish(self, path: Path, version: int, *, stale: bool) -> None:
        """Hands a version on; the first one is checked at once, on all engines.

        Raises:
            CallerError: at the first version: an engine's log-probs are not the trainer's.
            InfrastructureError: the rollout side is dead.
        """
        self._publish(path, version, stale=stale)
        if self._started:
            answer: Future[list[dict[str, Any]]] = Future()
            # a daemon: the end of a run does not wait for it
            threading.Thread(target=self._ask, args=(answer, stale), name="canary", daemon=True).start()
            self._asked = (version, answer)
        else:
            self._judge(version, self._probe(self._ids, TOKENS, self._temperature, stale=True), strict=True)
            self._started = True

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judges what was asked last, while the trainer still holds those weights.

        A step that is quicker than the engines goes unchecked; the next version is asked again.

        Raises:
            CallerError: an engine's log-probs are not the trainer's, and that is an error.
        """
        asked, self._asked = self._asked, None
        if asked is None or not asked[1].done():
            return
        try:
            self._judge(asked[0], asked[1].result(), strict=self._strict)
        except InfrastructureError as error:
            logger.warning("the canary got no answer: %s", error)

    def _ask(self, answer: "Future[list[dict[str, Any]]]", stale: bool) -> None:
        try:
            answer.set_result(self._probe(self._ids, TOKENS, self._temperature, stale=stale))
        except Exception as error:  # the thread's edge: whoever judges meets it
            answer.set_exception(error)

    def _judge(self, version: int, answers: Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        found = [d for answer in answers if (d := self._difference(version, answer)) is not None]
        if not found:
            return
        worst = max(found, key=lambda d: d.mean)
        if not worst.mean <= self._tolerance:
            text = (
                f"log-probs differ by {worst.mean:.3g} on average, {worst.largest:.3g} at most "
                f"[{worst.engine}, version {version}]. The engine holds other weights or other numerics than the "
                "trainer: start it with the policy's own folder, without SGLANG_RETURN_ORIGINAL_LOGPROB, quantization "
                "or a truncated distribution; or raise engines.canary_tolerance if it is meant so."
            )
            if strict:
                raise CallerError(text)
            logger.warning("canary: %s", text)
        self._note({"canary/mean_difference": worst.mean, "canary/max_difference": max(d.largest for d in found)})

    def _difference(self, version: int, answer: Mapping[str, Any]) -> Difference | None:
        """None: the engine sampled nothing with that version (it was being restarted)."""
        ids, count = [*self._ids, *answer["ids"]], len(answer["ids"])
        ours = np.array(answer["versions"]) == version
        if not ours.any():
            return None
        gaps = np.abs(np.array(answer["logprobs"]) - np.array(self._logprobs(ids, count)))[ours]
        return Difference(str(answer["engine"]), float(gaps.mean()), float(gaps.max()))


def canary_tolerance(config: RunConfig) -> float:
    """The configured one, else what numerics alone explain: float32 in our own processes, or bfloat16 kernels."""
    exact = config.engines.kind == "transformers" and config.model.dtype == "float32"
    return config.engines.canary_tolerance or (0.01 if exact else 0.1)


def canary_ids(encode: Callable[[str], Sequence[int]], vocabulary: int) -> list[int]:
    """Some ids to sample behind, of any tokenizer."""
    ids = [int(i) for i in encode(PROMPT) if 0 <= int(i) < vocabulary][:32]
    return ids or [1 % vocabulary]
