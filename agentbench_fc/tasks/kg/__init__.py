"""KG: answer a question by walking a knowledge graph with seven tools.

Not here: prompts, tools and limits (tasks/kg/task.yaml); the turn loop (session.py).
Source: AgentBench's `kg` task, rebuilt from its documented behaviour; tasks/kg/README.md lists what differs.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.kg.task import KGTask, Reader

WIRE_OPTIONS = ("exclude_suspect", "level", "one_shot", "type_check")
"""What clients may set over HTTP: nothing that names a file or a server, or decides how much is built."""


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    backend: str = "oxigraph",
    endpoint: str | None = None,
    endpoint_graph: str | None = None,
    on_disk: bool | None = None,
    query_timeout_s: float | None = None,
    data: str | Path | None = None,
    graph: str | Path | None = None,
    type_check: str | None = None,
    one_shot: bool = False,
    level: str | None = None,
    size: int | None = None,
    world_seed: int | None = None,
    exclude_suspect: bool = False,
) -> KGTask:
    """Makes the task.

    Args:
        spec: Tools, limits and texts, resolved.
        folder: The task's data folder.
        backend: Where the graph is asked: `oxigraph` is embedded, `endpoint` is a SPARQL 1.1 server.
        endpoint: The server's address, for `endpoint`.
        endpoint_graph: IRI of the named graph there; None: its default graph.
        on_disk: Keep the embedded graph in the cache folder instead of memory; None: from 100 MB on.
        query_timeout_s: A query has so long; None: 20 s.
        data: AgentBench's knowledgegraph folder or one of its JSON files; `agentbench` means
            `$AGENTBENCH_DATA/knowledgegraph`. None: generated questions.
        graph: N-Triples (`.nt`, `.nt.gz`) or a table of subject, relation, object (`.tsv`). None: the generated world.
            A table without `data` gets generated questions too. An endpoint has its graph already.
        type_check: Which intersections are allowed: `subclass`, `strict` or `off`. None: `strict` in the profile
            `agentbench`, else `subclass`.
        one_shot: Show a worked example before the question.
        level: Only generated samples of this level: `easy`, `medium` or `hard`.
        size: Entities of the generated world.
        world_seed: Another world of the same kind.
        exclude_suspect: Leave out AgentBench's samples whose gold plan is known to be faulty.

    Raises:
        CallerError: an option that does not exist or does not fit.
    """
    from agentbench_fc.tasks.kg.backend import QUERY_TIMEOUT_S, Backend, check_backend
    from agentbench_fc.tasks.kg.episode import MAX_LISTED, Rules
    from agentbench_fc.tasks.kg.example import worked_example
    from agentbench_fc.tasks.kg.generate import SEED, SIZE, generated_world, graph_questions
    from agentbench_fc.tasks.kg.questions import LEVELS
    from agentbench_fc.tasks.kg.readers import (
        agentbench_splits,
        find_data,
        find_ontology,
        open_graph,
        read_faults,
        read_ontology,
        read_reverses,
    )
    from agentbench_fc.tasks.kg.schema import TYPE_CHECKS, TypeCheck
    from agentbench_fc.tasks.splits import check_level

    check_backend(backend)
    parity = spec.profile == "agentbench"
    check = type_check or ("strict" if parity else "subclass")
    if check not in TYPE_CHECKS:
        raise CallerError(f"no type check {check!r} [task kg]. {did_you_mean(check, TYPE_CHECKS)}")
    check_level("kg", level, LEVELS, generated_data=data is None)
    if (data, graph) != (None, None) and (size, world_seed) != (None, None):
        raise CallerError("size and world_seed are for the generated world [task kg]. Leave out data and graph.")
    timeout_s = QUERY_TIMEOUT_S if query_timeout_s is None else query_timeout_s
    if not 0 < timeout_s < (spec.call_timeout_s or float("inf")):
        limit = f"{spec.call_timeout_s:g}" if spec.call_timeout_s else "no"
        raise CallerError(
            f"query_timeout_s is {timeout_s} [task kg]. A call has {limit} s; a query needs less, above 0."
        )
    remote = backend == "endpoint"
    if remote != (endpoint is not None) or (endpoint_graph is not None and not remote):
        raise CallerError("backend 'endpoint' and the option endpoint go together [task kg]. Give both, or neither.")
    if remote and (on_disk is not None or (graph is not None and data is not None)):
        raise CallerError("an endpoint has its own graph [task kg]. Leave out graph and on_disk.")

    def ask_of(path: Path, reverses: Mapping[str, str] | None = None) -> Backend:
        if endpoint is None:
            return open_graph(path, reverses, on_disk=on_disk, timeout_s=timeout_s)
        from agentbench_fc.tasks.kg.endpoint import EndpointBackend

        return EndpointBackend(endpoint, graph=endpoint_graph, timeout_s=timeout_s)

    splits: dict[str, Reader]
    if data is not None:
        if graph is None and not remote:
            raise CallerError(
                "AgentBench's questions are about Freebase [task kg]. Give graph=<N-Triples file> or an endpoint too."
            )
        source = find_data(data)
        ontology = find_ontology(source)
        schema = read_ontology(ontology, complete=not parity)
        splits = agentbench_splits(source, read_faults(folder), exclude_suspect=exclude_suspect)
        store = ask_of(Path(graph or ""), read_reverses(ontology))
    else:
        if graph is not None:
            made, schema = graph_questions(Path(graph).expanduser())
            store = ask_of(Path(graph))
        else:
            made, schema = generated_world(folder, size=SIZE if size is None else size, seed=world_seed or SEED)
            store = ask_of(Path() if remote else made.graph())
        splits = {split: partial(made.rows, split) for split in ("train", "dev", "test")}
    rules = Rules(
        backend=store,
        schema=schema,
        prompts=spec.prompts,
        max_turns=spec.max_turns,
        type_check=cast(TypeCheck, check),
        exact_names=parity,
        max_listed=None if parity else MAX_LISTED,
    )
    if one_shot:
        rules = replace(rules, example=worked_example(rules, in_words=spec.finish_tool is None))
    if data is not None:
        spec = replace(spec, splits={split: f"AgentBench's {split} questions" for split in splits})
    return KGTask(spec, rules, splits, level=level)
