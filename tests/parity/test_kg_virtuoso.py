"""KG on a real Virtuoso: the same answers as the embedded store, and what is special about a server."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kg_malice
import kg_virtuoso
import pytest
from conftest import missing
from kg_malice import attack, held, overgrow, still_works, wins
from kg_toys import FILMS, RecordingBackend, call, film_session, kg_task, ntriples
from kg_virtuoso import Virtuoso
from kg_witness import Witness, parts

from agentbench_fc.episode import Sample, Task
from agentbench_fc.errors import InfrastructureError
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session
from agentbench_fc.tasks.kg import endpoint
from agentbench_fc.tasks.kg.backend import Backend, TooMany, TooSlow
from agentbench_fc.tasks.kg.endpoint import EndpointBackend
from agentbench_fc.tasks.kg.expressions import NAMESPACE, And, Count, Entity, Expr, Join
from agentbench_fc.tasks.kg.plans import expression
from agentbench_fc.tasks.kg.readers import open_graph

WORLD, WITNESS, TOY, CROWD = (f"http://example.org/{name}" for name in ("world", "witness", "toy", "crowd"))
SPLITS = ("dev", "test", "train")


@pytest.fixture(scope="module")
def server() -> Iterator[Virtuoso]:
    if not kg_virtuoso.installed():
        missing("no virtuoso-t and isql-vt (apt-get install virtuoso-opensource-7-bin)")
    running = Virtuoso()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(scope="module")
def worlds(server: Virtuoso) -> tuple[Task, Backend, Backend]:
    """The default task, its store, and Virtuoso with the same triples."""
    task = load_task("kg")
    from agentbench_fc.registry import tasks_root
    from agentbench_fc.tasks.kg.generate import generated_world

    server.load(generated_world(tasks_root() / "kg")[0].graph().read_bytes(), WORLD)
    return task, task._rules.backend, EndpointBackend(server.url, graph=WORLD)  # type: ignore[attr-defined]


@pytest.fixture
def toy(server: Virtuoso) -> EndpointBackend:
    server.load("\n".join(kg_malice.GRAPH).encode(), TOY)
    return EndpointBackend(server.url, graph=TOY, timeout_s=10, pauses_s=(0.05,))


def differing(expressions: list[Expr], one: Backend, other: Backend) -> list[str]:
    """The expressions whose members, or whose parts' relation lists, are not the same in both."""

    def differs(expr: Expr) -> bool:
        if one.members(expr) != other.members(expr):
            return True
        return any(one.predicates(p) != other.predicates(p) for p in parts(expr) if not isinstance(p, Count))

    with ThreadPoolExecutor(4) as threads:
        return [e.to_lisp() for e, wrong in zip(expressions, threads.map(differs, expressions), strict=True) if wrong]


def compare_samples(samples: list[Sample], worlds: tuple[Task, Backend, Backend]) -> None:
    _, embedded, virtuoso = worlds
    expressions = [expression(sample.data["actions"]) for sample in samples]
    assert differing(expressions, embedded, virtuoso) == []
    for sample, expr in list(zip(samples, expressions, strict=True))[::10]:
        assert virtuoso.members(expr) == {part["answer_argument"] for part in sample.data["answer"]}


def test_generated_plans_of_all_shapes_give_the_same(worlds: tuple[Task, Backend, Backend]) -> None:
    task = worlds[0]
    samples = [sample for split in SPLITS for sample in task.samples(split)]
    random.Random(0).shuffle(samples)
    by_shape: dict[str, list[Sample]] = {}
    for sample in samples:
        by_shape.setdefault(sample.data["shape"], []).append(sample)
    assert len(by_shape) >= 18
    each = 300 // len(by_shape) + 1
    compare_samples([sample for found in by_shape.values() for sample in found[:each]], worlds)


@pytest.mark.full
@pytest.mark.parametrize("split", SPLITS)
def test_every_generated_plan_gives_the_same(worlds: tuple[Task, Backend, Backend], split: str) -> None:
    compare_samples(list(worlds[0].samples(split)), worlds)


