"""One task in a worker: its own LocalClient with its own slots and threads, so that a stuck task holds up no other.

Not here: the wire (worker.py); what a session is (session.py).
"""

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentbench_fc.client import LocalClient
from agentbench_fc.deadlines import CallThreads
from agentbench_fc.episode import Task, Turn
from agentbench_fc.errors import CallerError, Unavailable
from agentbench_fc.protocol import SessionInfo
from agentbench_fc.samples import choose_split
from agentbench_fc.serve.config import WorkerConfig
from agentbench_fc.serve.faults import SessionLost
from agentbench_fc.serve.once import Once
from agentbench_fc.serve.options import allowed_by_task, check_options
from agentbench_fc.serve.schema import (
    CancelRequest,
    ForkRequest,
    InteractRequest,
    SamplesRequest,
    StartRequest,
    TaskLoad,
)
from agentbench_fc.serve.telemetry import WorkerTelemetry
from agentbench_fc.session import Session

ENDED_STARTS = 1000
"""Of so many sessions that ended last the start can still be asked for again."""
MAX_CLIENTS = 256
"""So many clients are told apart in a heartbeat."""


class Hosted:
    """A task and its sessions.

    Args:
        ref: What the registry calls the task, or any name for a ready-made one.
        task: The task, loaded.
        given: It was handed over ready-made, rather than loaded by its ref.
        worker_id: Of this worker.
        config: Of this worker.
        threads: For calls with a deadline; shared by all tasks of the worker.
        telemetry: Where sessions are counted.
        on_free: Told when a slot becomes free; on any thread.
    """

    def __init__(
        self,
        ref: str,
        task: Task,
        *,
        given: bool,
        worker_id: str,
        config: WorkerConfig,
        threads: CallThreads,
        telemetry: WorkerTelemetry,
        on_free: Callable[[], None],
    ) -> None:
        self.name = task.spec.name if ":" in ref else ref
        self.ref = ref
        self.capacity = config.capacity_of(self.name)
        self.digest = task.spec.digest
        self.stuck = 0
        """Calls that were given up although nothing on this side could end them."""
        self._config = config
        self._telemetry = telemetry
        self._on_free = on_free
        self._allowed = (
            frozenset() if given else allowed_by_task(ref) | config.allowed_options.get(self.name, frozenset())
        )
        self._variants: set[str] = set()
        self._splits: dict[str, str] = {}
        self._lock = threading.Lock()
        self._client_of: dict[str, str] = {}
        self._open_by: Counter[str] = Counter()
        self._request_of: dict[str, str] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._starts: Once[Turn] = Once(keep=self.capacity + ENDED_STARTS)
        self._turns: Once[Turn] = Once(keep=0)
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._step = telemetry.step.labels(self.name)
        self._start = telemetry.start.labels(self.name)
        self.client = LocalClient(
            tasks={ref: task} if given else None,
            idle_timeout_s=config.idle_timeout_s,
            lifetime_s=config.lifetime_s,
            max_sessions=self.capacity,
            max_concurrency=config.threads_per_task,
            transcripts=config.transcripts,
            worker_id=worker_id,
            id_prefix=f"{worker_id}.{self.slug}-",
            threads=threads,
            start_limit_s=config.start_timeout_s,
            clock=config.clock,
            on_end=self._ends,
        )
        if not given:
            self.client.adopt(task, ref)

    @property
    def slug(self) -> str:
        """The task's part of session ids."""
        return slug(self.name)

    # starts

    async def start(self, request: StartRequest, client: str) -> Turn:
        """Opens a session; the same request id gives the same session."""
        check_options(self.name, request.options, self._allowed)
        with self._variant(request):
            return await self._new(request.request_id, client, lambda: self._open(request))

    async def fork(self, request: ForkRequest, client: str) -> Turn:
        """Branches a session; the same request id gives the same branch."""
        return await self._new(request.request_id, client, lambda: self.client.fork(request.session_id, request.turn))

    def take_back(self, request_id: str) -> str | None:
        """Ends the session of a start that nobody waits for any more; a start that comes later is refused."""
        self._refused[request_id] = None
        while len(self._refused) > ENDED_STARTS:
            self._refused.popitem(last=False)
        turn = self._starts.result(request_id)
        if turn is None:
            return None
        self.client.drop(turn.session_id, "its start was taken back")  # not waited for: heartbeats depend on it
        return turn.session_id

    def starts(self) -> list[tuple[str, str]]:
        """Request id and session id of each open session that has one."""
        with self._lock:
            return [(request, session) for session, request in self._request_of.items() if session in self._client_of]

    def knows_start(self, request_id: str) -> bool:
        """Whether a start with this id is under way or led to a session that is remembered."""
        return self._starts.running(request_id) or self._starts.result(request_id) is not None

    async def _new(self, request_id: str | None, client: str, make: Callable[[], Any]) -> Turn:
        async def work() -> Turn:
            if request_id in self._refused:
                raise CallerError(f"this start was taken back [request {request_id}]. Send another one.")
            began = time.monotonic()
            turn: Turn = await make()
            self._start.observe(time.monotonic() - began)
            if not turn.finish:
                with self._lock:
                    self._client_of[turn.session_id] = client
                    self._open_by[client] += 1
                    if request_id is not None:
                        self._request_of[turn.session_id] = request_id
                if not self.client.is_open(turn.session_id):
                    self._forget_owner(turn.session_id)  # it ended before it was entered
            if request_id in self._refused:
                self.client.drop(turn.session_id, "its start was taken back")
            return turn

        return await self._starts.run(request_id, work)

    async def _open(self, request: StartRequest) -> Turn:
        return await self.client.start_sample(
            self.ref,
            request.sample,
            split=request.split,
            seed=request.seed,
            profile=request.profile,
            prompt=request.prompt,
            options=request.options,
        )

    @contextlib.contextmanager
    def _variant(self, request: StartRequest | SamplesRequest) -> Iterator[None]:
        """Each combination of profile, prompt style and options is a task of its own in memory: they are bounded.

        One that turns out not to exist leaves its place again.
        """
        key = json.dumps([request.profile, request.prompt, request.options], sort_keys=True)
        if key not in self._variants and len(self._variants) >= self._config.max_variants:
            raise CallerError(
                f"{len(self._variants)} combinations of options are loaded [task {self.name}]. Use one of them."
            )
        self._variants.add(key)
        try:
            yield
        finally:
            if not self.client.has_loaded(self.ref, request.profile, request.prompt, request.options):
                self._variants.discard(key)

    # turns

    async def play(self, request: InteractRequest) -> Turn:
        """Plays a turn; a repeat of a request that is under way waits for the same answer."""
        began = time.monotonic()
        key = request.request_id
        if key is None:
            turn = await self._play(request)
        else:
            turn = await self._turns.run(f"{request.session_id} {key}", lambda: self._play(request))
        self._step.observe(time.monotonic() - began)
        return turn

    async def _play(self, request: InteractRequest) -> Turn:
        limit = self._config.step_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await self.client.interact(request.session_id, request.messages, request.turn)
        except TimeoutError:
            if not self.client.is_busy(request.session_id):
                raise Unavailable(f"no thread became free within {limit:g} s [task {self.name}]. Try again.") from None
            self.stuck += 1
            self.client.drop(request.session_id, f"a turn took over {limit:g} s")
            raise SessionLost(
                f"the turn took over {limit:g} s and the session was ended [session {request.session_id}]. "
                "Start another one."
            ) from None

    async def cancel(self, request: CancelRequest) -> Turn:
        """Ends a session."""
        assert request.session_id is not None
        return await self.client.cancel(request.session_id, request.status)

    async def sessions(self) -> list[tuple[SessionInfo, str]]:
        """The open sessions and who started each."""
        return [(info, self._client_of.get(info.session_id, "")) for info in await self.client.list_sessions()]

    def owner(self, session_id: str) -> str:
        """Who started a session."""
        return self._client_of.get(session_id, "")

    # what the worker tells about it

    async def samples(self, request: SamplesRequest) -> list[str]:
        """The sample ids of a split."""
        check_options(self.name, request.options, self._allowed)
        with self._variant(request):
            return await self.client.samples(
                self.ref, request.split, profile=request.profile, prompt=request.prompt, options=request.options
            )

    async def hash_split(self, split: str | None) -> None:
        """Computes the hash of a split, once: workers that serve a task must agree on its data."""
        task = await self.client.load(self.ref)
        name = choose_split(task, split)
        if name in self._splits or name not in task.spec.splits:
            return  # a variant of the task may have splits that it has not by default
        self._splits[name] = await self.client.aside(lambda: split_hash(task, name))

    async def load(self) -> TaskLoad:
        """How full it is."""
        (info,) = await self.client.list_workers()
        with self._lock:
            clients = dict(self._open_by.most_common(MAX_CLIENTS))
        return TaskLoad(
            task=self.name,
            aliases=[] if self.ref == self.name else [self.ref],
            capacity=self.capacity,
            taken=self.client.taken,
            started=info.started,
            finished=info.finished,
            expired=info.expired,
            digest=self.digest,
            splits=dict(self._splits),
            clients=clients,
        )

    def was_full(self) -> bool:
        """Whether starts were waiting for the slot that just became free, as far as can be told from here."""
        return self.client.taken >= self.capacity - 1

    def _ends(self, session: Session, turn: Turn) -> None:
        self._telemetry.saw_end(self.name, turn)
        self._forget_owner(session.id)
        self._on_free()

    def _forget_owner(self, session_id: str) -> None:
        with self._lock:
            client = self._client_of.pop(session_id, None)
            if client is None:
                return
            self._open_by[client] -= 1
            if self._open_by[client] <= 0:
                del self._open_by[client]
            self._ended[session_id] = None
            old = self._ended.popitem(last=False)[0] if len(self._ended) > ENDED_STARTS else None
            request = None if old is None else self._request_of.pop(old, None)
        if request is not None:
            self._starts.forget(request)


def slug(name: str) -> str:
    """A task's name as part of a session id.

    >>> slug("my_task"), slug("a b/ü")
    ('my_task', 'a_b__')
    """
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)[:40] or "_"


def split_hash(task: Task, split: str) -> str:
    """Hash of a split's ids and data."""
    digest = hashlib.sha256()
    for sample in task.samples(split):
        digest.update(json.dumps([sample.id, _plain(sample.data)], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in data.items()}
