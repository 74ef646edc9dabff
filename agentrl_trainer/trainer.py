"""GRPO on trajectories that arrive asynchronously: TRL's trainer with our batches, its loss and its optimizer loop.

TRL generates, scores and slices a fixed batch; here a step consumes what the queue holds, so generation and data
loading are bypassed and one `training_step` walks over micro-batches of padded-token size. The loss is TRL's own.
This is the only module that touches TRL's GRPO; every private name of it stands in `PRIVATE_NAMES`.

Not here: publication, checkpoints and reports around a step (callbacks.py); what a batch trains on (collate.py).
Source: TRL 1.16 `GRPOTrainer`; loss DAPO, arXiv 2503.14476; asynchronous loop AgentRL, arXiv 2510.04206.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import TrainOutput
from trl import GRPOConfig, GRPOTrainer

from agentbench_fc.errors import CallerError
from agentrl_trainer.collate import FILLER, MicroBatch, micro_batches
from agentrl_trainer.config import RunConfig, TaskMix
from agentrl_trainer.disk import RunFolder, writing
from agentrl_trainer.evaluation import EvalResult, Play, eval_metrics, evaluate
from agentrl_trainer.interrupts import Interrupts
from agentrl_trainer.metrics import Metrics, WeightedMetrics, batch_metrics, ratio_metrics
from agentrl_trainer.mixture import PolicyHistory, pooled, stretches
from agentrl_trainer.normalization import TaskNormalizer
from agentrl_trainer.offpolicy import Corrected, PerRow, correct
from agentrl_trainer.policy import START, device_of, open_policy
from agentrl_trainer.queue import StepBatch, TrajectoryQueue
from agentrl_trainer.ranks import Ranks
from agentrl_trainer.rows import Rows, train_rows
from agentrl_trainer.staleness import lag_report
from agentrl_trainer.trl_fields import check_trl
from agentrl_trainer.weights import stale_snapshots

PRIVATE_NAMES = (
    "_compute_loss", "_get_per_token_logps_and_entropies", "_globalstep_last_logged", "_metrics", "_save_checkpoint",
    "_step", "_tr_loss",
)  # fmt: skip
"""What we use of TRL and its base beyond their public names; a test holds it against the installed release."""

SEQUENCE = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""The inputs of a forward pass."""


class Step(TypedDict):
    """What our data loader yields: Hugging Face's loop wants something that has keys."""

    batch: StepBatch


