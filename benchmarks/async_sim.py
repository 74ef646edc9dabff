"""Asynchronous training in virtual time: the real scheduler and queue, with engine, environment and trainer as laws.

    python benchmarks/async_sim.py            # the tables, about three minutes
    python benchmarks/async_sim.py --quick    # the decisive rows, half a minute

The scheduler, its depth control, the sample plan, the batch buffer and the lag accounting are those of the trainer;
only time is virtual, so that equal seeds give equal figures on every machine. The laws:

- A turn needs `work` seconds of an idle engine. With n requests on it, an engine works on each at the rate
  1 / (1 + n / K): K is its saturation constant, the load at which a turn takes twice as long.
- A turn's work is lognormal, an environment's answer exponential, the number of turns uniform; see `PROFILES`.
- A step over B trajectories takes the trainer `B * train_s` seconds; publishing weights takes `SYNC_S` more. Episodes
  go on meanwhile and mix versions.
- Split hardware: half of the machines generate, half train. Whole: the same machines first do the one, then the other,
  each at twice the speed: K doubles and train_s halves. Synchronous training uses the whole, its batch concurrently.

First table: what is reached at a lag bound of 2, against min(generation alone, training alone), with the idle shares
of both sides and the lags. Generation alone is measured by the same places playing back to back, without any pacing.
Half as many places as a batch has trajectories are the rule; rows with as many say what more places cost.
Second table: asynchronous against synchronous on equal hardware, over K. A row is latency-bound where K is at least the
number of places: then a turn of the asynchronous run takes at most twice what it takes on an idle engine.

Not here: the real loop with real waiting (async_efficiency.py).
"""

import argparse
import asyncio
import heapq
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import virtual_time

from agentrl_trainer.queue import BatchBuffer, BatchRule
from agentrl_trainer.rollout.plan import Draw, SamplePlan
from agentrl_trainer.rollout.scheduler import Limits, Scheduler
from agentrl_trainer.staleness import lag_report
from agentrl_trainer.types import NO_VERSION, Group, Trajectory

GROUP = 8
BATCH = 128
SYNC_S = 0.5
OF_BOUND = 0.95
RATIO = 1.9


@dataclass(frozen=True, slots=True)
class Profile:
    """How long an episode of a task takes."""

    turns: tuple[int, int]
    """Uniform over these, both included."""
    work_s: float
    """Mean work of a turn on an idle engine."""
    spread: float
    """Of the work: sigma of its logarithm."""
    environment_s: float
    """Mean of the environment's answer."""
    straggling: float = 0.0
    """Share of episodes that hang once, for `straggle_s`."""
    straggle_s: float = 0.0


