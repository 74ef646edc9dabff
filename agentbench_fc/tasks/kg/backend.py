"""Where a graph is asked: a small interface, and the embedded store that runs by default.

>>> backend = OxigraphBackend()
>>> backend.load_lines(['<http://rdf.freebase.com/ns/m.01> <http://rdf.freebase.com/ns/a.b.c> '
...                     '<http://rdf.freebase.com/ns/m.02> .'])
>>> backend.predicates(Entity("m.01")), backend.members(Join("a.b.c", Entity("m.01")))
(frozenset({'a.b.c'}), frozenset({'m.02'}))

One backend serves all sessions and threads of a task, read-only. Answers are kept in a bounded cache keyed by the
expression, which holds nothing of a session.

A query of pyoxigraph cannot be stopped. Its cost is at most linear in the triples times the parts of the expression
(see expressions.py); where that product is small the query runs here, otherwise in a child process that is killed at
the deadline. Results have a limit.

Not here: what an expression means (expressions.py); a server elsewhere (endpoint.py); which predicates a model gets to
see (schema.py).
"""

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from agentbench_fc.errors import CallerError, InfrastructureError, did_you_mean
from agentbench_fc.procs import ChildPool, ChildRaised
from agentbench_fc.tasks.kg import lookups
from agentbench_fc.tasks.kg.expressions import Entity, Expr, Join, select, select_predicates  # noqa: F401
from agentbench_fc.tasks.kg.store import (
    ask,
    broken,
    load_file,
    load_lines,
    new_store,
    open_folder,
    texts,
    triples_of,
)

BackendName = Literal["oxigraph", "endpoint"]
BACKENDS: tuple[str, ...] = get_args(BackendName)
MAX_MEMBERS = 50_000
"""Members of a set; the largest gold answer of AgentBench has 313."""
MAX_PREDICATES = 5_000
CACHED_ANSWERS = 2_048
QUERY_TIMEOUT_S = 20.0
"""A query has so long; less than a call."""
CHEAP_STEPS = 2_800_000
"""Triples times parts of an expression. Up to here a query takes a second at worst (a graph in which every step touches
every edge), usually a fraction of a millisecond, and runs in this process."""
MAX_CHILDREN = 2
CHILD_START_S = 120.0


class TooMany(Exception):
    """A set has more members than a backend gives."""


class TooSlow(Exception):
    """A query took too long and was ended."""


class Backend(Protocol):
    """Answers questions about a graph. Shared by threads; read-only."""

    name: str

    def predicates(self, expr: Expr) -> frozenset[str]:
        """Every relation and attribute that leaves a member of the set.

        Raises:
            TooMany: more than the backend gives.
            TooSlow: the query was ended at its deadline.
            TooLarge: the expression is more than the backend can take.
            InfrastructureError: the store does not answer.
        """
        ...

    def members(self, expr: Expr) -> frozenset[str]:
        """The set: entity ids, or the texts of values.

        Raises:
            TooMany: more than MAX_MEMBERS, or than the backend gives.
            TooSlow: the query was ended at its deadline.
            TooLarge: the expression is more than the backend can take.
            InfrastructureError: the store does not answer.
        """
        ...

    def close(self) -> None:
        """Frees the store; safe to repeat."""
        ...