def grpo_config(config: RunConfig, output: Path, *, device: str) -> GRPOConfig:
    """TRL's configuration of a run.

    Raises:
        CallerError: the `trl` section sets an unknown field, or one that another section decides.
    """
    known = GRPOConfig.__dataclass_fields__
    chosen = check_trl(config.trl, known)
    sharded = {"fsdp", "fsdp_config", "deepspeed", "parallelism_config"} & set(config.trl)
    sharded |= {n for n in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED") if os.environ.get(n, "") == "true"}
    if sharded:
        raise CallerError(
            f"sharded weights cannot be published to the engines yet [{', '.join(sorted(sharded))}]. Use plain data "
            "parallel (torchrun), or model.gradient_checkpointing=true where memory is short."
        )
    optimization = config.optimization
    further: dict[str, Any] = {
        "report_to": list(config.report_to) or "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "disable_dropout": True,  # the engines sample without it
        "dataloader_pin_memory": False,
        # transformers renamed it on the way to version 6
        ("activation" if "activation_checkpointing" in known else "gradient")
        + "_checkpointing": config.model.gradient_checkpointing,
    }
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # the others wait while the first process waits for a batch or evaluates; alone, a backend would be an error
        further["ddp_timeout"] = int(1800 + config.batch.wait_s + 2 * len(config.tasks) * config.evaluation.timeout_s)
        further["ddp_find_unused_parameters"] = False
        if device == "cpu":
            further["ddp_backend"] = "gloo"
    try:
        return GRPOConfig(
            output_dir=str(output),
            max_steps=config.steps,
            learning_rate=optimization.learning_rate,
            warmup_steps=optimization.warmup_steps,
            lr_scheduler_type=optimization.schedule,
            weight_decay=optimization.weight_decay,
            adam_beta1=optimization.beta1,
            adam_beta2=optimization.beta2,
            max_grad_norm=optimization.max_grad_norm,
            loss_type=optimization.loss_type,
            epsilon=optimization.epsilon,
            epsilon_high=optimization.epsilon_high,
            delta=optimization.delta,
            beta=optimization.kl,
            temperature=config.sampling.temperature,
            seed=config.seed,
            bf16=config.model.dtype == "bfloat16",
            use_cpu=device == "cpu",
            # one dynamic batch per optimizer step, split inside `training_step`
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            num_iterations=1,
            per_device_train_batch_size=config.group_size,
            num_generations=config.group_size,
            max_completion_length=config.sampling.max_context,
            save_strategy="no",  # callbacks.py says when
            ignore_data_skip=True,  # the cursor replaces skipping batches
            logging_nan_inf_filter=False,  # a NaN must end the run, not vanish from the log
            **(further | chosen),
        )
    except (TypeError, ValueError) as error:
        raise CallerError(f"TRL refuses this configuration: {error} [trl]. Change the field that it names.") from error


class AgentGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """Trains a causal model on tasks of agentbench_fc, or on the groups of a queue that the caller fills.

        AgentGRPOTrainer("my-model", RunConfig(steps=100), tasks=["db", "kg"]).train()

    Args:
        model: The policy: a folder, a hub name, a loaded model (with `processing_class`), or None for that of `args`.
        args: The run; None: the defaults.
        queue: Where batches come from, where the caller has a rollout side of its own; None: `train` starts one.
        tasks: Names, or `TaskMix` objects, in the place of those of `args`.
        play: Plays held-out episodes, with a queue of the caller's; None: this trainer cannot evaluate then.
        processing_class: The policy's tokenizer; None: the one beside the model.
        output: Folder of the run; None: that of `args`.
        device: `cpu` or a CUDA device; None: as `args` says.
        callbacks: Hugging Face callbacks beside our own.

    Raises:
        CallerError: the parts do not fit each other; the message says what to change.
    """

    _globalstep_last_logged: int

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        args: RunConfig | None = None,
        queue: TrajectoryQueue | None = None,
        *,
        tasks: Sequence[str | TaskMix] | None = None,
        play: Play | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        output: Path | None = None,
        device: str | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        policy = open_policy(model, args, tasks=tasks, output=output, tokenizer=processing_class, plays=queue is None)
        self.config = config = policy.config
        self.queue = queue
        self.play = play
        self.batch: StepBatch | None = None
        self.evaluation: list[EvalResult] = []
        self.summary = ""
        """Of a run that `train` conducted."""
        self.normalizer = TaskNormalizer(config.normalization)
        self.history = PolicyHistory(
            max_lag=config.staleness.max_lag,
            stale_lags=config.engines.stale_lags or (config.engines.stale_sync_steps,),
        )
        where = device_of(replace(config.model, device=device) if device else config.model)
        grpo = grpo_config(config, policy.output, device=where)
        try:
            super().__init__(
                model=policy.model,
                args=grpo,
                # TRL insists on a reward and on data; both are bypassed
                reward_funcs=_no_reward,
                train_dataset=Dataset.from_dict({"prompt": [""]}),
                processing_class=policy.tokenizer,
                callbacks=callbacks,
            )
        except (ValueError, ImportError) as error:
            raise CallerError(f"TRL refuses this run: {error} [trl, model]. Change what it names.") from error
        self.ranks = Ranks(self.accelerator)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Trains to the end; without a queue of the caller's it starts rollouts and engines, and ends them.

        Args:
            resume_from_checkpoint: A checkpoint's folder; True: the newest whole one of the run; None: as `args` says.
            **kwargs: As for Hugging Face's trainer, with a queue of the caller's.

        Raises:
            Interrupted: Ctrl-C or SIGTERM in the main thread; the last completed step is in a checkpoint.
        """
        if self.queue is not None:
            output: TrainOutput = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            return output
        from agentrl_trainer.launch import train

        if self.config.model.path == str(Path(self.args.output_dir) / START) and not self.ranks.rank:
            with RunFolder(Path(self.args.output_dir)), writing("the model", Path(self.args.output_dir)):
                self.save_model(self.config.model.path)  # the engines read it there
        if resume_from_checkpoint:
            resume = "auto" if resume_from_checkpoint is True else str(resume_from_checkpoint)
            self.config = replace(self.config, resume=resume)
        ours = threading.current_thread() is threading.main_thread()
        with Interrupts() if ours else contextlib.nullcontext() as interrupts:
            self.summary = train(self.config, trainer=self, interrupts=interrupts)
        return self.outcome

    def fit(self, start: Path | None) -> None:
        """The loop over steps, from the beginning or from a checkpoint; queue and callbacks are in place."""
        if start:
            self.normalizer = TaskNormalizer.load(self.config.normalization, start)
            for version, tensors in stale_snapshots(start):  # the checkpoint's own weights are loaded over them
                self.model.load_state_dict(tensors, strict=False)
                self.remember(version)
        self.outcome: TrainOutput = super().train(resume_from_checkpoint=str(start) if start else None)

    def get_train_dataloader(self) -> "DataLoader[Step]":
        """One item per optimizer step: whatever the queue gives then."""
        return DataLoader(_Steps(self), batch_size=None)

    def next_batch(self) -> StepBatch:
        """Waits for the batch of the present step; with several processes the first one does, for all."""
        return self.ranks.share(self._take)

    def _take(self) -> StepBatch:
        if self.queue is None:
            raise CallerError("no queue to take batches from [trainer]. Call train(), or give queue=.")
        bounds = self.config.batch
        return self.queue.get_batch(
            bounds.min_trajectories,
            bounds.max_trajectories,
            version=self.state.global_step,
            deadline_s=bounds.wait_s,
            refill=self.config.refill_tolerance,
            most=int(bounds.refill * bounds.min_trajectories),
        )

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Gradients of one dynamic batch: micro-batches that add up to the full-batch gradient.

        Raises:
            CallerError: the loss is not finite.
        """
        started = time.perf_counter()
        model.train()
        self.batch = batch = inputs["batch"]
        options = self.config
        bound = {"max_lag": options.staleness.max_lag, "fresh_engines": options.engines.fresh}
        rows = train_rows(batch.groups, self.normalizer, version=batch.version, **bound)
        corrected = self._corrected(model, rows, batch)
        rows = corrected.rows
        parts = self._parts(rows)
        logprobs = _empty(rows)
        loss = torch.zeros((), device=self.args.device)
        with WeightedMetrics(self._metrics["train"]) as weighted:
            for number, part in enumerate(parts, start=1):
                last = number == len(parts)
                with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                    loss += self._backward(model, part)
                _collect(self._seen_logps, part, logprobs)
                weighted.add(float(part["tokens"]))
        self._step += 1
        if not torch.isfinite(loss):
            raise self._diverged(f"the loss is {loss.item()}")
        scaled = self.accelerator.scaler is not None  # fp16: a gradient beyond its range is skipped and scaled down
        if not scaled and not _finite(p.grad for p in self.model.parameters() if p.grad is not None):
            raise self._diverged("a gradient is not finite")
        seconds = time.perf_counter() - started
        lag = lag_report(batch.trajectories, batch.version, **bound)
        figures = batch_metrics(batch, rows, lag) | corrected.figures
        if not options.off_policy.needs_survey:
            figures |= ratio_metrics(rows, self.ranks.merge(logprobs), batch.version, options.engines.fresh)
        figures |= {"batch/micro_batches": len(parts), "time/train_s": seconds}
        figures["tokens_per_s"] = rows.tokens / (seconds + batch.waited_s)
        for name, value in figures.items():
            self._metrics["train"][name].append(value)
        return loss

    def _parts(self, rows: Rows) -> list[MicroBatch]:
        return micro_batches(
            rows,
            self.config.batch.micro_batch_tokens,
            pad_id=self.processing_class.pad_token_id,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
        )

    def _corrected(self, model: Any, rows: Rows, batch: StepBatch) -> Corrected:
        """The rows after off-policy correction; where there is none, as they are and at no cost."""
        options = self.config.off_policy
        if not options.needs_survey or not rows.trajectories:
            return Corrected(rows, {})
        logprobs = self._survey(model, rows)
        figures: Metrics = {}
        if options.ratio == "mixture":
            rows, figures = self._with_mixture(model, rows, batch)
        figures |= ratio_metrics(rows, logprobs, batch.version, self.config.engines.fresh)
        corrected = correct(rows, logprobs, options)
        return Corrected(corrected.rows, figures | corrected.figures)

    def _with_mixture(self, model: Any, rows: Rows, batch: StepBatch) -> tuple[Rows, Metrics]:
        """The rows with the pool's log-probs; each other version's weights score those that it could have sampled."""
        engines = self.config.engines
        admitted = {group.id: group.admitted_version for group in batch.groups}
        draws = [
            list(
                stretches(
                    t,
                    per=engines.cross_policy,
                    admitted=admitted[t.group_id],
                    fresh_engines=engines.fresh,
                    stale_sync_steps=engines.stale_sync_steps,
                )
            )
            for t in rows.trajectories
        ]
        wanted = [{v for d in own for _, v in d.policies if v != d.own} for own in draws]
        scores: list[dict[int, NDArray[np.float32]]] = [{} for _ in draws]
        present = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        try:
            for version in sorted(set().union(*wanted) & self.history.versions):
                chosen = [i for i, versions in enumerate(wanted) if version in versions]
                self.history.load(self.model, version)
                for i, found in zip(chosen, self._survey(model, rows.subset(chosen)), strict=True):
                    scores[i][version] = found
        finally:  # a signal may come here, and what it leaves is a checkpoint
            self.model.load_state_dict(present)
        behaviour = [
            pooled(t, own, known).astype(np.float32)
            for t, own, known in zip(rows.trajectories, draws, scores, strict=True)
        ]
        lost = sum(len(versions - set(known)) for versions, known in zip(wanted, scores, strict=True))
        every = sum(map(len, wanted))
        return replace(rows, behaviour=behaviour), {"offpolicy/mixture_missing_share": lost / every if every else 0.0}

    def _survey(self, model: Any, rows: Rows) -> PerRow:
        """(T,) log-probs of each row under the model's present weights, without gradients."""
        logprobs = _empty(rows)
        with torch.no_grad():
            for part in self._parts(rows):
                _collect(
                    self._logps(model, {name: part[name].to(self.args.device) for name in SEQUENCE}), part, logprobs
                )
        return self.ranks.merge(logprobs)

    def _backward(self, model: Any, part: MicroBatch) -> Tensor:
        inputs = {name: tensor.to(self.args.device) for name, tensor in part.items()}
        if self.config.off_policy.ratio == "paper":
            del inputs["old_per_token_logps"]  # TRL then takes the present policy's: the ratio is 1
        if self.beta:
            inputs["ref_per_token_logps"] = self._logps(self.ref_model, inputs)
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's forward pass; the log-probs are kept for the ratio figures."""
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self._seen_logps: Tensor = result[0].detach()
        return result

    def token_logprobs(self, ids: Sequence[int], count: int) -> list[float]:
        """Log-probs of the last `count` ids under the present weights, computed as the loss computes them."""
        row = torch.tensor([list(ids)], device=self.args.device)
        cut = len(ids) - count
        inputs = {"prompt_ids": row[:, :cut], "completion_ids": row[:, cut:]}
        inputs |= {"prompt_mask": torch.ones_like(row[:, :cut]), "completion_mask": torch.ones_like(row[:, cut:])}
        logprobs: list[float] = self._logps(self.model, inputs)[0].float().tolist()
        return logprobs

    def note(self, figures: Mapping[str, float]) -> None:
        """Adds figures to those of the present step."""
        for name, value in figures.items():
            self._metrics["train"][name].append(value)

    @torch.no_grad()
    def _logps(self, model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logps: Tensor = super()._get_per_token_logps_and_entropies(
            model, ids, attention, inputs["completion_ids"].size(1)
        )[0]
        return logps

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Scores the held-out samples of each task, by playing them.

        Raises:
            CallerError: nothing plays episodes.
        """
        if self.play is None:
            raise CallerError("nothing plays episodes [trainer.evaluate]. Make the trainer with play=.")
        self.evaluation = evaluate(self.play, self.config)
        figures = eval_metrics(self.evaluation)
        self.log(dict(figures))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    @property
    def sound(self) -> bool:
        """Whether all weights are numbers: others are neither published nor kept."""
        return _finite(p.detach() for p in self.model.parameters())

    def _diverged(self, what: str) -> CallerError:
        if self.ranks.rank:  # gradients are averaged: the first process has it too, and ends us when it has saved
            self.next_batch()
        return CallerError(
            f"{what} [step {self.state.global_step + 1}]. Lower optimization.learning_rate and go on from the last "
            "checkpoint: it was made before."
        )

    def log_last_step(self) -> None:
        """Logs a step that was completed but not logged, because something ended the run in between."""
        if self.batch is not None and self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.log({"loss": self._tr_loss.item()})

    def remember(self, version: int) -> None:
        """Keeps the present weights for the mixture ratio, where that is wanted."""
        if self.config.off_policy.ratio == "mixture":
            self.history.remember(self.model.state_dict(), version)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with writing("the checkpoint", folder):
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                self.normalizer.save(folder)

    def save_checkpoint(self) -> Path:
        """Writes `checkpoint-<step>` now, unsealed (see checkpoint.py)."""
        self._save_checkpoint(self.model, trial=None)
        return Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: Hugging Face's estimate needs a padded batch."""
        return 0

    def store_flos(self) -> None:
        """None are counted; Hugging Face's sum over processes would keep one that ends alone from saving."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a run's folder holds its own configuration and summary."""


class _Steps(IterableDataset[Step]):
    """One batch a step; none where a checkpoint has all steps already."""

    def __init__(self, trainer: AgentGRPOTrainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[Step]:
        while self._trainer.state.global_step < self._trainer.state.max_steps:
            yield {"batch": self._trainer.next_batch()}


def _finite(tensors: Iterable[Tensor]) -> bool:
    """Whether there is neither NaN nor infinity; one answer from the device for all of them."""
    found = [tensor.isfinite().all() for tensor in tensors]
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())


def _empty(rows: Rows) -> PerRow:
    return [np.zeros(len(t.ids), dtype=np.float32) for t in rows.trajectories]


def _collect(logps: Tensor, part: MicroBatch, into: PerRow) -> None:
    """Puts a micro-batch's log-probs (B, C) where its rows are."""
    found, split = logps.float().cpu().numpy(), part["prompt_ids"].size(1)
    for row, values in zip(part["rows"].tolist(), found, strict=True):
        if row != FILLER:
            into[row][split:] = values[: len(into[row]) - split]


def _no_reward(*args: object, **kwargs: object) -> list[float]:
    raise AssertionError("rewards come with the trajectories")