PROFILES = {
    "short": Profile((2, 6), 0.8, 0.4, 0.1),
    "database": Profile((3, 12), 1.0, 0.6, 0.2),
    "graph": Profile((5, 15), 1.2, 0.6, 1.0),
    "household": Profile((12, 30), 0.5, 0.5, 0.3),
    "shop, straggling": Profile((4, 15), 1.2, 0.8, 0.4, 0.02, 40.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One simulated run."""

    profiles: Sequence[Profile]
    saturation: float
    """K of the engine."""
    train_s: float
    """Trainer seconds per trajectory."""
    max_lag: int
    steps: int
    batch: int = BATCH
    places: int = BATCH
    auto_depth: bool = True
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What a run reached, its first third left out."""

    per_s: float = 0.0
    """Trajectories consumed per second."""
    trainer_idle: float = 0.0
    places_idle: float = 0.0
    lags: list[int] = field(default_factory=list)
    """Of groups, from admission to consumption, in versions."""
    token_lag: float = 0.0
    largest: int = 0
    masked: float = 0.0
    """Share of tokens over the bound."""
    mixed: float = 0.0
    """Share of trajectories with more than one version."""


class Engine:
    """All requests progress at one rate, which falls with their number."""

    def __init__(self, saturation: float) -> None:
        self._k = saturation
        self._loop = asyncio.get_running_loop()
        self._done = 0.0  # work that a request present from the start would have received
        self._at = self._loop.time()
        self._requests: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self.version = 0

    async def generate(self, work: float) -> int:
        """Does so much work; returns the version of the weights that began it."""
        self._progress()
        version = self.version
        future: asyncio.Future[None] = self._loop.create_future()
        self._number += 1
        heapq.heappush(self._requests, (self._done + work, self._number, future))
        self._plan()
        await future
        return version

    def _progress(self) -> None:
        now = self._loop.time()
        self._done += (now - self._at) / self._slowdown()
        self._at = now

    def _slowdown(self) -> float:
        return 1.0 + len(self._requests) / self._k

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._requests:
            left = max(0.0, self._requests[0][0] - self._done) * self._slowdown()
            self._timer = self._loop.call_at(self._at + left, self._finish)

    def _finish(self) -> None:
        self._progress()
        while self._requests and self._requests[0][0] <= self._done + 1e-9:
            future = heapq.heappop(self._requests)[2]
            if not future.done():
                future.set_result(None)
        self._plan()


class Cluster:
    """Engine and environments: plays members as the scheduler asks."""

    def __init__(self, setting: Setting) -> None:
        self.engine = Engine(setting.saturation)
        self._profiles = {f"t{number}": profile for number, profile in enumerate(setting.profiles)}
        self._loop = asyncio.get_running_loop()
        self._playing = 0
        self._since = self._loop.time()
        self.busy = 0.0
        """Place-seconds so far."""

    def plan(self, seed: int) -> SamplePlan:
        """Samples enough of each task."""
        return SamplePlan({name: (1.0, [f"{name}/{i}" for i in range(997)]) for name in self._profiles}, seed=seed)

    def move(self, change: int) -> None:
        """One episode begins or ends."""
        now = self._loop.time()
        self.busy += self._playing * (now - self._since)
        self._since, self._playing = now, self._playing + change

    async def play(self, draw: Draw, replica: int, deadline_s: float) -> Trajectory:
        """One episode: turns on the engine, answers of the environment."""
        rng, profile = draw.rng(replica), self._profiles[draw.task]
        self.move(+1)
        versions = []
        count = rng.randint(*profile.turns)
        hangs = rng.randrange(count) if rng.random() < profile.straggling else -1
        mean = math.log(profile.work_s) - profile.spread**2 / 2
        for turn in range(count):
            versions.append(await self.engine.generate(rng.lognormvariate(mean, profile.spread)))
            pause = profile.straggle_s if turn == hangs else 0.0
            await asyncio.sleep(pause + rng.expovariate(1 / profile.environment_s))
        self.move(-1)
        return trajectory(draw, replica, versions, float(rng.random() < 0.5))


def trajectory(draw: Draw, replica: int, versions: Sequence[int], reward: float) -> Trajectory:
    """One token per turn behind a prompt of one."""
    n = len(versions) + 1
    mask = np.arange(n) > 0
    return Trajectory(
        task=draw.task, sample_id=draw.sample_id, group_id=draw.group_id, replica=replica, prompt_length=1,
        ids=np.zeros(n, np.int32), mask=mask, logprobs=np.zeros(n, np.float32),
        versions=np.array([NO_VERSION, *versions], np.int32), engines=np.where(mask, 0, -1).astype(np.int8),
        turns=np.arange(n, dtype=np.int16), status="completed", reward=reward, raw_reward=reward, success=bool(reward),
    )  # fmt: skip


async def training(setting: Setting) -> Outcome:
    """The loop of the trainer, over a scheduler and a buffer."""
    loop = asyncio.get_running_loop()
    cluster = Cluster(setting)
    out: asyncio.Queue[Group] = asyncio.Queue(maxsize=1)
    limits = Limits(
        group_size=GROUP, places=setting.places, batch=setting.batch, max_lag=setting.max_lag, straggler_s=math.inf,
        auto_depth=setting.auto_depth,
    )  # fmt: skip
    scheduler = Scheduler(cluster.plan(setting.seed), cluster.play, out, limits, clock=loop.time)
    buffer, arrived = BatchBuffer(), asyncio.Event()
    rule = BatchRule(min_trajectories=setting.batch, max_trajectories=setting.batch)

    async def receive() -> None:
        while True:
            buffer.put(await out.get())
            arrived.set()

    others = [asyncio.ensure_future(scheduler.run()), asyncio.ensure_future(receive())]
    await scheduler.published(0, 0)
    outcome, consumed, waited, began = Outcome(), 0, 0.0, (0.0, 0.0)
    rows: list[Trajectory] = []
    reports = []
    for version in range(setting.steps):
        if version == setting.steps // 3:
            cluster.move(0)
            began = (loop.time(), cluster.busy)
            consumed, waited = 0, 0.0
        asked = loop.time()
        while (batch := buffer.take(rule)) is None:
            arrived.clear()
            await arrived.wait()
        waited += loop.time() - asked
        members = [t for group in batch for t in group.usable]
        await asyncio.sleep(len(members) * setting.train_s + SYNC_S)
        cluster.engine.version = version + 1
        await scheduler.published(version + 1, len(members))
        consumed += len(members)
        if version >= setting.steps // 3:
            outcome.lags += [version - group.admitted_version for group in batch]
            reports.append(lag_report(members, version, max_lag=setting.max_lag, fresh_engines=1))
            rows += members
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    cluster.move(0)
    seconds = loop.time() - began[0]
    outcome.per_s = consumed / seconds
    outcome.trainer_idle = waited / seconds
    outcome.places_idle = 1 - (cluster.busy - began[1]) / (seconds * setting.places)
    outcome.token_lag = float(np.mean([r.mean for r in reports]))
    outcome.masked = float(np.mean([r.masked_share for r in reports]))
    outcome.mixed = float(np.mean([r.mixed_share for r in reports]))
    outcome.largest = max(outcome.lags)
    return outcome


async def generation(setting: Setting, episodes: int) -> float:
    """Episodes per second of `places` that play back to back, with nobody to wait for: the law's own limit."""
    loop = asyncio.get_running_loop()
    cluster = Cluster(setting)
    plan = cluster.plan(setting.seed + 1)
    started = ended = 0
    began = 0.0

    async def place(number: int) -> None:
        nonlocal started, ended, began
        while ended < episodes:
            draw = plan.next()
            assert draw is not None
            await cluster.play(draw, number, math.inf)
            ended += 1
            if ended == episodes // 3:
                started, began = ended, loop.time()

    jobs = [asyncio.ensure_future(place(number)) for number in range(setting.places)]
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    rate = (ended - started) / (loop.time() - began)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    return rate


def synchronous(setting: Setting) -> Setting:
    """The same machines as a whole, each step after the other."""
    return replace(setting, saturation=2 * setting.saturation, train_s=setting.train_s / 2, max_lag=0)


def bound_row(name: str, *, places: int, speed: float, steps: int, alone: float) -> tuple[str, float]:
    """One row of the first table, and the share of the bound that is reached.

    Args:
        name: Of the profile.
        places: Episodes at once.
        speed: How fast the trainer is, in units of the generator.
        steps: Of the trainer.
        alone: What the generator does alone, in episodes per second.
    """
    setting = Setting(
        profiles=[PROFILES[name]], saturation=places, train_s=1 / (alone * speed) - SYNC_S / BATCH, max_lag=2,
        steps=steps, places=places,
    )  # fmt: skip
    outcome = virtual_time.run(training(setting))
    bound = min(alone, speed * alone)
    share = outcome.per_s / bound
    text = (
        f"{name:17} {places:6d} {speed:9.1f}  {alone:6.2f} {speed * alone:6.2f}  {outcome.per_s:7.2f}  {share:8.1%} |"
        f"       {outcome.trainer_idle:7.1%} {max(0.0, outcome.places_idle):6.1%} |      {outcome.token_lag:4.2f} "
        f"{np.percentile(outcome.lags, 99):3.0f} {outcome.largest:3d} {outcome.masked:6.2%}"
    )
    return text, share


def bound_table(steps: int, speeds: Sequence[float], say: Callable[[str], None]) -> bool:
    """At lag 2 against min(generation alone, training alone); whether all rows that should do reach it."""
    say(f"\nreached at max_lag 2, batch {BATCH}, groups of {GROUP}, K = places; bound = min(generation, training)")
    say(
        "profile           places train/gen   gen/s train/s reached  of bound | idle: trainer places | "
        "lag: mean p99 max masked"
    )
    good = True
    for name, profile in PROFILES.items():
        for places, own in ((BATCH // 2, speeds), (BATCH, (1.0,))):
            base = Setting(
                profiles=[profile], saturation=places, train_s=0.0, max_lag=2, steps=steps, places=places
            )  # fmt: skip
            alone = virtual_time.run(generation(base, BATCH * steps))
            for speed in own:
                row, share = bound_row(name, places=places, speed=speed, steps=steps, alone=alone)
                if places == BATCH:
                    row += "   (places = batch)"
                else:
                    good &= share >= OF_BOUND
                    row += "" if share >= OF_BOUND else f"   BELOW {OF_BOUND:.0%}"
                say(row)
    say(
        "With as many places as a batch and both sides equally fast, whole groups need more than the three batches\n"
        "that a lag of 2 lets be on their way: one in training, one ready, and groups that wait for their last member."
    )
    return good


def compare(constant: float, train_s: float, steps: int) -> tuple[Outcome, Outcome]:
    """Synchronous on the whole and asynchronous on halves of the same machines, all five profiles mixed."""
    halves = Setting(
        profiles=list(PROFILES.values()), saturation=constant, train_s=train_s, max_lag=2, steps=steps
    )  # fmt: skip
    return virtual_time.run(training(synchronous(halves))), virtual_time.run(training(halves))


def hardware_table(steps: int, constants: Sequence[float], speeds: Sequence[float], say: Callable[[str], None]) -> bool:
    """Asynchronous on halves against synchronous on the whole, over K; whether the latency-bound rows gain enough."""
    say(f"\nequal hardware, all five profiles mixed, batch and places {BATCH}; K of half of the machines")
    say("     K  train s/traj  sync/s  async/s   ratio | trainer idle: sync async | turn's slowdown, async | lag mean")
    good = True
    enough: dict[float, float] = {}
    for constant in constants:
        for train_s in speeds:
            sync, both = compare(constant, train_s, steps)
            ratio = both.per_s / sync.per_s
            slowdown = 1 + BATCH * (1 - both.places_idle) / constant
            enough[constant] = min(ratio, enough.get(constant, ratio))
            latency_bound = constant >= BATCH
            reason = "" if latency_bound else "   engine-bound: half of an engine that is saturated does half"
            if latency_bound and ratio < RATIO:
                good, reason = False, f"   BELOW {RATIO}x"
            say(
                f"{constant:6g}  {train_s:12g}  {sync.per_s:6.2f}  {both.per_s:7.2f}  {ratio:5.2f}x |"
                f"               {sync.trainer_idle:4.0%}  {both.trainer_idle:4.0%} | {slowdown:22.2f} | "
                f"{both.token_lag:8.2f}{reason}"
            )
    fast = [c for c in sorted(enough) if all(enough[other] >= RATIO for other in enough if other >= c)]
    say(f"at least {RATIO}x from K = {fast[0]:g} on, {fast[0] / BATCH:g} x places" if fast else f"never {RATIO}x")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    steps = 24 if options.quick else options.steps
    print(f"laws: turn = work x (1 + n/K); step = trajectories x train_s + {SYNC_S:g} s; whole = twice K, half train_s")
    for name, profile in PROFILES.items():
        print(f"  {name}: {profile}")
    good = bound_table(steps, (1.0,) if options.quick else (2.0, 1.0, 0.5), print)
    constants = (32, 128, 512) if options.quick else (16, 32, 64, 96, 128, 256, 512, 1024)
    good &= hardware_table(steps, constants, (0.05,) if options.quick else (0.02, 0.05, 0.1), print)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
