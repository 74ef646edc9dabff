"""Inside the rollout process: the engines, the client, the scheduler, and the conversation with the trainer's process.

The trainer's closed socket ends everything, as does SIGTERM: sessions are cancelled, engines closed, and a watchdog
ends the process where that takes too long.

Not here: the trainer's side (process.py).
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentbench_fc.client import Client, LocalClient
from agentbench_fc.connecting import connect
from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError, did_you_mean
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.config import RunConfig, TaskMix
from agentrl_trainer.configfile import from_dict
from agentrl_trainer.engines.base import EngineRole, Sampling
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.engines.starting import ServedEngine, check_fit, start_engines
from agentrl_trainer.engines.wire import Frame, FrameWriter, error_to_dict, read_frame
from agentrl_trainer.policy import policy_path
from agentrl_trainer.rollout.codec import encode_group
from agentrl_trainer.rollout.plan import Draw, SamplePlan
from agentrl_trainer.rollout.scheduler import Limits, Scheduler
from agentrl_trainer.rollout.trajectory import EpisodeSpec, Player, PlayOptions
from agentrl_trainer.rollout.tree import play_tree
from agentrl_trainer.types import Group, Trajectory

logger = logging.getLogger(__name__)
BEAT_S = 1.0
CLOSE_S = 6.0
"""After this a process that should end does end."""


class Worker:
    """Everything that runs here; made by `open`."""

    def __init__(
        self, config: RunConfig, client: Client, renderer: ChatRenderer, pool: EnginePool, plan: SamplePlan
    ) -> None:
        self._config = config
        self._client = client
        self._pool = pool
        self._tasks = {task.name: task for task in config.tasks}
        options = PlayOptions(
            max_new_tokens=config.sampling.max_new_tokens,
            max_context=config.sampling.max_context,
            generate_timeout_s=config.rollout.generate_timeout_s,
            retries=config.rollout.retries,
            abnormal_penalty=config.rollout.abnormal_penalty,
        )
        self._player = Player(client, renderer, pool, options)
        self.out: asyncio.Queue[Group] = asyncio.Queue(maxsize=1)  # `queue_groups` wait on the trainer's side
        limits = Limits(
            group_size=config.group_size,
            places=config.places,
            members=config.group_size // config.rollout.branches,
            batch=config.batch.min_trajectories,
            max_lag=config.staleness.max_lag,
            straggler_s=config.rollout.straggler_s,
            auto_depth=config.rollout.depth == "auto",
            fresh_engines=config.engines.fresh,
            refill=config.refill_tolerance,
        )
        self._places = {task.name: asyncio.Semaphore(task.concurrency) for task in config.tasks if task.concurrency > 0}
        self.scheduler = Scheduler(plan, self._member, self.out, limits, task_places=self._places)
        self._evaluating = asyncio.Semaphore(config.places)

    @classmethod
    async def open(cls, config: RunConfig, *, done: Sequence[str], logs: Path) -> "Worker":
        """Starts the engines and loads tokenizer and tasks, side by side.

        Raises:
            CallerError: model, tokenizer, tasks and configuration do not fit each other.
            InfrastructureError: an engine did not start.
        """
        path = policy_path(config.model)
        places = min(64, config.places)
        client: Client = connect(config.rollout.url) if config.rollout.url else LocalClient(max_concurrency=places)
        engines: list[ServedEngine] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                rendering = tasks.create_task(asyncio.to_thread(_renderer, path, config))
                samples = {
                    task.name: tasks.create_task(_samples(client, task, task.split)) for task in config.trained_tasks
                }
                tasks.create_task(start_engines(path, config, logs, engines))
            renderer = rendering.result()
            for engine in engines:
                check_fit(engine, renderer.vocabulary, config)
            fresh = [engine for engine in engines if engine.role == "fresh"]
            stale = [engine for engine in engines if engine.role == "stale"]
            options = config.engines
            pool = EnginePool(
                fresh, stale, restarts=options.restarts, stale_lags=options.stale_lags[: len(stale)],
                weights=options.weights, adaptive=options.adaptive,
            )  # fmt: skip
            weights = {t.name: (t.weight, samples[t.name].result()) for t in config.trained_tasks}
            return cls(config, client, renderer, pool, SamplePlan(weights, seed=config.seed, done=done))
        except BaseException:
            for engine in engines:
                await engine.aclose()
            await client.aclose()
            raise

    async def publish(self, path: Path, version: int, *, stale: bool, consumed: int) -> None:
        """Gives new weights to the engines, then makes room for the groups that they allow."""
        await self._pool.update(path, version, ("fresh", "stale") if stale else ("fresh",))
        await self.scheduler.published(version, consumed)

    async def probe(self, ids: Sequence[int], count: int, temperature: float, *, stale: bool) -> list[dict[str, Any]]:
        """What each engine samples behind `ids`, for the trainer to hold against its own log-probs."""
        roles: tuple[EngineRole, ...] = ("fresh", "stale") if stale else ("fresh",)
        sampling = Sampling(max_tokens=count, temperature=temperature)
        answers = await self._pool.probe(ids, sampling, roles, timeout_s=self._config.rollout.generate_timeout_s)
        return [
            {"engine": name, "ids": list(c.ids), "logprobs": list(c.logprobs), "versions": list(c.versions)}
            for name, c in answers.items()
        ]

    async def evaluate(self, task: str, split: str, n: int, temperature: float, seed: int) -> list[dict[str, Any]]:
        """Plays `n` samples of a split on the fresh engines while no new training groups start."""
        if task not in self._tasks:
            raise CallerError(f"no task {task!r} in this run [evaluate]. {did_you_mean(task, self._tasks)}")
        mix = self._tasks[task]
        ids = await _samples(self._client, mix, split)
        if not ids:
            raise CallerError(f"split {split!r} has no samples [task {task}]. Choose another evaluation split.")
        order = list(ids)
        random.Random(f"{seed}/{task}/{split}").shuffle(order)
        await self.scheduler.hold()
        try:
            async with asyncio.TaskGroup() as tasks:
                jobs = [
                    tasks.create_task(self._evaluated(mix, order[i % len(order)], f"{seed}/{i}", temperature))
                    for i in range(n)
                ]
        finally:
            await self.scheduler.release()
        return [_record(job.result()) for job in jobs]

    def stats(self) -> dict[str, Any]:
        """What is going on, for heartbeats and stall reports."""
        return {
            **self.scheduler.stats(),
            "queued_groups": self.out.qsize(),
            "episodes": self.scheduler.episodes,
            "sampled_tokens": self._player.tokens,
            "open_episodes": {name: count for name, count in sorted(self._player.phases.items()) if count},
            "longest_waits": self._player.longest_waits(3),
            "statuses": dict(self.scheduler.statuses),
            "faults": dict(self.scheduler.faults.most_common(10)),
            "engines": self._pool.stats(),
            **({"policy_weights": [round(w, 3) for w in self._pool.mix.weights]} if self._pool.mix else {}),
        }

    def learn(self, group: Group) -> None:
        """Tells the mix of policies what they have brought to a finished group."""
        mix, policies = self._pool.mix, self._pool.policies
        if mix is None or not mix.adaptive:
            return
        members = []
        for row in group.usable:
            _, first = np.unique(row.turns[row.mask], return_index=True)
            drawn = [self._pool.policy_of(int(engine)) for engine in row.engines[row.mask][first]]
            if drawn and row.reward is not None:
                members.append(([drawn.count(number) / len(drawn) for number in range(len(policies))], row.reward))
        mix.learn(members)

    async def watch(self) -> None:
        """Says in the log who waits on what whenever nothing has moved for `batch.stall_report_s`, until cancelled."""
        idle_s = self._config.batch.stall_report_s
        seen: tuple[int, ...] = ()
        while True:
            await asyncio.sleep(idle_s)
            now = (self.scheduler.groups, self.scheduler.episodes, self._player.tokens)
            if now == seen:
                logger.warning("nothing has moved for %.0f s: %s", idle_s, self.stats())
            seen = now

    async def aclose(self) -> None:
        """Cancels open sessions and closes the engines."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._client.aclose())
            tasks.create_task(self._pool.aclose())

    async def _member(self, draw: Draw, replica: int, deadline_s: float) -> Trajectory | list[Trajectory]:
        spec = self._spec(self._tasks[draw.task], draw.sample_id, draw.seed, draw.group_id, replica)
        config = self._config
        rng, temperature, cross = draw.rng(replica), config.sampling.temperature, config.engines.cross_policy
        if (branches := config.rollout.branches) > 1:
            return await play_tree(
                self._player, spec, rng, branches=branches, temperature=temperature, cross_policy=cross,
                deadline_s=deadline_s,
            )  # fmt: skip
        return await self._player.play(spec, rng, temperature=temperature, cross_policy=cross, deadline_s=deadline_s)

    async def _evaluated(self, task: TaskMix, sample_id: str, seed: str, temperature: float) -> Trajectory:
        rng = random.Random(seed)
        spec = self._spec(task, sample_id, rng.getrandbits(31), f"eval-{seed}", 0)
        async with self._evaluating, self._places.get(task.name, _Free()):
            return await self._player.play(
                spec,
                rng,
                temperature=temperature,
                cross_policy="none",
                deadline_s=self._config.rollout.straggler_s,
            )

    def _spec(self, task: TaskMix, sample_id: str, seed: int, group_id: str, replica: int) -> EpisodeSpec:
        return EpisodeSpec(
            task=task.name,
            sample_id=sample_id,
            seed=seed,
            profile=task.profile,
            prompt=task.prompt,
            options=task.options,
            group_id=group_id,
            replica=replica,
        )


