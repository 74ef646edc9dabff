"""One run, start to end: checks, rollouts, trainer, what happens around its steps, and what is left when it stops.

Not here: the command line (run.py); the parts that this ties together.
"""

import contextlib
import importlib
import importlib.util
import itertools
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentbench_fc.connecting import reach
from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError
from agentrl_trainer import checkpoint
from agentrl_trainer.config import AUTO, TRACKERS, RunConfig
from agentrl_trainer.configfile import changed_settings, load_config, to_yaml
from agentrl_trainer.disk import RunFolder, writing
from agentrl_trainer.interrupts import Interrupted, Interrupts
from agentrl_trainer.queue import GroupSource

if TYPE_CHECKING:
    from agentrl_trainer.display import Display
    from agentrl_trainer.trainer import AgentGRPOTrainer

FINAL = "model"
CONFIG = "config.yaml"


class Rollouts(GroupSource, Protocol):
    """The rollout side as the trainer needs it: `RolloutProcess`, or a script in tests."""

    def publish(self, path: Path, version: int, stale: bool) -> None:
        """Hands a weight version to the fresh engines, and to the stale ones where asked."""
        ...

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        """Plays n held-out episodes; one record each."""
        ...

    def consumed(self, trajectories: int) -> None:
        """So many usable trajectories went into the step that the next `publish` ends."""
        ...

    def close(self) -> None:
        """Ends its processes; safe to repeat."""
        ...


def train(
    config: RunConfig,
    *,
    trainer: "AgentGRPOTrainer | None" = None,
    rollouts: Rollouts | None = None,
    interrupts: Interrupts | None = None,
) -> str:
    """One run from its configuration to its summary.

    Several processes (torchrun, accelerate launch) each call it: the first has the rollouts, all of them train.

    Args:
        config: The run.
        trainer: Made by the caller of this configuration, without a queue; None: one for the configuration's model.
        rollouts: A rollout side that is started already; None: a rollout process of our own.
        interrupts: Signals, where the caller handles them.

    Returns:
        The summary as text; the run's folder holds it too. Empty in all processes but the first.

    Raises:
        Interrupted: a signal came; the last completed step is in a checkpoint.
    """
    from agentrl_trainer.display import make_display
    from agentrl_trainer.policy import check_same_model, device_of, new_folder, policy_path, policy_warnings

    _check_installed(config)  # all of this before anything is made or started
    if _rank(config) > 0:
        return _follow(config, trainer)
    policy_path(config.model)
    if config.model.device not in {AUTO, "cpu"}:  # asking costs the import of torch
        device_of(config.model)
    if config.rollout.url:
        reach(config.rollout.url)
    warnings = policy_warnings(config)
    interrupts = interrupts or Interrupts()
    output = config.output or new_folder()
    with contextlib.ExitStack() as stack:
        stack.enter_context(RunFolder(output))  # first: another run in it makes and removes checkpoints
        start = checkpoint.resume_from(config.resume, output)
        if start:
            checkpoint.check_place(start, output)
        display = make_display(config.progress, config.steps)
        stack.callback(display.close)
        display.note(f"run folder: {output}" + (f", resumed from {start.name}" if start else ""))
        for warning in warnings:
            display.note(f"warning: {warning}")
        if not start:
            _write_config(config, output)
        cursor = checkpoint.Cursor.load(start) if start else checkpoint.Cursor()
        if rollouts is None:
            rollouts = _start_rollouts(config, cursor, output)
        stack.callback(rollouts.close)
        trainer = trainer or _trainer(config, output)
        if start:  # a run that cannot go on leaves the folder as it was
            check_same_model(trainer.model, start)
            for warning in _take_up(config, output, start):
                display.note(f"warning: {warning}")
        return _train(trainer, output, start, cursor, rollouts, display, interrupts, stack)


def _take_up(config: RunConfig, output: Path, start: Path) -> list[str]:
    """Prepares the folder of a run that goes on; what a person should know of it."""
    with writing("a later checkpoint's new place", output):
        aside = checkpoint.set_aside(output, start)
    told = [f"the run goes back to {start.name}: a later checkpoint is now {path}" for path in aside]
    with contextlib.suppress(CallerError):  # none there, or of another release
        changed = changed_settings(load_config(output / CONFIG), config)
        told += [f"the run goes on with {changed}"] if changed else []
    _write_config(config, output)
    return told


def _write_config(config: RunConfig, output: Path) -> None:
    with writing("the configuration", output):
        (output / CONFIG).write_text(to_yaml(config), encoding="utf-8")


