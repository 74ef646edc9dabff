"""Gymnasium ids of all tasks: the built-in ones, those of other packages, and `agentbench-fc/Task-v0` for any.

Metadata alone gives the names of other packages' tasks; neither they nor the envs are imported before `gym.make`.

Not here: what an id of a task means (registry.py).
"""

import logging
import re
from collections.abc import Iterable

import gymnasium as gym

NAMESPACE = "agentbench-fc"
ENV = "agentbench_fc.envs.env:AgentEnv"
VECTOR_ENV = "agentbench_fc.envs.vector:AgentVectorEnv"
BUILT_IN = {"os": "OS", "db": "DB", "kg": "KG", "alfworld": "ALFWorld", "webshop": "WebShop"}
"""Task id -> its name in Gymnasium. A task that is not in this version yet says so when it is made."""
GENERIC = "Task"
MIXED, MIXED_ENV = "Mixed", "agentbench_fc.envs.mixed:MixedVectorEnv"
"""Several tasks; only as a vector env."""

logger = logging.getLogger(__name__)


def register_all(others: Iterable[str]) -> None:
    """Registers the built-in tasks, the generic id and the tasks named `others`; what is registered stays as it is.

    No `max_episode_steps`: a task ends itself.
    """
    _register(GENERIC, {})
    _register(MIXED, {}, env=None, vector_env=MIXED_ENV)
    for task, name in BUILT_IN.items():
        _register(name, {"task": task})
    taken = {GENERIC.lower(), MIXED.lower(), *BUILT_IN}
    for task in others:
        if task.lower() in taken:
            logger.warning("another package's task %r has a built-in name and gets no Gymnasium id", task)
        elif not re.fullmatch(r"[\w:.-]+", task):
            logger.warning("another package's task %r is no possible Gymnasium id; use Task-v0 with task=", task)
        else:
            _register(task, {"task": task})


def _register(name: str, kwargs: dict[str, str], env: str | None = ENV, vector_env: str = VECTOR_ENV) -> None:
    env_id = f"{NAMESPACE}/{name}-v0"
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=env, vector_entry_point=vector_env, kwargs=kwargs)
