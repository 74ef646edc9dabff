"""The engines of a run, started or found as its configuration says, and whether they fit the policy.

Not here: what an engine does (transformers.py, sglang.py); the pool (pool.py).
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Protocol

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import RunConfig
from agentrl_trainer.engines.base import EngineRole, InferenceEngine
from agentrl_trainer.engines.process import ProcessEngine
from agentrl_trainer.engines.sglang import SGLangEngine
from agentrl_trainer.policy import device_of


class ServedEngine(InferenceEngine, Protocol):
    """An engine that says what it can take."""

    vocabulary: int
    """Number of ids that its model knows."""
    context: int
    """Most tokens of prompt and output together; 0: it does not say."""


async def start_engines(path: str, config: RunConfig, logs: Path, into: list[ServedEngine]) -> None:
    """Starts or finds all engines side by side: the fresh ones first, then the stale ones.

    Args:
        path: Of the policy.
        config: The run's.
        logs: Folder of the logs of our own processes.
        into: Takes each engine as soon as it is there, so that the caller can close them; in order at the end.

    Raises:
        CallerError: the model cannot be served, or a server serves another.
        InfrastructureError: an engine ended, or was not ready within `rollout.start_timeout_s`.
    """
    found: dict[int, ServedEngine] = {}

    async def start(number: int) -> None:
        role: EngineRole = "fresh" if number < config.engines.fresh else "stale"
        name = f"engine-{number}-{role}"
        if config.engines.kind == "sglang":
            engine: ServedEngine = await _find(number, path, config, name, role)
        else:
            engine = await _start(number, path, config, name, role, logs / f"{name}.log")
        into.append(engine)
        found[number] = engine

    async with asyncio.TaskGroup() as tasks:
        for number in range(config.engines.fresh + config.engines.used_stale):
            tasks.create_task(start(number))
    into[:] = [found[number] for number in sorted(found)]


def check_fit(engine: ServedEngine, vocabulary: int, config: RunConfig) -> None:
    """Refuses an engine whose model does not fit the tokenizer or the lengths of the run.

    Args:
        engine: One of the pool.
        vocabulary: Ids of the tokenizer.
        config: The run's.

    Raises:
        CallerError: it does not fit.
    """
    if vocabulary > engine.vocabulary:
        raise CallerError(
            f"the tokenizer has {vocabulary} ids, the model {engine.vocabulary} [model.path]. "
            "They do not belong together: give a folder with the tokenizer that the model was trained with."
        )
    if engine.context and engine.context < config.sampling.max_context:
        raise CallerError(
            f"max_context is {config.sampling.max_context}, the model holds {engine.context} tokens "
            f"[sampling.max_context, {engine.name}]. Use {engine.context} or less."
        )


async def _start(number: int, path: str, config: RunConfig, name: str, role: EngineRole, log: Path) -> ProcessEngine:
    return await ProcessEngine.start(
        Path(path),
        log=log,
        name=name,
        role=role,
        threads=config.model.threads,
        timeout_s=config.rollout.start_timeout_s,
        max_context=config.sampling.max_context,
        max_batch=config.engines.max_batch,
        batch_wait_s=config.engines.batch_wait_ms / 1000,
        device=await asyncio.to_thread(device_of, config.model),
        dtype=config.model.dtype,
        seed=config.seed * 1000 + number,
    )


async def _find(number: int, path: str, config: RunConfig, name: str, role: EngineRole) -> SGLangEngine:
    options = config.engines
    key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    if options.api_key_env and not key:
        raise CallerError(f"{options.api_key_env} is not set [engines.api_key_env]. Export the servers' key in it.")
    architecture, vocabulary = await asyncio.to_thread(_model_facts, path)
    return await SGLangEngine.connect(
        (*options.fresh_urls, *options.stale_urls)[number],
        name=name,
        role=role,
        key=key,
        architecture=architecture,
        vocabulary=vocabulary,
        timeout_s=config.rollout.start_timeout_s,
    )


def _model_facts(path: str) -> tuple[str, int]:
    """Architecture and number of ids of the policy."""
    if Path(path).is_dir():
        file = Path(path) / "config.json"
    else:
        from huggingface_hub import hf_hub_download  # not transformers: another thread may be importing it

        file = Path(hf_hub_download(path, "config.json"))
    config = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0
    return str((config.get("architectures") or [""])[0]), int(vocabulary)
