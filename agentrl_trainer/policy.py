"""Where the policy's files are, whether they fit the tasks, on which device it runs; and loading it for the trainer.

Not here: loading it for sampling (engines/).
"""

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.registry import load_task
from agentrl_trainer.config import AUTO, TINY, Model, RunConfig, TaskMix
from agentrl_trainer.configfile import from_dict, to_dict
from agentrl_trainer.tiny_asset import FOLDER, check_asset

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

START = "start"
"""Where in the run's folder a policy that came as an object is written, for the engines to read."""


def policy_path(model: Model) -> str:
    """What Hugging Face's `from_pretrained` takes: a folder, or the name of a model in its cache or on its hub.

    Raises:
        CallerError: neither; the message says what a policy folder must hold.
    """
    if model.path == TINY:
        if not (FOLDER / "config.json").exists():
            raise CallerError(
                f"{TINY} is not installed [{FOLDER}]. Build it with `python -m agentrl_trainer.make_tiny`, "
                "or give model=FOLDER."
            )
        return str(FOLDER)
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise CallerError(
                f"no config.json in the folder [{folder}]. A policy folder holds what save_pretrained writes: "
                "config.json, model.safetensors and the tokenizer."
            )
        return str(folder)
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") > 1
    if looks_local or "/" not in model.path:
        raise CallerError(
            f"no such folder [model={model.path}]. Give a model folder, a hub name owner/name, or {TINY}."
        )
    return model.path


def policy_warnings(config: RunConfig) -> list[str]:
    """What speaks against the policy for these tasks; only the tiny policy knows what it was made for.

    Raises:
        CallerError: a task or option is unknown, or files of the tiny policy do not belong together.
    """
    specs = {}
    for task in config.tasks:
        loaded = load_task(task.name, profile=task.profile, prompt=task.prompt, **task.options)
        specs[task.name] = loaded.spec
        loaded.close()
        wanted = [task.split] * (task.weight > 0) + [task.eval_split] * (config.evaluation.n > 0)
        for split in wanted:
            if loaded.spec.splits and split not in loaded.spec.splits:
                raise CallerError(
                    f"no split {split!r} [task {task.name}]. {did_you_mean(split, loaded.spec.splits)} "
                    "Set split and eval_split of the task."
                )
    return check_asset(FOLDER, specs) if config.model.path == TINY else []


def device_of(model: Model) -> str:
    """The torch device that the policy is trained on.

    Raises:
        CallerError: CUDA is asked for and absent.
    """
    import torch

    if model.device == AUTO:
        return "cuda" if torch.cuda.is_available() else "cpu"
    number = int(model.device.partition(":")[2] or 0)
    if model.device.startswith("cuda") and not (torch.cuda.is_available() and number < torch.cuda.device_count()):
        found = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise CallerError(f"{found} here [model.device={model.device}]. Use model.device=cpu, or auto.")
    return model.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy as the trainer takes it, and the run around it."""

    model: Any
    tokenizer: Any
    config: RunConfig
    output: Path


def open_policy(
    model: "str | Path | PreTrainedModel | None",
    args: RunConfig | None,
    *,
    tasks: Sequence[str | TaskMix] | None = None,
    output: Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    plays: bool = True,
) -> Policy:
    """Loads the policy of a run, or takes the one that is there, and settles the configuration.

    Args:
        model: A folder, a hub name, a loaded model; None: that of `args`.
        args: The run; None: the defaults.
        tasks: In the place of those of `args`; names may be one text, divided by commas.
        output: In the place of that of `args`; without either, a new folder below `runs`.
        tokenizer: The policy's; None: the one beside the model.
        plays: False: the caller plays the tasks, whatever `args` says of them.

    Raises:
        CallerError: they do not fit each other.
    """
    import torch

    if not (args is None or isinstance(args, RunConfig)):
        raise CallerError(
            f"args is a {type(args).__name__} [args]. Give a RunConfig: its sections hold what TRL's GRPOConfig calls "
            "learning_rate, num_generations …, and `trl={…}` takes further fields of GRPOConfig."
        )
    given = from_dict(to_dict(args)) if args else RunConfig()  # checks the types of what was made in Python
    if isinstance(tasks, str):
        tasks = [name.strip() for name in tasks.split(",") if name.strip()]
    output = output or given.output or new_folder()
    changes: dict[str, Any] = {"output": output}
    loaded = None if model is None or isinstance(model, (str, Path)) else model
    path = given.model.path if model is None else str(output / START) if loaded is not None else str(model)
    if tasks is not None:
        if wrong := [task for task in tasks if not isinstance(task, (str, TaskMix))]:
            raise CallerError(f"{wrong[0]!r} is no task [tasks]. Give names, or TaskMix(name=…) objects.")
        changes["tasks"] = tuple(task if isinstance(task, TaskMix) else TaskMix(name=task) for task in tasks)
    elif plays and args is not None and path != given.model.path and given.model.path == TINY:
        raise CallerError(
            f"the tasks of args have the prompts and levels of {TINY} [tasks]. Give tasks= too, or name the model in "
            "args: RunConfig(model=Model(path=…), …)."
        )
    elif args is None:
        changes["tasks"] = tuple(TaskMix(name=task.name) for task in given.tasks)
    config = replace(given, model=replace(given.model, path=path), **changes)
    torch.set_num_threads(config.model.threads)
    if loaded is None:
        loaded, tokenizer = load_policy(policy_path(config.model), config.model.dtype, tokenizer)
    elif tokenizer is None:
        raise CallerError("a loaded model without its tokenizer [processing_class]. Give both, or the model's folder.")
    return Policy(model=loaded, tokenizer=tokenizer, config=config, output=output)


def load_policy(
    path: str, dtype: str = "float32", tokenizer: "PreTrainedTokenizerBase | None" = None
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model of a folder, and its tokenizer unless there is one already.

    Raises:
        CallerError: there is none, or its files are damaged.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        return model, tokenizer or AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise CallerError(
            f"the policy cannot be loaded: {error} [{path}]. Give a folder that holds what save_pretrained writes: "
            "config.json, model.safetensors and the tokenizer."
        ) from error


def check_same_model(model: "PreTrainedModel", checkpoint: Path) -> None:
    """Refuses to go on from the weights of another model.

    Raises:
        CallerError: a tensor of the checkpoint has another name or shape.
    """
    from safetensors import safe_open

    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # no mapping
                if own.get(name) != (shape := held.get_slice(name).get_shape()):
                    # Hugging Face's trainer loads a checkpoint by the names of its file, and leaves out unknown ones
                    renamed = " A mixture of experts is saved under other names: it cannot go on from a checkpoint yet."
                    raise CallerError(
                        f"the checkpoint is of another model: {name} is {shape} there, {own.get(name)} here "
                        f"[{checkpoint}, model={model.config._name_or_path}]. Give the model that the run began with, "
                        f"or another output=.{renamed if '.experts.' in name and name not in own else ''}"
                    )


def new_folder() -> Path:
    """A folder for a run that has none, named by the time."""
    name = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folders = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())