@pytest.fixture(scope="module")
def agentbench(server: Virtuoso, test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, Task]:
    """AgentBench's questions over the witness graph, embedded and on Virtuoso."""
    folder = test_data / "agentbench" / "knowledgegraph"
    graph = tmp_path_factory.mktemp("witness") / "witness.nt"
    graph.write_text("")
    reader = load_task("kg", data=folder, graph=graph)
    witness = Witness()
    for split in reader.spec.splits:
        for sample in reader.samples(split):
            witness.add(sample.data)
    graph.write_text("\n".join(witness.lines()))
    server.load(graph.read_bytes(), WITNESS)
    remote = load_task("kg", data=folder, backend="endpoint", endpoint=server.url, endpoint_graph=WITNESS)
    return load_task("kg", data=folder, graph=graph), remote


def said(session: Session) -> list[object]:
    return [played.turn.messages for played in session.log] + [session.status, session.raw_reward, session.last.metrics]


@pytest.mark.parametrize(("split", "count", "least"), [("dev", 20, 18), ("std", 150, 140), ("train", 1214, 1150)])
def test_agentbenchs_plans_are_played_the_same(
    agentbench: tuple[Task, Task], split: str, count: int, least: int
) -> None:
    """Every observation of every gold plan; `least` of them are admitted by the rules to the end."""
    embedded, virtuoso = agentbench
    samples = embedded.samples(split)
    assert len(samples) == count
    experts = [make_player("expert", task) for task in agentbench]

    def both(sample: Sample) -> tuple[Session, Session]:
        return play(embedded, sample, experts[0]), play(virtuoso, sample, experts[1])

    with ThreadPoolExecutor(4) as threads:
        sessions = list(threads.map(both, samples))
    assert [one.sample.id for one, two in sessions if said(one) != said(two)] == []
    refused = sum("Error" in str([played.turn.messages for played in one.log]) for one, _ in sessions)
    won = sum(one.raw_reward == 1.0 for one, _ in sessions)
    print(f"{split}: {count - refused} of {count} plans admitted, {won} find their own answer")
    assert count - refused >= least


def test_sessions_are_won_on_a_server(server: Virtuoso, worlds: tuple[Task, Backend, Backend]) -> None:
    task = load_task("kg", backend="endpoint", endpoint=server.url, endpoint_graph=WORLD)
    assert task.backend == "endpoint"
    expert = make_player("expert", task)
    with ThreadPoolExecutor(16) as threads:
        sessions = list(threads.map(lambda sample: play(task, sample, expert), task.samples("dev")[:48]))
    assert [session.raw_reward for session in sessions] == [1.0] * 48
    task.close()


@pytest.mark.parametrize("text", kg_malice.TEXTS, ids=range(len(kg_malice.TEXTS)))
def test_hostile_texts_are_refused(toy: EndpointBackend, text: str) -> None:
    session = film_session(toy)
    attack(session, text)
    still_works(session)
    wins(toy)


def test_hostile_expressions_are_bounded(toy: EndpointBackend, server: Virtuoso) -> None:
    session = film_session(toy)
    overgrow(session)
    still_works(session)
    wins(toy)


def test_values_are_those_of_the_embedded_store(server: Virtuoso, tmp_path: Path) -> None:
    values = [
        *(
            f'"{text}"^^<http://www.w3.org/2001/XMLSchema#double>'
            for text in ("12.50", "3.0", "1500000.0", "1e30", "0.1")
        ),
        *(f'"{text}"^^<http://www.w3.org/2001/XMLSchema#double>' for text in ("123456.789", "1234567.8912345", "-0.5")),
        *(f'"{text}"^^<http://www.w3.org/2001/XMLSchema#integer>' for text in ("007", "-2", "0")),
        '"3.70"^^<http://www.w3.org/2001/XMLSchema#decimal>',
        '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>',
        '"2001-02-03"^^<http://www.w3.org/2001/XMLSchema#date>',
        '"2001"^^<http://www.w3.org/2001/XMLSchema#gYear>',
        '"2001-02-03T04:05:06Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>',
        '"words"',
        '"words"@en',
        '"colour"@en-GB',
        '"Worte"@de',
    ]
    path = tmp_path / "values.nt"
    path.write_text("\n".join(f"<{NAMESPACE}m.a> <{NAMESPACE}a.b.v> {value} ." for value in values))
    server.load(path.read_bytes(), "http://example.org/values")
    expr = Join("a.b.v", Entity("m.a"))
    found = EndpointBackend(server.url, graph="http://example.org/values").members(expr)
    assert found == open_graph(path).members(expr)
    assert "12.5" in found
    assert "Worte" not in found


