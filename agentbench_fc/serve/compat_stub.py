"""A worker of AgentRL as a controller of ours sees it: wire v1 in front, AgentRL's behind.

Not here: how it gets into the fleet (compat_worker.py), the calls behind it (compat_remote.py).
"""

import asyncio
import hashlib
import json
import logging
import random
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agentbench_fc.arguments import bounded
from agentbench_fc.errors import (
    AgentBenchError,
    CallerError,
    Conflict,
    Gone,
    NotFound,
    TaskError,
    Unavailable,
    did_you_mean,
)
from agentbench_fc.messages import read_agent_messages
from agentbench_fc.rewards import Status
from agentbench_fc.serve import schema
from agentbench_fc.serve.compat_remote import RemoteWorker, UnknownThere, cut_short, read_flat
from agentbench_fc.serve.faults import SessionLost
from agentbench_fc.serve.hosted import slug
from agentbench_fc.serve.http import Handler, Reply, Request, error_reply, json_reply, read_body, read_query
from agentbench_fc.serve.link import Link, NoAnswer
from agentbench_fc.serve.once import Once

logger = logging.getLogger(__name__)

SPLIT = "all"
"""AgentRL's tasks have indices, but no splits."""
IDLE_S = 600.0
ENDING_S = 60.0
"""A cancelled session counts as open until the worker says that it is over, but no longer than this."""
KEPT_ENDED = 1000


class Registration(BaseModel):
    """A heartbeat of AgentRL's worker."""

    model_config = ConfigDict(strict=True, frozen=True)
    name: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    address: Annotated[str, StringConstraints(pattern=r"^https?://[^/\s?#@]+(/[^\s?#@]*)?$", max_length=300)]
    concurrency: Annotated[int, Field(ge=0, le=1_000_000)]
    indices: list[int | str]


