"""ALFWorld: do a household chore in a text game, by naming one action at a time.

Not here: prompts, the tool and limits (tasks/alfworld/task.yaml); the turn loop (session.py).
Source: AgentBench's `alfworld` task on ALFWorld's games; tasks/alfworld/README.md lists what differs.
"""

from math import inf
from pathlib import Path
from typing import cast

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.alfworld.task import AlfworldTask

WIRE_OPTIONS = ("actions", "level", "subgoal_reward", "task_type")
"""What clients may set over HTTP: nothing that names a file, lets code in, or decides how much is built."""
EXPERTS = ("walkthrough", "explorer")
CALL_SHARE = 0.9
"""A process answers within this share of a call's deadline, so that its own message is the one that is seen."""


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    data: str | Path | None = None,
    index: str | Path | None = None,
    level: str | None = None,
    task_type: str | None = None,
    seed: int | None = None,
    train_games: int | None = None,
    allow_missing: bool = False,
    actions: str = "full",
    expert: str = "walkthrough",
    subgoal_reward: float = 0.0,
    trust_games: bool = False,
    processes: int | None = None,
    sessions_per_process: int | None = None,
    max_rss_mb: float | None = None,
) -> AlfworldTask:
    """Makes the task.

    Args:
        spec: The tool, limits and texts, resolved.
        folder: The task's data folder.
        data: A folder with ALFWorld's games (`json_2.1.1/<split>/…`); `official` means `$ALFWORLD_DATA`. None:
            generated games.
        index: AgentBench's lists of games; `agentbench` means `$AGENTBENCH_DATA/alfworld`.
        level: Only generated games of this level: `easy`, `normal` or `hard`.
        task_type: Only games of this kind.
        seed: Another set of generated rooms and games.
        train_games: How many generated games `train` has.
        allow_missing: Leave out games that an index lists and the folder lacks.
        actions: How possible actions are listed: `full`, one per line, or `grouped`, which is shorter.
        expert: Who demonstrates: `walkthrough` knows where everything is, `explorer` looks for it as a model must.
        subgoal_reward: How much of the reward the steps towards the goal are worth together, below 1; 0: only
            the goal counts.
        trust_games: Play games whose grammar is not of a known release.
        processes: Processes to play in, shared by tasks with equal settings; None: one per core.
        sessions_per_process: A process is replaced after so many sessions.
        max_rss_mb: And when it takes more memory.

    Raises:
        CallerError: an option that does not exist or does not fit, or the engine is not installed.
    """
    from agentbench_fc.tasks.alfworld.episode import Rules
    from agentbench_fc.tasks.alfworld.games import open_games
    from agentbench_fc.tasks.alfworld.native import check_installed
    from agentbench_fc.tasks.alfworld.rules import LIST_MODES, ListMode
    from agentbench_fc.tasks.alfworld.workers import MAX_RSS_BYTES, SESSIONS, shared_workers

    if actions not in LIST_MODES:
        raise CallerError(f"no list of actions {actions!r:.80} [task alfworld]. {did_you_mean(actions, LIST_MODES)}")
    if expert not in EXPERTS:
        raise CallerError(f"no expert {expert!r:.80} [task alfworld]. {did_you_mean(expert, EXPERTS)}")
    if isinstance(subgoal_reward, bool) or not isinstance(subgoal_reward, int | float) or not 0 <= subgoal_reward < 1:
        raise CallerError(f"subgoal_reward is {subgoal_reward!r:.80} [task alfworld]. Use a number from 0 to below 1.")
    if not isinstance(trust_games, bool):
        raise CallerError(f"trust_games is {trust_games!r:.80} [task alfworld]. Use True or False.")
    for name, number, kinds in (
        ("processes", processes, int),
        ("sessions_per_process", sessions_per_process, int),
        ("max_rss_mb", max_rss_mb, int | float),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, kinds) or not 1 <= number < inf):
            raise CallerError(f"{name} is {number!r:.80} [task alfworld]. Use a number >= 1, or leave it out.")
    parity = spec.profile == "agentbench"
    if parity and (actions, subgoal_reward) != ("full", 0):
        raise CallerError(
            "AgentBench lists all actions and rewards only the goal [task alfworld]. Use profile default."
        )
    check_installed()
    games = open_games(
        folder,
        data=data,
        index=index,
        level=level,
        task_type=task_type,
        seed=seed,
        train_games=train_games,
        allow_missing=allow_missing,
    )
    rules = Rules(
        games=games,
        workers=shared_workers.take(
            processes,
            sessions_per_process or SESSIONS,
            MAX_RSS_BYTES if max_rss_mb is None else int(max_rss_mb * 2**20),
        ),
        prompts=spec.prompts,
        max_turns=spec.max_turns,
        start_timeout_s=spec.start_timeout_s * CALL_SHARE,
        call_timeout_s=(spec.call_timeout_s or spec.start_timeout_s) * CALL_SHARE,
        repair=parity,
        actions=cast(ListMode, actions),
        subgoal_reward=float(subgoal_reward),
        trust=trust_games,
    )
    return AlfworldTask(spec, rules, explores=expert == "explorer")
