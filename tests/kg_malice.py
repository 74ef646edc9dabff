"""What a hostile or broken model may send, and what must hold afterwards, whatever the backend."""

import gc
import json
import os
import threading

from kg_toys import FILMS, call, direct_with_bob, film_session, ntriples

from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session
from agentbench_fc.tasks.kg.backend import Backend
from agentbench_fc.tasks.kg.expressions import MAX_SIZE, NAMESPACE

GRAPH = ntriples(FILMS)
TEXTS = [
    'm.ann> ?p ?o . } # "',
    f"m.ann> <{NAMESPACE}common.secret.number",
    "film.director.film> ?x } #",
    "} DROP ALL {",
    "m.ann} ; CLEAR GRAPH <http://example.org/kg> #",
    "m.ann> . SERVICE <http://127.0.0.1:1/> { ?s ?p ?o } #",
    "m.ann> ; LOAD <file:///etc/passwd> #",
    "<bif:exec('shutdown')>",
    "m." + "a" * 10_000,
    "#" + "9" * 10_000,
    "{0}{x}{question}%s\\",
    "\"\"\"\n'''",
    "m.ann\ud800",
    "m.ann\0",
    "m.änn",
    "#0 UNION #1",
    "#-1",
    "#1e9",
    "#٣",
    "#0#0",
    "<script>",
    "",
    " " * 10_000,
    "\u202e#0",
]


def attack(session: Session, text: str) -> None:
    """Sends the text as every argument of every tool; each gets a clear, short error."""
    call(session, "get_neighbors", variable="Ann", relation="film.director.film")
    for name, arguments in [
        ("get_relations", {"variable": text}),
        ("get_attributes", {"variable": text}),
        ("count", {"variable": text}),
        ("get_neighbors", {"variable": text, "relation": "film.director.film"}),
        ("get_neighbors", {"variable": "Ann", "relation": text}),
        ("intersection", {"variable1": text, "variable2": "#0"}),
        ("intersection", {"variable1": "#0", "variable2": text}),
        ("argmax", {"variable": "#0", "attribute": text}),
        ("argmin", {"variable": text, "attribute": "film.film.runtime"}),
    ]:
        reply = call(session, name, **arguments)
        assert reply.startswith("Error"), (name, arguments, reply)
        assert 10 < len(reply) < 400
        assert NAMESPACE not in reply.replace(" ".join(text.split())[:60], "")


def told(session: Session, calls: list[tuple[str, dict[str, str]]]) -> list[str]:
    """What several calls of one turn come back with."""
    sent = [ToolCall(f"c{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(calls)]
    return [str(message["content"]) for message in session.interact([assistant(None, sent)]).messages]


def overgrow(session: Session) -> None:
    """Expressions as deep, as wide and as circular as the tools allow, and questions about them."""
    steps = ("film.film.starring", "film.actor.film")
    chain = [("get_neighbors", {"variable": "Ann", "relation": "film.director.film"})]
    chain += [("get_neighbors", {"variable": f"#{n}", "relation": steps[n % 2]}) for n in range(MAX_SIZE)]
    replies = told(session, chain)  # to the actors and back until it is too deep
    deepest = made(replies) - 1
    assert 15 < deepest < MAX_SIZE
    assert any(word in replies[deepest + 1] for word in ("parts", "nested"))
    before = (0, *range(deepest + 1, deepest + 8))
    replies = told(session, [("intersection", {"variable1": f"#{n}", "variable2": f"#{n}"}) for n in before])
    widest = deepest + made(replies)  # each holds the one before twice
    assert any("parts" in reply for reply in replies)
    before = (0, *range(widest + 1, widest + 8))
    replies = told(session, [("argmax", {"variable": f"#{n}", "attribute": "film.film.runtime"}) for n in before])
    highest = widest + made(replies)
    assert highest > widest + 2
    lists = ("get_relations", "get_attributes")
    for number in (deepest, widest, highest):
        replies = told(session, [(name, {"variable": f"#{number}"}) for name in lists])
        assert all(reply.startswith("Observation") or "nested" in reply for reply in replies), replies
    assert not session.finished


def made(replies: list[str]) -> int:
    return sum(reply.startswith("Observation") for reply in replies)


def still_works(session: Session) -> None:
    """The same session goes on as if nothing had happened."""
    assert "film.director.film" in call(session, "get_relations", variable="Ann")
    assert not session.finished


def wins(backend: Backend) -> None:
    """Another session on the same backend solves its question."""
    session = film_session(backend)
    direct_with_bob(session)
    turn = session.interact([assistant(None, [ToolCall("c", "submit_answer", json.dumps({"variable": "#2"}))])])
    assert (turn.status, turn.reward) == (Status.COMPLETED, 1.0)


def held() -> tuple[int, int, int]:
    """Threads, open files and resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return threading.active_count(), len(os.listdir("/proc/self/fd")), memory
