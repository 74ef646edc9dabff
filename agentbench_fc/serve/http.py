"""A small ASGI application: routes, limits, authorization, and errors in one shape. Worker and controller share it.

Written against ASGI itself, because the hot path is one dictionary look-up, one JSON parse and two sends; the route
table also makes the OpenAPI document (openapi.py).

Not here: what the routes do (worker.py, controller.py); the sockets (server.py).
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from agentbench_fc.errors import AgentBenchError, CallerError, NotFound, TaskError, Unavailable
from agentbench_fc.messages import clean_text
from agentbench_fc.serve.faults import Defect, TooLarge, TooSlow, Unauthorized, to_wire
from agentbench_fc.serve.limits import RateLimit

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
M = TypeVar("M", bound=BaseModel)

MAX_BODY = 32 * 2**20
MAX_HEADERS = 16 * 2**10
ANONYMOUS = "anonymous"


@dataclass(slots=True)
class Request:
    """One request, its body read."""

    path: str
    headers: Mapping[bytes, bytes]
    query: bytes
    body: bytes
    session_token: bytes = b""
    """Set where the caller was let in for one session only."""

    @property
    def client(self) -> str:
        """Who asks, in its own words; for fairness, not for authorization."""
        name = self.headers.get(b"x-client-id", b"")[:64].decode("ascii", "replace")
        return "".join(c if c.isalnum() or c in "-_." else "_" for c in name) or ANONYMOUS


@dataclass(slots=True)
class Reply:
    """What is sent back."""

    body: bytes
    status: int = 200
    headers: Headers = field(default_factory=list)
    content_type: bytes = b"application/json"


Handler = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path: what it takes and gives. The OpenAPI document is made of these."""

    method: str
    path: str
    handler: Handler
    summary: str
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | UnionType | None = None
    """A union where the request decides which."""
    open: bool = False
    """Answers without a token."""
    by_session: bool = False
    """Answers to a session's own token too."""
    internal: bool = False
    """Between controller and workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller may use."""

    max_body: int = MAX_BODY
    max_headers: int = MAX_HEADERS
    rate: float | None = None
    """Requests per second and address; None: no bound."""
    body_s: float = 30.0
    """A body must be there within so many seconds after its head."""
    failed_logins: float = 5.0
    """Wrong tokens per second and address before they are turned away unread."""