class _Free:
    """No limit of its own."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exception: object) -> None: ...


@dataclass(slots=True)
class _Conversation:
    """Reads the trainer's requests and answers them; groups go out as far as there are credits."""

    worker: Worker
    reader: asyncio.StreamReader
    writer: FrameWriter
    credits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def run(self) -> None:
        """Until the trainer closes.

        Raises:
            Exception: whatever ends the run; with others in an ExceptionGroup.
        """
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self.worker.scheduler.run(), name="scheduler"),
                tasks.create_task(self._send_groups(), name="groups"),
                tasks.create_task(self._beat(), name="heartbeat"),
                tasks.create_task(self.worker.watch(), name="stall watch"),
            ]
            while (frame := await read_frame(self.reader)) is not None:
                if frame.head["op"] == "credit":
                    for _ in range(frame.head["count"]):
                        self.credits.release()
                else:
                    others.append(tasks.create_task(self._answer(frame)))
                    others = [task for task in others if not task.done()]
            for task in others:
                task.cancel()

    async def _send_groups(self) -> None:
        while True:
            group = await self.worker.out.get()
            self.worker.learn(group)
            await self.credits.acquire()
            encoded = encode_group(group)
            await self.writer.send({"op": "group", "group": encoded.head}, encoded.body)

    async def _beat(self) -> None:
        while True:
            await self.writer.send({"op": "beat", "stats": self.worker.stats()})
            await asyncio.sleep(BEAT_S)

    async def _answer(self, frame: Frame) -> None:
        head = frame.head
        result: dict[str, Any] = {}
        try:
            if head["op"] == "publish":
                await self.worker.publish(
                    Path(head["path"]), head["version"], stale=head["stale"], consumed=head["consumed"]
                )
            elif head["op"] == "probe":
                result["probes"] = await self.worker.probe(
                    head["ids"], head["count"], head["temperature"], stale=head["stale"]
                )
            else:
                result["records"] = await self.worker.evaluate(
                    head["task"], head["split"], head["n"], head["temperature"], head["seed"]
                )
        except (AgentBenchError, ExceptionGroup) as error:
            result = {"error": error_to_dict(first_fault(error))}
        await self.writer.send({"op": "answer", "id": head["id"], **result})


