"""`python -m agentrl_trainer.run [--config FILE] [key=value …] [--dry-run]`: one training run, start to end.

Exit codes say who acts next: 0 done; 2 configuration or model; 3 a task; 4 machines (engines, workers, disk); 130 and
143 interrupted, with a checkpoint; 1 a bug, with its traceback.

Not here: what the configuration means (config.py); the parts that this ties together.
"""

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import itertools
import logging
import os
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentbench_fc.connecting import reach
from agentbench_fc.errors import AgentBenchError, CallerError
from agentrl_trainer import checkpoint
from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import load_config, to_yaml
from agentrl_trainer.interrupts import Interrupted, Interrupts
from agentrl_trainer.queue import GroupSource

if TYPE_CHECKING:
    from agentrl_trainer.display import Display

logger = logging.getLogger(__name__)
FINAL = "model"


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    _prepare_process(verbose=options.verbose)
    with Interrupts() as interrupts:
        try:
            config = load_config(options.config, options.settings)
            if options.dry_run:
                print(to_yaml(config), end="")
                return 0
            print(train(config, interrupts=interrupts))
        except AgentBenchError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return error.exit_code
        except Interrupted as interruption:
            print(str(interruption), file=sys.stderr)
            return interruption.exit_code
    return 0


def train(config: RunConfig, *, rollouts: Rollouts | None = None, interrupts: Interrupts | None = None) -> str:
    """One run from its configuration to its summary.

    Args:
        config: The run.
        rollouts: A rollout side that is started already; None: a rollout process of our own.
        interrupts: Signals, where the caller handles them.

    Returns:
        The summary as text; the run's folder holds it too.

    Raises:
        Interrupted: a signal came; the last completed step is in a checkpoint.
    """
    from agentrl_trainer.display import make_display
    from agentrl_trainer.policy import policy_path, policy_warnings

    _check_installed()  # all of this before anything is made or started
    policy_path(config.model)
    if config.rollout.url:
        reach(config.rollout.url)
    warnings = policy_warnings(config)
    interrupts = interrupts or Interrupts()
    output = config.output or Path("runs") / datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    start = checkpoint.resume_from(config.resume, output)
    output.mkdir(parents=True, exist_ok=True)
    (output / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        display = make_display(config.progress, config.steps)
        stack.callback(display.close)
        display.note(f"run folder: {output}" + (f", resumed from {start.name}" if start else ""))
        for warning in warnings:
            display.note(f"warning: {warning}")
        cursor = checkpoint.Cursor.load(start) if start else checkpoint.Cursor()
        if rollouts is None:
            rollouts = _start_rollouts(config, cursor, output)
        stack.callback(rollouts.close)
        return _train(config, output, start, cursor, rollouts, display, interrupts, stack)


def _check_installed() -> None:
    for name in ("torch", "transformers", "trl", "accelerate", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise CallerError(f"{name} is not installed [trainer]. pip install 'agentbench-fc[train]', torch first.")


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
    )
    importing.join()
    return rollouts


def _train(
    config: RunConfig,
    output: Path,
    start: Path | None,
    cursor: checkpoint.Cursor,
    rollouts: Rollouts,
    display: "Display",
    interrupts: Interrupts,
    stack: contextlib.ExitStack,
) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

    from agentrl_trainer.callbacks import RunCallback, seal_checkpoint
    from agentrl_trainer.canary import Canary, canary_ids, canary_tolerance
    from agentrl_trainer.normalization import TaskNormalizer
    from agentrl_trainer.policy import device_of, policy_path
    from agentrl_trainer.queue import TrajectoryQueue
    from agentrl_trainer.report import RunReport
    from agentrl_trainer.trainer import AgentGRPOTrainer
    from agentrl_trainer.weights import Publish, WeightPublisher, snapshot_folder

    torch.set_num_threads(config.model.threads)
    path = policy_path(config.model)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, config.model.dtype))
    tokenizer = AutoTokenizer.from_pretrained(path)
    queue = TrajectoryQueue(
        rollouts, capacity=config.rollout.queue_groups, stall_report_s=config.batch.stall_report_s
    ).start()
    stack.callback(queue.close)
    folder = snapshot_folder(config.engines.weights_dir, output, _size(model))
    report = RunReport(output, display, resumed_at=checkpoint.step_of(start) if start else None)
    trainer = AgentGRPOTrainer(
        model, config, queue, play=rollouts.evaluate, processing_class=tokenizer, output=output,
        device=device_of(config.model),
    )  # fmt: skip
    if start:
        trainer.normalizer = TaskNormalizer.load(config.normalization, start)
    trainer.remove_callback(PrinterCallback)
    publish: Publish = rollouts.publish
    probe = getattr(rollouts, "probe", None)  # a script has no engines
    if config.engines.canary != "off" and probe is not None:
        canary = Canary(
            rollouts.publish,
            probe,
            trainer.token_logprobs,
            canary_ids(tokenizer.encode, model.config.get_text_config().vocab_size),
            temperature=config.sampling.temperature,
            tolerance=canary_tolerance(config),
            note=trainer.note,
            on_difference=config.engines.canary,
        )
        trainer.add_callback(canary)
        publish = canary.publish
    publisher = WeightPublisher(publish, stale_sync_steps=config.engines.stale_sync_steps, folder=folder)
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
        )
    )
    try:
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    except (Interrupted, AgentBenchError):
        # between two steps, or before the optimizer's: weights, step and cursor agree
        closing = threading.Thread(target=rollouts.close, name="closing")  # both ends take their seconds
        closing.start()
        trainer.log_last_step()
        step = trainer.state.global_step
        folder = output / f"{checkpoint.PREFIX}{step}"
        if step and checkpoint.damage(folder):
            seal_checkpoint(trainer.save_checkpoint(), cursor, step=step, keep=config.checkpoints.keep)
        report.finish()
        display.note(f"stopped after step {step}" + (f"; go on with output={output} resume=auto" if step else ""))
        raise
    trainer.save_model(str(output / FINAL))
    text = report.finish()
    return f"\n{text}\n\nmodel: {output / FINAL}\ncurve: {output / 'curve.png'}"


def _size(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _prepare_process(*, verbose: bool) -> None:
    """Environment and logging of a run's main process, before the heavy imports read them."""
    for name, value in (
        ("OMP_NUM_THREADS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("TRANSFORMERS_VERBOSITY", "error"),
    ):
        os.environ.setdefault(name, value)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentrl_trainer.run",
        description="Trains a policy on multi-turn function-call tasks. No arguments: the tiny policy on db and kg.",
        epilog="Every field of the configuration is a setting: --dry-run prints them all with their values.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; settings override it")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--verbose", action="store_true", help="log what happens inside")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="e.g. steps=3 tasks=kg model=./my-model")
    return parser


def _exit(code: int) -> None:
    """Ends the process; after a signal at once, since taking torch apart can cost more than the caller waits."""
    if code <= 128:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all children are closed and all files written


if __name__ == "__main__":
    _exit(main())
