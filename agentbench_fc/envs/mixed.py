"""MixedVectorEnv: several tasks in one vector env, `agentbench-fc/Mixed-v0`.

>>> import gymnasium as gym
>>> envs = gym.make_vec("agentbench-fc/Mixed-v0", num_envs=8, tasks={"db": 3, "kg": 1})  # doctest: +SKIP

Not here: everything else about it (vector.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_fc.envs.parts import shares
from agentbench_fc.envs.vector import AgentVectorEnv
from agentbench_fc.errors import CallerError


class MixedVectorEnv(AgentVectorEnv):
    """A vector env whose envs play different tasks; each env keeps its task.

    Args:
        tasks: Task ids, or ids with weights: how many of the envs play each, at least one. In `action_space` each env
            has the space of its own task; `single_action_space` has the tools of all.
        num_envs: How many.
        options: As for `AgentVectorEnv`, `url=` included; task options go to every task.

    Raises:
        CallerError: fewer envs than tasks, a weight that is not > 0, or as `AgentVectorEnv`.
        NotFound: no such task or split.
    """

    def __init__(
        self, tasks: Mapping[str, float] | Sequence[str] | None = None, num_envs: int = 1, **options: Any
    ) -> None:
        if not tasks or isinstance(tasks, str):
            raise CallerError(f"tasks is {tasks!r} [mixed env]. Give several, e.g. tasks={{'db': 3, 'kg': 1}}.")
        weights = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks, 1.0)
        self._names = list(weights)
        self._dealt = shares(weights, num_envs)
        super().__init__(self._names, num_envs, **options)

    def _places(self, parts: int) -> list[int]:
        return [self._names.index(name) for name in self._dealt]
