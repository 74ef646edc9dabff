"""The client: the one door to sessions, the same in process and over HTTP. LocalClient runs them in this process.

    async with LocalClient() as client:
        turn = await client.start_sample("db", split="train")
        while not turn.finish:
            turn = await client.interact(turn.session_id, [policy(turn)], turn=turn.turn + 1)

`start_sample` is turn 0; the k-th `interact` is turn k. An `interact` that names its turn can be sent again after a
lost reply: the last turn's reply is kept, also for some time after the end. A session that nobody uses expires.

Not here: what happens in a turn (session.py); which sessions there are, and how they end (session_table.py); what a
client must offer (protocol.py); the client without `await` (sync_client.py).
"""

import asyncio
import contextlib
import logging
import secrets
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agentbench_fc.deadlines import CallThreads
from agentbench_fc.episode import Task, Turn
from agentbench_fc.errors import AgentBenchError, CallerError, Conflict, Gone, InfrastructureError, TaskError
from agentbench_fc.leases import Leases
from agentbench_fc.loaded import LoadedTasks
from agentbench_fc.pool import Pool
from agentbench_fc.protocol import Client, SampleRef, SessionInfo, WorkerInfo
from agentbench_fc.record import handed_out
from agentbench_fc.rewards import Status
from agentbench_fc.samples import checked_seed, choose_split, find_sample
from agentbench_fc.session import Session
from agentbench_fc.session_table import Ended, Opened, SessionTable, Slot
from agentbench_fc.sync_client import SyncClient

__all__ = ["Client", "LocalClient", "SampleRef", "SessionInfo", "SyncClient", "WorkerInfo"]

logger = logging.getLogger(__name__)

CLOSE_WAIT_S = 10.0
"""`aclose` waits at most so long for sessions that will not end."""

T = TypeVar("T")


