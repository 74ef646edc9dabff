"""The AgentRL wire as a façade on a controller, under /api: AgentRL's clients play our tasks, its workers serve ours.

    agentrl-eval dbbench-std kg-std --controller http://127.0.0.1:5020/api --base-url … --model …

A task's name may carry a split and a profile: `kg`, `kg-std`, `kg-std@agentbench`; `dbbench` stands for `db`. A sample
is named by its number within the split, or by its id. Errors are AgentRL's: 400 for a session or index that there is
not and for a session that is busy, 406 where there is no such task or no free slot, and `{"detail": …}` as the body. A
start waits for a slot before it is refused, since AgentRL's client gives up at the first refusal.

Session ids on this wire are integers that follow from ours (a hash of 53 bits). The table of them is bounded and holds
open sessions only; what is not in it is looked for among the workers' sessions, so that a controller that was restarted
goes on with them. Leases are the sessions' own, in the workers.

The wire has no tokens and no turn numbers: it works for controllers without a token, and turns are numbered here.

Not here: AgentRL's workers (compat_worker.py), wire v1 (routes.py).
Source: agentrl-eval 0.1.2 and agentrl-worker 0.4.0, as they behave; tests/contract runs both.
"""

import asyncio
import hashlib
import json
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from agentbench_fc.errors import AgentBenchError
from agentbench_fc.messages import clean_text
from agentbench_fc.rewards import Status
from agentbench_fc.serve.faults import to_wire
from agentbench_fc.serve.fleet import Fleet
from agentbench_fc.serve.http import Handler, Reply, Request, Route, encode
from agentbench_fc.serve.routes import Service

CLIENT_ID = b"agentrl"
"""Who its clients are, for fairness between clients, where they do not say it."""
NAMES = {"dbbench": "db"}
"""AgentBench's names of tasks where ours are others."""
KEPT_SESSIONS = 100_000
START_WAIT_S = 60.0
TURN_WAIT_S = 60.0
"""A turn is repeated for so long when the session's worker does not answer just now."""
REPEAT_GAP_S = 0.5
SETTLE_GAP_S = 0.1

