"""The endpoint backend against a server that misbehaves in every way a server can."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from kg_toys import call, film_session

from agentbench_fc.errors import InfrastructureError, TaskError, Unavailable
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.kg import endpoint
from agentbench_fc.tasks.kg.backend import TooMany, TooSlow
from agentbench_fc.tasks.kg.endpoint import MAX_DEPTH, EndpointBackend
from agentbench_fc.tasks.kg.expressions import NAMESPACE, Entity, Expr, Join, TooLarge

ANN = Entity("m.ann")
SECRET = "the table is DB.DBA.RDF_QUAD"
Act = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    server: "Fake"

    def do_POST(self) -> None:
        fake = self.server
        with fake.lock:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fake.forms.append(parse_qs(body))
            act = fake.acts.pop(0) if fake.acts else fake.always
        with contextlib.suppress(OSError):  # the client has given up
            act(self)

    def do_GET(self) -> None:
        self.send_error(405)

    def log_message(self, *_: Any) -> None:
        pass


class Fake(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.acts: list[Act] = []
        self.always: Act = rows("film.director.film")
        self.forms: list[dict[str, list[str]]] = []
        self.over = threading.Event()
        """Ends the answers that hang."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/sparql"

    def handle_error(self, *_: Any) -> None:
        pass

    def backend(self, **options: Any) -> EndpointBackend:
        return EndpointBackend(self.url, **({"timeout_s": 5.0, "pauses_s": (0.01, 0.02)} | options))