class LocalClient:
    """Runs sessions in this process, on a bounded pool of threads. An open session costs memory, but no thread.

    Safe to use from several threads and event loops.

    Args:
        tasks: Ready-made tasks by name, beside those that the registry knows.
        idle_timeout_s: An unused session expires after this: it ends as `cancelled`, with the reason in its metrics.
        lifetime_s: So does one that is open for so long.
        max_sessions: Most open sessions; beyond, a start is `Unavailable`. None: no bound.
        max_concurrency: Most calls that run at once; more wait their turn.
        transcripts: A file, or an existing folder, to which each session's record is appended when it ends.
        tombstones: Finished sessions whose last turn is remembered, so that a lost reply can be asked for again.
        clock: Seconds, monotonic; leases are measured with it.
        worker_id: What `list_workers` and `list_sessions` call this process.
        id_prefix: Session ids begin with it.
        threads: Helper threads of calls with a deadline; by default those of the process.
        start_limit_s: A start that takes longer, loading of task and samples included, is given up with its slot.
        on_end: Told of each session that ends, with its last turn; on any thread, and it must not block.
    """

    def __init__(
        self,
        *,
        tasks: Mapping[str, Task] | None = None,
        idle_timeout_s: float | None = 600.0,
        lifetime_s: float | None = 4 * 3600.0,
        max_sessions: int | None = None,
        max_concurrency: int = 32,
        transcripts: str | Path | None = None,
        tombstones: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        worker_id: str = "local",
        id_prefix: str = "",
        threads: CallThreads | None = None,
        start_limit_s: float | None = None,
        on_end: Callable[[Session, Turn], None] | None = None,
    ) -> None:
        if max_sessions is not None and max_sessions < 1:
            raise CallerError(f"max_sessions is {max_sessions} [client]. Use 1 or more, or None for no bound.")
        self._worker_id = worker_id
        self._id_prefix = id_prefix
        self._capacity = max_sessions
        self._threads = threads
        self._start_limit_s = start_limit_s
        self._table = SessionTable(
            leases=Leases(idle_s=idle_timeout_s, lifetime_s=lifetime_s, clock=clock),
            max_sessions=max_sessions,
            tombstones=tombstones,
            transcripts=Path(transcripts) if transcripts is not None else None,
            on_end=on_end,
        )
        self._pool = Pool(max_concurrency, "agentbench-fc-session")
        self._side = Pool(4, "agentbench-fc-side")  # ends sessions even while the pool is full of calls that hang
        self._tasks = LoadedTasks(tasks or {}, self._pool.submit)
        self._reaper: threading.Thread | None = None
        self._reaping = threading.Lock()
        weakref.finalize(self, _close_pools, self._pool, self._side)

    def adopt(
        self,
        task: Task,
        name: str,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes over a task that its maker loaded under this name and these options, so that it is not loaded twice.

        The client closes it.
        """
        self._tasks.adopt(task, name, profile, prompt, options or {})

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
        """Opens a session; see `Client.start_sample`."""
        number = secrets.randbelow(2**31) if seed is None else checked_seed(seed)
        slot = self._table.reserve()
        until = self._start_ends()
        try:
            async with self._until(until):
                loaded = await self.load(task, profile, prompt, options)
        except BaseException:
            self._table.release(slot)
            raise

        def start() -> Turn:
            with _reading(loaded):
                row = find_sample(loaded, sample, split=split, seed=number)
            session = Session(
                loaded, row, seed=number, session_id=self._new_id(), options=options, threads=self._threads
            )
            turn = session.start()
            self._admit(Opened(session, task), slot)
            return turn

        return await self._new_session(start, slot, until)

    async def interact(self, session_id: str, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """Plays one agent turn; see `Client.interact`.

        A caller that stops waiting does not hurt the session: the turn is played to its end, and its reply can be had
        by sending the same turn again.
        """
        found = self._table.find(session_id)
        if isinstance(found, Ended):
            if turn is not None and turn == found.last.turn and turn > 0 and not found.cancelled:
                return handed_out(found.last)
            raise Gone(found.gone_text())
        entry = found

        def play() -> Turn:
            try:
                return entry.session.interact(messages, turn)
            finally:
                self._table.settle(entry)

        return await self._exclusively(entry, play)

    async def cancel(self, session_id: str, status: str = "cancelled") -> Turn:
        """Ends a session; see `Client.cancel`."""
        found = self._table.find(session_id)
        if isinstance(found, Ended):
            return handed_out(found.last)
        entry = found
        return await _answer(self._side.submit(lambda: self._table.end(entry, status, "cancelled by the client")))

    async def renew(self, session_id: str) -> SessionInfo:
        """Begins the idle time anew; see `Client.renew`."""
        entry = self._table.find(session_id)
        if isinstance(entry, Ended):
            raise Gone(entry.gone_text())
        if not entry.busy.locked():
            self._table.leases.renew(session_id)
        return entry.info(self._table.leases, self._worker_id)

    async def fork(self, session_id: str, turn: int | None = None) -> Turn:
        """A new session from an old one; see `Client.fork`."""
        found = self._table.find(session_id)
        entry = found.opened if isinstance(found, Ended) else found
        if entry is None:
            raise Gone(f"the session has finished and its record was dropped [session {session_id}]. Fork earlier.")
        slot = self._table.reserve()

        def branch() -> Turn:
            child = entry.session.fork(turn, session_id=self._new_id())
            self._admit(Opened(child, entry.task), slot)
            return child.last

        if isinstance(found, Ended):
            return await self._new_session(branch, slot, self._start_ends())
        try:
            self._table.hold(entry)
        except Conflict:
            self._table.release(slot)
            raise
        return await self._new_session(branch, slot, self._start_ends(), lambda: self._table.let_go(entry))

    async def list_sessions(self) -> list[SessionInfo]:
        """The open sessions, oldest first."""
        return [entry.info(self._table.leases, self._worker_id) for entry in self._table.entries()]

    async def list_workers(self) -> list[WorkerInfo]:
        """One worker, this process."""
        return [
            WorkerInfo(
                worker_id=self._worker_id,
                status="closed" if self._table.closed.is_set() else "alive",
                tasks=tuple(self._tasks.names()),
                sessions=len(self._table),
                capacity=self._capacity,
                **self._table.counts,
            )
        ]

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
        loaded = await self.load(task, profile, prompt, options)

        def ids() -> list[str]:
            with _reading(loaded):
                return [sample.id for sample in loaded.samples(choose_split(loaded, split))]

        return await _answer(self._pool.submit(ids))

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

    async def aclose(self) -> None:
        """Cancels every open session, waits a bounded time for them, and closes the tasks loaded here."""
        entries = self._table.close()
        if entries is None:
            return
        reason = "the client was closed"
        ends = [
            asyncio.wrap_future(self._side.submit(partial(self._table.end, e, "cancelled", reason))) for e in entries
        ]
        late = (await asyncio.wait(ends, timeout=CLOSE_WAIT_S))[1] if ends else set()
        if late:
            logger.warning("%d sessions did not end within %g s", len(late), CLOSE_WAIT_S)
        last = Pool(1, "agentbench-fc-close")  # a thread of its own: sessions that will not end may hold all the others
        closing = asyncio.wrap_future(last.submit(self._tasks.close))
        if not (await asyncio.wait([closing], timeout=CLOSE_WAIT_S))[0]:
            logger.warning("the tasks did not close within %g s", CLOSE_WAIT_S)
        for end in late:
            end.cancel()  # nobody reads what becomes of it, and the loop may end first
        closing.cancel()  # likewise, where it is late
        _close_pools(self._pool, self._side, last)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # expiry

    def expire(self) -> list[str]:
        """Ends the sessions whose lease has run out and gives their ids; a background thread does this by itself."""
        expired = []
        for session_id, reason in self._table.leases.expired():
            if self.drop(session_id, f"expired: {reason}"):
                expired.append(session_id)
        self._table.count_expired(len(expired))
        return expired

    def drop(self, session_id: str, reason: str) -> bool:
        """Ends a session as `cancelled` without waiting for a call of it that hangs; whether it was open."""
        entry = self._table.get(session_id)
        if entry is None:
            return False
        logger.info("session %s, session=%s", reason, session_id)
        told = Turn(session_id, entry.session.turn + 1, [], [], Status.CANCELLED, True, None, None, {"reason": reason})
        self._table.bury(entry, told, cancelled=True)  # at once: its end may take long, its slot must not
        self._side.submit(partial(self._table.end, entry, "cancelled", reason))
        return True

    def is_open(self, session_id: str) -> bool:
        """Whether the session is open."""
        return self._table.get(session_id) is not None

    def is_busy(self, session_id: str) -> bool:
        """Whether a call of the session runs or waits for a thread."""
        entry = self._table.get(session_id)
        return entry is not None and entry.busy.locked()

    async def aside(self, work: Callable[[], T]) -> T:
        """Runs work that is no session's on a side thread."""
        return await _answer(self._side.submit(work))

    @property
    def taken(self) -> int:
        """Slots in use: open sessions, and those that start just now."""
        return self._table.taken

    def _start_reaper(self) -> None:
        bounds = [s for s in (self._table.leases.idle_s, self._table.leases.lifetime_s) if s is not None]
        with self._reaping:
            if self._reaper is None and bounds:
                period = min(max(min(bounds) / 4, 0.02), 1.0)
                arguments = (weakref.ref(self), self._table.closed, period)
                self._reaper = threading.Thread(target=_reap, args=arguments, name="agentbench-fc-reaper", daemon=True)
                self._reaper.start()

    # sessions come and go

    def _new_id(self) -> str:
        return self._id_prefix + secrets.token_hex(8)

    async def load(
        self, task: str, profile: str = "default", prompt: str = "default", options: Mapping[str, Any] | None = None
    ) -> Task:
        """The task itself, loaded where it was not yet."""
        shared = self._tasks.get(task, profile, prompt, options or {})
        return await asyncio.shield(asyncio.wrap_future(shared))

    def has_loaded(self, task: str, profile: str, prompt: str, options: Mapping[str, Any]) -> bool:
        """Whether this variant of a task is in memory, or on its way there; one given ready-made never is."""
        return self._tasks.has(task, profile, prompt, options)

    async def _new_session(
        self, make: Callable[[], Turn], slot: Slot, until: float | None, after: Callable[[], None] = lambda: None
    ) -> Turn:
        """Runs `make`, which admits a session, in a slot that is reserved already."""

        def done(future: "Future[Turn]") -> None:
            self._table.release(slot)
            after()

        try:
            future = self._pool.submit(make)
        except CallerError:
            self._table.release(slot)
            after()
            raise
        future.add_done_callback(done)  # before the waiter hears of it
        try:
            async with self._until(until):
                return await _answer(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._drop_orphan)
            raise
        except InfrastructureError:  # it took too long; where the start itself failed so, this does nothing
            future.add_done_callback(self._drop_orphan)
            self._table.release(slot)  # a start that hangs must not keep it
            raise

    def _start_ends(self) -> float | None:
        """When a start that begins now is given up, on the clock of the event loop."""
        return None if self._start_limit_s is None else asyncio.get_running_loop().time() + self._start_limit_s

    @contextlib.asynccontextmanager
    async def _until(self, moment: float | None) -> AsyncIterator[None]:
        """Gives up a part of a start at that moment."""
        try:
            async with asyncio.timeout_at(moment) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InfrastructureError(f"the start took over {self._start_limit_s:g} s [client]. Try again.") from error

    def _drop_orphan(self, future: "Future[Turn]") -> None:
        """Ends a session whose caller went away before it learnt the id."""
        if future.cancelled() or future.exception() is not None or self._table.closed.is_set():
            return
        entry = self._table.get(future.result().session_id)
        if entry is not None:
            self._side.submit(lambda: self._table.end(entry, "cancelled", "the caller went away during the start"))

    def _admit(self, entry: Opened, slot: Slot) -> None:
        self._table.admit(entry, slot)
        if self._reaper is None:
            self._start_reaper()

    async def _exclusively(self, entry: Opened, fn: Callable[[], Turn]) -> Turn:
        self._table.hold(entry)
        try:
            future = self._pool.submit(fn)
        except CallerError:
            self._table.let_go(entry)
            raise
        future.add_done_callback(lambda _: self._table.let_go(entry))  # before the waiter hears, and if it is gone
        return await _answer(future)


@contextlib.contextmanager
def _reading(task: Task) -> Iterator[None]:
    """Around a task's own code that reads samples: what it raises is the task's fault, and says so."""
    try:
        yield
    except AgentBenchError:
        raise
    except Exception as error:  # a task's own code may raise anything
        raise TaskError(f"its samples cannot be read: {error!r} [task {task.spec.name}]. Mend the task.") from error


def _close_pools(*pools: Pool) -> None:
    for pool in pools:
        pool.close()


async def _answer(future: "Future[T]") -> T:
    """The future's result; a caller that stops waiting cancels a job that has not begun, and leaves one that has."""
    return await asyncio.wrap_future(future)


def _reap(ref: "weakref.ref[LocalClient]", closed: threading.Event, period_s: float) -> None:
    while not closed.wait(period_s):
        client = ref()
        if client is None:
            return
        try:
            client.expire()
        except Exception:  # expiry must outlive any one session's trouble
            logger.exception("expiring sessions failed; the next round tries again")
        del client
