"""The controller: dispatches starts, passes calls on, and notices workers that come, go and hang.

It keeps no state that it could lose: sessions are in the workers, their ids name the worker, and heartbeats bring back
everything else within one period of a restart.

Not here: decisions (fleet.py, waiting.py), the process (controller_main in processes.py).
"""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError, NotFound, Unavailable, did_you_mean
from agentbench_fc.serve import schema
from agentbench_fc.serve.compat import AgentRLWire
from agentbench_fc.serve.compat_worker import AgentRLWorkers, Doors
from agentbench_fc.serve.config import ControllerConfig, incarnation
from agentbench_fc.serve.faults import WorkerSuspect
from agentbench_fc.serve.fleet import Fleet, Member, Reservation, State
from agentbench_fc.serve.http import App, Headers, Reply, Request, Route, error_reply, json_reply, read_body, read_query
from agentbench_fc.serve.link import NoAnswer
from agentbench_fc.serve.once import Once
from agentbench_fc.serve.overall import overall
from agentbench_fc.serve.routes import Service, table
from agentbench_fc.serve.telemetry import ControllerTelemetry
from agentbench_fc.serve.waiting import StartQueue

logger = logging.getLogger(__name__)

CALL_LIMIT_S = 1000.0
"""A worker ends a turn earlier than this by itself; one that dies meanwhile ends the wait at once."""
PROBE_TIMEOUT_S = 1.0
RETRY_GAP_S = 0.1
"""Before another worker is tried: a whole fleet that fails must not be hammered."""
KEPT_HOMES = 200_000
"""Starts whose worker is remembered."""


