"""AgentBench's function-call tasks behind one interface: Gymnasium envs, sessions, evaluation.

>>> import gymnasium as gym, agentbench_fc
>>> env = gym.make("agentbench-fc/KG-v0")  # doctest: +SKIP

Importing the package registers the Gymnasium ids. The public names below are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from agentbench_fc.envs.registration import register_all as _register_all

if TYPE_CHECKING:
    from agentbench_fc.client import LocalClient as LocalClient
    from agentbench_fc.client import SyncClient as SyncClient
    from agentbench_fc.episode import Episode as Episode
    from agentbench_fc.episode import Reply as Reply
    from agentbench_fc.episode import Sample as Sample
    from agentbench_fc.episode import Task as Task
    from agentbench_fc.episode import ToolEpisode as ToolEpisode
    from agentbench_fc.episode import Turn as Turn
    from agentbench_fc.episode import make_task as make_task
    from agentbench_fc.episode import tool as tool
    from agentbench_fc.errors import AgentBenchError as AgentBenchError
    from agentbench_fc.errors import CallerError as CallerError
    from agentbench_fc.errors import InfrastructureError as InfrastructureError
    from agentbench_fc.errors import TaskError as TaskError
    from agentbench_fc.messages import ToolCall as ToolCall
    from agentbench_fc.parsers import get_parser as get_parser
    from agentbench_fc.registry import known_tasks as known_tasks
    from agentbench_fc.registry import load_task as load_task
    from agentbench_fc.rewards import Status as Status
    from agentbench_fc.session import Session as Session

__version__ = "0.1.0"

_HOMES = {
    "client": ("LocalClient", "SyncClient"),
    "episode": ("Episode", "Reply", "Sample", "Task", "ToolEpisode", "Turn", "make_task", "tool"),
    "errors": ("AgentBenchError", "CallerError", "InfrastructureError", "TaskError"),
    "messages": ("ToolCall",),
    "parsers": ("get_parser",),
    "registry": ("known_tasks", "load_task"),
    "rewards": ("Status",),
    "session": ("Session",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})


def _other_tasks() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({point.name for point in entry_points(group="agentbench_fc.tasks")})


_register_all(_other_tasks())
