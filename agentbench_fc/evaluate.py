"""Evaluates a model behind any OpenAI-compatible endpoint, or a player, on samples of any task.

    config = EvalConfig(tasks=("db",), split="dev", player="expert", out=Path("runs/eval/expert"))
    print(asyncio.run(evaluate(config)).to_markdown())

Each sample is played `repeats` times. Episodes run side by side, bounded by `concurrency`, and each is on disk as soon
as it ends: after a kill, the same configuration plays what is missing and gives the same totals. An answer that cannot
be had is a `model error`: no result of the model, and never one of the environment; it is counted apart.

Not here: HTTP (endpoint.py), the results file (results.py), what results add up to (scores.py), Markdown (report.py).
"""

import asyncio
import fnmatch
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentbench_fc.client import Client, LocalClient
from agentbench_fc.connecting import connect, reach
from agentbench_fc.episode import Sample, Task, Turn
from agentbench_fc.errors import (
    AgentBenchError,
    CallerError,
    Gone,
    InfrastructureError,
    NotFound,
    TaskError,
    did_you_mean,
)
from agentbench_fc.evaluation.agents import Agent, Mix, ModelAgent, PlayerAgent, Policy, PoolAgent
from agentbench_fc.evaluation.endpoint import ContextLimit, Endpoint, ModelError, Sampling, Unreachable
from agentbench_fc.evaluation.report import Report
from agentbench_fc.evaluation.results import MODEL_ERROR, EpisodeResult, Key, ResultsFile
from agentbench_fc.evaluation.scores import summarize
from agentbench_fc.loaded import check_options
from agentbench_fc.parsers import get_parser
from agentbench_fc.players import PLAYERS, make_player
from agentbench_fc.record import Counters
from agentbench_fc.registry import load_task
from agentbench_fc.rewards import Status

OnResult = Callable[[EpisodeResult, int, int], None]
"""Called with each new result, how many there are now, and how many there will be."""

