"""The tools as a model meets them: replies, refusals, answers, forks."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from kg_toys import FILMS, RecordingBackend, call, direct_with_bob, film_session, ntriples

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session
from agentbench_fc.tasks.kg import backend as backend_module
from agentbench_fc.tasks.kg import lookups
from agentbench_fc.tasks.kg.backend import OxigraphBackend
from agentbench_fc.tasks.kg.episode import MAX_VARIABLES, f1
from agentbench_fc.tasks.kg.expressions import Entity, Expr, Join


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend(FILMS)


@pytest.fixture
def session(backend: RecordingBackend) -> Session:
    return film_session(backend)


def answer(session: Session, variable: str) -> Any:
    return session.interact([assistant(None, [ToolCall("c9", "submit_answer", json.dumps({"variable": variable}))])])


def test_the_question_names_its_entities_but_not_their_ids(session: Session) -> None:
    system, question = session.last.messages
    assert question["content"] == "Which films did Ann direct with Bob?\nEntities: [Ann, Bob, The Prize]"
    assert "15" in str(system["content"])
    assert "m.ann" not in str(session.last.messages)


def test_a_walk_to_the_answer(session: Session) -> None:
    assert call(session, "get_relations", variable="Ann") == (
        "Observation: [film.director.film, people.person.nationality]"
    )
    assert call(session, "get_neighbors", variable="Ann", relation="film.director.film") == (
        "Observation: variable #0, which are instances of film.film"
    )
    assert call(session, "get_relations", variable="#0") == ("Observation: [film.film.directed_by, film.film.starring]")
    assert call(session, "get_neighbors", variable="m.bob", relation="film.actor.film").startswith(
        "Observation: variable #1,"
    )
    assert call(session, "intersection", variable1="#0", variable2="#1").startswith("Observation: variable #2,")
    turn = answer(session, "#2")
    assert (turn.status, turn.reward, turn.success, turn.finish) == (Status.COMPLETED, 1.0, True, True)
    assert turn.metrics["f1"] == 1.0


def test_ranking_keeps_ties_and_counting_gives_a_number(session: Session) -> None:
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    assert call(session, "get_attributes", variable="#0") == "Observation: [film.film.runtime]"
    assert "#1" in call(session, "argmax", variable="#0", attribute="film.film.runtime")
    assert "#2" in call(session, "argmin", variable="#0", attribute="film.film.runtime")
    assert call(session, "count", variable="#1") == "Observation: variable #3, which is a number"
    assert call(session, "get_relations", variable="#3") == "Observation: []"
    assert answer(session, "#1").success  # m.f2 and m.f3


def test_making_a_variable_runs_no_query_of_its_own(backend: RecordingBackend, session: Session) -> None:
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    asked = len(backend.queries)
    call(session, "count", variable="#0")
    call(session, "intersection", variable1="#0", variable2="#0")
    assert len(backend.queries) == asked == 1  # the relations of Ann


@pytest.mark.parametrize("variable", ["Ann", " ann ", "m.ann"])
def test_an_entity_is_known_by_name_or_id(session: Session, variable: str) -> None:
    assert "film.director.film" in call(session, "get_relations", variable=variable)


def test_names_must_match_to_the_letter_in_agentbenchs_profile(backend: RecordingBackend) -> None:
    session = film_session(backend, profile="agentbench", exact_names=True)
    assert call(session, "get_relations", variable="ann").startswith("Error: get_relations: 'ann' is neither")
    assert "film.director.film" in call(session, "get_relations", variable="Ann")


def test_an_id_of_freebases_third_kind_is_an_entity(session: Session) -> None:
    assert call(session, "get_relations", variable="The Prize") == "Observation: [award.award.winners]"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("get_relations", {"variable": "#0"}, "there is no variable #0"),
        ("get_relations", {"variable": "#-1"}, "not a variable"),
        ("get_relations", {"variable": "#99999999999999999999"}, "not a variable"),
        ("get_relations", {"variable": "Zed"}, "Entities: Ann, Bob, The Prize"),
        ("get_neighbors", {"variable": "Ann", "relation": "film.film.starring"}, "not a relation of 'Ann'"),
        ("get_neighbors", {"variable": "Ann", "relation": "common.secret.number"}, "not a relation of 'Ann'"),
        ("get_attributes", {"variable": "Ann"}, "not a variable"),
        ("intersection", {"variable1": "Ann", "variable2": "Bob"}, "not a variable"),
        ("argmax", {"variable": "#3", "attribute": "film.film.runtime"}, "there is no variable #3"),
        ("count", {"variable": ""}, "not a variable"),
    ],
)
def test_a_refusal_says_what_would_be_right(session: Session, name: str, arguments: dict[str, str], says: str) -> None:
    reply = call(session, name, **arguments)
    assert reply.startswith(f"Error: {name}: ")
    assert says in reply
    assert "film.director.film" in call(session, "get_relations", variable="Ann")


def test_an_attribute_must_be_listed(session: Session) -> None:
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    assert "is not an attribute of '#0'" in call(session, "argmin", variable="#0", attribute="film.film.budget")


@pytest.mark.parametrize(("check", "allowed"), [("strict", False), ("subclass", True), ("off", True)])
def test_the_type_check_decides_which_sets_meet(backend: RecordingBackend, check: str, allowed: bool) -> None:
    session = film_session(backend, type_check=check)
    call(session, "get_neighbors", variable="The Prize", relation="award.award.winners")
    call(session, "get_neighbors", variable="m.f2", relation="film.film.directed_by")
    reply = call(session, "intersection", variable1="#0", variable2="#1")
    expected = "instances of people.person" if check == "off" else "instances of film.director"
    assert (expected in reply) if allowed else ("same type" in reply)
    call(session, "get_neighbors", variable="Ann", relation="people.person.nationality")
    number = 3 if allowed else 2
    unlike = call(session, "intersection", variable1="#0", variable2=f"#{number}")
    assert unlike.startswith("Error") == (check != "off")


NASTY = [
    'm.ann> ?p ?o . } # "',
    "m.ann> <http://rdf.freebase.com/ns/common.secret.number",
    "film.director.film> ?x } #",
    "} DROP ALL {",
    "m." + "a" * 10_000,
    "{0}{x}{question}%s\\",
    "\"\"\"\n'''",
    "m.ann\ud800",
    "m.ann\0",
    "m.änn",
    "#0 UNION #1",
    "#٣",
    "<script>",
    " " * 10_000,
]


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_no_text_of_a_model_reaches_a_query(backend: RecordingBackend, nasty: str) -> None:
    session = film_session(backend)
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    call(session, "get_attributes", variable="#0")
    asked = list(backend.queries)
    for name, arguments in [
        ("get_relations", {"variable": nasty}),
        ("get_attributes", {"variable": nasty}),
        ("count", {"variable": nasty}),
        ("get_neighbors", {"variable": nasty, "relation": "film.director.film"}),
        ("get_neighbors", {"variable": "#0", "relation": nasty}),
        ("argmax", {"variable": nasty, "attribute": "film.film.runtime"}),
        ("argmax", {"variable": "#0", "attribute": nasty}),
        ("argmin", {"variable": "#0", "attribute": nasty}),
        ("intersection", {"variable1": nasty, "variable2": "#0"}),
        ("intersection", {"variable1": "#0", "variable2": nasty}),
    ]:
        reply = call(session, name, **arguments)
        assert reply.startswith("Error")
        assert len(reply) < 400
    new = backend.queries[len(asked) :]
    assert all("film.director.film" in query and nasty.strip() not in query for query in new if nasty.strip())
    assert len(new) <= 1  # the relations of #0, asked for the first time
    assert "#1" in call(session, "count", variable="#0")


def test_a_long_list_is_cut_with_a_count_of_the_rest() -> None:
    many = [("m.ann", f"a.b.r{n:03}", "m.f1") for n in range(30)]
    from agentbench_fc.tasks.kg.schema import Schema

    schema = Schema(frozenset(p for _, p, _ in many), frozenset())
    session = film_session(RecordingBackend(many), schema=schema, max_listed=3)
    assert call(session, "get_relations", variable="Ann") == "Observation: [a.b.r000, a.b.r001, a.b.r002, and 27 more]"
    whole = film_session(RecordingBackend(many), schema=schema, max_listed=None)
    assert call(whole, "get_relations", variable="Ann").count("a.b.") == 30


def test_expressions_and_variables_are_bounded(backend: RecordingBackend) -> None:
    session = film_session(backend)
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    calls = [
        ToolCall(f"c{n}", "intersection", json.dumps({"variable1": f"#{n}", "variable2": f"#{n}"})) for n in range(10)
    ]
    texts = [str(m["content"]) for m in session.interact([assistant(None, calls)]).messages]
    assert any("parts" in text for text in texts)
    many = [ToolCall(f"c{n}", "count", '{"variable": "#0"}') for n in range(MAX_VARIABLES + 5)]
    while "already" not in str(session.last.messages[-1]["content"]):
        session.interact([assistant(None, many)])
    assert answer(session, "#0").status == Status.COMPLETED


@pytest.mark.parametrize("text", ["Final Answer: #2", "So I find it.\nFind Answer: #2.", "Final Answer: #2 or #0"])
@pytest.mark.parametrize("profile", ["default", "agentbench"])
def test_an_answer_in_words_counts(backend: RecordingBackend, text: str, profile: str) -> None:
    session = film_session(backend, profile=profile)
    direct_with_bob(session)
    turn = session.interact([assistant(text)])
    assert (turn.status, turn.reward) == (Status.COMPLETED, 1.0)


@pytest.mark.parametrize("text", ["The final answer is #2", "Observation: x Final Answer: #2", "Final Answer: 2", ""])
def test_other_words_cost_a_turn(backend: RecordingBackend, text: str) -> None:
    session = film_session(backend)
    direct_with_bob(session)
    turn = session.interact([assistant(text)])
    assert not turn.finish
    assert turn.messages[0]["role"] == "user"


@pytest.mark.parametrize("number", ["7", "3", "9" * 5000])
def test_an_answer_that_does_not_exist_ends_ungraded(backend: RecordingBackend, number: str) -> None:
    session = film_session(backend)
    direct_with_bob(session)
    turn = session.interact([assistant(f"Final Answer: #{number}")])
    assert (turn.status, turn.reward, turn.metrics["f1"]) == (Status.VALIDATION_FAILED, 0.0, 0.0)


@pytest.mark.parametrize("variable", ["", "#0", "m.f2", "Ann", "#2; #3", "\ud800"])
def test_only_a_variable_can_be_submitted(backend: RecordingBackend, variable: str) -> None:
    turn = answer(film_session(backend), variable)
    assert (turn.status, turn.reward, turn.success) == (Status.VALIDATION_FAILED, 0.0, False)


def test_a_near_miss_earns_nothing_but_its_f1_is_told(session: Session) -> None:
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    turn = answer(session, "#0")
    assert (turn.status, turn.reward, turn.success) == (Status.COMPLETED, 0.0, False)
    assert turn.metrics["f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert turn.metrics["answer_size"] == 3


def test_f1_by_hand() -> None:
    assert f1(frozenset("abc"), frozenset("bcd")) == pytest.approx(2 / 3)
    assert f1(frozenset("a"), frozenset("b")) == 0.0


def test_a_fork_is_independent_both_ways(session: Session) -> None:
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    twin = session.fork()
    assert "#1, which is a number" in call(twin, "count", variable="#0")
    assert "#1, which are instances" in call(session, "get_neighbors", variable="Bob", relation="film.actor.film")
    assert "instances" in call(session, "intersection", variable1="#0", variable2="#1")
    assert "there is no variable #2" in call(twin, "count", variable="#2")
    assert answer(session, "#2").success
    assert not answer(twin, "#1").success


def test_closing_twice_is_harmless_and_closing_one_leaves_the_other(backend: RecordingBackend) -> None:
    first, second = film_session(backend), film_session(backend)
    first.close()
    first.close()
    direct_with_bob(second)
    assert answer(second, "#2").success


class BrokenBackend(OxigraphBackend):
    """A store that breaks on the first question."""

    def _predicates(self, expr: Expr) -> frozenset[str]:
        raise InfrastructureError("the graph gave no answer: secret detail [backend oxigraph]. Start the task again.")


def test_a_broken_store_ends_the_episode_and_tells_the_model_nothing() -> None:
    session = film_session(BrokenBackend())
    text = call(session, "get_relations", variable="Ann")
    assert session.status is Status.TASK_ERROR
    assert "secret" not in text
    assert session.last.metrics["fault"] == "environment"


def test_a_set_too_large_to_be_an_answer_is_not_graded(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "MAX_MEMBERS", 2)
    monkeypatch.setattr(lookups, "FEW", 1)
    session = film_session(backend)
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    turn = answer(session, "#0")
    assert (turn.status, turn.reward) == (Status.VALIDATION_FAILED, 0.0)


def test_a_compressed_file_is_the_same_graph(tmp_path: Path) -> None:
    (tmp_path / "g.nt.gz").write_bytes(gzip.compress("\n".join(ntriples(FILMS)).encode()))
    store = OxigraphBackend()
    store.load(tmp_path / "g.nt.gz")
    assert store.members(Join("film.director.film", Entity("m.ann"))) == {"m.f1", "m.f2", "m.f3"}


def test_the_compact_style_is_short(backend: RecordingBackend) -> None:
    from kg_toys import kg_task

    task = kg_task(backend, prompt="compact")
    session = Session(task, task.samples("toy")[0])
    words = " ".join(str(m["content"]) for m in session.start().messages).split()
    assert len(words) < 25
    assert call(session, "get_relations", variable="Ann") == "film.director.film\npeople.person.nationality"
    assert call(session, "get_neighbors", variable="Ann", relation="film.director.film") == "#0 film.film"
    assert call(session, "count", variable="#0") == "#1 number"
    assert call(session, "get_attributes", variable="#1") == "no attributes"
