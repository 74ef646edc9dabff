"""Task advantage normalization for any trainer of TRL's GRPO family, with its own rollouts, engines and rewards.

    class Trainer(TaskNormalizedMixin, GRPOTrainer): ...

    trainer = Trainer(model, …, train_dataset=rows_with_a_task_column, task_normalization=Normalization(task="stream"))

The trainer's own group-relative advantages are taken as they are and normalized over the trained tokens of each task,
across all processes. Running statistics are part of the trainer's checkpoints.

Not here: our own trainer, which normalizes before it makes tensors (trainer.py).
Source: AgentRL, arXiv 2510.04206; TRL 1.16 `GRPOTrainer`, whose names in `PRIVATE_NAMES` are used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import Normalization
from agentrl_trainer.normalization import TaskNormalizer

if TYPE_CHECKING:
    from trl import GRPOTrainer as Base
else:
    Base = object

PRIVATE_NAMES = ("_generate_and_score_completions", "_get_output_dir", "_load_optimizer_and_scheduler", "_metrics",
                 "_save_checkpoint")  # fmt: skip
"""What we use of TRL and its base beyond their public names."""


class TaskNormalizedMixin(Base):  # type: ignore[misc]  # TRL is not typed
    """Put it before `GRPOTrainer`, or a subclass of it, among the bases.

    Args:
        task_normalization: How; `group_scale` does not apply, TRL's `scale_rewards` does.
        task_column: Column of the data set that names a row's task. TRL's own `environment` column does as well.
        *args: As for `GRPOTrainer`.
        **kwargs: As for `GRPOTrainer`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        trainers = [c for c in order if not issubclass(c, TaskNormalizedMixin)]
        scorers = [c for c in trainers if "_generate_and_score_completions" in vars(c)]
        # subclasses of TRL's trainer may stand before it and call it; TRL's own never does
        if scorers and order.index(scorers[-1]) < order.index(TaskNormalizedMixin):
            raise CallerError(
                f"{scorers[0].__name__} stands before the mixin, which then does nothing [{cls.__name__}]. Write "
                f"class {cls.__name__}(TaskNormalizedMixin, {scorers[0].__name__})."
            )

    def __init__(
        self,
        *args: Any,
        task_normalization: Normalization | None = None,
        task_column: str = "task",
        **kwargs: Any,
    ) -> None:
        self.task_normalizer = TaskNormalizer(task_normalization or Normalization())
        self.task_column = task_column
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["advantages"] = self._normalized(output, [self._task_of(row) for row in inputs])
        return output

    def _task_of(self, row: Mapping[str, Any]) -> str:
        task = row.get(self.task_column)
        if task is None:
            raise CallerError(
                f"a row has no {self.task_column!r} [train_dataset]. Name each row's task in a column, and the column "
                "in task_column=."
            )
        return str(task)

    def _normalized(self, output: Mapping[str, Any], tasks: list[str]) -> Tensor:
        """The rows of this process, normalized with those of all processes."""
        local: Tensor = output["advantages"]
        mask = output["completion_mask"]
        if "tool_mask" in output:
            mask = mask * output["tool_mask"]
        advantages = self.accelerator.gather(local).double().cpu().numpy()
        lengths = self.accelerator.gather(mask.sum(dim=1)).cpu().numpy().astype(np.int64)
        every: Sequence[str] = gather_object(tasks)
        options = self.task_normalizer.options
        included = lengths > 0
        if options.exclude_zero_variance:
            of_groups = np.abs(advantages).reshape(-1, self.num_generations).max(axis=1)
            included &= np.repeat(of_groups > options.tolerance, self.num_generations)
        normalized = self.task_normalizer(advantages, lengths, every, included)
        self.task_normalizer.commit()
        for task in dict.fromkeys(every):
            own = normalized[[name == task for name in every]]
            self._metrics["train"][f"advantage/{task}_max"].append(float(np.abs(own).max()))
        first = self.accelerator.process_index * len(local)
        return torch.from_numpy(normalized[first : first + len(local)]).to(local)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            self.task_normalizer.save(folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.task_normalizer = TaskNormalizer.load(self.task_normalizer.options, Path(checkpoint))
