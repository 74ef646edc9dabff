"""The rollout process as the trainer sees it: a blocking handle; run as a module, this is the process's main.

    rollouts = RolloutProcess(config).start()
    rollouts.publish(folder, version=0, stale=True)   # opens admission
    group = rollouts.get_group(timeout=1.0)

One thread here reads what the process sends. Groups come by credits, so that neither side ever waits to be read. The
process is dead when it says so, when its socket closes or when its heartbeat stops; then every call raises, with the
end of its log.

Not here: what happens inside the process (worker.py); its successor (supervisor.py).
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from agentbench_fc.errors import AgentBenchError, InfrastructureError
from agentrl_trainer.config import RunConfig
from agentrl_trainer.configfile import to_dict
from agentrl_trainer.engines.child import Child, join_parent, leave, start_child
from agentrl_trainer.engines.wire import error_from_dict, receive_frame, send_frame
from agentrl_trainer.rollout.codec import decode_group
from agentrl_trainer.rollout.supervisor import Died
from agentrl_trainer.types import Group

if TYPE_CHECKING:
    from agentrl_trainer.rollout.worker import Worker

logger = logging.getLogger(__name__)
MODULE = "agentrl_trainer.rollout.process"
CREDITS = 2
"""Groups that may be under way to the trainer."""
HEARTBEAT_S = 30.0
"""A process that says nothing for so long is dead; it speaks every second."""
READY_S = 20.0
"""Beyond `rollout.start_timeout_s`, so that an engine that is not ready by then can be named."""
PUBLISH_S = 300.0
CLOSE_S = 10.0


class _Unanswered(Died):
    """It lives, and does not answer."""


class RolloutProcess:
    """The handle. Its methods may be called from several threads."""

    def __init__(
        self, config: RunConfig, *, done: Iterable[str] = (), logs: Path | None = None, module: str = MODULE
    ) -> None:
        """Describes the process; `start` makes it.

        Args:
            config: The run's.
            done: Ids of groups that a resumed run has consumed; they are not drawn again.
            logs: Folder of the logs; by default `logs` in the run's folder, else a temporary one.
            module: What the process runs; another one may `serve` a worker of its own kind.
        """
        self._config = config
        self._done = sorted(done)
        self._module = module
        self._logs = logs or (config.output / "logs" if config.output else None)
        self._child: Child | None = None
        self._receiver: threading.Thread | None = None
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._groups: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._ready: Future[None] = Future()
        self._failure: AgentBenchError | None = None
        self._closing = False
        self._stats: Mapping[str, Any] = {}
        self._consumed = 0

    def start(self) -> Self:
        """Starts the process and waits until its engines are ready.

        Raises:
            CallerError: the configuration, the model or a task cannot be used.
            InfrastructureError: it ended, or was not ready within `rollout.start_timeout_s`.
        """
        logs = self._logs or Path(tempfile.mkdtemp(prefix="agentrl-logs-"))
        self._child = start_child(self._module, name="rollout process", log=logs / "rollout.log")
        # heartbeats begin when it is ready: on a loaded machine, imports alone may take longer than one may be late
        timeout_s = self._config.rollout.start_timeout_s
        self._child.socket.settimeout(timeout_s + READY_S + HEARTBEAT_S)
        self._receiver = threading.Thread(target=self._receive, args=(self._child,), name="rollout", daemon=True)
        try:
            send_frame(
                self._child.socket,
                {"op": "start", "config": to_dict(self._config), "done": self._done, "logs": str(logs)},
            )
            self._receiver.start()
            self._wait_until_ready(timeout_s + READY_S)
            self._send({"op": "credit", "count": CREDITS})
        except TimeoutError:
            self.close()
            raise InfrastructureError(
                f"not ready within {timeout_s:g} s [rollout process]. Its log {self._child.log} ends:\n"
                f"{self._child.log_tail()}\nRaise rollout.start_timeout_s on a slow machine."
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def _wait_until_ready(self, timeout_s: float) -> None:
        """Until it says that it is; meanwhile the log says where it is."""
        end, every = time.monotonic() + timeout_s, self._config.batch.stall_report_s
        while True:
            try:
                return self._ready.result(max(0.0, min(every, end - time.monotonic())))
            except TimeoutError:
                if time.monotonic() >= end:
                    raise
                last = self._child.log_tail().rpartition("\n")[2] if self._child else ""
                logger.warning("the rollout process is not ready yet; its log ends: %s", last or "(nothing)")

    def get_group(self, timeout: float) -> Group | None:
        """The next finished group, or None after `timeout` seconds.

        Raises:
            CallerError: a task or the model turned out to be unusable.
            InfrastructureError: the process is dead; the message says of what.
        """
        try:
            group = self._groups.get(timeout=timeout)
        except queue.Empty:
            group = None
        if group is None:
            self._check()
        else:
            with contextlib.suppress(InfrastructureError):  # what has arrived is good, even from a process that died
                self._send({"op": "credit", "count": 1})
        return group

    def consumed(self, trajectories: int) -> None:
        """Says that a step took so many usable trajectories; the next `publish` makes room for as many."""
        self._consumed += trajectories

    def publish(self, path: Path, version: int, stale: bool) -> None:
        """Hands a weight version to the fresh engines, and to the stale ones where asked; returns when they hold it.

        Raises:
            CallerError: these are the weights of another model.
            InfrastructureError: the process is dead, or no engine could take them.
        """
        consumed, self._consumed = self._consumed, 0
        self._ask(PUBLISH_S, op="publish", path=str(path), version=version, stale=stale, consumed=consumed)

    def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        """Plays `n` episodes on the fresh engines; one record each, faults included.

        Args:
            task: Name of a task of the run.
            split: Its split; samples are chosen by `seed`, equal seeds give equal samples and episodes.
            n: Episodes; a split with fewer samples is played repeatedly, with other seeds.
            temperature: 0 is greedy.
            seed: Of the choice, the episodes and the draws.

        Returns:
            Dicts with task, sample_id, success, reward (shaped), raw_reward, status, usable, fault, turns,
            invalid_calls, no_call_turns, tokens.
        """
        timeout_s = self._config.evaluation.timeout_s
        try:
            answer = self._ask(
                timeout_s, op="evaluate", task=task, split=split, n=n, temperature=temperature, seed=seed
            )
        except _Unanswered as error:  # its heart beats: another process would be as slow
            raise InfrastructureError(
                f"{n} episodes of {task} were not played within {timeout_s:g} s [evaluation]. {error} Raise "
                "evaluation.timeout_s, or lower evaluation.n."
            ) from error
        records: list[dict[str, Any]] = answer["records"]
        return records

    def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        """Lets each fresh engine, and each stale one where asked, sample `count` tokens behind `ids`.

        Returns:
            Dicts with engine, ids, logprobs and versions; engines that failed are left out.

        Raises:
            InfrastructureError: the process is dead, or did not answer in time.
        """
        answer = self._ask(
            2 * self._config.rollout.generate_timeout_s,
            op="probe", ids=list(ids), count=count, temperature=temperature, stale=stale,
        )  # fmt: skip
        probes: list[dict[str, Any]] = answer["probes"]
        return probes

    def stats(self) -> Mapping[str, Any]:
        """What the process does just now, at most a second old.

        Raises:
            InfrastructureError: it is dead.
        """
        self._check()
        return self._stats

    def close(self) -> None:
        """Ends the process and its engines; safe to repeat."""
        self._closing = True
        if self._child is None:
            return
        with contextlib.suppress(OSError):  # a reader of ours wakes up, the other side sees the end
            self._child.socket.shutdown(2)
        if not self._ready.done():  # it is loading and does not listen; no session is open yet
            self._child.kill()
        self._child.end(CLOSE_S)
        if self._receiver is not None and self._receiver.is_alive():
            self._receiver.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, timeout_s: float, **head: Any) -> dict[str, Any]:
        number = next(self._ids)
        future = self._answers[number] = Future()
        try:
            self._check()
            self._send({"id": number, **head})
            return future.result(timeout_s)
        except TimeoutError:
            raise _Unanswered(
                f"no answer to {head['op']} within {timeout_s:g} s [rollout process]. It does: {dict(self._stats)}"
            ) from None
        finally:
            del self._answers[number]

    def _send(self, head: Mapping[str, Any]) -> None:
        if self._child is None:
            raise InfrastructureError("the rollout process was not started [rollout]. Call start() first.")
        try:
            with self._sending:
                send_frame(self._child.socket, head)
        except OSError as error:
            self._check()
            raise Died(
                f"the rollout process does not listen: {error!r} [rollout]. Its log {self._child.log} ends:\n"
                f"{self._child.log_tail()}"
            ) from error

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        if self._closing:
            raise InfrastructureError("the rollout process was closed [rollout]. Start another one.")

    def _receive(self, child: Child) -> None:
        """Sorts what arrives until the process is gone; then everyone who waits learns of it."""
        failure: AgentBenchError | None = None
        try:
            while (frame := receive_frame(child.socket)) is not None:
                op = frame.head["op"]
                if op == "group":
                    self._groups.put(decode_group(frame.head["group"], frame.body))
                elif op == "beat":
                    self._stats = frame.head["stats"]
                elif op == "ready":
                    child.socket.settimeout(HEARTBEAT_S)
                    self._ready.set_result(None)
                elif op == "failed":
                    failure = error_from_dict(frame.head["error"])
                    break
                elif (answer := self._answers.get(frame.head["id"])) is not None:
                    if error := frame.head.get("error"):
                        answer.set_exception(error_from_dict(error))
                    else:
                        answer.set_result(frame.head)
        except TimeoutError:
            child.kill()
            failure = Died(f"no heartbeat for {HEARTBEAT_S:g} s: {child.death()}")
        except OSError as error:  # our own socket, closed under us
            logger.debug("the rollout socket ended: %r", error)
        except Exception as error:  # the edge of this thread: nobody else would hear of it
            child.kill()
            failure = InfrastructureError(f"what the rollout process sent cannot be read: {error!r} [rollout].")
        if failure is None:
            with contextlib.suppress(Exception):
                child.process.wait(CLOSE_S / 4)
            failure = Died(child.death())
        self._failure = failure
        self._groups.put(None)
        futures: list[Future[Any]] = [self._ready, *self._answers.values()]
        for future in futures:
            if not future.done():
                future.set_exception(failure)


def main(kind: "type[Worker] | None" = None) -> NoReturn:
    """Runs the rollout process, with a worker of `kind`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sock = join_parent(arguments.socket, arguments.parent, on_death=signal.SIGTERM)
    from agentrl_trainer.rollout.worker import Worker, serve

    leave(asyncio.run(serve(sock, kind or Worker)))


if __name__ == "__main__":
    main()
