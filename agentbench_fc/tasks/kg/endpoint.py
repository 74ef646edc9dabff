"""A graph behind a SPARQL 1.1 endpoint, such as Virtuoso with Freebase, asked through SPARQLWrapper.

    backend = EndpointBackend("http://127.0.0.1:8890/sparql")
    backend.predicates(Entity("m.0d060g"))

Each query is one POST within a deadline; each thread has a wrapper of its own, and at most `concurrency` queries are
under way. A busy or absent server (429, 502 to 504, a refused or broken connection) is asked again a few times.

Virtuoso answers 200 to two kinds of wrong results, which are errors here: a result cut at the server's row limit
(header `X-SPARQL-MaxRows`) and the partial one of a query that ran out of time (`X-SQL-State: S1TAT`). It gets a time
limit of its own, so that it gives up before we do and does not compute for nobody.

What a server says never becomes part of an error message: only its status does.

Not here: what an expression means (expressions.py); the embedded store (backend.py).
Source: W3C SPARQL 1.1 Protocol and Query Results JSON; OpenLink's documentation of anytime queries.
"""

import http.client
import json
import math
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from agentbench_fc.errors import CallerError, InfrastructureError, TaskError, Unavailable
from agentbench_fc.tasks.kg.backend import (
    CACHED_ANSWERS,
    MAX_MEMBERS,
    MAX_PREDICATES,
    QUERY_TIMEOUT_S,
    TooMany,
    TooSlow,
)
from agentbench_fc.tasks.kg.expressions import Expr, TooLarge, depth, select, select_predicates
from agentbench_fc.tasks.kg.values import plain

CONCURRENCY = 12
"""Queries at once; Freebase's usual Virtuoso has 15 threads for them."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Between the tries of a query that a busy or absent server did not take."""
MAX_DEPTH = 20
"""Sets within sets. Virtuoso plans a query twice as long for each level beyond; a gold plan has four at most."""
SERVER_SHARE = 0.6
"""Of the time left, what Virtuoso may use; it notices its limit late."""
MAX_REPLY_BYTES = 64 * 2**20
_BUSY = frozenset({429, 502, 503, 504})