@dataclass(eq=False, slots=True)
class _Session:
    """A session on AgentRL's worker."""

    id: str
    number: int
    """The worker's id of it."""
    sample: str
    seed: int
    client: str
    began: float
    used: float
    tools: list[Any] = field(default_factory=list)
    last: dict[str, Any] | None = None
    """Its last turn; None: it is starting."""
    call: "asyncio.Task[dict[str, Any]] | None" = None
    call_id: str | None = None
    lost: str = ""
    """Why it is over without a result."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return bool(self.lost) or (self.last is not None and self.last["finish"])


class Stub:
    """One worker of AgentRL, as the controller sees it.

    Args:
        name: Of its task.
        address: Base URL of its API.
        link: For calls to it.
        freed: Called when a slot became free.
    """

    def __init__(self, name: str, address: str, link: Link, freed: Callable[[], None]) -> None:
        self.task = name
        parts = urlsplit(address)
        self.address = f"{parts.scheme}://{parts.netloc}"
        mark = hashlib.sha256(f"{name} {address}".encode()).hexdigest()[:6]
        self.name = f"agentrl-{slug(name)[:30]}-{mark}"
        self.worker_id = f"{self.name}-{mark}"
        self.orders_done = 0
        self._remote = RemoteWorker(address, link, self.worker_id)
        self._freed = freed
        self._capacity = 0
        self._indices: list[int | str] = []
        self._numbers: dict[int, _Session] = {}
        """Open and starting sessions."""
        self._ending: dict[int, float] = {}
        self._sessions: dict[str, _Session] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._starts: Once[dict[str, Any]] = Once(keep=KEPT_ENDED)
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._behind: set[asyncio.Task[Any]] = set()
        self._handlers: dict[str, Handler] = {
            "/v1/start_sample": self._start_sample,
            "/v1/interact": self._interact,
            "/v1/cancel": self._cancel,
            "/v1/renew": self._renew,
            "/v1/fork": self._fork,
            "/v1/list_sessions": self._list_sessions,
            "/v1/list_workers": self._list_workers,
            "/v1/get_indices": self._get_indices,
            "/healthz": self._healthz,
        }

    async def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """What a worker of ours would answer.

        Raises:
            NoAnswer: the worker did not.
        """
        path, _, query = path.partition("?")
        sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
        try:
            handler = self._handlers.get(path)
            if handler is None:
                raise NotFound(f"no such path [{path}].")
            await self._remote.check()
            reply = await handler(Request(path, sent, query.encode(), body))
        except NoAnswer:
            raise
        except AgentBenchError as error:
            reply = error_reply(error)
        return reply.status, reply.body

    # signs of life

    def beat(self, registration: Registration | None = None) -> schema.Heartbeat:
        """Its heartbeat as one of ours; `registration` is what it has just said itself."""
        if registration is not None:
            self._capacity = registration.concurrency
            self._indices = list(dict.fromkeys(index for index in registration.indices if index != -1))
            self._expire()
        return schema.Heartbeat(
            worker_id=self.worker_id,
            name=self.name,
            address=self.address,
            version="agentrl",
            tasks=[self._load()],
            orders_done=self.orders_done,
        )

    def obey(self, reply: dict[str, Any]) -> None:
        """Carries the controller's orders out."""
        if reply["order"] <= self.orders_done:
            return
        for session_id in reply["cancel_sessions"]:
            if (session := self._sessions.get(session_id)) is not None and not session.over:
                self._end(session, lost="it had been reported lost while its worker was silent")
        for request_id in reply["cancel_starts"]:
            self._take_back(request_id)
        self.orders_done = reply["order"]

    async def reconcile(self) -> None:
        """Compares sessions with the worker: what only one side knows is over."""
        before = [session for session in self._numbers.values() if session.last is not None and session.call is None]
        try:
            there = {int(number) for number in await self._remote.ask("get_sessions")}
        except (AgentBenchError, ValueError, TypeError) as error:
            logger.info("the sessions of %s are not known: %s", self.worker_id, error)
            return
        for number in there - set(self._numbers) - set(self._ending):
            self._behind_the_scenes(self._cancel_there(number))
        for session in before:
            if session.number not in there and not session.over and session.call is None:
                self._end(session, lost="its worker was restarted", there=False)

    def notice(self, number: int) -> bool:
        """The worker says that a cancelled session is over; whether it was one of these."""
        if self._ending.pop(number, None) is None:
            return False
        self._freed()
        return True

    def close(self) -> None:
        """Drops what it has under way."""
        for task in self._behind:
            task.cancel()

    # wire v1

    async def _start_sample(self, request: Request) -> Reply:
        body = read_body(schema.StartRequest, request)
        self._check(body)
        turn = await self._starts.run(body.request_id, lambda: self._open(body, request.client))
        return json_reply(turn | {"address": None, "token": None})  # its turns go through the controller

    async def _open(self, body: schema.StartRequest, client: str) -> dict[str, Any]:
        if body.request_id in self._refused:
            raise CallerError(f"this start was taken back [request {body.request_id}]. Send another one.")
        if len(self._numbers) + len(self._ending) >= self._capacity:
            raise Unavailable(f"all {self._capacity} slots are taken [task {self.task}]. Try again later.")
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        index = self._index(body.sample, seed)
        now = time.monotonic()
        session = _Session(
            id=f"{self.worker_id}.{slug(self.task)}-{secrets.token_hex(8)}",
            number=secrets.randbits(53),
            sample=str(index),
            seed=seed,
            client=client,
            began=now,
            used=now,
        )
        self._numbers[session.number] = session
        try:
            sent = {"index": index, "session_id": session.number, "custom_task": None}
            flat = await self._call("start_sample", sent, session)
        except BaseException:
            self._numbers.pop(session.number, None)  # should it have come about, `reconcile` cancels it
            raise
        session.tools = flat.get("tools") or []
        self._sessions[session.id] = session
        self._counts["started"] += 1
        turn = self._turn(session, flat, 0)
        if body.request_id in self._refused and not session.over:
            self._end(session, status=Status.CANCELLED)
        return turn | {"tools": session.tools}

    async def _interact(self, request: Request) -> Reply:
        body = read_body(schema.InteractRequest, request)
        session = self._session(body.session_id)
        sent = bounded(read_agent_messages(body.messages)).to_messages()
        number = session.last["turn"] if session.last is not None else 0
        if session.call is not None:
            if body.request_id is None or body.request_id != session.call_id:
                raise Conflict(f"a call of it is under way [session {session.id}]. Wait for its answer.")
            turn = await asyncio.shield(session.call)
        elif body.turn is not None and body.turn == number and number > 0 and session.last is not None:
            turn = session.last
        else:
            self._check_open(session)
            if body.turn not in {None, number + 1}:
                raise Conflict(f"turn {body.turn} is out of order [session {session.id}]. Send turn {number + 1}.")
            session.call_id = body.request_id
            session.call = asyncio.ensure_future(self._play(session, sent, number + 1))
            session.call.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiters raise it
            turn = await asyncio.shield(session.call)
        return json_reply(turn | {"tools": session.tools if body.with_tools else None})

    async def _play(self, session: _Session, sent: list[Any], number: int) -> dict[str, Any]:
        try:
            reply = await self._call("interact", {"session_id": session.number, "messages": sent}, session)
            if session.over:  # it was cancelled meanwhile
                self._check_open(session)
            return self._turn(session, reply.get("env_out") or {}, number)
        except NoAnswer as error:
            if error.sent:  # played or not: a repeat could be a second turn
                self._end(session, lost="the answer to a turn was lost")
                self._check_open(session)
            raise
        finally:
            session.call = None
            session.used = time.monotonic()

    async def _cancel(self, request: Request) -> Reply:
        body = read_body(schema.CancelRequest, request)
        if body.session_id is None:
            if body.request_id is None:
                raise CallerError("neither session_id nor request_id [cancel]. Send one of them.")
            return json_reply({"session_id": self._take_back(body.request_id)})
        if body.status not in {Status.CANCELLED, Status.CONTEXT_LIMIT}:
            raise CallerError(f"a client cannot end a session as {body.status!r} [cancel]. Use 'cancelled'.")
        session = self._session(body.session_id)
        if not session.over:
            self._end(session, status=Status(body.status))
        if session.lost:
            self._check_open(session)
        return json_reply((session.last or {}) | {"tools": session.tools})

    async def _renew(self, request: Request) -> Reply:
        session = self._session(read_body(schema.RenewRequest, request).session_id)
        self._check_open(session)
        session.used = time.monotonic()
        return json_reply(self._row(session))

    async def _fork(self, request: Request) -> Reply:
        raise CallerError(f"a worker of AgentRL cannot fork [task {self.task}]. Start another session.")

    async def _list_sessions(self, request: Request) -> Reply:
        rows = [self._row(session) for session in self._numbers.values() if session.last is not None]
        return json_reply({"sessions": rows, "unheard": []})

    async def _list_workers(self, request: Request) -> Reply:
        load = self._load()
        row: dict[str, Any] = {"worker_id": self.worker_id, "name": self.name, "address": self.address}
        row |= {"tasks": [load], "sessions": load.taken, "capacity": load.capacity, "started": load.started}
        row |= {
            "finished": load.finished,
            "expired": load.expired,
            "status": "alive",
            "last_seen_s": 0.0,
            "reason": "",
            "log": [],
        }
        return json_reply({"workers": [row]})

    async def _get_indices(self, request: Request) -> Reply:
        query = read_query(schema.SamplesRequest, request, as_json=("options",))
        self._check(query)
        return json_reply({"task": self.task, "split": query.split, "samples": [str(index) for index in self._indices]})

    async def _healthz(self, request: Request) -> Reply:
        await self._remote.ask("worker_status")
        return json_reply({"status": "ok", "role": "worker", "id": self.worker_id, "version": "agentrl"})

    # sessions

    def _check(self, body: schema.StartRequest | schema.SamplesRequest) -> None:
        if body.split not in {None, SPLIT}:
            raise NotFound(f"no split {body.split!r} [task {self.task}]. A task of AgentRL has one: {SPLIT!r}.")
        for what, given in (("profile", body.profile), ("prompt style", body.prompt)):
            if given != "default":
                raise CallerError(f"no {what} {given!r} [task {self.task}]. A task of AgentRL has no choice of it.")
        if body.options:
            raise CallerError(f"options are given [task {self.task}]. A task of AgentRL takes none.")

    def _index(self, sample: str | int | None, seed: int) -> int | str:
        if not self._indices:
            raise NotFound(f"it has no samples [task {self.task}]. Ask its worker's owner.")
        if sample is None:
            return random.Random(seed).choice(self._indices)
        if isinstance(sample, int):
            if 0 <= sample < len(self._indices):
                return self._indices[sample]
            raise NotFound(f"no sample {sample} [task {self.task}]. There are {len(self._indices)}, from 0 on.")
        for index in self._indices:
            if str(index) == sample:
                return index
        names = [str(index) for index in self._indices]
        raise NotFound(f"no sample {sample[:80]!r} [task {self.task}]. {did_you_mean(sample[:80], names)}")

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost(f"its controller was restarted, or it is long over [session {session_id}]. Start one.")
        return session

    def _check_open(self, session: _Session) -> None:
        if session.lost:
            raise SessionLost(f"{session.lost} [session {session.id}]. Start another one.")
        if session.over:
            raise Gone(f"it has finished [session {session.id}]. Start another one.")

    def _turn(self, session: _Session, flat: dict[str, Any], number: int) -> dict[str, Any]:
        """An answer of the worker as a turn of ours, which becomes the session's last."""
        try:
            session.last = read_flat(flat, session.id, number)
        except TaskError as error:
            self._end(session, lost=f"its worker failed: {error}")
            raise
        if session.last["finish"]:
            self._over(session)
            self._freed()
        return session.last

    def _end(self, session: _Session, *, status: Status | None = None, lost: str = "", there: bool = True) -> None:
        """Ends a session on this side, and at the worker where it is there."""
        if status is None:
            session.lost = lost
        else:
            number = session.last["turn"] if session.last is not None else 0
            session.last = cut_short(session.id, number, status)
        self._over(session)
        if there:
            self._ending[session.number] = time.monotonic() + ENDING_S
            self._behind_the_scenes(self._cancel_there(session.number))

    def _over(self, session: _Session) -> None:
        self._numbers.pop(session.number, None)
        self._counts["finished"] += 1
        self._ended[session.id] = None
        if len(self._ended) > KEPT_ENDED:
            self._sessions.pop(self._ended.popitem(last=False)[0], None)

    def _expire(self) -> None:
        now = time.monotonic()
        for session in list(self._numbers.values()):
            if session.last is not None and session.call is None and now - session.used > IDLE_S:
                self._counts["expired"] += 1
                self._end(session, status=Status.CANCELLED)
        for number in [number for number, until in self._ending.items() if now > until]:
            del self._ending[number]

    def _take_back(self, request_id: str) -> str | None:
        self._refused[request_id] = None
        if len(self._refused) > KEPT_ENDED:
            self._refused.popitem(last=False)
        turn = self._starts.result(request_id)
        session = self._sessions.get(turn["session_id"]) if turn is not None else None
        if session is None or session.over:
            return None
        self._end(session, status=Status.CANCELLED)
        return session.id

    def _load(self) -> schema.TaskLoad:
        by_client = Counter(session.client for session in self._numbers.values())
        indices = hashlib.sha256(json.dumps(self._indices).encode()).hexdigest()[:16]
        return schema.TaskLoad(
            task=self.task,
            capacity=self._capacity,
            taken=len(self._numbers) + len(self._ending),
            started=self._counts["started"],
            finished=self._counts["finished"],
            expired=self._counts["expired"],
            digest=hashlib.sha256(f"agentrl {self.task}".encode()).hexdigest()[:16],
            splits={SPLIT: indices},
            clients=dict(by_client),
        )

    def _row(self, session: _Session) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "session_id": session.id,
            "task": self.task,
            "sample": session.sample,
            "split": SPLIT,
            "seed": session.seed,
            "profile": "default",
            "turn": session.last["turn"] if session.last is not None else 0,
            "busy": session.call is not None,
            "age_s": now - session.began,
            "expires_in_s": max(0.0, session.used + IDLE_S - now),
            "parent": None,
            "worker": self.worker_id,
            "client": session.client,
        }

    # calls to the worker

    async def _call(self, name: str, body: dict[str, Any], session: _Session) -> dict[str, Any]:
        try:
            return await self._remote.call(name, body)
        except UnknownThere:
            if not session.over:
                self._end(session, lost="its worker does not know it any more", there=False)
            self._check_open(session)
            raise AssertionError("it is over") from None

    async def _cancel_there(self, number: int) -> None:
        if await self._remote.cancel(number):
            self.notice(number)

    def _behind_the_scenes(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._behind.add(task)  # the loop itself keeps no hold on it
        task.add_done_callback(self._behind.discard)