def answer(status: int, body: bytes, **headers: str) -> Act:
    def act(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return act


def rows(*names: str, **headers: str) -> Act:
    bindings = [{v: {"type": "uri", "value": NAMESPACE + name} for v in "px"} for name in names]
    return answer(200, json.dumps({"head": {}, "results": {"bindings": bindings}}).encode(), **headers)


def broken(status: int) -> Act:
    return answer(status, SECRET.encode())


def hang_up(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def break_off(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"results"')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def hang(handler: Handler) -> None:
    handler.server.over.wait(60)  # type: ignore[attr-defined]


def drip(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(900):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        if handler.server.over.wait(0.05):  # type: ignore[attr-defined]
            return


@pytest.fixture(autouse=True)
def _loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_query_is_one_post_to_the_named_graph(fake: Fake) -> None:
    backend = fake.backend(graph="http://example.org/g")
    assert backend.predicates(ANN) == {"film.director.film"}
    assert backend.predicates(ANN) == {"film.director.film"}  # from the cache
    (form,) = fake.forms
    assert form["default-graph-uri"] == ["http://example.org/g"]
    assert form["query"][0].startswith(f"SELECT DISTINCT ?p WHERE {{ <{NAMESPACE}m.ann> ?p ?o")


def test_a_long_query_is_no_trouble(fake: Fake) -> None:
    expr: Expr = ANN
    for _ in range(MAX_DEPTH):
        expr = Join("a.b." + "x" * 1000, expr)
    assert fake.backend().members(expr) == {"film.director.film"}
    assert len(fake.forms[0]["query"][0]) > 20_000


def test_nesting_is_bounded_before_a_server_sees_it(fake: Fake) -> None:
    expr: Expr = ANN
    for _ in range(MAX_DEPTH + 1):
        expr = Join("a.b.c", expr)
    for ask in (fake.backend().members, fake.backend().predicates):
        with pytest.raises(TooLarge, match="nested 21 deep"):
            ask(expr)
    assert fake.forms == []


@pytest.mark.parametrize("fault", [broken(503), broken(429), broken(502), hang_up, break_off])
def test_a_busy_or_broken_server_is_asked_again(fake: Fake, fault: Act) -> None:
    fake.acts = [fault, fault]
    assert fake.backend().predicates(ANN) == {"film.director.film"}
    assert len(fake.forms) == 3


@pytest.mark.parametrize("fault", [broken(503), hang_up, break_off])
def test_after_some_tries_it_is_an_infrastructure_error(fake: Fake, fault: Act) -> None:
    fake.always = fault
    with pytest.raises(InfrastructureError, match="does not answer") as caught:
        fake.backend().predicates(ANN)
    assert len(fake.forms) == 3
    assert SECRET not in str(caught.value)


def test_an_absent_server_is_an_infrastructure_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        backend = EndpointBackend(f"http://127.0.0.1:{taken.getsockname()[1]}/", timeout_s=5, pauses_s=(0.01,))
        with pytest.raises(InfrastructureError, match="ConnectionRefusedError"):
            backend.members(ANN)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (broken(400), TaskError),
        (broken(401), InfrastructureError),
        (broken(404), InfrastructureError),
        (broken(405), InfrastructureError),
        (broken(500), InfrastructureError),
        (answer(200, SECRET.encode()), InfrastructureError),
        (answer(200, b"null"), InfrastructureError),
        (answer(200, b"[]"), InfrastructureError),
        (answer(200, b'{"results": {"bindings": [{"p": "x"}]}}'), InfrastructureError),
        (answer(200, b'{"results": {"bindings": [{"p": {"value": 1}}]}}'), InfrastructureError),
        (answer(200, b"[" * 100_000), InfrastructureError),
        (rows("a.b.c", X_SQL_State="42000", X_SQL_Message=SECRET), InfrastructureError),
        (rows("a.b.c", X_SQL_State="S1TAT", X_SQL_Message=SECRET), TooSlow),
        (rows("a.b.c", X_SPARQL_MaxRows="10000"), TooMany),
    ],
)
def test_what_is_no_answer_is_never_taken_for_one(fake: Fake, fault: Act, kind: type[Exception]) -> None:
    fake.acts = [fault]
    backend = fake.backend()
    with pytest.raises(kind) as caught:
        backend.predicates(ANN)
    assert type(caught.value) is kind
    assert SECRET not in str(caught.value)
    assert len(fake.forms) == 1
    assert backend.predicates(ANN) == {"film.director.film"}  # and the next query works


@pytest.mark.parametrize("fault", [hang, drip])
def test_nothing_outlives_its_deadline(fake: Fake, fault: Act) -> None:
    fake.acts = [fault]
    backend = fake.backend(timeout_s=1.0)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="no answer within 1 s"):
        backend.predicates(ANN)
    assert time.monotonic() - began < 2.5, "of the 60 that the server takes"


def test_a_reply_without_end_is_left(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_REPLY_BYTES", 1000)
    fake.acts = [answer(200, b" " * 5000)]
    with pytest.raises(TooMany):
        fake.backend().predicates(ANN)


def test_virtuoso_gets_a_time_limit_of_its_own(fake: Fake) -> None:
    fake.always = rows("a.b.c", Server="Virtuoso/07.20.3229 (Linux)")
    backend = fake.backend(timeout_s=100.0)
    backend.predicates(ANN)
    backend.members(ANN)
    assert "timeout" not in fake.forms[0]  # not known yet
    assert 50_000 < int(fake.forms[1]["timeout"][0]) < 65_000


def test_so_many_at_once_and_no_more(fake: Fake) -> None:
    inside = most = 0

    def slowly(handler: Handler) -> None:
        nonlocal inside, most
        with fake.lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with fake.lock:
            inside -= 1  # before the answer: after it, the client may already have sent the next query
        rows("a.b.c")(handler)

    fake.always = slowly
    backend = fake.backend(concurrency=3)
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(backend.predicates, [Entity(f"m.{n}") for n in range(36)]))
    assert found == [{"a.b.c"}] * 36
    assert 1 <= most <= 3


def test_who_finds_no_place_in_time_is_told(fake: Fake) -> None:
    fake.acts = [hang]
    backend = fake.backend(concurrency=1, timeout_s=60.0)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(backend.members, ANN)
        while not fake.forms:
            time.sleep(0.01)
        backend._timeout_s = 0.1
        with pytest.raises(Unavailable, match="busy"):
            backend.predicates(ANN)
        fake.over.set()
        assert first.result(30) == {"film.director.film"}  # asked again


def test_a_server_says_nothing_to_a_model(fake: Fake) -> None:
    session = film_session(fake.backend())
    fake.acts = [rows("x", X_SQL_State="S1TAT", X_SQL_Message=SECRET), rows("x", X_SPARQL_MaxRows="1")]
    assert call(session, "get_relations", variable="Ann") == (
        "Error: get_relations: the graph did not answer in time. Use a smaller set."
    )
    assert call(session, "get_relations", variable="Ann") == (
        "Error: get_relations: the graph has too many answers. Use a smaller set."
    )
    assert call(session, "get_relations", variable="Ann") == "Observation: [film.director.film]"
    fake.acts = [broken(500)]
    told = call(session, "get_relations", variable="Bob")
    assert session.status is Status.TASK_ERROR
    assert SECRET not in told + json.dumps(session.last.metrics)
    assert session.last.metrics["fault"] == "environment"


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (rows("x", X_SQL_State="S1TAT"), "took too long"),
        (rows("x", X_SPARQL_MaxRows="1"), "more than 50000 members"),
    ],
)
def test_an_answer_that_the_server_cannot_give_is_not_graded(fake: Fake, act: Act, says: str) -> None:
    session = film_session(fake.backend())
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    fake.always = act
    told = call(session, "submit_answer", variable="#0")
    assert session.status is Status.VALIDATION_FAILED
    assert says in told


def test_closing_twice_is_harmless(fake: Fake) -> None:
    backend = fake.backend()
    backend.predicates(ANN)
    backend.close()
    backend.close()
