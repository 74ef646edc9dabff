"""KG: answer a question by walking a knowledge graph with seven tools.

Not here: prompts, tools and limits (tasks/kg/task.yaml); the turn loop (session.py).
Source: AgentBench's `kg` task, rebuilt from its documented behaviour; tasks/kg/README.md lists what differs.
"""

from functools import partial
from pathlib import Path
from typing import cast

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.kg.task import KGTask


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    backend: str = "oxigraph",
    data: str | Path | None = None,
    graph: str | Path | None = None,
    type_check: str | None = None,
    one_shot: bool = False,
    level: str | None = None,
    size: int | None = None,
    world_seed: int | None = None,
) -> KGTask:
    """Makes the task.

    Args:
        spec: Tools, limits and texts, resolved.
        folder: The task's data folder.
        backend: Where the graph is asked; `oxigraph` is embedded.
        data: AgentBench's knowledgegraph folder or one of its JSON files; `agentbench` means
            `$AGENTBENCH_DATA/knowledgegraph`. None: generated questions.
        graph: N-Triples (`.nt`, `.nt.gz`) or a table of subject, relation, object (`.tsv`). None: the generated world.
        type_check: Which intersections are allowed: `subclass`, `strict` or `off`. None: `strict` in the profile
            `agentbench`, else `subclass`.
        one_shot: Show a worked example before the question.
        level: Only samples of this level: `easy`, `medium` or `hard`.
        size: Entities of the generated world.
        world_seed: Another world of the same kind.

    Raises:
        CallerError: an option that does not exist or does not fit.
    """
    from agentbench_fc.tasks.kg.backend import OxigraphBackend, check_backend
    from agentbench_fc.tasks.kg.episode import MAX_LISTED, Rules
    from agentbench_fc.tasks.kg.generate import SEED, SIZE, DataSet
    from agentbench_fc.tasks.kg.questions import LEVELS
    from agentbench_fc.tasks.kg.schema import TYPE_CHECKS, TypeCheck

    check_backend(backend)
    parity = spec.profile == "agentbench"
    check = type_check or ("strict" if parity else "subclass")
    if check not in TYPE_CHECKS:
        raise CallerError(f"no type check {check!r} [task kg]. {did_you_mean(check, TYPE_CHECKS)}")
    if level is not None and level not in LEVELS:
        raise CallerError(f"no level {level!r} [task kg]. {did_you_mean(level, LEVELS)}")
    world = DataSet(folder, size=size or SIZE, seed=SEED if world_seed is None else world_seed)
    splits = {split: partial(world.rows, split) for split in ("train", "dev", "test")}
    store = OxigraphBackend()
    store.load(world.graph())
    rules = Rules(
        backend=store,
        schema=world.recipe.schema,
        prompts=spec.prompts,
        max_turns=spec.max_turns,
        type_check=cast(TypeCheck, check),
        exact_names=parity,
        max_listed=None if parity else MAX_LISTED,
    )
    return KGTask(spec, rules, splits, level=level)
