"""What happens around a step: weights are published, scores taken, checkpoints sealed, figures reported.

Not here: the step itself (trainer.py).
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentbench_fc.errors import CallerError
from agentrl_trainer import checkpoint
from agentrl_trainer.config import RunConfig
from agentrl_trainer.disk import writing
from agentrl_trainer.evaluation import EvalResult
from agentrl_trainer.interrupts import Interrupts
from agentrl_trainer.normalization import TaskNormalizer
from agentrl_trainer.queue import StepBatch
from agentrl_trainer.ranks import Ranks
from agentrl_trainer.report import RunReport
from agentrl_trainer.shards import TranscriptShards
from agentrl_trainer.weights import WeightPublisher

logger = logging.getLogger(__name__)
LOGS_KEPT = 100
"""Hugging Face keeps every log in memory and in each checkpoint; the run's folder has them all."""


class Watched(Protocol):
    """What the callback reads of the trainer: `AgentGRPOTrainer`."""

    batch: StepBatch | None
    """Consumed by the step under way."""
    evaluation: list[EvalResult]
    """Results of the last evaluation."""
    normalizer: TaskNormalizer
    """Its running statistics move on with each step."""
    ranks: Ranks
    """The processes that train."""

    @property
    def sound(self) -> bool:
        """Whether all weights are numbers."""
        ...

    def remember(self, version: int) -> None:
        """Keeps the present weights for the mixture ratio, where that is wanted."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Scores the held-out samples."""
        ...


class RunCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Ties one run's parts to Hugging Face's loop.

    A signal is held back from the optimizer step until its weights are published, so that the step counter, the
    weights, the cursor and the published version always agree.
    """

    def __init__(
        self,
        trainer: Watched,
        config: RunConfig,
        *,
        publisher: WeightPublisher,
        consumed: Callable[[int], None],
        report: RunReport,
        cursor: checkpoint.Cursor,
        interrupts: Interrupts,
        transcripts: TranscriptShards | None = None,
    ) -> None:
        self._trainer = trainer
        self._config = config
        self._publisher = publisher
        self._consumed = consumed
        self._report = report
        self._cursor = cursor
        self._interrupts = interrupts
        self._transcripts = transcripts

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All engines start from the trainer's weights; the score before training is taken."""
        self._publish(kwargs["model"], state.global_step)
        if self._config.evaluation.n and not state.global_step:
            self._trainer.evaluate()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From here to `on_step_end` a signal waits."""
        self._interrupts.hold()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Publishes the new version; says whether to evaluate and save."""
        step, every = state.global_step, self._config.evaluation.every
        last = step >= state.max_steps
        if not self._trainer.sound:
            raise CallerError(
                f"a weight is not finite [step {step}]. Lower optimization.learning_rate and go on from the last "
                "checkpoint: it was made before."
            )
        self._trainer.normalizer.commit()
        if self._trainer.batch:
            self._cursor.add(group.id for group in self._trainer.batch.groups)
            self._consumed(self._trainer.batch.counted)
            if self._transcripts:
                self._transcripts.append(step, self._trainer.batch.groups)
        self._publish(kwargs["model"], step)
        control.should_evaluate = self._config.evaluation.n > 0 and (last or (every > 0 and step % every == 0))
        control.should_save = _should_save(self._config, state)
        self._interrupts.release()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports the scores."""
        self._report.evaluation(state.global_step, self._trainer.evaluation)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Passes a step's figures on; evaluations arrive by `on_evaluate`, the end of training is not a step."""
        del state.log_history[:-LOGS_KEPT]
        if logs and "loss" in logs:
            self._report.step(state.global_step, logs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Completes the checkpoint that was just written."""
        self._trainer.ranks.wait()
        seal_checkpoint(
            Path(args.output_dir) / f"{checkpoint.PREFIX}{state.global_step}",
            self._cursor,
            step=state.global_step,
            keep=self._config.checkpoints.keep,
            publisher=self._publisher,
        )

    def _publish(self, model: Any, version: int) -> None:
        self._trainer.remember(version)
        files = {"config.json": model.config.to_json_string()}
        self._publisher.publish(model.state_dict(), version, extra=files)


class FollowerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """What the other processes of a data-parallel run do around a step: keep up with the first one."""

    def __init__(self, trainer: Watched, config: RunConfig) -> None:
        self._trainer = trainer
        self._config = config

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The weights are what they are in the first process."""
        self._trainer.remember(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Counts the step, and writes this process's part of a checkpoint when the first one writes its own."""
        self._trainer.normalizer.commit()
        self._trainer.remember(state.global_step)
        control.should_save = _should_save(self._config, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """This part is written."""
        self._trainer.ranks.wait()


def _should_save(config: RunConfig, state: TrainerState) -> bool:
    interval = config.checkpoints.every
    return bool(state.global_step >= state.max_steps or (interval > 0 and state.global_step % interval == 0))


def seal_checkpoint(
    folder: Path, cursor: checkpoint.Cursor, *, step: int, keep: int, publisher: WeightPublisher
) -> None:
    """Adds cursor, stale weights and manifest to a written checkpoint and removes old ones."""
    with writing("the checkpoint", folder):
        cursor.save(folder)
        publisher.save_stale(folder)
        checkpoint.seal(folder, {"step": step})
    checkpoint.prune(folder.parent, keep)
    logger.info("checkpoint of step %d: %s", step, folder)