async def serve(sock: socket.socket, kind: type[Worker] = Worker) -> int:
    """The process's main: opens the worker that the first frame describes, and works until the trainer closes."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reader, stream = await asyncio.open_connection(sock=sock)
    writer = FrameWriter(stream)
    first = await read_frame(reader)
    if first is None:
        return 0
    working = asyncio.create_task(_work(first.head, reader, writer, kind), name="work")
    stopping = asyncio.create_task(stop.wait(), name="sigterm")
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        _end_late()
        working.cancel()
        await asyncio.wait({working})
        return 128 + signal.SIGTERM
    return working.result()


async def _work(head: Mapping[str, Any], reader: asyncio.StreamReader, writer: FrameWriter, kind: type[Worker]) -> int:
    worker: Worker | None = None
    try:
        config = from_dict(head["config"])
        worker = await kind.open(config, done=head["done"], logs=Path(head["logs"]))
        await writer.send({"op": "ready"})
        await _Conversation(worker, reader, writer).run()
    except (AgentBenchError, ExceptionGroup) as error:
        fault = first_fault(error)
        logger.exception("the rollout process cannot go on")
        with contextlib.suppress(InfrastructureError):  # the trainer may be gone already
            await writer.send({"op": "failed", "error": error_to_dict(fault)})
        return fault.exit_code
    finally:
        _end_late()
        if worker is not None:
            await worker.aclose()
        await writer.aclose()
    return 0


def first_fault(error: BaseException) -> AgentBenchError:
    """The error of ours in a group of errors; a bug becomes a TaskError that names it."""
    if isinstance(error, AgentBenchError):
        return error
    leaves = _leaves(error)
    ours = [leaf for leaf in leaves if isinstance(leaf, AgentBenchError)]
    # a bug goes before the faults that it caused
    bugs = [leaf for leaf in leaves if not isinstance(leaf, AgentBenchError)]
    if bugs:
        return InfrastructureError(f"the rollout process met a bug: {bugs[0]!r} [rollout]. Report it with its log.")
    return ours[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _end_late() -> None:
    """Ends this process by force if its orderly end takes too long."""
    timer = threading.Timer(CLOSE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _renderer(path: str, config: RunConfig) -> ChatRenderer:
    model = config.model
    return ChatRenderer(path, parser=model.parser, template=model.chat_template, options=model.template_options)


async def _samples(client: Client, task: TaskMix, split: str) -> list[str]:
    return await client.samples(task.name, split, profile=task.profile, prompt=task.prompt, options=dict(task.options))


def _record(trajectory: Trajectory) -> dict[str, Any]:
    """What an evaluation tells of one episode."""
    metrics = trajectory.metrics
    return {
        "task": trajectory.task,
        "sample_id": trajectory.sample_id,
        "success": bool(trajectory.success),
        "reward": trajectory.reward,
        "raw_reward": trajectory.raw_reward,
        "status": trajectory.status,
        "usable": trajectory.usable,
        "fault": trajectory.fault,
        "turns": metrics.get("turns", 0),
        "invalid_calls": metrics.get("invalid_calls", 0),
        "no_call_turns": metrics.get("no_call_turns", 0),
        "tokens": trajectory.trained_tokens,
    }