def _check_installed(config: RunConfig) -> None:
    for name in ("torch", "transformers", "trl", "accelerate", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise CallerError(f"{name} is not installed [trainer]. pip install 'agentbench-fc[train]', torch first.")
    for name in config.report_to:
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise CallerError(f"{name} is not installed [report_to]. pip install {TRACKERS[name]}, or leave it out.")


def _start_rollouts(config: RunConfig, cursor: checkpoint.Cursor, output: Path) -> Rollouts:
    """Starts the rollout process; our own heavy imports go on meanwhile."""
    from agentrl_trainer.rollout.process import RolloutProcess
    from agentrl_trainer.rollout.supervisor import SupervisedRollouts

    # imports go to the thread, not the start: a process lives as long as the thread that started it
    importing = threading.Thread(target=importlib.import_module, args=("agentrl_trainer.trainer",), name="imports")
    importing.start()

    logs = itertools.chain([output / "logs"], (output / "logs" / f"restart-{n}" for n in itertools.count(1)))

    def start_process(done: Collection[str]) -> RolloutProcess:
        return RolloutProcess(config, done=done, logs=next(logs)).start()

    rollouts: Rollouts = SupervisedRollouts(
        start_process,
        done=cursor.done,
        restarts=config.rollout.restarts,
        counted=lambda group: group.counted(config.refill_tolerance),
        stale_lags=config.engines.stale_lags or (1,),
    )
    importing.join()
    return rollouts


def _rank(config: RunConfig) -> int:
    """The number of this process; 0 for one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0
    if config.output is None:
        raise CallerError("several processes need one folder [output]. Set output=, the same for all of them.")
    return int(os.environ.get("RANK", "0"))


def _trainer(config: RunConfig, output: Path) -> "AgentGRPOTrainer":
    from agentrl_trainer.trainer import AgentGRPOTrainer

    return AgentGRPOTrainer(None, config, output=output)


def _follow(config: RunConfig, trainer: "AgentGRPOTrainer | None") -> str:
    """Trains on the batches of the first process."""
    from transformers import PrinterCallback

    from agentrl_trainer.callbacks import FollowerCallback
    from agentrl_trainer.policy import check_same_model

    output = config.output or Path()
    start = None if config.resume == "never" else checkpoint.resume_from(config.resume, output)
    trainer = trainer or _trainer(config, output)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(FollowerCallback(trainer, config))
    if start:
        check_same_model(trainer.model, start)
    trainer.fit(start)
    return ""


def _train(
    trainer: "AgentGRPOTrainer",
    output: Path,
    start: Path | None,
    cursor: checkpoint.Cursor,
    rollouts: Rollouts,
    display: "Display",
    interrupts: Interrupts,
    stack: contextlib.ExitStack,
) -> str:
    from transformers import PrinterCallback

    from agentrl_trainer.callbacks import RunCallback, seal_checkpoint
    from agentrl_trainer.canary import Canary, canary_ids, canary_tolerance
    from agentrl_trainer.queue import TrajectoryQueue
    from agentrl_trainer.report import RunReport
    from agentrl_trainer.shards import TranscriptShards
    from agentrl_trainer.weights import Publish, WeightPublisher, snapshot_folder

    config = trainer.config
    trainer.queue = TrajectoryQueue(
        rollouts, capacity=config.rollout.queue_groups, stall_report_s=config.batch.stall_report_s
    ).start()
    stack.callback(trainer.queue.close)
    trainer.play = rollouts.evaluate
    lags = config.engines.stale_lags or (config.engines.stale_sync_steps,)
    folder = snapshot_folder(config.engines.weights_dir, output, _size(trainer.model), lags=len(set(lags)))
    resumed_at = checkpoint.sealed_step(start) if start else None
    report = RunReport(output, display, resumed_at=resumed_at)
    decode = trainer.processing_class.decode
    with writing("transcripts", output):
        transcripts = TranscriptShards(output, decode, resumed_at=resumed_at) if config.transcripts else None
    trainer.remove_callback(PrinterCallback)
    publish: Publish = rollouts.publish
    probe = getattr(rollouts, "probe", None)  # a script has no engines
    if config.engines.canary != "off" and probe is not None:
        canary = Canary(
            rollouts.publish,
            probe,
            trainer.token_logprobs,
            canary_ids(trainer.processing_class.encode, trainer.model.config.get_text_config().vocab_size),
            temperature=config.sampling.temperature,
            tolerance=canary_tolerance(config),
            note=trainer.note,
            on_difference=config.engines.canary,
        )
        trainer.add_callback(canary)
        publish = canary.publish
    publisher = WeightPublisher(publish, stale_lags=lags, folder=folder)
    stack.callback(publisher.close)
    trainer.add_callback(
        RunCallback(
            trainer,
            config,
            publisher=publisher,
            consumed=rollouts.consumed,
            report=report,
            cursor=cursor,
            interrupts=interrupts,
            transcripts=transcripts,
        )
    )
    try:
        if start and config.engines.used_stale:
            publisher.restore_stale(start, rollouts.publish)
        trainer.fit(start)
    except (Interrupted, AgentBenchError) as error:
        # between two steps, or before the optimizer's: weights, step and cursor agree
        closing = threading.Thread(target=rollouts.close, name="closing")  # both ends take their seconds
        closing.start()
        step = trainer.state.global_step
        folder = output / f"{checkpoint.PREFIX}{step}"
        try:
            trainer.log_last_step()
            # before the first step of this process its parts may not all be loaded
            if step > (resumed_at or 0) and checkpoint.damage(folder) and trainer.sound:
                keep = config.checkpoints.keep
                seal_checkpoint(trainer.save_checkpoint(), cursor, step=step, keep=keep, publisher=publisher)
            report.finish()
        except InfrastructureError as failure:  # a full disk; what ended the run is what matters
            display.note(f"warning: {failure}")
        going_on = f"; go on with output={output} resume=auto" if checkpoint.checkpoints(output) else ""
        display.note(f"stopped after step {step}{going_on}")
        trainer.ranks.dismiss(error)
        raise
    with writing("the model", output):
        trainer.save_model(str(output / FINAL))
    text = report.finish()
    return f"\n{text}\n\nmodel: {output / FINAL}\ncurve: {output / 'curve.png'}"


def _size(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