class EndpointBackend:
    """A graph asked over HTTP.

    Args:
        url: The endpoint's address.
        graph: IRI of the named graph to ask; None: the endpoint's default.
        timeout_s: A query, its tries included, has so long.
        concurrency: Most queries at once; more wait.
        pauses_s: Seconds between tries.

    Raises:
        CallerError: no address of that kind, or SPARQLWrapper is not installed.
    """

    name = "endpoint"

    def __init__(
        self,
        url: str,
        *,
        graph: str | None = None,
        timeout_s: float = QUERY_TIMEOUT_S,
        concurrency: int = CONCURRENCY,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        parts = _address(url)
        self._shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._wrapper_class = _wrapper_class()
        self._url, self._graph = url, graph
        self._timeout_s, self._pauses = timeout_s, pauses_s
        self._slots = threading.BoundedSemaphore(concurrency)
        self._own = threading.local()
        self._is_virtuoso = False
        self.predicates: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._predicates)
        self.members: Callable[[Expr], frozenset[str]] = lru_cache(maxsize=CACHED_ANSWERS)(self._members)

    def _predicates(self, expr: Expr) -> frozenset[str]:
        _check_depth(expr)
        return self._ask(select_predicates(expr, limit=MAX_PREDICATES), "p")

    def _members(self, expr: Expr) -> frozenset[str]:
        _check_depth(expr)
        found = self._ask(select(expr, limit=MAX_MEMBERS + 1), "x")
        if len(found) > MAX_MEMBERS:
            raise TooMany
        return found

    def close(self) -> None:
        """Drops the cached answers; connections are closed after each query."""
        self.predicates = lru_cache(maxsize=1)(self._predicates)
        self.members = lru_cache(maxsize=1)(self._members)

    def _ask(self, query: str, variable: str) -> frozenset[str]:
        deadline = time.monotonic() + self._timeout_s
        with self._slot(deadline):
            for pause in (*self._pauses, None):
                try:
                    return self._once(query, variable, deadline)
                except _Busy as fault:
                    if pause is None or time.monotonic() + pause >= deadline:
                        raise self._failed(f"the graph does not answer: {fault}") from fault
                    time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _slot(self, deadline: float) -> Iterator[None]:
        if not self._slots.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise Unavailable(f"all queries at once were busy [{self._where()}]. Try again, or allow more.")
        try:
            yield
        finally:
            self._slots.release()

    def _once(self, query: str, variable: str, deadline: float) -> frozenset[str]:
        from SPARQLWrapper.SPARQLExceptions import QueryBadFormed, SPARQLWrapperException

        left = deadline - time.monotonic()
        try:
            result = self._wrapper(query, left).query()
            with result.response as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                body = _read(response, deadline)
        except QueryBadFormed as error:
            raise TaskError(
                f"the endpoint refused a query of ours [{self._where()}]. Is it a SPARQL 1.1 endpoint? Report it."
            ) from error
        except SPARQLWrapperException as error:
            raise self._failed(f"the endpoint answered {type(error).__name__}") from error
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _BUSY:
                    raise _Busy(f"status {error.code}") from error
                raise self._failed(f"the endpoint answered with status {error.code}") from error
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout_s:g} s") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._failed(f"no answer within {self._timeout_s:g} s") from error
            raise _Busy(type(error.reason).__name__) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Busy(type(error).__name__) from error
        self._is_virtuoso = headers.get("server", "").startswith("Virtuoso")
        if state := headers.get("x-sql-state"):
            if state == "S1TAT":
                raise TooSlow
            raise self._failed("the endpoint answered with an error of its own")
        if "x-sparql-maxrows" in headers:
            raise TooMany
        return self._parsed(body, variable)

    def _wrapper(self, query: str, left: float) -> Any:
        """This thread's wrapper, set to a query."""
        wrapper = getattr(self._own, "wrapper", None)
        if wrapper is None:
            wrapper = self._own.wrapper = self._wrapper_class(self._url)
        wrapper.resetQuery()
        wrapper.setMethod("POST")
        wrapper.setReturnFormat("json")
        wrapper.setTimeout(max(1, math.ceil(left)))
        if self._graph is not None:
            wrapper.addDefaultGraph(self._graph)
        if self._is_virtuoso:
            wrapper.addParameter("timeout", str(max(1000, int(left * SERVER_SHARE * 1000))))
        wrapper.setQuery(query)
        return wrapper

    def _parsed(self, body: bytes, variable: str) -> frozenset[str]:
        try:
            rows = json.loads(body)["results"]["bindings"]
            return frozenset(_text(row[variable]) for row in rows if variable in row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._failed("the endpoint did not answer with SPARQL results in JSON") from error

    def _failed(self, what: str) -> InfrastructureError:
        return InfrastructureError(f"{what} [{self._where()}]. Check the server, then start the session again.")

    def _where(self) -> str:
        return f"backend endpoint, {self._shown}"


def _check_depth(expr: Expr) -> None:
    if (deep := depth(expr)) > MAX_DEPTH:
        raise TooLarge(f"the set is nested {deep} deep, {MAX_DEPTH} are the most here")


class _Busy(Exception):
    """The server did not take the query; asking again may help."""


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:  # asking for the port checks it
            return parts
    except ValueError:
        pass
    raise CallerError(f"the endpoint is {url!r} [task kg]. Give an address such as http://127.0.0.1:8890/sparql.")


def _wrapper_class() -> Any:
    try:
        from SPARQLWrapper import SPARQLWrapper
    except ImportError as error:
        raise CallerError(
            "SPARQLWrapper is not installed [task kg, backend endpoint]. pip install 'agentbench-fc[kg]'"
        ) from error
    return SPARQLWrapper


def _text(term: Mapping[str, str]) -> str:
    return plain(term["value"], term.get("datatype"))


def _read(response: Any, deadline: float) -> bytes:
    """The whole body; a server that sends it in drops does not get more time."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise TooMany
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:  # the connection broke within the body
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts)
