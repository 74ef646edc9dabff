"""Where a graph is asked: a small interface, and the embedded store that runs by default.

>>> backend = OxigraphBackend()
>>> backend.load_lines(['<http://rdf.freebase.com/ns/m.01> <http://rdf.freebase.com/ns/a.b.c> '
...                     '<http://rdf.freebase.com/ns/m.02> .'])
>>> backend.predicates(Entity("m.01")), backend.members(Join("a.b.c", Entity("m.01")))
(frozenset({'a.b.c'}), frozenset({'m.02'}))

One backend serves all sessions and threads of a task, read-only. Answers are kept in a bounded cache keyed by the
expression, which holds nothing of a session. A query that runs cannot be stopped, so each is bounded before it starts:
expressions have a largest size, their cost is linear in the edges touched (see expressions.py), results have a limit.

Not here: what an expression means (expressions.py); which predicates a model gets to see (schema.py).
"""

import gzip
import io
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from agentbench_fc.errors import CallerError, InfrastructureError, did_you_mean
from agentbench_fc.tasks.kg.expressions import NAMESPACE, Entity, Expr, Join, select, select_predicates  # noqa: F401

BackendName = Literal["oxigraph", "endpoint"]
BACKENDS: tuple[str, ...] = get_args(BackendName)
MAX_MEMBERS = 50_000
"""Members of a set; the largest gold answer of AgentBench has 313."""
MAX_PREDICATES = 5_000
CACHED_ANSWERS = 2_048


class TooMany(Exception):
    """A set has more than MAX_MEMBERS members."""


class Backend(Protocol):
    """Answers questions about a graph. Shared by threads; read-only."""

    name: str

    def predicates(self, expr: Expr) -> frozenset[str]:
        """Every relation and attribute that leaves a member of the set.

        Raises:
            InfrastructureError: the store does not answer.
        """
        ...

    def members(self, expr: Expr) -> frozenset[str]:
        """The set: entity ids, or the texts of values.

        Raises:
            TooMany: more than MAX_MEMBERS.
            InfrastructureError: the store does not answer.
        """
        ...

    def close(self) -> None:
        """Frees the store; safe to repeat."""
        ...


class OxigraphBackend:
    """A graph in memory, asked through pyoxigraph."""

    name = "oxigraph"

    def __init__(self) -> None:
        import pyoxigraph

        self._store: Any = pyoxigraph.Store()
        self._format = pyoxigraph.RdfFormat.N_TRIPLES
        self.predicates: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._predicates)
        self.members: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._members)

    def load(self, path: Path) -> None:
        """Adds an N-Triples file, `.nt` or `.nt.gz`."""
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                self._bulk_load(file, str(path))
        else:
            with path.open("rb") as file:
                self._bulk_load(file, str(path))

    def load_lines(self, lines: Iterable[str]) -> None:
        """Adds lines of N-Triples."""
        self._bulk_load(io.BytesIO("\n".join(lines).encode()), "lines")

    def _bulk_load(self, file: Any, where: str) -> None:
        try:
            self._store.bulk_load(file, format=self._format)
        except (SyntaxError, ValueError) as error:
            raise CallerError(f"the graph is not N-Triples: {error} [{where}]. Mend or convert the file.") from error
        except OSError as error:
            raise InfrastructureError(f"the graph cannot be read: {error} [{where}]. Check the file.") from error

    def _predicates(self, expr: Expr) -> frozenset[str]:
        return self._ask(select_predicates(expr, limit=MAX_PREDICATES), "p")

    def _members(self, expr: Expr) -> frozenset[str]:
        found = self._ask(select(expr, limit=MAX_MEMBERS + 1), "x")
        if len(found) > MAX_MEMBERS:
            raise TooMany
        return found

    def _ask(self, query: str, variable: str) -> frozenset[str]:
        try:
            return frozenset(_plain(row[variable]) for row in self._store.query(query))
        except (OSError, RuntimeError, SyntaxError, ValueError) as error:
            raise InfrastructureError(
                f"the graph gave no answer: {type(error).__name__} [backend oxigraph]. Start the task again."
            ) from error

    def close(self) -> None:
        """Drops the triples and the cache."""
        import pyoxigraph

        self._store = pyoxigraph.Store()
        self.predicates = lru_cache(maxsize=1)(self._predicates)
        self.members = lru_cache(maxsize=1)(self._members)


def check_backend(name: str) -> None:
    """Refuses a backend that this version does not have.

    Raises:
        CallerError: an unknown name, or one that is not built yet.
    """
    if name not in BACKENDS:
        raise CallerError(f"no backend {name!r} [task kg]. {did_you_mean(name, BACKENDS)}")
    if name == "endpoint":
        raise CallerError(
            "backend 'endpoint' is not in this version [task kg]. Use 'oxigraph' with graph=<N-Triples file>."
        )


def _plain(term: Any) -> str:
    """An id without its namespace, or the text of a value (Freebase's dump gives some dates a time zone)."""
    return str(term.value).removeprefix(NAMESPACE).replace("-08:00", "")