@pytest.fixture
def crowd(server: Virtuoso) -> EndpointBackend:
    """More members than Virtuoso's row limit, and edges enough for slow queries."""
    people = [f"m.p{n}" for n in range(kg_virtuoso.MAX_ROWS + 50)]
    triples = [("m.hub", "a.b.all", person) for person in people]
    triples += [(person, "a.b.knows", people[n % 7]) for n, person in enumerate(people)]
    server.load("\n".join(ntriples(triples)).encode(), CROWD)
    return EndpointBackend(server.url, graph=CROWD, timeout_s=20)


def test_two_numbers_are_one_if_they_are_equal(toy: EndpointBackend) -> None:
    embedded = RecordingBackend(FILMS)
    films, parts_of = Join("film.director.film", Entity("m.ann")), Join("film.actor.film", Entity("m.bob"))
    for right in (parts_of, And(films, parts_of)):
        expr = And(Count(films), Count(right))
        assert toy.members(expr) == embedded.members(expr) == ({"3"} if right == parts_of else set())


def test_a_cut_result_is_no_answer(crowd: EndpointBackend) -> None:
    everybody = Join("a.b.all", Entity("m.hub"))
    with pytest.raises(TooMany):
        crowd.members(everybody)
    assert crowd.members(Count(everybody)) == {str(kg_virtuoso.MAX_ROWS + 50)}  # counted there, not here
    assert crowd.predicates(everybody) == {"a.b.knows"}


def test_a_partial_result_is_no_answer(crowd: EndpointBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.predicates(Entity("m.hub"))  # by its answer it is known as a Virtuoso
    triples = " . ".join(f"?a{n} <{NAMESPACE}a.b.knows> ?b{n}" for n in range(4))
    slow = f"SELECT (COUNT(*) AS ?x) WHERE {{ {triples} FILTER(?a0 != ?b1 && ?a2 != ?b3) }}"
    monkeypatch.setattr(endpoint, "select", lambda expr, limit: slow)
    monkeypatch.setattr(crowd, "_timeout_s", 8.0)
    with pytest.raises(TooSlow):
        crowd._members(Entity("m.hub"))
    monkeypatch.undo()
    assert crowd.members(Count(Join("a.b.all", Entity("m.hub"))))


def test_a_killed_server_ends_its_sessions_and_no_others(toy: EndpointBackend, server: Virtuoso) -> None:
    struck, waiting, unfinished = film_session(toy), film_session(toy), film_session(toy)
    call(waiting, "get_neighbors", variable="Ann", relation="film.director.film")
    call(unfinished, "get_neighbors", variable="Ann", relation="film.director.film")
    server.kill()
    told = call(struck, "get_neighbors", variable="Bob", relation="film.actor.film")
    assert struck.status is Status.TASK_ERROR
    assert struck.last.metrics["fault"] == "environment"
    assert "127.0.0.1" not in told
    with pytest.raises(InfrastructureError, match="does not answer"):
        toy.members(And(Join("film.director.film", Entity("m.ann")), Join("film.actor.film", Entity("m.bob"))))
    server.start()
    for session in (waiting, unfinished):
        call(session, "get_neighbors", variable="Bob", relation="film.actor.film")
        assert "#2" in call(session, "intersection", variable1="#0", variable2="#1")
    wins(toy)


def test_a_thousand_sessions_leave_nothing(toy: EndpointBackend) -> None:
    task = kg_task(toy)
    expert, sample = make_player("expert", task), task.samples("toy")[0]

    def some(count: int) -> tuple[int, int, int]:
        for number in range(count):
            if number % 10 == 0:  # every tenth asks the server, the others find its answers
                toy.predicates.cache_clear()  # type: ignore[attr-defined]
                toy.members.cache_clear()  # type: ignore[attr-defined]
            assert play(task, sample, expert).raw_reward == 1.0
        return held()

    threads, files, memory = some(100)
    after = some(1000)
    assert after[0] <= threads + 1  # a helper thread may stay for the next call
    assert after[1] <= files
    assert after[2] - memory < 5e6


def test_a_server_that_was_down_for_a_moment_is_asked_again(toy: EndpointBackend, server: Virtuoso) -> None:
    patient = EndpointBackend(server.url, graph=TOY, timeout_s=60, pauses_s=(0.5,) * 100)
    server.kill()
    starting = threading.Timer(0.5, server.start)
    starting.start()
    assert patient.members(Join("film.actor.film", Entity("m.bob"))) == {"m.f2", "m.f3", "m.f4"}
    starting.join()
