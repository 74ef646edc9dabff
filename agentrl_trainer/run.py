"""`python -m agentrl_trainer.run [--config FILE] [key=value …] [--dry-run]`: one training run, start to end.

Exit codes say who acts next: 0 done; 2 configuration or model; 3 a task; 4 machines (engines, workers, disk); 130 and
143 interrupted, with a checkpoint; 1 a bug, with its traceback.

Not here: what the configuration means (config.py); the run itself (launch.py).
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentbench_fc.errors import AgentBenchError
from agentrl_trainer.configfile import load_config, to_yaml
from agentrl_trainer.interrupts import Interrupted, Interrupts
from agentrl_trainer.launch import Rollouts as Rollouts
from agentrl_trainer.launch import train as train


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
            if text := train(config, interrupts=interrupts):  # one process of several has nothing to say
                print(text)
        except AgentBenchError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return error.exit_code
        except Interrupted as interruption:
            print(str(interruption), file=sys.stderr)
            return interruption.exit_code
    return 0


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