class OxigraphBackend:
    """A graph asked through pyoxigraph.

    Args:
        folder: A store on disk (see store.py), opened read-only; None: an empty one in memory, to be loaded.
        timeout_s: A query that may take long is ended after so many seconds.
        cheap_steps: Up to so many triples times parts of an expression, a query runs in this process.
    """

    name = "oxigraph"

    def __init__(
        self, folder: Path | None = None, *, timeout_s: float = QUERY_TIMEOUT_S, cheap_steps: int = CHEAP_STEPS
    ) -> None:
        self._folder = folder
        self._store = new_store() if folder is None else open_folder(folder)
        self._triples = 0 if folder is None else triples_of(folder)
        self._timeout_s = timeout_s
        self._cheap_steps = cheap_steps
        self._children: ChildPool | None = None
        self._dump: weakref.finalize[..., object] | None = None
        self._making = threading.Lock()
        self.predicates: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._predicates)
        self.members: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._members)

    def load(self, source: Path | Callable[[Any], None]) -> None:
        """Adds an N-Triples file, `.nt` or `.nt.gz`, or what a function puts into the store. Load before you ask."""
        if isinstance(source, Path):
            load_file(self._store, source)
        else:
            source(self._store)
        self._triples = len(self._store)

    def load_lines(self, lines: Iterable[str]) -> None:
        """Adds lines of N-Triples."""
        self.load(lambda store: load_lines(store, lines))

    def _predicates(self, expr: Expr) -> frozenset[str]:
        if (found := self._look_up(lookups.predicates, expr)) is not None:
            return frozenset(found)
        return self._ask(select_predicates(expr, limit=MAX_PREDICATES), expr)

    def _members(self, expr: Expr) -> frozenset[str]:
        if (few := self._look_up(lookups.members, expr)) is not None:
            return texts(few)
        found = self._ask(select(expr, limit=MAX_MEMBERS + 1, all_languages=True), expr)
        if len(found) > MAX_MEMBERS:
            raise TooMany
        return found

    def _is_cheap(self, expr: Expr) -> bool:
        return self._triples * expr.size <= self._cheap_steps

    def _look_up(self, look: Callable[[Any, Expr], set[Any] | None], expr: Expr) -> set[Any] | None:
        if not self._is_cheap(expr):
            return None
        try:
            return look(self._store, expr)
        except (OSError, RuntimeError, ValueError) as error:
            raise broken(error) from error

    def _ask(self, query: str, expr: Expr) -> frozenset[str]:
        return ask(self._store, query) if self._is_cheap(expr) else self._ask_child(query)

    def _ask_child(self, query: str) -> frozenset[str]:
        pool = self._pool()
        child = pool.pin(timeout_s=self._timeout_s, per_child=1)
        began = time.monotonic()
        try:
            return frozenset(child.call("ask", {"query": query}, timeout_s=self._timeout_s))
        except ChildRaised as error:
            raise InfrastructureError("the graph gave no answer [backend oxigraph]. Start the task again.") from error
        except InfrastructureError as error:
            if time.monotonic() - began >= self._timeout_s:
                raise TooSlow from error
            raise
        finally:
            pool.unpin(child)

    def _pool(self) -> ChildPool:
        """The children; those of a store in memory load its triples from a file that is written now."""
        with self._making:
            if self._children is None:
                if self._folder is not None:
                    source = {"folder": str(self._folder)}
                else:
                    source = {"triples": str(self._write_dump())}
                target = "agentbench_fc.tasks.kg.store:Store"
                self._children = ChildPool(target, MAX_CHILDREN, source, start_timeout_s=CHILD_START_S)
            return self._children

    def _write_dump(self) -> Path:
        import pyoxigraph

        handle, name = tempfile.mkstemp(prefix="agentbench-fc-kg-", suffix=".nt")
        os.close(handle)
        self._dump = weakref.finalize(self, Path(name).unlink, missing_ok=True)
        try:
            graph = pyoxigraph.DefaultGraph()
            self._store.dump(name, format=pyoxigraph.RdfFormat.N_TRIPLES, from_graph=graph)
        except OSError as error:
            raise InfrastructureError(f"the graph cannot be written: {error} [{name}]. Free some space.") from error
        return Path(name)

    def close(self) -> None:
        """Drops the triples and the cache, and ends the children."""
        with self._making:
            children, self._children = self._children, None
            if self._dump is not None:
                self._dump()
        if children is not None:
            children.close()
        self._folder, self._triples, self._store = None, 0, new_store()
        self.predicates = lru_cache(maxsize=1)(self._predicates)
        self.members = lru_cache(maxsize=1)(self._members)


def check_backend(name: str) -> None:
    """Refuses a backend that does not exist.

    Raises:
        CallerError: an unknown name.
    """
    if name not in BACKENDS:
        raise CallerError(f"no backend {name!r} [task kg]. {did_you_mean(name, BACKENDS)}")
