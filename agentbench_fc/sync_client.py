"""A client without `await`: the same methods, blocking, usable from many threads.

    with SyncClient(LocalClient()) as client:
        turn = client.start_sample("kg", 0, split="dev")

One background thread runs an event loop for it. Every call has a deadline.

Not here: the methods' meaning (protocol.py).
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any, Self, TypeVar

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.protocol import Client, SampleRef, SessionInfo, WorkerInfo

T = TypeVar("T")

CLOSE_WAIT_S = 30.0


class SyncClient:
    """Blocking façade over an async client, which it owns and closes; at interpreter exit too.

    Args:
        client: Any client; do not use it elsewhere.
        timeout_s: Deadline of one call, in seconds; past it an `InfrastructureError`. The session is not hurt: send
            the same turn again.
    """

    def __init__(self, client: Client, *, timeout_s: float = 600.0) -> None:
        if not timeout_s > 0:
            raise CallerError(f"timeout_s is {timeout_s} [sync client]. Use seconds > 0.")
        self._client = client
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="agentbench-fc-loop", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _shut_down, client, self._loop, self._thread)

    def start_sample(
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
        """Opens a session and returns its turn 0; see `Client.start_sample`."""
        return self._wait(
            self._client.start_sample(
                task, sample, split=split, seed=seed, profile=profile, prompt=prompt, options=options
            )
        )

    def interact(self, session_id: str, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """Plays one agent turn; see `Client.interact`."""
        return self._wait(self._client.interact(session_id, messages, turn))

    def cancel(self, session_id: str, status: str = "cancelled") -> Turn:
        """Ends a session; see `Client.cancel`."""
        return self._wait(self._client.cancel(session_id, status))

    def renew(self, session_id: str) -> SessionInfo:
        """Begins the idle time of a session anew; see `Client.renew`."""
        return self._wait(self._client.renew(session_id))

    def fork(self, session_id: str, turn: int | None = None) -> Turn:
        """A new session from an old one; see `Client.fork`."""
        return self._wait(self._client.fork(session_id, turn))

    def list_sessions(self) -> list[SessionInfo]:
        """The open sessions, oldest first."""
        return self._wait(self._client.list_sessions())

    def list_workers(self) -> list[WorkerInfo]:
        """The processes behind this client."""
        return self._wait(self._client.list_workers())

    def samples(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The sample ids of a split, in order."""
        return self._wait(self._client.samples(task, split, profile=profile, prompt=prompt, options=options))

    def get_indices(
        self,
        task: str,
        split: str | None = None,
        *,
        profile: str = "default",
        prompt: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The numbers of a split's samples."""
        return self._wait(self._client.get_indices(task, split, profile=profile, prompt=prompt, options=options))

    def submit(self, begin: Callable[[Client], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Begins work without waiting for it, so that many calls run at once: `submit(lambda c: c.interact(…))`.

        The future's done callbacks run on the client's thread: they must not block.

        Raises:
            CallerError: the client was closed.
        """
        return self._begin(begin(self._client))

    def close(self) -> None:
        """Closes the client and ends the thread; safe to repeat."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if not self._finalizer.alive:
            work.close()
            raise CallerError("the client was closed [sync client]. Make another one.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise CallerError("a blocking call on the client's own event loop [sync client]. Use the async client.")
        future = self._begin(work)
        try:
            return future.result(self._timeout_s)
        except FutureTimeout as error:
            if future.done() and not future.cancelled():
                raise  # the client's own TimeoutError
            future.cancel()
            raise InfrastructureError(
                f"no answer within {self._timeout_s:g} s [sync client]. Send the same turn again, or cancel."
            ) from error
        except CancelledError as error:
            raise CallerError("the client was closed during the call [sync client]. Make another one.") from error
        except BaseException:  # Ctrl-C: nobody waits for the answer any more
            future.cancel()
            raise


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _close(client: Client) -> None:
    try:
        await asyncio.wait_for(client.aclose(), CLOSE_WAIT_S)
    finally:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)  # each one's caller gets its error


def _shut_down(client: Client, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    try:
        asyncio.run_coroutine_threadsafe(_close(client), loop).result(CLOSE_WAIT_S + 1)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_WAIT_S)
        if not thread.is_alive():
            loop.close()
