"""HttpClient: the client over HTTP, with the same methods as LocalClient.

    async with HttpClient("http://127.0.0.1:5020") as client:
        turn = await client.start_sample("db", split="train")

Starts go to the controller; turns go straight to the session's worker where that is reachable (direct mode), else
through the controller. Every call is safe to repeat, and is repeated within its deadline when an answer is lost: a
start carries a request id, a turn its number. A session whose worker died raises `SessionLost`; with `rebuild=True` it
is played again on another worker, from the messages that were sent.

Not here: repeats and deadlines of calls (calls.py); the client without `await` (`SyncClient(HttpClient(url))`,
sync_client.py).
"""

import asyncio
import logging
import operator
import secrets
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from agentbench_fc.arguments import bounded
from agentbench_fc.episode import Turn
from agentbench_fc.errors import (
    AgentBenchError,
    CallerError,
    Conflict,
    Gone,
    NotFound,
)
from agentbench_fc.messages import Message, read_agent_messages
from agentbench_fc.protocol import SampleRef, SessionInfo, WorkerInfo
from agentbench_fc.record import compare
from agentbench_fc.serve import schema
from agentbench_fc.serve.calls import Calls, Shortcut
from agentbench_fc.serve.faults import SessionLost
from agentbench_fc.serve.http import encode
from agentbench_fc.serve.link import Link

logger = logging.getLogger(__name__)

CLOSE_WAIT_S = 5.0
WAIT_MARGIN_S = 30.0
KEPT_FINISHED = 1000
"""Of so many finished sessions the tools are kept, for an answer that is asked for again."""


@dataclass(slots=True)
class _Session:
    """What the client knows of a session that it started."""

    id: str
    """The worker's id of it; after a rebuild another one than the caller's."""
    tools: list[Any]
    address: str | None
    token: str | None
    turn: int
    finished: bool = False
    start: dict[str, Any] = field(default_factory=dict)
    log: list[tuple[list[Message], Turn]] = field(default_factory=list)
    """What was sent and what came back; only kept for a rebuild."""