_STATUSES = {
    Status.INIT_FAILED: Status.TASK_ERROR  # not `unknown`, which AgentRL's client scores as a failure of the agent
}
_CODES = {404: 400, 409: 400, 410: 400, 429: 406, 503: 406}
_WORKER_STATUSES = {"alive": "ALIVE", "suspect": "COMA", "draining": "COMA", "dead": "DEAD", "closed": "DEAD"}
_NUMBER = re.compile(rb"[0-9]{1,19}")
M = TypeVar("M", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Start(_Body):
    """Opens a session."""

    name: str
    index: int | str
    custom_task: dict[str, Any] | None = None


class Interact(_Body):
    """Plays a turn; the session is in the header."""

    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Named:
    """What a task's name on this wire says."""

    task: str
    split: str | None = None
    profile: str = "default"


@dataclass(slots=True)
class _Open:
    """An open session."""

    session_id: str
    turn: int | None
    """Number of its last turn; None: somebody else began it, or another controller."""


class _Refused(Exception):
    """An answer of this wire that is not 200."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class AgentRLWire:
    """The façade; `routes` are to be offered beside wire v1.

    Args:
        service: What is behind it.
        fleet: Knows the tasks' names.
    """

    def __init__(self, service: Service, fleet: Fleet) -> None:
        self._service = service
        self._fleet = fleet
        self._sessions: OrderedDict[int, _Open] = OrderedDict()
        self._search = asyncio.Lock()
        self.routes = [
            agentrl_route("GET", "get_indices", self._get_indices, "AgentRL: the indices of a task."),
            agentrl_route("POST", "start_sample", self._start_sample, "AgentRL: opens a session."),
            agentrl_route("POST", "interact", self._interact, "AgentRL: plays a turn."),
            agentrl_route("POST", "cancel", self._cancel, "AgentRL: ends a session."),
            agentrl_route("GET", "list_sessions", self._list_sessions, "AgentRL: the open sessions."),
            agentrl_route("GET", "list_workers", self._list_workers, "AgentRL: tasks and their workers."),
        ]

    async def _get_indices(self, request: Request) -> Reply:
        name = parse_qs(request.query.decode("ascii", "replace")).get("name", [""])[0]
        named = await self._named(name)
        return Reply(encode(list(range(len(await self._samples(named, request))))))

    async def _start_sample(self, request: Request) -> Reply:
        start = read_agentrl(Start, request)
        if start.custom_task is not None:
            raise _Refused(400, f"the task takes no custom samples [task {_shown(start.name)}]. Send an index.")
        named = await self._named(start.name)
        body: dict[str, Any] = {"task": named.task, "split": named.split, "profile": named.profile}
        turn = await self._ask(
            self._service.start_sample, request, body | {"sample": start.index, "wait_s": START_WAIT_S}
        )
        number = session_number(turn["session_id"])
        self._remember(number, _Open(turn["session_id"], turn["turn"]))
        return self._flat(number, turn)

    async def _interact(self, request: Request) -> Reply:
        number, session = await self._session(request)
        body = {
            "session_id": session.session_id,
            "messages": read_agentrl(Interact, request).messages,
            "with_tools": True,
        }
        if session.turn is not None:
            body["turn"] = session.turn + 1
        try:
            turn = await self._ask(
                self._service.interact, request, body, repeats_s=TURN_WAIT_S if session.turn is not None else 0.0
            )
        except _Refused as refused:
            if refused.status == 400:  # perhaps it is over, or somebody else plays it: ask the workers next time
                self._sessions.pop(number, None)
            raise
        session.turn = turn["turn"]
        return self._flat(number, turn)

    async def _cancel(self, request: Request) -> Reply:
        number, session = await self._session(request)
        await self._ask(self._service.cancel, request, {"session_id": session.session_id})
        self._sessions.pop(number, None)
        return Reply(encode({"session_id": number}))

    async def _list_sessions(self, request: Request) -> Reply:
        now = time.time()
        rows = (await self._ask(self._service.list_sessions, request))["sessions"]
        return Reply(
            encode(
                {
                    str(session_number(row["session_id"])): {
                        "name": row["task"],
                        "index": row["sample"],
                        "start": now - row["age_s"],
                        "worker_id": row["worker"],
                        "locked": row["busy"],
                    }
                    for row in rows
                }
            )
        )

    async def _list_workers(self, request: Request) -> Reply:
        """By task; the indices, which can be many, are to be had by get_indices."""
        now = time.time()
        out: dict[str, dict[str, Any]] = {}
        for row in (await self._ask(self._service.list_workers, request))["workers"]:
            for load in row["tasks"]:
                out.setdefault(load["task"], {"workers": {}})["workers"][row["worker_id"]] = {
                    "id": row["worker_id"],
                    "address": row["address"],
                    "capacity": load["capacity"],
                    "current": load["taken"],
                    "last_visit": now - row["last_seen_s"],
                    "status": _WORKER_STATUSES.get(row["status"], "COMA"),
                    "locked": False,
                }
        return Reply(encode(out))

    # names

    async def _named(self, name: str) -> Named:
        """What a task's name means.

        Raises:
            _Refused: 406, as AgentRL has it.
        """
        plain, _, profile = name.partition("@")
        profile = profile or "default"
        base, _, split = plain.rpartition("-")
        while True:
            for task, its_split in ((plain, None), (NAMES.get(plain), None), (base, split), (NAMES.get(base), split)):
                if task and self._fleet.known(task):
                    return Named(task, its_split, profile)
            if not self._fleet.settling:
                break
            await asyncio.sleep(SETTLE_GAP_S)  # a worker that has it may not have reported yet
        raise _Refused(406, f"no worker has such a task [task {_shown(name)}]. GET /api/list_workers names them.")

    async def _samples(self, named: Named, request: Request) -> list[str]:
        query = {"task": named.task, "profile": named.profile} | ({"split": named.split} if named.split else {})
        asked = Request("/v1/get_indices", _headers(request), urlencode(query).encode(), b"")
        samples: list[str] = (await self._answer(self._service.get_indices, asked))["samples"]
        return samples

    # sessions

    async def _session(self, request: Request) -> tuple[int, _Open]:
        """The session that the header names, from the table or from the workers.

        Raises:
            _Refused: 400; there is none.
        """
        given = request.headers.get(b"session_id", b"")
        if not _NUMBER.fullmatch(given):
            raise _Refused(400, "the header session_id is missing, or no integer. Send the one of start_sample.")
        number = int(given)
        if number not in self._sessions:
            async with self._search:  # one at a time: a flood of wrong ids must not become a flood of questions
                if number not in self._sessions:
                    for row in (await self._ask(self._service.list_sessions, request))["sessions"]:
                        if session_number(row["session_id"]) == number:
                            self._remember(number, _Open(row["session_id"], None if row["busy"] else row["turn"]))
        if number not in self._sessions:
            raise _Refused(400, f"no such session [{number}]. It is over, or never was; start one.")
        self._sessions.move_to_end(number)
        return number, self._sessions[number]

    def _remember(self, number: int, session: _Open) -> None:
        self._sessions[number] = session
        if len(self._sessions) > KEPT_SESSIONS:
            self._sessions.popitem(last=False)

    def _flat(self, number: int, turn: dict[str, Any]) -> Reply:
        """A turn as AgentRL's clients read it; some read `metrics` and some `metric`."""
        if turn["finish"]:
            self._sessions.pop(number, None)
        metrics = dict(turn["metrics"])
        if turn["finish"] and turn["reward"] is not None:
            metrics.setdefault("score", metrics.get("f1", turn["reward"]))
        body = {
            "messages": turn["messages"],
            "tools": turn["tools"],
            "status": _STATUSES.get(turn["status"], turn["status"]),
            "finish": turn["finish"],
            "reward": turn["reward"] or 0,
            "metric": metrics,
            "metrics": metrics,
        }
        return Reply(encode(body), headers=[(b"session_id", str(number).encode())])

    # calls

    async def _ask(
        self, handler: Handler, request: Request, body: dict[str, Any] | None = None, *, repeats_s: float = 0.0
    ) -> Any:
        """The decoded answer of wire v1.

        Raises:
            _Refused: it answered with an error.
        """
        path = f"/v1/{request.path.rpartition('/')[2]}"
        raw = b"" if body is None else encode(body)
        return await self._answer(handler, Request(path, _headers(request), b"", raw), repeats_s)

    async def _answer(self, handler: Handler, request: Request, repeats_s: float = 0.0) -> Any:
        deadline = time.monotonic() + repeats_s
        while True:
            try:
                reply = await handler(request)
                status, value = reply.status, json.loads(reply.body)
                error = value["error"] if status >= 400 else None
            except AgentBenchError as raised:
                status, error, _ = to_wire(raised)
            if error is None:
                return value
            if not error["retryable"] or time.monotonic() + REPEAT_GAP_S >= deadline:
                raise _Refused(_CODES.get(status, status), error["message"])
            await asyncio.sleep(REPEAT_GAP_S)


def session_number(session_id: str) -> int:
    """The integer of a session id; 53 bits, so that it is exact wherever JSON is read.

    >>> session_number("w1-aaaaaa.db-0123456789abcdef")
    7707026112649416
    """
    return int.from_bytes(hashlib.sha256(session_id.encode("utf-8", "replace")).digest()[:8], "big") >> 11


def agentrl_route(method: str, name: str, handler: Handler, summary: str) -> Route:
    """A route of AgentRL's wire: its refusals have AgentRL's shape."""

    async def answer(request: Request) -> Reply:
        try:
            return await handler(request)
        except _Refused as refused:
            return _detail(refused.status, str(refused))

    return Route(method=method, path=f"/api/{name}", handler=answer, summary=summary)


def _detail(status: int, text: str) -> Reply:
    return Reply(encode({"detail": text}), status)


def read_agentrl(model: type[M], request: Request) -> M:
    """The body as a model.

    Raises:
        _Refused: it is not; 422.
    """
    try:
        return model.model_validate_json(request.body or b"null")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100] or "the body"
        raise _Refused(422, clean_text(f"malformed at {where}: {first['msg'][:300]} [{request.path}].")) from None


def _headers(request: Request) -> dict[bytes, bytes]:
    """Of a request of wire v1 that is made of one of this wire."""
    return {b"x-client-id": request.headers.get(b"x-client-id", CLIENT_ID)}


def _shown(name: str) -> str:
    return repr(clean_text(name[:80]))
