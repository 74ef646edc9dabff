"""Where the policy's files are, whether they fit the tasks, and on which device it runs.

Not here: loading it (run.py for the trainer, engines/ for the engines).
"""

from pathlib import Path

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.registry import load_task
from agentrl_trainer.config import AUTO, TINY, Model, RunConfig
from agentrl_trainer.tiny_asset import FOLDER, check_asset


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
    if model.device.startswith("cuda") and not torch.cuda.is_available():
        raise CallerError(f"no CUDA device here [model.device={model.device}]. Use model.device=cpu, or auto.")
    return model.device