class HttpClient:
    """Drives sessions on other processes and machines. Use it on one event loop.

    Args:
        url: Of a controller, or of a single worker.
        token: What the servers were started with.
        direct: Turns go straight to the workers where they can be reached.
        client_id: Who this is; clients share slots fairly by it. By default a random word.
        timeout_s: Deadline of a call with all its repeats; a start's is longer where `start_wait_s` is.
        attempt_timeout_s: One attempt without an answer is given up after this, and repeated; the work goes on.
        start_wait_s: How long a start may wait for a free slot.
        rebuild: A session whose worker died is played again on another one.
        cancel_on_close: `aclose` ends the sessions that this client started and that are still open.
        max_connections: Most open connections.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        direct: bool = True,
        client_id: str | None = None,
        timeout_s: float = 300.0,
        attempt_timeout_s: float = 30.0,
        start_wait_s: float = 60.0,
        rebuild: bool = False,
        cancel_on_close: bool = True,
        max_connections: int = 512,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise CallerError(f"the url is {url!r} [client]. Use http://host:port.")
        for name, value in (
            ("timeout_s", timeout_s),
            ("attempt_timeout_s", attempt_timeout_s),
            ("start_wait_s", start_wait_s),
        ):
            if not value > 0:
                raise CallerError(f"{name} is {value} [client]. Use seconds > 0.")
        self.url = url.rstrip("/")
        self.client_id = client_id or f"client-{secrets.token_hex(4)}"
        self._direct = direct
        self._start_wait_s = min(start_wait_s, schema.MAX_TIMEOUT_S)
        self._rebuild = rebuild
        self._cancel_on_close = cancel_on_close
        self._link = Link(token=token, connections=max_connections, headers={"X-Client-Id": self.client_id})
        self._calls = Calls(self.url, self._link, timeout_s=timeout_s, attempt_timeout_s=attempt_timeout_s)
        self._sessions: dict[str, _Session] = {}
        self._finished: deque[str] = deque()
        self._starting: set[str] = set()
        """Request ids of the starts under way."""
        self._behind: set[asyncio.Task[Any]] = set()
        self._closed = False

    # the client's methods

    async def start_sample(
        self,
        task: str,
        sample: SampleRef | None = None,
        *,
        split: str | None = None,
        seed: int | None = None,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Opens a session; see `Client.start_sample`. It waits for a free slot up to `start_wait_s`."""
        start = {
            "task": task,
            "sample": _sample(sample),
            "split": split,
            "seed": secrets.randbelow(2**31) if seed is None else operator.index(seed),
            "profile": profile,
            "prompt": prompt,
            "options": dict(options or {}),
        }
        session, turn = await self._start(start)
        self._sessions[turn.session_id] = session
        if turn.finish:
            self._finish(turn.session_id, session)
        return turn

    async def interact(self, session_id: str, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """Plays one agent turn; see `Client.interact`."""
        sent = bounded(read_agent_messages(messages)).to_messages()
        session = self._sessions.get(session_id)
        try:
            reply = await self._play(session_id, session, sent, turn)
        except (Gone, NotFound):
            if session is not None and not session.finished:
                self._sessions.pop(session_id, None)
            raise
        except SessionLost as error:
            if session is None or not self._rebuild or not session.log:
                self._sessions.pop(session_id, None)
                raise
            reply = await self._play_rebuilt(session_id, session, sent, turn, error)
        return reply

    async def cancel(self, session_id: str, status: str = "cancelled") -> Turn:
        """Ends a session; see `Client.cancel`."""
        session = self._sessions.get(session_id)
        body = {"session_id": session.id if session else session_id, "status": str(status)}
        turn = self._read(session_id, await self._call_session(session, "cancel", body), session)
        self._finish(session_id, session)
        return turn

    async def renew(self, session_id: str) -> SessionInfo:
        """Begins the idle time anew; see `Client.renew`."""
        session = self._sessions.get(session_id)
        body = {"session_id": session.id if session else session_id}
        info = schema.read_session(await self._call_session(session, "renew", body))
        return replace(info, session_id=session_id)

    async def fork(self, session_id: str, turn: int | None = None) -> Turn:
        """A new session from an old one; see `Client.fork`."""
        session = self._sessions.get(session_id)
        body = {
            "session_id": session.id if session else session_id,
            "turn": turn,
            "request_id": secrets.token_hex(8),
        }
        reply = await self._call_session(session, "fork", body)
        child = schema.read_turn(reply, reply["tools"] or [])
        made = self._sessions[child.session_id] = _opened(reply, child, session.start if session else {})
        if session is not None and self._rebuild:
            made.log = [(sent, replace(t, session_id=child.session_id)) for sent, t in session.log[: child.turn + 1]]
        return child

    async def list_sessions(self) -> list[SessionInfo]:
        """The open sessions of all clients, oldest first."""
        reply = await self._calls.call("GET", "/v1/list_sessions")
        if reply["unheard"]:
            logger.warning("the sessions of workers %s are missing: they do not answer", ", ".join(reply["unheard"]))
        return [schema.read_session(row) for row in reply["sessions"]]

    async def list_workers(self) -> list[WorkerInfo]:
        """The workers, the dead ones too for a while."""
        return [schema.read_worker(row) for row in (await self._calls.call("GET", "/v1/list_workers"))["workers"]]

    async def list_tasks(self) -> list[dict[str, Any]]:
        """The tasks that can be started: name, hashes, slots."""
        rows: list[dict[str, Any]] = (await self._calls.call("GET", "/v1/list_tasks"))["tasks"]
        return rows

    async def samples(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The sample ids of a split, in order."""
        query = {"task": task, "profile": profile, "prompt": prompt}
        if split is not None:
            query["split"] = split
        if options:
            query["options"] = encode(dict(options)).decode()
        reply = await self._calls.call("GET", f"/v1/get_indices?{urlencode(query)}")
        ids: list[str] = reply["samples"]
        return ids

    async def get_indices(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The numbers of a split's samples."""
        return list(range(len(await self.samples(task, split, profile=profile, prompt=prompt, options=options))))

    async def calculate_overall(self, task: str, results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Scores over results; each is an object with sample, repeat, status, reward and success."""
        body = {"task": task, "results": [dict(result) for result in results]}
        scores: dict[str, Any] = await self._calls.call("POST", "/v1/calculate_overall", body)
        return scores

    async def raw(self, method: str, path: str) -> Any:
        """The decoded answer of any path that takes no body, for tools that show more than the client's records."""
        return await self._calls.call(method, path)

    async def aclose(self) -> None:
        """Ends the sessions that this client started and that are still open, and closes the connections."""
        if self._closed:
            return
        self._closed = True
        ends = [task for task in self._behind if not task.done()]
        if self._cancel_on_close:
            ends += [
                asyncio.ensure_future(
                    self._call_session(session, "cancel", {"session_id": session.id}, timeout_s=CLOSE_WAIT_S)
                )
                for session in self._sessions.values()
                if not session.finished
            ]
            ends += [asyncio.ensure_future(self._take_back(request_id)) for request_id in self._starting]
        if ends:
            done, late = await asyncio.wait(ends, timeout=CLOSE_WAIT_S)
            for task in late:
                task.cancel()
            failed = len(late) + sum(task.exception() is not None for task in done if not task.cancelled())
            if failed:
                logger.info("%d sessions were not ended at the close; they will expire", failed)
        await self._link.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # starts, turns and rebuilds

    async def _start(self, start: dict[str, Any]) -> tuple[_Session, Turn]:
        request_id = secrets.token_hex(8)
        body = {**start, "request_id": request_id, "wait_s": self._start_wait_s}
        usual = self._calls.timeout_s
        allowed = max(usual, self._start_wait_s + min(WAIT_MARGIN_S, usual))
        self._starting.add(request_id)
        try:
            reply = await self._calls.call(
                "POST", "/v1/start_sample", body, timeout_s=allowed, start_wait_s=self._start_wait_s
            )
        except BaseException as error:
            if not isinstance(error, AgentBenchError) or error.retryable:
                self._in_background(self._take_back(request_id))  # it may have been done all the same
            raise
        finally:
            self._starting.discard(request_id)
        turn = schema.read_turn(reply, reply["tools"] or [])
        session = _opened(reply, turn, start)
        if self._rebuild:
            session.log.append(([], turn))
        return session, turn

    async def _play(self, session_id: str, session: _Session | None, sent: list[Message], turn: int | None) -> Turn:
        number = turn if turn is not None or session is None else session.turn + 1
        body = {
            "session_id": session.id if session else session_id,
            "messages": sent,
            "turn": number,
            "request_id": secrets.token_hex(8),
            "with_tools": session is None,
        }
        try:
            reply = await self._call_session(session, "interact", body, repeats=number is not None)
        except Conflict:
            if turn is not None or number is None:
                raise
            # The caller asked for no check of the order, and somebody else has played this session meanwhile.
            reply = await self._call_session(session, "interact", body | {"turn": None}, repeats=False)
        played = self._read(session_id, reply, session)
        if session is not None:
            if session.log and played.turn == session.turn + 1:  # a record without its beginning is of no use
                session.log.append((sent, played))
            session.turn = max(session.turn, played.turn)
            if played.finish:
                self._finish(session_id, session)
        return played

    async def _play_rebuilt(
        self, session_id: str, session: _Session, sent: list[Message], turn: int | None, error: SessionLost
    ) -> Turn:
        """Plays a lost session again elsewhere, up to where it stood, and then the turn.

        Until it stands there again, the session stays what it was: a rebuild that is broken off can be tried once more.
        """
        logger.warning("rebuilding session=%s: %s", session_id, error)
        number = session.turn + 1 if turn is None else turn
        if number == session.turn and sent == session.log[-1][0]:
            return session.log[-1][1]
        fresh, opening = await self._start(session.start)
        try:
            self._same(session.log[0][1], opening, session_id)
            for said, answer in session.log[1:]:
                self._same(answer, await self._play(session_id, fresh, said, None), session_id)
        except BaseException:
            self._in_background(self._call_session(fresh, "cancel", {"session_id": fresh.id}, timeout_s=CLOSE_WAIT_S))
            raise
        session.id, session.address, session.token = fresh.id, fresh.address, fresh.token
        return await self._play(session_id, session, sent, turn)

    def _finish(self, session_id: str, session: _Session | None) -> None:
        """What is kept of a finished session: little, and not for ever."""
        if session is not None and not session.finished:
            session.finished = True
            session.log.clear()
            self._finished.append(session_id)
            if len(self._finished) > KEPT_FINISHED:
                self._sessions.pop(self._finished.popleft(), None)

    def _same(self, before: Turn, now: Turn, session_id: str) -> None:
        if difference := compare(before, now):
            self._sessions.pop(session_id, None)
            raise SessionLost(
                f"its worker died, and turn {before.turn} came out differently on another: {difference} "
                f"[session {session_id}]. Start another one."
            )

    async def _take_back(self, request_id: str) -> None:
        """Ends what a start has led to, or will lead to, whose answer nobody waits for any more."""
        await self._calls.call("POST", "/v1/cancel", {"request_id": request_id}, timeout_s=CLOSE_WAIT_S)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Ends a session that nobody waits for."""
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a session could not be ended; it will expire: %s", error)

    def _read(self, session_id: str, reply: dict[str, Any], session: _Session | None) -> Turn:
        turn = schema.read_turn(reply, session.tools if session else [])
        return turn if turn.session_id == session_id else replace(turn, session_id=session_id)

    # calls

    async def _call_session(
        self,
        session: _Session | None,
        name: str,
        body: dict[str, Any],
        *,
        repeats: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        shortcut = None
        if self._direct and session is not None and session.address is not None and session.token is not None:
            shortcut = Shortcut(session.address, session.token)
        headers = {"X-Session-Id": str(body["session_id"]).encode("ascii", "replace").decode()[:200]}
        return await self._calls.call(
            "POST", f"/v1/{name}", body, shortcut=shortcut, headers=headers, repeats=repeats, timeout_s=timeout_s
        )


def _opened(reply: dict[str, Any], turn: Turn, start: dict[str, Any]) -> _Session:
    return _Session(
        turn.session_id,
        turn.tools,
        reply.get("address"),
        reply.get("token"),
        turn.turn,
        start=start,
    )


def _sample(sample: SampleRef | None) -> str | int | None:
    if sample is None or isinstance(sample, str):
        return sample
    if isinstance(sample, bool) or not hasattr(sample, "__index__"):
        raise CallerError(f"sample is of type {type(sample).__name__} [client]. Give an id, a number, or leave it out.")
    return operator.index(sample)