class App:
    """The ASGI application.

    Args:
        routes: Those of wire v1; a path has one method.
        others: Routes of other wires, which the OpenAPI document does not describe.
        token: Demanded as `Authorization: Bearer …`; None: everyone is let in.
        limits: Of size and rate.
    """

    def __init__(
        self,
        routes: list[Route],
        *,
        others: list[Route] | None = None,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        document = Route(
            method="GET", path="/openapi.json", handler=self._document, summary="This document.", open=True
        )
        self.routes = {route.path: route for route in [*routes, document]}
        self._served = self.routes | {route.path: route for route in others or ()}
        self._token = token.encode() if token else None
        self._limits = limits or Limits()
        self._rate = RateLimit(self._limits.rate) if self._limits.rate else None
        self._failures = RateLimit(self._limits.failed_logins, burst=20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; other kinds of connections are closed."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        try:
            reply = await self._answer(scope, receive)
        except AgentBenchError as error:
            reply = error_reply(error)
        except _Disconnected:
            return
        except Exception:  # the edge of the process: a defect of ours must not look like one of the caller's
            logger.exception("a request failed by a defect, path=%s", scope["path"])
            reply = error_reply(Defect("the server failed [http]. Its log says why; please report it."))
        head = [
            (b"content-type", reply.content_type),
            (b"content-length", str(len(reply.body)).encode()),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        route = self._served.get(scope["path"])
        headers = dict(scope["headers"])
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._limits.max_headers:
            text = f"the headers take {size} bytes [http]. At most {self._limits.max_headers} are taken."
            return error_reply(TooLarge(text), 431)
        peer = (scope.get("client") or ("", 0))[0]
        if self._rate is not None and not self._rate.take(peer):
            raise Unavailable(f"more than {self._limits.rate:g} requests a second [{peer}]. Slow down.")
        session_token = self._authorize(route, headers, peer)
        if route is None:
            raise NotFound(f"no such path [{clean_text(scope['path'])[:200]}]. GET /openapi.json lists them.")
        if scope["method"] != route.method and not (scope["method"] == "HEAD" and route.method == "GET"):
            error = CallerError(f"the method is {scope['method'][:20]} [{route.path}]. Use {route.method}.")
            return error_reply(error, 405, [(b"allow", route.method.encode())])
        try:
            body = await self._read(headers, receive) if route.method == "POST" else b""
        except TooSlow as error:
            return error_reply(error, headers=[(b"connection", b"close")])
        return await route.handler(Request(route.path, headers, scope["query_string"], body, session_token))

    async def _document(self, request: Request) -> Reply:
        """The OpenAPI document of these routes."""
        from agentbench_fc.serve.openapi import document

        return json_reply(document(self.routes.values(), "server"))

    def _authorize(self, route: Route | None, headers: Mapping[bytes, bytes], peer: str) -> bytes:
        """Lets the caller in, or raises; gives the session token that it came with, to be checked by the handler."""
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        kind = kind.lower()
        if kind == b"session" and route is not None and route.by_session:
            return given or b" "
        if self._token is None or (route is not None and route.open):
            return b""
        if kind == b"bearer" and hmac.compare_digest(given, self._token):
            return b""
        if not self._failures.take(peer):
            raise Unavailable("too many wrong tokens [http]. Wait a second.")
        problem = "a token is missing" if not given else "the token is wrong"
        raise Unauthorized(f"{problem} [http]. Send the one that the server was started with.")

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limit = self._limits.max_body
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limit:
            raise TooLarge(f"the body takes {int(length[:20])} bytes [http]. At most {limit} are taken.")
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.body_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Disconnected
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > limit:
                        raise TooLarge(f"the body takes more than {limit} bytes [http]. Send less at once.")
        except TimeoutError:
            raise TooSlow(f"the body did not come within {self._limits.body_s:g} s [http]. Send it again.") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Disconnected(Exception):
    """The caller left before its request was whole."""


def read_body(model: type[M], request: Request) -> M:
    """The body as a model.

    Raises:
        CallerError: it is not; the text says where.
    """
    try:
        return model.model_validate_json(request.body or b"null")
    except ValidationError as error:
        raise _malformed(error, request.path) from None


def read_query(model: type[M], request: Request, *, as_json: tuple[str, ...] = ()) -> M:
    """The query parameters as a model; those in `as_json` hold JSON.

    Raises:
        CallerError: one is unknown, doubled or malformed.
    """
    values: dict[str, Any] = {}
    try:
        pairs = parse_qs(request.query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(request.query))
    except ValueError:
        raise CallerError(f"the query cannot be read [{request.path}]. Send name=value pairs.") from None
    for name, given in pairs.items():
        if len(given) > 1:
            raise CallerError(f"{clean_text(name)[:80]!r} is given {len(given)} times [{request.path}]. Send it once.")
        try:
            values[name] = from_json(given[0]) if name in as_json else given[0]
        except ValueError:
            raise CallerError(f"{name!r} is not JSON [{request.path}]. Send it URL-encoded.") from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _malformed(error, request.path) from None


def _malformed(error: ValidationError, path: str) -> CallerError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:100]
    more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    text = clean_text(f"the request is malformed{f' at {where}' if where else ''}: {first['msg'][:300]}{more}")
    return CallerError(f"{text} [{path}]. GET /openapi.json describes it.")


def encode(value: Any) -> bytes:
    """Strict JSON whatever a task put into its metrics."""
    try:
        return to_json(value, inf_nan_mode="null", fallback=_plain)
    except ValueError:
        return to_json(_cleaned(value), inf_nan_mode="null", fallback=_plain)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def _cleaned(value: Any, depth: int = 0) -> Any:
    if depth > 50:
        return clean_text(repr(value)[:200])
    if isinstance(value, str):
        return clean_text(str(value))
    if isinstance(value, BaseModel):
        return _cleaned(value.model_dump(), depth)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_cleaned(item, depth + 1) for item in value]
    return value


def json_reply(value: Any) -> Reply:
    """A reply with a JSON body."""
    return Reply(encode(value))


def error_reply(error: AgentBenchError, status: int | None = None, headers: Headers | None = None) -> Reply:
    """A reply that tells of an error."""
    if isinstance(error, TaskError):
        logger.warning("a task failed: %s", error)
    natural, body, own = to_wire(error)
    return Reply(encode({"error": body}), status or natural, [*own, *(headers or [])])
