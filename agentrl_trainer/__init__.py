"""A thin trainer for multi-turn function-call agents: TRL's GRPO, asynchronous, across policies and tasks.

    from agentrl_trainer import AgentGRPOTrainer, RunConfig

    AgentGRPOTrainer("my-model", RunConfig(steps=100), tasks=["db", "kg"]).train()

Importing it costs nothing; torch and TRL are imported with the trainer.
"""

from typing import TYPE_CHECKING, Any

from agentrl_trainer.config import RunConfig, TaskMix

if TYPE_CHECKING:
    from agentrl_trainer.trainer import AgentGRPOTrainer

__all__ = ["AgentGRPOTrainer", "RunConfig", "TaskMix"]


def __getattr__(name: str) -> Any:
    if name == "AgentGRPOTrainer":
        from agentrl_trainer.trainer import AgentGRPOTrainer

        return AgentGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
