"""The in-process engine: a transformers model on one generation thread that new requests join between two rounds.

Requests of any number of coroutines wait in one list; the thread takes what waits, up to `max_batch`, and gives every
running sequence one token a round. Weights are replaced between rounds; sequences in flight go on with the new ones.

Not here: how a round is computed (decoder.py); the same engine in a process of its own (process.py).
"""

import asyncio
import logging
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, ContextFull, EngineRole, Sampling
from agentrl_trainer.engines.decoder import Decoder, Generation, read_weights

logger = logging.getLogger(__name__)
JOIN_S = 10.0


@dataclass(slots=True, eq=False)
class _Request:
    sequence: Generation
    future: "Future[Completion]" = field(default_factory=Future)
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Update:
    tensors: dict[str, Tensor]
    version: int
    future: "Future[None]" = field(default_factory=Future)


class TransformersEngine:
    """An `InferenceEngine` over one model in this process."""

    def __init__(
        self,
        path: Path,
        *,
        name: str = "engine-0",
        role: EngineRole = "fresh",
        max_context: int = 4096,
        max_batch: int = 32,
        batch_wait_s: float = 0.003,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int = 1,
        seed: int = 0,
        cache_bytes: int = 1 << 28,
    ) -> None:
        """Loads the model; the thread starts with the first request.

        Args:
            path: Folder of the model, version 0.
            name: In messages and logs.
            role: Which weights it gets; the pool's business.
            max_context: Tokens of prompt and output together; the model's own limit holds too.
            max_batch: Sequences decoded together; more wait.
            batch_wait_s: How long an idle engine waits for company after a first request.
            device: torch device.
            dtype: torch dtype of the weights, by name.
            threads: Of torch in this whole process.
            seed: Of the draws of requests that bring no seed.
            cache_bytes: Memory for prefixes of earlier requests.

        Raises:
            CallerError: the model cannot be loaded or served.
        """
        torch.set_num_threads(threads)
        self.name = name
        self.role: EngineRole = role
        self._decoder = Decoder(path, max_context=max_context, device=device, dtype=dtype, cache_bytes=cache_bytes)
        self._max_batch = max_batch
        self._batch_wait_s = batch_wait_s
        self._seeds = random.Random(seed)
        self._wake = threading.Condition()
        self._waiting: list[_Request] = []
        self._updates: list[_Update] = []
        self._running: dict[int, _Request] = {}
        self._closing = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.tokens = 0
        """Sampled since the start."""

    @property
    def version(self) -> int:
        """Version of the weights it holds now."""
        return self._decoder.version

    @property
    def vocabulary(self) -> int:
        """Number of ids the model knows."""
        return self._decoder.vocabulary

    @property
    def context(self) -> int:
        """Most tokens of prompt and output together."""
        return self._decoder.context

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """Continues `ids`; see `InferenceEngine`."""
        if len(ids) + sampling.max_tokens > self.context:
            raise ContextFull(
                f"{len(ids)} tokens and {sampling.max_tokens} new ones exceed the context of {self.context} "
                f"[{self.name}]. End the session as `agent context limit`."
            )
        if not ids or sampling.max_tokens < 1 or not all(0 <= i < self.vocabulary for i in ids):
            raise CallerError(
                f"{len(ids)} ids, {sampling.max_tokens} new tokens, a vocabulary of {self.vocabulary} [{self.name}]. "
                "Send ids that the model has, and ask for 1 token or more."
            )
        rng = random.Random(self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed)
        request = _Request(Generation(list(ids), sampling, rng))
        self._submit(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(request.future)
        except TimeoutError:
            raise InfrastructureError(
                f"no answer within {timeout_s:g} s [{self.name}, {len(ids)} tokens]. Repeat it on another engine."
            ) from None
        finally:
            request.cancelled = True  # read by the thread between rounds; nothing to do for a finished one

    async def update_weights(self, path: Path, version: int) -> None:
        """Takes the weights in `path`; requests in flight go on with them and carry two versions.

        Raises:
            InfrastructureError: the snapshot cannot be read, or the engine has died.
            CallerError: the weights are those of another model.
        """
        update = _Update(await asyncio.to_thread(read_weights, path), version)
        self._submit(update)
        await asyncio.wrap_future(update.future)

    async def health(self) -> bool:
        """Whether it would answer a request now."""
        return self._error is None and not self._closing

    async def aclose(self) -> None:
        """Ends the thread; requests in flight fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, JOIN_S)

    def _submit(self, job: _Request | _Update) -> None:
        with self._wake:
            if self._error is not None or self._closing:
                raise InfrastructureError(f"the engine has ended: {self._error!r} [{self.name}]. Use another engine.")
            if isinstance(job, _Update):
                self._updates.append(job)
            else:
                self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._admit():
                for sequence in self._decoder.round():
                    request = self._running.pop(id(sequence))
                    self.tokens += len(sequence.logprobs)
                    _resolve(request, sequence.completion)
        except BaseException as error:  # the thread's edge: whoever waits must hear of it
            logger.exception("the generation thread failed [%s]", self.name)
            self._error = error
        with self._wake:
            self._closing = True
            jobs = [*self._running.values(), *self._waiting]
            futures: list[Future[Any]] = [*(j.future for j in jobs), *(u.future for u in self._updates)]
        for future in futures:
            if not future.done():
                future.set_exception(
                    InfrastructureError(f"the engine has ended: {self._error!r} [{self.name}]. Use another engine.")
                )

    def _admit(self) -> bool:
        """Applies updates, drops cancelled requests and takes new ones; waits while there is nothing to do."""
        with self._wake:
            idle = not self._running
            while not (self._running or self._waiting or self._updates or self._closing):
                self._wake.wait()
            if idle and self._waiting and not self._closing and len(self._waiting) < self._max_batch:
                self._wake.wait_for(lambda: self._closing or len(self._waiting) >= self._max_batch, self._batch_wait_s)
            if self._closing:
                return False
            updates, self._updates = self._updates, []
            free = self._max_batch - len(self._running)
            taken, self._waiting = self._waiting[:free], self._waiting[free:]
        for update in updates:
            self._apply(update)
        for key, request in list(self._running.items()):
            if request.cancelled:
                self._decoder.remove(request.sequence)
                del self._running[key]
        for request in taken:
            if not request.cancelled:
                self._running[id(request.sequence)] = request
                self._decoder.add(request.sequence)
        return True

    def _apply(self, update: _Update) -> None:
        if not update.future.set_running_or_notify_cancel():
            return  # whoever asked has stopped waiting, and cannot know that it happened
        try:
            self._decoder.load_weights(update.tensors, update.version)
        except CallerError as error:
            update.future.set_exception(error)
        else:
            update.future.set_result(None)


def _resolve(request: _Request, completion: Completion) -> None:
    """Gives the answer unless the caller has just stopped waiting."""
    if request.future.set_running_or_notify_cancel():
        request.future.set_result(completion)
