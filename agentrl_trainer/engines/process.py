"""An engine in a process of its own: the client that is an `InferenceEngine`, and the process's main.

The generation thread of one engine needs a core, and Python's lock would make several engines and the event loop take
turns. The parent sends requests by id and reads answers as they come; cancelling a request frees its row over there.

Not here: frames (wire.py), starting and ending processes (child.py), generation (transformers.py).
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, Self

from agentbench_fc.errors import AgentBenchError, InfrastructureError
from agentrl_trainer.engines.base import Completion, EngineRole, Sampling
from agentrl_trainer.engines.child import Child, join_parent, leave, start_child
from agentrl_trainer.engines.wire import FrameWriter, error_from_dict, error_to_dict, read_frame
from agentrl_trainer.types import NO_VERSION

logger = logging.getLogger(__name__)
MODULE = "agentrl_trainer.engines.process"
HEALTH_S = 20.0
"""A process that ended is known at once by its socket; one that is only slow must not be started again for it."""
DEATH_S = 2.0
"""How long we wait for the exit code of a process whose socket closed."""


class ProcessEngine:
    """An engine behind a socket; made by `start`."""

    def __init__(self, name: str, role: EngineRole, log: Path, head: Mapping[str, Any], timeout_s: float) -> None:
        self.name = name
        self.role: EngineRole = role
        self.version = 0
        self.vocabulary = 0
        """Number of ids that the model knows."""
        self.context = 0
        """Most tokens of prompt and output together."""
        self._log = log
        self._head = head
        self._timeout_s = timeout_s
        self._child: Child | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._death: str | None = None
        self._writer: FrameWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        path: Path,
        *,
        log: Path,
        name: str = "engine-0",
        role: EngineRole = "fresh",
        threads: int = 1,
        timeout_s: float = 120.0,
        **options: Any,
    ) -> Self:
        """Starts the process and waits until its model is loaded.

        Args:
            path: Folder of the model.
            log: Where its output goes.
            name: In messages and logs.
            role: Which weights it gets.
            threads: Torch threads of the process.
            timeout_s: Until it must be ready.
            options: Further arguments of `TransformersEngine`.

        Raises:
            CallerError: the model cannot be served.
            InfrastructureError: the process ended, or was not ready in time.
        """
        head = {"path": str(path), "name": name, "role": role, "threads": threads, **options}
        engine = cls(name, role, log, head, timeout_s)
        try:
            await engine._open()
        except BaseException:
            await engine.aclose()
            raise
        return engine

    async def revive(self) -> None:
        """Starts the process again, with the weights of the model's folder; the old log is kept beside the new one."""
        await self._close()
        with contextlib.suppress(OSError):
            self._log.replace(self._log.with_suffix(".before.log"))
        self._death = None
        try:
            await self._open()
        except BaseException:
            await self.aclose()
            raise
        self.version = NO_VERSION  # whatever the pool gave before is to be given again

    async def _open(self) -> None:
        """Starts the process and waits until its model is loaded."""
        child = self._child = start_child(MODULE, name=self.name, log=self._log, threads=self._head["threads"])
        try:
            reader, writer = await asyncio.open_connection(sock=child.socket)
            self._writer = FrameWriter(writer)
            self._reading = asyncio.create_task(self._read(reader, child), name=f"read-{self.name}")
            answer = await self._ask("start", self._timeout_s, **self._head)
            self.vocabulary, self.context = answer["vocabulary"], answer["context"]
        except BaseException:
            child.kill()
            raise

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """Continues `ids`; see `InferenceEngine`."""
        answer = await self._ask("generate", timeout_s, ids=list(ids), sampling=asdict(sampling))
        return Completion(
            tuple(answer["ids"]), tuple(answer["logprobs"]), tuple(answer["versions"]), answer["finish_reason"]
        )

    async def update_weights(self, path: Path, version: int, *, timeout_s: float = 120.0) -> None:
        """Takes the weights in `path`; requests in flight go on with them."""
        await self._ask("update", timeout_s, path=str(path), version=version)
        self.version = version

    async def health(self) -> bool:
        """Whether it answers now."""
        try:
            return bool((await self._ask("health", HEALTH_S))["healthy"])
        except InfrastructureError:
            return False

    async def aclose(self) -> None:
        """Ends the process; safe to repeat."""
        self._death = self._death or f"the engine was closed [{self.name}]."
        await self._close()

    async def _close(self) -> None:
        if self._writer is not None:
            await self._writer.aclose()
        if self._child is not None:
            await asyncio.to_thread(self._child.end)
        if self._reading is not None:
            await self._reading  # ends by the closed socket

    async def _ask(self, op: str, timeout_s: float, **head: Any) -> dict[str, Any]:
        if self._death is not None or self._writer is None:
            raise InfrastructureError(self._death or f"the engine has not started [{self.name}].")
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.send({"id": number, "op": op, **head})
                answer: dict[str, Any] = await future
                return answer
        except TimeoutError:
            raise InfrastructureError(
                f"no answer to {op} within {timeout_s:g} s [{self.name}]. Repeat it on another engine."
            ) from None
        finally:
            del self._waiting[number]
            if op == "generate" and not future.done() and self._death is None:
                with contextlib.suppress(InfrastructureError):
                    await self._writer.send({"id": number, "op": "cancel"})

    async def _read(self, reader: asyncio.StreamReader, child: Child) -> None:
        """Hands out answers until the process ends; then everyone who waits learns of what."""
        while (frame := await read_frame(reader)) is not None:
            future = self._waiting.get(frame.head["id"])
            if future is None or future.done():
                continue  # its caller has stopped waiting
            if error := frame.head.get("error"):
                future.set_exception(error_from_dict(error))
            else:
                future.set_result(frame.head)
        if self._death is None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(child.process.wait, DEATH_S)
            self._death = child.death()
            logger.error("engine %s", self._death)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(InfrastructureError(self._death))


