"""The embedded store: in memory and on disk, in this process and in children that can be killed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kg_toys import FILMS, call, direct_with_bob, film_session, ntriples

from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.kg import backend as backend_module
from agentbench_fc.tasks.kg import lookups, readers
from agentbench_fc.tasks.kg.backend import CHEAP_STEPS, OxigraphBackend, TooSlow
from agentbench_fc.tasks.kg.episode import KGEpisode
from agentbench_fc.tasks.kg.expressions import (
    MAX_SIZE,
    NAMESPACE,
    And,
    ArgMax,
    Count,
    Entity,
    Join,
    select,
    select_predicates,
)
from agentbench_fc.tasks.kg.plans import PARAMETERS, read_action
from agentbench_fc.tasks.kg.readers import open_graph
from agentbench_fc.tasks.kg.store import ask, texts
from agentbench_fc.tasks.kg.values import XSD, plain

FILM_SET = Join("film.director.film", Entity("m.ann"))
ASKED = [FILM_SET, Count(FILM_SET), ArgMax(FILM_SET, "film.film.runtime"), And(FILM_SET, FILM_SET), Entity("m.bob")]
CROSS = " . ".join(f"?s{n} ?p{n} ?x{n}" for n in range(8))
ENDLESS = f"SELECT (COUNT(*) AS ?x) WHERE {{ {CROSS} FILTER(?x0 != ?x7) }}"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "films.nt"
    path.write_text("\n".join(ntriples(FILMS)))
    return path


@pytest.fixture
def child_backend() -> Iterator[OxigraphBackend]:
    """A store whose every query goes to a child."""
    store = OxigraphBackend(cheap_steps=0, timeout_s=60.0)
    store.load_lines(ntriples(FILMS))
    yield store
    store.close()


def pids(store: OxigraphBackend) -> list[int]:
    assert store._children is not None
    return [child.pid for child in store._children._users]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_gives_what_the_process_itself_gives(child_backend: OxigraphBackend) -> None:
    here = OxigraphBackend()
    here.load_lines(ntriples(FILMS))
    for expr in ASKED:
        assert child_backend.members(expr) == here.members(expr)
        assert child_backend.predicates(expr) == here.predicates(expr)
    assert here._children is None
    assert len(pids(child_backend)) == 1


def test_an_endless_query_is_ended_and_costs_a_turn(
    child_backend: OxigraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, neighbour = film_session(child_backend), film_session(child_backend)
    direct_with_bob(session)
    (pid,) = pids(child_backend)
    child_backend._timeout_s = 0.5
    monkeypatch.setattr(backend_module, "select_predicates", lambda expr, limit: ENDLESS.replace("?x)", "?p)"))
    began = time.monotonic()
    assert call(session, "get_relations", variable="#2") == (
        "Error: get_relations: the graph did not answer in time. Use a smaller set."
    )
    assert time.monotonic() - began < 5
    assert gone(pid)
    monkeypatch.undo()
    child_backend._timeout_s = 60.0
    assert "film.film.starring" in call(session, "get_relations", variable="#2")
    assert "film.director.film" in call(neighbour, "get_relations", variable="Ann")
    monkeypatch.setattr(backend_module, "select", lambda expr, **_: ENDLESS)
    child_backend._timeout_s = 0.5
    with pytest.raises(TooSlow):
        child_backend.members(Count(FILM_SET))


def test_a_child_that_dies_in_peace_is_replaced(child_backend: OxigraphBackend) -> None:
    child_backend.members(FILM_SET)
    (pid,) = pids(child_backend)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child_backend.members(Count(FILM_SET)) == {"3"}


def test_a_child_that_dies_at_work_ends_its_session_only(
    child_backend: OxigraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck, neighbour = film_session(child_backend), film_session(child_backend)
    call(neighbour, "get_relations", variable="Ann")
    (pid,) = pids(child_backend)
    child_backend.predicates.cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(backend_module, "select_predicates", lambda expr, limit: ENDLESS.replace("?x)", "?p)"))
    killer = threading.Timer(1.5, os.kill, (pid, signal.SIGKILL))
    killer.start()
    call(struck, "get_relations", variable="Ann")
    killer.join()
    assert struck.status is Status.TASK_ERROR
    assert struck.last.metrics["fault"] == "environment"
    monkeypatch.undo()
    assert "film.director.film" in call(neighbour, "get_relations", variable="Ann")


def test_closing_ends_the_children_and_removes_their_file(child_backend: OxigraphBackend) -> None:
    child_backend.members(FILM_SET)
    (pid,) = pids(child_backend)
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        assert "kg.store:Store" in file.read()
    assert child_backend._dump is not None
    (dump,) = [Path(call.__self__) for call in [child_backend._dump.peek()[1]]]  # type: ignore[index]
    assert dump.is_file()
    child_backend.close()
    child_backend.close()
    assert gone(pid)
    assert not dump.exists()


def test_the_default_world_needs_no_child() -> None:
    backend = load_task("kg")._rules.backend  # type: ignore[attr-defined]
    assert backend._triples * MAX_SIZE <= CHEAP_STEPS


# on disk


def test_a_graph_on_disk_is_made_once_and_gives_the_same(graph: Path) -> None:
    here = open_graph(graph)
    disk = open_graph(graph, on_disk=True)
    (folder,) = (graph.parent / "cache" / "kg").iterdir()
    made = folder.stat().st_mtime_ns
    again = open_graph(graph, on_disk=True)
    for expr in ASKED:
        assert disk.members(expr) == again.members(expr) == here.members(expr)
        assert disk.predicates(expr) == here.predicates(expr)
    assert folder.stat().st_mtime_ns == made
    assert disk._triples == here._triples == len(FILMS)
    graph.write_text("\n".join(ntriples(FILMS[1:])))
    assert open_graph(graph, on_disk=True)._triples == len(FILMS) - 1


def test_children_open_the_folder_of_a_graph_on_disk(graph: Path) -> None:
    disk = open_graph(graph, on_disk=True)
    disk._cheap_steps = 0
    assert disk.members(Count(FILM_SET)) == {"3"}
    assert disk._dump is None
    disk.close()


def test_large_files_go_to_disk_by_themselves(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_graph(graph)._folder is None
    monkeypatch.setattr(readers, "LARGE_FILE", 10)
    assert open_graph(graph)._folder is not None
    assert open_graph(graph, on_disk=False)._folder is None


def test_a_table_on_disk_keeps_its_reverses(graph: Path) -> None:
    table = graph.with_suffix(".tsv")
    table.write_text("/m/ann\t/film/director/film\t/m/f1\n")
    one = open_graph(table, on_disk=True)
    two = open_graph(table, {"film.director.film": "film.film.directed_by"}, on_disk=True)
    assert one.predicates(Entity("m.f1")) == {"reverse_of.film.director.film"}
    assert two.predicates(Entity("m.f1")) == {"film.film.directed_by"}


def test_a_table_on_disk_is_made_again_by_another_reader(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = graph.with_suffix(".tsv")
    table.write_text("/m/ann\t/film/director/film\t/m/f1\n")
    other = graph.with_name("readers.py")
    other.write_bytes(Path(readers.__file__).read_bytes() + b"# another version\n")
    folders = graph.parent / "cache" / "kg"
    for path in (table, graph):
        open_graph(path, on_disk=True)
    monkeypatch.setattr(readers, "__file__", str(other))
    open_graph(graph, on_disk=True)
    assert len(list(folders.iterdir())) == 2  # N-Triples are taken as they are
    open_graph(table, on_disk=True)
    assert len(list(folders.iterdir())) == 3


def test_a_damaged_file_leaves_nothing_in_the_cache(graph: Path) -> None:
    graph.write_text("no triples")
    with pytest.raises(CallerError, match="not N-Triples"):
        open_graph(graph, on_disk=True)
    assert list((graph.parent / "cache" / "kg").iterdir()) == []


def test_a_damaged_folder_is_named(graph: Path) -> None:
    open_graph(graph, on_disk=True)
    (folder,) = (graph.parent / "cache" / "kg").iterdir()
    for file in (folder / "db").iterdir():
        file.unlink()
    with pytest.raises(InfrastructureError, match="Delete the folder"):
        open_graph(graph, on_disk=True)


def test_sessions_are_won_on_disk_with_every_query_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("kg", on_disk=True)
    task._rules.backend._cheap_steps = 0  # type: ignore[attr-defined]
    expert = make_player("expert", task)
    assert all(play(task, sample, expert).raw_reward == 1.0 for sample in task.samples("dev")[:30])
    task.close()


# values


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["double", "float"]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_number_has_one_spelling(number: float, kind: str) -> None:
    shown = f"{number:g}"  # as Virtuoso writes it
    assert plain(repr(number), XSD + kind) == plain(shown, XSD + kind) == plain(f"{number:.17e}", XSD + kind)


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        ("12.50", "double", "12.5"),
        ("3.0", "double", "3"),
        ("1.5e+06", "double", "1500000"),
        ("INF", "double", "inf"),
        ("x", "double", "x"),
        ("007", "integer", "7"),
        ("9" * 5000, "integer", "9" * 5000),
        ("3.70", "decimal", "3.7"),
        ("1", "boolean", "true"),
        ("2001-02-03-08:00", "date", "2001-02-03"),
    ],
)
def test_values_by_kind(value: str, datatype: str, text: str) -> None:
    assert plain(value, XSD + datatype) == text


def test_ids_and_words_stay_as_they_are() -> None:
    assert plain(NAMESPACE + "m.01") == "m.01"
    assert plain("1.50") == "1.50"


def test_only_english_and_texts_without_a_language_are_members() -> None:
    backend = OxigraphBackend()
    texts = ['"a"', '"b"@en', '"c"@en-GB', '"d"@de', '"e"@EN-us', '"f"@eng']
    backend.load_lines([f"<{NAMESPACE}m.x> <{NAMESPACE}a.b.c> {text} ." for text in texts])
    expr = Join("a.b.c", Entity("m.x"))
    filtered = ask(backend._store, select(expr))
    assert backend.members(expr) == filtered == set("abce")


def test_lookups_answer_as_queries_do() -> None:
    """Every set on the way of the gold plans, looked up and asked."""
    task = load_task("kg")
    store = task._rules.backend._store  # type: ignore[attr-defined]
    sizes, looked_up = set(), 0
    for sample in task.samples("dev")[:120]:
        episode = KGEpisode(sample, task._rules)  # type: ignore[attr-defined]
        for name, values in map(read_action, sample.data["actions"]):
            episode.call(name, dict(zip(PARAMETERS.get(name, ("variable",)), values, strict=True)))
        for expr in [variable.expr for variable in episode._variables]:
            few, relations = lookups.members(store, expr), lookups.predicates(store, expr)
            assert few is None or texts(few) == ask(store, select(expr)), expr.to_lisp()
            assert relations is None or relations == ask(store, select_predicates(expr)), expr.to_lisp()
            looked_up += few is not None
            sizes.add(len(few or ()))
    assert looked_up > 100
    assert {1, 2, 5} <= sizes


def test_a_topic_entity_and_a_value_lead_nowhere() -> None:
    backend = OxigraphBackend()
    lines = ["m.a> <a.b.c> <m.b", "m.b> <a.b.d> <m.a", "m.b> <a.b.d> <m.c", "m.a> <a.b.e> <m.b"]
    backend.load_lines([f"<{line}> .".replace("<", f"<{NAMESPACE}") for line in lines])
    backend.load_lines([f'<{NAMESPACE}m.c> <{NAMESPACE}a.b.v> "m.a" .'])
    there = Join("a.b.d", Join("a.b.c", Entity("m.a")))
    value = Join("a.b.v", there)
    again = And(Join("a.b.c", Entity("m.a")), Join("a.b.e", Entity("m.a")))
    for expr in [there, value, again, Count(there), Count(value), Join("a.b.d", value), Entity("m.nothing")]:
        assert lookups.members(backend._store, expr) is not None
        assert backend.members(expr) == ask(backend._store, select(expr))
        assert backend.predicates(expr) == ask(backend._store, select_predicates(expr))
    assert backend.members(there) == {"m.c"}
