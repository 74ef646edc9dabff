"""A worker: runs the sessions of one or more tasks behind wire v1. All state of a session is here.

Session ids are `<worker id>.<task>-<random>`, so that a controller needs no table to find them. A worker id has a part
that is new with every start of the process: a session of an earlier incarnation is known to be lost.

Not here: sessions of one task (hosted.py), telling the controller (heartbeat.py), the process (worker_main.py).
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from agentbench_fc.deadlines import CallThreads
from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, Unavailable, did_you_mean
from agentbench_fc.registry import load_task
from agentbench_fc.serve import schema
from agentbench_fc.serve.config import WorkerConfig, incarnation
from agentbench_fc.serve.faults import SessionLost, Unauthorized
from agentbench_fc.serve.hosted import Hosted
from agentbench_fc.serve.http import App, Reply, Request, error_reply, json_reply, read_body, read_query
from agentbench_fc.serve.logtail import LogTail
from agentbench_fc.serve.overall import overall
from agentbench_fc.serve.routes import Service, table
from agentbench_fc.serve.telemetry import WorkerTelemetry

logger = logging.getLogger(__name__)

KEPT_LOST = 10_000
"""Sessions ended because they had been reported lost; each is told so when it is asked for."""


class Worker(Service):
    """The service of a worker; `app` is its ASGI application.

    Args:
        config: Its settings.
        address: Where clients and the controller reach it, as a URL.
    """

    def __init__(self, config: WorkerConfig, *, address: str = "") -> None:
        self.config = config
        self.address = address
        self.worker_id = f"{config.name}-{incarnation()}"
        self.threads = CallThreads(max_abandoned=4 * config.max_abandoned)
        self.telemetry = WorkerTelemetry()
        self.tail = LogTail()
        self.draining = False
        self.ready = False
        self.stopping = asyncio.Event()
        """Set when the process should drain and end; `restart` says whether it should come back."""
        self.restart = False
        self.on_free: Callable[[], None] = lambda: None
        """Called when a slot becomes free; on any thread."""
        self._secret = secrets.token_bytes(32)
        self._hosted: dict[str, Hosted] = {}
        self._by_slug: dict[str, Hosted] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._looks: set[asyncio.Task[None]] = set()
        self.app = App(table(self), token=config.token, limits=config.limits)

    async def open(self) -> None:
        """Loads the tasks; then the worker is ready.

        Raises:
            AgentBenchError: a task cannot be loaded, or two have the same name.
        """
        for name, task in self.config.given.items():
            self._host(name, task, given=True)
        for ref in self.config.tasks:
            self._host(ref, await asyncio.to_thread(load_task, ref), given=False)
        for name in self.config.capacity:
            if name not in {hosted.name for hosted in self._hosted.values()}:
                known = [hosted.name for hosted in self._hosted.values()]
                raise CallerError(
                    f"a capacity for {name!r}, which is not served [--capacity]. {did_you_mean(name, known)}"
                )
        self.ready = True

    def _host(self, ref: str, task: Any, *, given: bool) -> None:
        hosted = Hosted(
            ref,
            task,
            given=given,
            worker_id=self.worker_id,
            config=self.config,
            threads=self.threads,
            telemetry=self.telemetry,
            on_free=lambda: self.on_free(),
        )
        if hosted.name in self._hosted or hosted.slug in self._by_slug:
            raise CallerError(f"two tasks are called {hosted.name!r} [worker]. Serve them by different workers.")
        self._hosted[hosted.name] = self._by_slug[hosted.slug] = hosted
        if ref != hosted.name:
            self._hosted[ref] = hosted

    @property
    def hosted(self) -> list[Hosted]:
        """Its tasks."""
        return list(self._by_slug.values())

    # wire v1

    async def start_sample(self, request: Request) -> Reply:
        """Opens a session."""
        body = read_body(schema.StartRequest, request)
        hosted = self._task(body.task)
        if self.draining and not (body.request_id and hosted.knows_start(body.request_id)):
            raise Unavailable(f"the worker is about to stop [worker {self.worker_id}]. Start elsewhere.")
        turn = await self._guard(hosted.start(body, request.client))
        self._look_at_split(hosted, body.split)
        return self._opened(turn)

    async def interact(self, request: Request) -> Reply:
        """Plays a turn: the hot path."""
        body = read_body(schema.InteractRequest, request)
        hosted = self._owner(body.session_id, request)
        turn = await self._guard(hosted.play(body), body.session_id)
        return json_reply(schema.turn_fields(turn, tools=body.with_tools))

    async def cancel(self, request: Request) -> Reply:
        """Ends a session, or takes a start back."""
        body = read_body(schema.CancelRequest, request)
        if body.session_id is not None:
            turn = await self._guard(self._owner(body.session_id, request).cancel(body))
            return json_reply(schema.turn_fields(turn, tools=True))
        if body.request_id is None or request.session_token:
            raise CallerError("neither session_id nor request_id [cancel]. Send one of them.")
        return json_reply({"session_id": self.take_back(body.request_id)})

    async def renew(self, request: Request) -> Reply:
        """Begins a session's idle time anew."""
        body = read_body(schema.RenewRequest, request)
        hosted = self._owner(body.session_id, request)
        info = await hosted.client.renew(body.session_id)
        return json_reply(info.to_dict() | {"task": hosted.name, "client": hosted.owner(body.session_id)})

    async def fork(self, request: Request) -> Reply:
        """Branches a session."""
        body = read_body(schema.ForkRequest, request)
        hosted = self._owner(body.session_id, request)
        client = request.client if not request.session_token else hosted.owner(body.session_id)
        return self._opened(await self._guard(hosted.fork(body, client)))

    async def list_sessions(self, request: Request) -> Reply:
        """The open sessions."""
        rows = [
            info.to_dict() | {"task": hosted.name, "client": client}
            for hosted in self.hosted
            for info, client in await hosted.sessions()
        ]
        return json_reply({"sessions": sorted(rows, key=lambda row: -row["age_s"]), "unheard": []})

    async def list_workers(self, request: Request) -> Reply:
        """This one."""
        loads = [await hosted.load() for hosted in self.hosted]
        row = {
            "worker_id": self.worker_id,
            "name": self.config.name,
            "address": self.address,
            "status": "draining" if self.draining else "alive",
            "tasks": loads,
            "sessions": sum(load.taken for load in loads),
            "capacity": sum(load.capacity for load in loads),
            "started": sum(load.started for load in loads),
            "finished": sum(load.finished for load in loads),
            "expired": sum(load.expired for load in loads),
            "last_seen_s": 0.0,
            "reason": "",
            "log": self.tail.lines(),
        }
        return json_reply({"workers": [row]})

    async def list_tasks(self, request: Request) -> Reply:
        """The tasks that can be started here."""
        rows = []
        for load in [await hosted.load() for hosted in self.hosted]:
            row = {"task": load.task, "digest": load.digest, "splits": load.splits, "capacity": load.capacity}
            rows.append(row | {"taken": load.taken, "waiting": 0, "workers": 1})
        return json_reply({"tasks": rows})

    async def get_indices(self, request: Request) -> Reply:
        """The samples of a split."""
        query = read_query(schema.SamplesRequest, request, as_json=("options",))
        hosted = self._task(query.task)
        samples = await self._guard(hosted.samples(query))
        return json_reply({"task": hosted.name, "split": query.split, "samples": samples})

    async def calculate_overall(self, request: Request) -> Reply:
        """What results add up to."""
        body = read_body(schema.OverallRequest, request)
        return json_reply(await self.hosted[0].client.aside(lambda: overall(body)))

    async def healthz(self, request: Request) -> Reply:
        """Whether the process answers."""
        return json_reply(self._health("ok"))

    async def readyz(self, request: Request) -> Reply:
        """Whether it takes new sessions."""
        if self.draining or not self.ready:
            state = "draining" if self.draining else "starting"
            return error_reply(Unavailable(f"the worker is {state} [worker {self.worker_id}]. Try again."), 503)
        return json_reply(self._health("ready"))

    async def metrics(self, request: Request) -> Reply:
        """Everything counted, for Prometheus."""
        for hosted in self.hosted:
            self.telemetry.open.labels(hosted.name).set(hosted.client.taken)
            self.telemetry.capacity.labels(hosted.name).set(hosted.capacity)
        self.telemetry.abandoned.set(self.abandoned)
        return Reply(self.telemetry.text(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    # beside the wire

    @property
    def abandoned(self) -> int:
        """Calls that were given up and still run."""
        return self.threads.abandoned + sum(hosted.stuck for hosted in self.hosted)

    @property
    def taken(self) -> int:
        """Slots in use."""
        return sum(hosted.client.taken for hosted in self.hosted)

    def take_back(self, request_id: str) -> str | None:
        """Ends the session that a start led to, or will lead to."""
        found = [hosted.take_back(request_id) for hosted in self.hosted]
        return next((session_id for session_id in found if session_id is not None), None)

    def end_sessions(self, session_ids: list[str]) -> None:
        """Ends sessions that the controller has reported as lost: nobody will come back for them."""
        for session_id in session_ids:
            self._lost[session_id] = None  # whoever asks again gets the same answer as before
            if len(self._lost) > KEPT_LOST:
                self._lost.popitem(last=False)
            hosted = self._by_slug.get(session_id.partition(".")[2].rpartition("-")[0])
            if hosted is not None:
                hosted.client.drop(session_id, "it had been reported lost while the worker was silent")

    def stop(self, *, restart: bool = False) -> None:
        """Asks the process to drain and end; who was told to end for good does not come back."""
        if restart and self.stopping.is_set():
            return
        self.restart = restart
        self.stopping.set()

    async def drain(self) -> None:
        """Takes no further session and waits, a bounded time, for the open ones."""
        self.draining = True
        self.on_free()
        deadline = time.monotonic() + self.config.drain_s
        while self.taken and time.monotonic() < deadline:  # noqa: ASYNC110  (sessions end on threads)
            await asyncio.sleep(0.05)
        if self.taken:
            logger.warning("%d sessions were still open when the worker stopped", self.taken)

    async def aclose(self) -> None:
        """Ends what is open; a task that hangs keeps none of the others waiting."""
        await asyncio.gather(*(hosted.client.aclose() for hosted in self.hosted))

    def token_of(self, session_id: str) -> str:
        """What authorizes direct calls for one session."""
        return hmac.digest(self._secret, session_id.encode(), "sha256").hex()[:32]

    def _opened(self, turn: Any) -> Reply:
        fields = schema.turn_fields(turn, tools=True)
        return json_reply(fields | {"address": self.address or None, "token": self.token_of(turn.session_id)})

    def _task(self, name: str) -> Hosted:
        hosted = self._hosted.get(name)
        if hosted is None:
            known = [each.name for each in self.hosted]
            raise NotFound(f"no task {name[:80]!r} [worker {self.worker_id}]. {did_you_mean(name[:80], known)}")
        return hosted

    def _owner(self, session_id: str, request: Request | None) -> Hosted:
        """The task of a session, if this worker may have it and the caller may use it."""
        worker, _, rest = session_id.partition(".")
        hosted = self._by_slug.get(rest.rpartition("-")[0])
        if worker == self.worker_id and hosted is not None:
            if session_id in self._lost:
                raise SessionLost(
                    f"it was reported lost while its worker was silent [session {session_id}]. Start one."
                )
            given = request.session_token if request is not None else b""
            if given and not hmac.compare_digest(given, self.token_of(session_id).encode()):
                raise Unauthorized(f"the token is not this session's [session {session_id[:80]}]. Use the start's.")
            return hosted
        if rest and worker.rpartition("-")[0] == self.config.name:
            raise SessionLost(
                f"the worker was restarted and the session is lost [session {session_id}]. Start another."
            )
        raise NotFound(f"no session {session_id[:80]!r} [worker {self.worker_id}]. Start one.")

    async def _guard(self, work: Any, about: str = "") -> Any:
        """The work's result; a fault of this side carries the last words of the log, and too many of them end it."""
        try:
            return await work
        except InfrastructureError as error:
            if isinstance(error, Unavailable):
                raise
            tail = self.tail.lines(3, about)
            if tail:
                raise type(error)(f"{error} Log: {' | '.join(tail)}") from error
            raise
        finally:
            if not self.stopping.is_set() and self.abandoned >= self.config.max_abandoned:
                logger.warning("%d calls hang: the worker drains and restarts", self.abandoned)
                self.stop(restart=True)

    def _look_at_split(self, hosted: Hosted, split: str | None) -> None:
        """Computes the split's hash, so that the next heartbeats carry it."""
        task = asyncio.create_task(hosted.hash_split(split))
        self._looks.add(task)  # the loop itself keeps no hold on it
        task.add_done_callback(self._looked)

    def _looked(self, task: "asyncio.Task[None]") -> None:
        self._looks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a split could not be hashed, and is not compared with that of others: %s", error)

    def _health(self, status: str) -> dict[str, str]:
        return {"status": status, "role": "worker", "id": self.worker_id, "version": schema.version()}