class Controller(Service):
    """The service of a controller; `app` is its ASGI application.

    Args:
        config: Its settings.
        clock: Seconds, monotonic.
    """

    def __init__(self, config: ControllerConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.id = incarnation() + incarnation()
        self.fleet = Fleet(config, clock)
        self.queue = StartQueue(config.max_waiting)
        self.telemetry = ControllerTelemetry()
        self._link = Doors(token=config.token)
        self._starts: Once[Reply] = Once(keep=0)
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._taken_back: OrderedDict[str, None] = OrderedDict()
        self._waits: dict[str, set[asyncio.Timeout]] = {}
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._futures: dict[int, asyncio.Future[Reservation]] = {}
        self._passed = self.telemetry.forwarded.labels("answered")
        heartbeat = Route(
            method="POST",
            path="/v1/heartbeat",
            handler=self.heartbeat,
            summary="From a worker: that it lives, and how full it is.",
            takes=schema.Heartbeat,
            gives=schema.HeartbeatReply,
            internal=True,
        )
        self._agentrl = AgentRLWire(self, self.fleet)
        self._agentrl_workers = AgentRLWorkers(self._link, self.fleet, self.heartbeat)
        others = [*self._agentrl.routes, *self._agentrl_workers.routes]
        self.app = App([*table(self), heartbeat], others=others, token=config.token, limits=config.limits)

    async def run(self) -> None:
        """Watches the workers until it is cancelled."""
        while True:
            await asyncio.sleep(self.config.heartbeat_s / 2)
            try:
                self._tick()
            except Exception:  # the watch must outlive any one round's trouble
                logger.exception("a round of watching failed; the next one tries again")

    async def aclose(self) -> None:
        """Ends what it holds."""
        for probe in self._probes.values():
            probe.cancel()
        await self._agentrl_workers.aclose()
        await self._link.aclose()

    # wire v1

    async def start_sample(self, request: Request) -> Reply:
        """Opens a session on the least loaded worker; waits for a slot where there is none."""
        body = read_body(schema.StartRequest, request)
        if body.request_id is None:  # so that a start whose answer is lost can be found again
            body = body.model_copy(update={"request_id": incarnation() + incarnation()})
        return await self._starts.run(body.request_id, lambda: self._start(body, request.client))

    async def interact(self, request: Request) -> Reply:
        """Passes a turn on: the hot path of clients that cannot reach the workers."""
        return await self._pass_on(request)

    async def cancel(self, request: Request) -> Reply:
        """Ends a session, or takes a start back."""
        body = read_body(schema.CancelRequest, request)
        if body.session_id is not None:
            return await self._pass_on(request, body.session_id)
        if body.request_id is None:
            raise CallerError("neither session_id nor request_id [cancel]. Send one of them.")
        return await self._take_back(body.request_id, request)

    async def renew(self, request: Request) -> Reply:
        """Begins a session's idle time anew."""
        return await self._pass_on(request)

    async def fork(self, request: Request) -> Reply:
        """Branches a session, on its own worker."""
        return await self._pass_on(request)

    async def list_sessions(self, request: Request) -> Reply:
        """The open sessions of all workers that answer."""
        members = [member for member in self.fleet.members.values() if member.state is not State.DEAD]
        answers = await asyncio.gather(*(self._ask(member, "sessions") for member in members))
        rows = [row for answer in answers for row in answer or ()]
        rows.sort(key=lambda row: -row["age_s"])
        silent = [member.id for member, answer in zip(members, answers, strict=True) if answer is None]
        return json_reply({"sessions": rows, "unheard": silent})

    async def list_workers(self, request: Request) -> Reply:
        """The workers, the dead ones too for a while; those that live are asked how full they are just now."""
        alive = [member for member in self.fleet.members.values() if member.state is State.ALIVE]
        answers = await asyncio.gather(*(self._ask(member, "workers") for member in alive))
        fresh = {row["worker_id"]: row for answer in answers for row in answer or ()}
        rows = [row.model_dump() for row in self.fleet.workers()]
        now = ("tasks", "sessions", "started", "finished", "expired")
        for row in rows:
            if (answer := fresh.get(row["worker_id"])) is not None:
                row |= {name: answer[name] for name in now} | {"last_seen_s": 0.0}
        return json_reply({"workers": rows})

    async def list_tasks(self, request: Request) -> Reply:
        """The tasks that can be started."""
        return json_reply({"tasks": self.fleet.tasks(self.queue.waiting)})

    async def get_indices(self, request: Request) -> Reply:
        """The samples of a split, from any worker that has the task."""
        query = read_query(schema.SamplesRequest, request, as_json=("options",))
        tried: set[str] = set()
        while (member := self._any_with(query.task, tried)) is not None:
            tried.add(member.id)
            try:
                path = f"/v1/get_indices?{request.query.decode('ascii')}"
                status, raw = await self._send(member, "GET", path, None, request.client)
                return Reply(raw, status, _retry_header(status))
            except NoAnswer as error:
                self._doubt(member, str(error))
        raise self._no_worker(query.task)

    async def calculate_overall(self, request: Request) -> Reply:
        """What results add up to."""
        body = read_body(schema.OverallRequest, request)
        return json_reply(await asyncio.to_thread(overall, body))

    async def healthz(self, request: Request) -> Reply:
        """Whether the process answers."""
        return json_reply(self._health("ok"))

    async def readyz(self, request: Request) -> Reply:
        """Whether a worker is there."""
        if not any(member.state is State.ALIVE for member in self.fleet.members.values()):
            return error_reply(Unavailable("no worker is there yet [controller]. Start one, or wait."), 503)
        return json_reply(self._health("ready"))

    async def metrics(self, request: Request) -> Reply:
        """Everything counted, for Prometheus."""
        self.telemetry.waiting.set(len(self.queue))
        for state in State:
            count = sum(member.state is state for member in self.fleet.members.values())
            self.telemetry.workers.labels(str(state)).set(count)
        return Reply(self.telemetry.text(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def heartbeat(self, request: Request) -> Reply:
        """Takes in a worker's heartbeat; the answer carries its orders."""
        beat = read_body(schema.Heartbeat, request)
        was = self.fleet.members.get(beat.worker_id)
        if was is None or was.state is not State.ALIVE:
            logger.info("worker %s is %s", beat.worker_id, "new" if was is None else f"back ({was.reason})")
        member = self.fleet.heard(beat)
        for request_id, _ in beat.starts or ():
            self._settle_home(request_id, member)
        if beat.leaving:
            self._end_waits(member)
        self._pump()
        orders = member.orders
        return json_reply(
            schema.HeartbeatReply(
                controller=self.id,
                heartbeat_s=self.config.heartbeat_s,
                order=max((number for number, _, _ in orders), default=0),
                cancel_sessions=[what for _, kind, what in orders if kind == "session"],
                cancel_starts=[what for _, kind, what in orders if kind == "start"],
            )
        )

    # starts

    async def _start(self, body: schema.StartRequest, client: str) -> Reply:
        assert body.request_id is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + body.wait_s
        raw = body.model_dump_json().encode()
        if body.retry:
            await self._until_reported(body.request_id, deadline)
        doubtful: dict[str, Member] = {}
        home = self.fleet.members.get(self._homes.get(body.request_id, ""))
        try:
            if home is not None and home.state is not State.DEAD:
                if (reply := await self._try_start(home, raw, client, doubtful)) is not None:
                    return reply
            while True:
                kept = await self._slot(body.task, client, deadline)
                reply = None
                try:
                    if body.request_id in self._taken_back:
                        raise CallerError(f"this start was taken back [request {body.request_id}]. Send another one.")
                    self._remember_home(body.request_id, kept.member)
                    reply = await self._try_start(kept.member, raw, client, doubtful)
                finally:
                    self.fleet.release(kept, started=reply is not None and reply.status < 400)
                    if reply is not None and reply.status == 429:
                        self.fleet.full(kept.member, kept.task)
                    self._pump()
                if reply is not None and (reply.status != 429 or loop.time() >= deadline):
                    return reply
                if reply is None:
                    await asyncio.sleep(RETRY_GAP_S)
        finally:
            for member in doubtful.values():  # should they have got it after all
                member.order("start", body.request_id)

    async def _until_reported(self, request_id: str, deadline: float) -> None:
        """A start that comes again: the worker that did it may not have reported yet to a young controller."""
        loop = asyncio.get_running_loop()
        while request_id not in self._homes and self.fleet.settling and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(self.config.heartbeat_s / 10)  # heartbeats come on their own

    async def _try_start(self, member: Member, raw: bytes, client: str, doubtful: dict[str, Member]) -> Reply | None:
        """The worker's answer; None: it gave none. Where it may have got the start, it becomes doubtful."""
        for _ in range(2):
            try:
                status, answer = await self._send(member, "POST", "/v1/start_sample", raw, client)
                if status != 429:  # it has it, or will not have it: a first try without an answer was the same start
                    doubtful.pop(member.id, None)
                return Reply(answer, status, _retry_header(status))
            except NoAnswer as error:
                self._doubt(member, str(error))
                if error.sent:
                    doubtful[member.id] = member
                if not error.sent or not await self._probe_once(member):
                    return None
        return None

    async def _slot(self, task: str, client: str, deadline: float) -> Reservation:
        """A reserved slot, at once or in turn.

        Raises:
            NotFound: no worker has such a task.
            Unavailable: no slot became free in time, or the queue is full.
        """
        loop = asyncio.get_running_loop()
        while not self.fleet.known(task) and self.fleet.settling and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(self.config.heartbeat_s / 10)  # a worker that has it may not have reported yet
        if not self.fleet.known(task) and self.fleet.members:
            names = self.fleet.task_names()
            raise NotFound(f"no task {task[:80]!r} [controller]. {did_you_mean(task[:80], names)}")
        name = self.fleet.canonical(task)
        began = loop.time()
        if not self.queue.waiting(name) and (member := self.fleet.choose(name)) is not None:
            self.telemetry.queue.labels(name).observe(0)
            return self.fleet.reserve(member, name, client)
        future: asyncio.Future[Reservation] = loop.create_future()

        def evict() -> None:
            if not future.done():
                future.set_exception(Unavailable(f"other clients' starts come first [task {name}]. Try again later."))

        ticket = self.queue.push(name, client, evict)
        self._futures[ticket.number] = future
        self._pump()
        try:
            async with asyncio.timeout_at(deadline):
                kept = await future
        except TimeoutError:
            if future.done() and not future.cancelled() and future.exception() is None:
                return future.result()
            raise self._no_slot(name, loop.time() - began) from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.fleet.release(future.result(), started=False)
            raise
        finally:
            self.queue.remove(ticket)
            self._futures.pop(ticket.number, None)
        self.telemetry.queue.labels(name).observe(loop.time() - began)
        return kept

    def _pump(self) -> None:
        """Gives free slots to those that wait."""
        for task in self.queue.tasks():
            while (member := self.fleet.choose(task)) is not None:
                ticket = self.queue.pop(task, self.fleet.held(task))
                if ticket is None:
                    break
                future = self._futures.get(ticket.number)
                if future is not None and not future.done():
                    future.set_result(self.fleet.reserve(member, task, ticket.client))

    def _no_slot(self, task: str, waited: float) -> InfrastructureError:
        members = [member for member in self.fleet.members.values() if member.load(task) is not None]
        if not any(member.state is State.ALIVE for member in members):
            return self._no_worker(task)
        conflicts = [f"{member.id}: {why}" for member in members for why in member.conflicts.values()]
        note = f" ({'; '.join(conflicts)})" if conflicts else ""
        return Unavailable(
            f"no slot became free within {waited:.1f} s [task {task}]{note}. Add workers, or wait longer."
        )

    def _no_worker(self, task: str) -> InfrastructureError:
        members = self.fleet.members.values()
        states = ", ".join(f"{m.id} is {m.state}: {m.reason}" for m in members if m.load(task) is not None)
        if not states and self.fleet.task_names() and not self.fleet.settling:
            known = did_you_mean(task[:80], self.fleet.task_names())
            raise NotFound(f"no task {task[:80]!r} [controller]. {known}")
        return Unavailable(f"no worker is there for it [task {task[:80]}]. {states or 'None has reported.'} Start one.")

    async def _take_back(self, request_id: str, request: Request) -> Reply:
        self._taken_back[request_id] = None
        while len(self._taken_back) > 10_000:
            self._taken_back.popitem(last=False)
        member = self.fleet.members.get(self._homes.get(request_id, ""))
        if member is None or member.state is State.DEAD:
            return json_reply({"session_id": None})
        try:
            status, raw = await self._send(member, "POST", request.path, request.body, request.client)
        except NoAnswer as error:
            self._doubt(member, str(error))
            member.order("start", request_id)
            return json_reply({"session_id": None})
        return Reply(raw, status)

    def _remember_home(self, request_id: str, member: Member) -> None:
        self._homes[request_id] = member.id
        self._homes.move_to_end(request_id)
        if len(self._homes) > KEPT_HOMES:
            self._homes.popitem(last=False)

    def _settle_home(self, request_id: str, member: Member) -> None:
        """A worker says that a start is with it; if it was done again elsewhere meanwhile, one of the two must go."""
        other = self.fleet.members.get(self._homes.get(request_id, ""))
        if other is None or other is member or other.state is State.DEAD:
            self._remember_home(request_id, member)
        else:
            member.order("start", request_id)

    # calls of a session

    async def _pass_on(self, request: Request, session_id: str | None = None) -> Reply:
        given = request.headers.get(b"x-session-id")
        if session_id is None:
            session_id = given.decode("ascii", "replace") if given else _session_of(request)
        member = self.fleet.home(session_id)
        try:
            status, raw = await self._send(member, "POST", request.path, request.body, request.client)
        except NoAnswer as error:
            self.telemetry.forwarded.labels("no answer").inc()
            self._doubt(member, str(error))
            if member.state is State.DEAD:
                raise self.fleet.lost(member, session_id) from error
            raise WorkerSuspect(f"the worker {member.id} does not answer: {error} Try again.") from error
        self._passed.inc()
        return Reply(raw, status, _retry_header(status))

    async def _ask(self, member: Member, what: str) -> list[dict[str, Any]] | None:
        """What a worker lists of itself; None where it gives no such answer in time."""
        try:
            async with asyncio.timeout(self.config.list_timeout_s):
                _, raw = await self._send(member, "GET", f"/v1/list_{what}", None, "")
            return list(json.loads(raw)[what])
        except (NoAnswer, TimeoutError) as error:
            self._doubt(member, str(error) or "no answer in time")
        except (ValueError, KeyError, TypeError):  # an error, or another program that has its address now
            self._doubt(member, f"its answer is no list of {what}")
        return None

    def _any_with(self, task: str, without: set[str]) -> Member | None:
        found = [
            member
            for member in self.fleet.members.values()
            if member.state is not State.DEAD and member.id not in without and member.load(task) is not None
        ]
        return min(found, key=lambda m: (m.state is State.SUSPECT, task in m.conflicts, m.used), default=None)

    async def _send(self, member: Member, method: str, path: str, body: bytes | None, client: str) -> tuple[int, bytes]:
        """One call to a worker; it ends at once when the worker is found to be dead."""
        waits = self._waits.setdefault(member.id, set())
        try:
            async with asyncio.timeout(CALL_LIMIT_S) as wait:
                waits.add(wait)
                try:
                    answer = await self._link.send(
                        method,
                        member.address + path,
                        body,
                        timeout_s=None,
                        headers={"X-Client-Id": client} if client else None,
                    )
                finally:
                    waits.discard(wait)
        except TimeoutError as error:
            dead = member.state is State.DEAD
            why = f"before it was found dead: {member.reason}" if dead else f"within {CALL_LIMIT_S:g} s"
            raise NoAnswer(f"no answer {why} [{member.id}].", sent=True) from error
        if member.state is not State.ALIVE:
            self.fleet.answered(member)
        return answer

    # the watch

    def _tick(self) -> None:
        for member in self.fleet.tick():
            logger.warning("worker %s is dead: %s", member.id, member.reason)
            self._end_waits(member)
        for member in self.fleet.suspects():
            self._probe(member)
        for worker_id in [w for w in self._waits if w not in self.fleet.members]:
            del self._waits[worker_id]
        self._pump()

    def _end_waits(self, member: Member) -> None:
        now = asyncio.get_running_loop().time()
        for wait in list(self._waits.get(member.id, ())):
            if not wait.expired():
                wait.reschedule(now)

    def _doubt(self, member: Member, reason: str) -> None:
        self.fleet.doubt(member, reason)
        self._probe(member)

    def _probe(self, member: Member) -> None:
        if member.state is State.SUSPECT and member.id not in self._probes:
            probe = asyncio.create_task(self._probe_once(member))
            self._probes[member.id] = probe
            probe.add_done_callback(lambda _: self._probes.pop(member.id, None))

    async def _probe_once(self, member: Member) -> bool:
        """Asks a worker whether it lives."""
        try:
            answer = await self._link.call("GET", f"{member.address}/healthz", timeout_s=PROBE_TIMEOUT_S)
            lives = bool(answer["id"] == member.id)
            gone = not lives  # another process has its address
        except (AgentBenchError, KeyError, TypeError) as error:
            lives, gone = False, isinstance(error, NoAnswer) and not error.sent and self.fleet.replaced(member)
        if gone and member.state is State.SUSPECT:
            self.fleet.bury(member, "it was restarted")
            self._end_waits(member)
        if lives and member.state is State.SUSPECT:
            self.fleet.answered(member)
            self._pump()
        return lives

    def _health(self, status: str) -> dict[str, str]:
        return {"status": status, "role": "controller", "id": self.id, "version": schema.version()}


def _retry_header(status: int) -> Headers:
    return [(b"retry-after", b"1")] if status in {429, 503} else []


def _session_of(request: Request) -> str:
    """The session id in a body, without a look at the rest."""
    try:
        session_id = from_json(request.body)["session_id"]
    except (ValueError, KeyError, TypeError):
        session_id = None
    if not isinstance(session_id, str):
        raise CallerError(f"the body is no JSON object with a session_id [{request.path}]. GET /openapi.json.")
    return session_id