_NOT_METRICS = {"turns", "raw_reward", "fault", "reason", *Counters.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One model of a pool, by a name of its own."""

    name: str
    model: str
    base_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """One evaluation. What plays is `model` with `base_url`, or a pool of `policies`, or `player`."""

    tasks: tuple[str, ...]
    out: Path
    """Folder of results.jsonl, report.json and report.md."""
    split: str = "dev"
    model: str | None = None
    base_url: str | None = None
    policies: tuple[Served, ...] = ()
    """Several models that play between them; evaluation/pool.py compares that with each alone."""
    mix: Mix = "step"
    """What one draw from `policies` decides: a turn, or a whole trajectory."""
    player: str | None = None
    parser: str | None = None
    """For endpoints that leave tool calls in the text: hermes, glm4, llama3 …"""
    repeats: int = 4
    temperature: float | None = 0.8
    max_tokens: int | None = 1024
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of each request."""
    limit: int | None = None
    """The first so many samples of each task, in id order, after `samples`."""
    samples: tuple[str, ...] = ()
    """Sample ids, or patterns with `*`; empty: all."""
    seed: int = 0
    """Of the environments: each sample has the same one in all repeats. Players draw anew in each repeat."""
    profile: str = "default"
    prompt: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the tasks, such as max_turns."""
    concurrency: int = 16
    timeout_s: float = 120.0
    """Of one try of a request."""
    deadline_s: float = 600.0
    """Of a request with all its tries."""
    retries: int = 5
    backoff_s: float = 1.0
    """Pause before the first of them; each further one is twice as long."""
    retry_errors: bool = False
    """Plays episodes again that ended without a score."""
    transcripts: bool = False
    """Appends each episode's record to transcripts.jsonl, which `agentbench-fc replay` checks."""
    url: str | None = None
    """Of a controller whose workers run the sessions; None: they run in this process."""

    def __post_init__(self) -> None:
        for name in ("repeats", "concurrency", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CallerError(f"{name} is {value} [eval]. Use 1 or more.")
        for name in ("timeout_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise CallerError(f"{name} is {getattr(self, name)} [eval]. Use seconds > 0.")
        if self.retries < 0:
            raise CallerError(f"retries is {self.retries} [eval]. Use 0 or more.")
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise CallerError(f"the tasks are {list(self.tasks)} [eval]. Name at least one, each once.")
        if (self.player is not None) + (self.model is not None) + bool(self.policies) != 1:
            raise CallerError(
                "either a model or a player plays [eval]. Give --model with --base-url, --policy at least "
                "twice, or --player."
            )
        names = [policy.name for policy in self.policies]
        if len(set(names)) < len(names) or len(names) == 1:
            raise CallerError(f"the policies are {names} [eval]. Name two or more, each differently.")
        if self.model is not None and self.base_url is None:
            raise CallerError("a model needs an address [eval]. Give --base-url http://host:port/v1.")
        if self.player is not None and self.player not in PLAYERS:
            raise CallerError(f"no player {self.player!r} [eval]. {did_you_mean(self.player, PLAYERS)}")
        if self.parser is not None:
            get_parser(self.parser)
        if self.url is not None and self.transcripts:
            raise CallerError("transcripts is given with a url [eval]. Tell the workers where to write them.")

    def identity(self) -> dict[str, Any]:
        """What shapes the episodes: results under another identity do not belong together.

        The address is not part of it, so that a run goes on when its server has moved; speed and patience are neither.
        """
        apart = {"out", "base_url", "concurrency", "timeout_s", "deadline_s", "retries", "backoff_s"}
        apart |= {"retry_errors", "transcripts", "url"}
        model_only = {"parser", "temperature", "max_tokens", "body"} if self.player else set()
        apart |= model_only | ({"mix", "policies"} if not self.policies else set())
        told = {name: value for name, value in asdict(self).items() if name not in apart}
        if self.policies:
            told["policies"] = {policy.name: policy.model for policy in self.policies}
        return told


async def evaluate(
    config: EvalConfig,
    *,
    api_key: str | None = None,
    tasks: Mapping[str, Task] | None = None,
    client: Client | None = None,
    on_result: OnResult | None = None,
) -> Report:
    """Plays what is missing of an evaluation and writes its reports.

    Args:
        config: What is played, by whom, and where the results go.
        api_key: For the endpoint.
        tasks: Ready-made tasks by name, beside those that the registry knows.
        client: Where sessions run; by default in this process.
        on_result: For progress.

    Raises:
        CallerError: no such task, split or sample; a refused key or model; results of another configuration are there.
        InfrastructureError: the endpoint or controller cannot be reached at all. What was played stays, and the same
            call goes on.
    """
    started = time.monotonic()
    if client is None and config.url is not None:
        await asyncio.to_thread(reach, config.url)
    given = dict(tasks or {})
    check_options(config.options)
    loaded = {
        name: given.get(name) or load_task(name, profile=config.profile, prompt=config.prompt, **config.options)
        for name in config.tasks
    }
    async with AsyncExitStack() as stack:
        for name, task in loaded.items():
            if name not in given:
                stack.callback(task.close)
        identity = config.identity() | {"specs": {name: task.spec.digest for name, task in loaded.items()}}
        plan = {name: _chosen(task, config) for name, task in loaded.items()}
        results = stack.enter_context(ResultsFile(config.out / "results.jsonl", identity))
        if client is None and config.url is not None:
            client = await stack.enter_async_context(connect(config.url))
        elif client is None:
            client = await stack.enter_async_context(_local(config, given))
        if config.player is None:
            make_agent = _model_agents(await _policies(config, api_key, stack), config)
        else:
            make_agent = await asyncio.to_thread(_player_agents, loaded, config)
        run = _Run(config, client, make_agent, {name for name in config.tasks if name not in given})
        try:
            await _play_all(run, plan, results, on_result)
        finally:
            report = _report(config, identity, plan, results, time.monotonic() - started)
            report.write(config.out)
    return report


MakeAgent = Callable[[str, Sample, int], Agent]


def _local(config: EvalConfig, tasks: Mapping[str, Task]) -> LocalClient:
    # no lease: every session here has a coroutine that ends it, and a slow model is no reason to lose one
    return LocalClient(
        tasks=tasks,
        idle_timeout_s=None,
        lifetime_s=None,
        max_concurrency=min(config.concurrency, 32),
        transcripts=config.out / "transcripts.jsonl" if config.transcripts else None,
    )


async def _policies(config: EvalConfig, api_key: str | None, stack: AsyncExitStack) -> list[Policy]:
    """The model, or the models of the pool, each with an endpoint that the stack closes."""
    single = Served(name="", model=config.model or "", base_url=config.base_url or "")
    out: list[Policy] = []
    for served in config.policies or (single,):
        endpoint = Endpoint(
            served.base_url,
            served.model,
            api_key=api_key,
            timeout_s=config.timeout_s,
            deadline_s=config.deadline_s,
            retries=config.retries,
            backoff_s=config.backoff_s,
        )
        out.append(Policy(served.name, await stack.enter_async_context(endpoint)))
    return out


def _model_agents(policies: list[Policy], config: EvalConfig) -> MakeAgent:
    sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens, body=config.body)
    parser = get_parser(config.parser) if config.parser else None

    def make(task: str, sample: Sample, repeat: int) -> Agent:
        if not config.policies:
            return ModelAgent(policies[0].endpoint, sampling, parser)
        rng = random.Random(derived_seed(config.seed, sample.id, repeat, "policy"))
        return PoolAgent(policies, config.mix, rng, sampling, parser)

    return make


def _player_agents(tasks: Mapping[str, Task], config: EvalConfig) -> MakeAgent:
    assert config.player is not None
    policies = {name: make_player(config.player, task) for name, task in tasks.items()}

    def make(task: str, sample: Sample, repeat: int) -> Agent:
        return PlayerAgent(policies[task](sample, derived_seed(config.seed, sample.id, repeat)))

    return make


def _chosen(task: Task, config: EvalConfig) -> list[Sample]:
    rows = list(task.samples(config.split))
    if config.samples:
        rows = [row for row in rows if any(fnmatch.fnmatchcase(row.id, pattern) for pattern in config.samples)]
    if not rows:
        wanted = f"none matches {', '.join(config.samples)}" if config.samples else "it is empty"
        raise NotFound(f"no sample to play: {wanted} [task {task.spec.name}, split {config.split}]. Mend --sample.")
    return rows[: config.limit]


def derived_seed(*parts: object) -> int:
    """A seed below 2^31 that depends on all parts and on nothing else."""
    digest = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _missing(
    config: EvalConfig, plan: Mapping[str, list[Sample]], done: Mapping[Key, EpisodeResult]
) -> list[tuple[Key, Sample]]:
    """What is to be played, repeat by repeat, so that an early look is fair to every sample."""
    out: list[tuple[Key, Sample]] = []
    for repeat in range(config.repeats):
        for task, rows in plan.items():
            for sample in rows:
                key = Key(task, sample.id, repeat)
                known = done.get(key)
                if known is None or (config.retry_errors and not known.scored):
                    out.append((key, sample))
    return out


async def _play_all(
    run: "_Run", plan: Mapping[str, list[Sample]], results: ResultsFile, on_result: OnResult | None
) -> None:
    total = run.config.repeats * sum(len(rows) for rows in plan.values())
    todo = _missing(run.config, plan, results.done)
    queue: Iterator[tuple[Key, Sample]] = iter(todo)

    async def work() -> None:
        for key, sample in queue:
            result = await run.episode(key, sample)
            results.add(result)
            if on_result is not None:
                on_result(result, len(results.done), total)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(min(run.config.concurrency, len(todo))):
                group.create_task(work(), name=f"eval-{number}")
    except BaseExceptionGroup as errors:  # the first one stopped the rest
        known, bugs = errors.split(AgentBenchError)
        if bugs is None and known is not None:
            raise _first(known) from None
        raise


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Run:
    """Plays single episodes."""

    def __init__(self, config: EvalConfig, client: Client, make_agent: MakeAgent, from_registry: set[str]) -> None:
        self.config = config
        self._client = client
        self._make_agent = make_agent
        self._from_registry = from_registry

    async def episode(self, key: Key, sample: Sample) -> EpisodeResult:
        """One episode to its end; whatever goes wrong in it is its result.

        Raises:
            CallerError: nothing can be played so, here or in another episode.
            Unreachable: nor is there an endpoint.
        """
        seed = derived_seed(self.config.seed, sample.id)
        env_s: list[float] = []
        agent = self._make_agent(key.task, sample, key.repeat)
        try:
            turn = await _timed(env_s, self._start(key, seed))
        except (TaskError, InfrastructureError) as error:
            return _failed(key, seed, Status.INIT_FAILED, error, error.fault)
        turns = [turn]
        while not turn.finish:
            try:
                messages = await agent.act(turn)
            except ContextLimit:
                turn = await self._client.cancel(turn.session_id, Status.CONTEXT_LIMIT)
                turns.append(turn)
                break
            except Unreachable:
                await self._client.cancel(turn.session_id)
                raise
            except (ModelError, TaskError) as error:  # a TaskError here is a player's
                ended = await self._client.cancel(turn.session_id)
                kind = error.kind if isinstance(error, ModelError) else "player"
                return _result(key, seed, [*turns, ended], agent, env_s, model_error=(kind, str(error)))
            try:
                turn = await _timed(env_s, self._client.interact(turn.session_id, messages, turn=turn.turn + 1))
            except (TaskError, InfrastructureError, Gone, NotFound) as error:  # the session was lost
                return _failed(key, seed, Status.UNKNOWN, error, "worker")
            turns.append(turn)
        return _result(key, seed, turns, agent, env_s)

    async def _start(self, key: Key, seed: int) -> Turn:
        if key.task not in self._from_registry:
            return await self._client.start_sample(key.task, key.sample, split=self.config.split, seed=seed)
        return await self._client.start_sample(
            key.task,
            key.sample,
            split=self.config.split,
            seed=seed,
            profile=self.config.profile,
            prompt=self.config.prompt,
            options=self.config.options,
        )


async def _timed(seconds: list[float], call: Awaitable[Turn]) -> Turn:
    start = time.monotonic()
    turn = await call
    seconds.append(round(time.monotonic() - start, 5))
    return turn


def _failed(key: Key, seed: int, status: Status, error: AgentBenchError, fault: str) -> EpisodeResult:
    return EpisodeResult(
        **key._asdict(), seed=seed, status=str(status), reward=None, success=None, fault=fault, error=str(error)
    )


def _result(
    key: Key,
    seed: int,
    turns: list[Turn],
    agent: Agent,
    env_s: list[float],
    *,
    model_error: tuple[str, str] | None = None,
) -> EpisodeResult:
    last, usage = turns[-1], agent.usage
    metrics = {name: value for turn in turns for name, value in turn.metrics.items()}
    return EpisodeResult(
        **key._asdict(),
        seed=seed,
        status=MODEL_ERROR if model_error else str(last.status),
        reward=None if model_error else metrics.get("raw_reward"),
        success=None if model_error else last.success,
        turns=metrics.get("turns", last.turn),
        calls=metrics.get("calls", 0),
        invalid_calls=metrics.get("invalid_calls", 0),
        no_call_turns=metrics.get("no_call_turns", 0),
        metrics={n: float(v) for n, v in metrics.items() if n not in _NOT_METRICS and isinstance(v, int | float)},
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cut_answers=usage.cut_answers,
        tries=usage.tries,
        model_s=tuple(round(s, 4) for s in usage.seconds),
        env_s=tuple(env_s),
        fault="model" if model_error else metrics.get("fault"),
        error=model_error[1] if model_error else (metrics.get("reason") if "fault" in metrics else None),
        kind=model_error[0] if model_error else None,
        policies=tuple(agent.policies) if isinstance(agent, PoolAgent) else (),
    )


def _report(
    config: EvalConfig, identity: Mapping[str, Any], plan: Mapping[str, list[Sample]], results: ResultsFile, s: float
) -> Report:
    wanted = {
        Key(task, row.id, repeat) for task, rows in plan.items() for row in rows for repeat in range(config.repeats)
    }
    rows = [result for key, result in results.done.items() if key in wanted]
    return Report(
        options={**identity, "base_url": config.base_url or {p.name: p.base_url for p in config.policies} or None},
        planned=len(wanted),
        scores=tuple(summarize(task, rows) for task in config.tasks),
        seconds=s,
    )