async def serve(sock: Any) -> int:
    """The process's main: makes the engine that the first frame describes, and answers until the socket closes."""
    reader, stream = await asyncio.open_connection(sock=sock)
    writer = FrameWriter(stream)
    first = await read_frame(reader)
    if first is None:
        return 0
    from agentrl_trainer.engines.transformers import TransformersEngine

    number, head = first.head.pop("id"), first.head
    head.pop("op")
    try:
        engine = TransformersEngine(Path(head.pop("path")), **head)
    except AgentBenchError as error:
        await writer.send({"id": number, "error": error_to_dict(error)})
        return error.exit_code
    await writer.send({"id": number, "vocabulary": engine.vocabulary, "context": engine.context})
    jobs: dict[int, asyncio.Task[None]] = {}

    async def answer(number: int, op: str, head: dict[str, Any]) -> None:
        try:
            if op == "generate":
                result = asdict(
                    await engine.generate(head["ids"], Sampling(**_sampling(head["sampling"])), timeout_s=86400.0)
                )
            elif op == "update":
                await engine.update_weights(Path(head["path"]), head["version"])
                result = {}
            else:
                result = {"healthy": await engine.health()}
        except AgentBenchError as error:
            result = {"error": error_to_dict(error)}
        await writer.send({"id": number, **result})

    while (frame := await read_frame(reader)) is not None:
        number, op = frame.head["id"], frame.head["op"]
        if op == "cancel":
            if job := jobs.get(number):
                job.cancel()
            continue
        jobs[number] = asyncio.create_task(answer(number, op, frame.head), name=str(number))
        jobs[number].add_done_callback(lambda job: jobs.pop(int(job.get_name())))
        if not await engine.health():
            logger.error("the engine cannot go on; the process ends")
            return 1
    return 0


def _sampling(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "stop_ids": tuple(data["stop_ids"])}


def main() -> NoReturn:
    """Runs one engine process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    leave(asyncio.run(serve(join_parent(arguments.socket, arguments.parent))))


if __name__ == "__main__":
    main()
