"""The configuration of a run: one frozen dataclass per concern; its defaults are the quick start.

>>> RunConfig().tasks[0].name, RunConfig().batch.min_trajectories
('db', 96)
>>> Staleness(max_lag=-1)
Traceback (most recent call last):
agentbench_fc.errors.CallerError: max_lag is -1 [staleness.max_lag]. Use 0 (synchronous) or more.

A field says its unit and its effect below itself. Values are checked when an object is made, so a configuration that
exists is usable. What spans two sections is checked by `RunConfig`.

Not here: the sections about the loss (objective.py); YAML files and `key=value` overrides (configfile.py); what the
`trl` section may hold (trainer.py).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from agentbench_fc.errors import CallerError, did_you_mean
from agentrl_trainer.objective import Normalization as Normalization  # one place to import all sections from
from agentrl_trainer.objective import OffPolicy as OffPolicy
from agentrl_trainer.objective import Optimization as Optimization
from agentrl_trainer.objective import check_number as _check
from agentrl_trainer.plain import plain_values as _plain

TINY = "tiny-fc"
"""Name of the policy that ships with the package."""
TINY_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "db": {"level": "easy", "max_turns": 8},
    "kg": {"level": "easy", "max_turns": 8},
}
"""What `tiny-fc` can do of the built-in tasks; `options: {level: null}` gives it all levels."""
AUTO = "auto"
TRACKERS: Mapping[str, str] = {
    "tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow", "comet_ml": "comet_ml",
    "clearml": "clearml", "dvclive": "dvclive", "swanlab": "swanlab", "neptune": "neptune",
}  # fmt: skip
"""What `report_to` can name, and the module that it needs."""


SEEDS = 2**31 - 1
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
_ADDRESS = re.compile(r"https?://[^/\s:]|https?://\[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The policy that is trained."""

    path: str = TINY
    """A folder with a Hugging Face causal model and its tokenizer, a hub name, or `tiny-fc`. `model=PATH` is short."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the trained weights; engines sample with the same."""
    device: str = AUTO
    """`cpu`, `cuda`, `cuda:1` …; auto: CUDA where there is one."""
    parser: str = AUTO
    """Name of the tool-call parser (agentbench_fc.parsers); auto: by the tokenizer's chat template."""
    chat_template: str | None = None
    """A family (`qwen2.5`, `qwen3`, `glm4`, `llama3`, `smollm2`), a `.jinja` file, or text; None: the tokenizer's."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template, e.g. `{enable_thinking: false}`."""
    threads: int = 1
    """CPU threads of each process that holds a model; more do not help below some 10 M parameters."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""

    def __post_init__(self) -> None:
        if not self.path:
            raise CallerError("path is empty [model.path]. Give a model folder, or tiny-fc.")
        if not _DEVICE.fullmatch(str(self.device)):
            raise CallerError(f"device is {self.device!r} [model.device]. Use auto, cpu, cuda or cuda:<number>.")
        _check(self.threads, "model.threads", "Use 1 or more.", low=1)
        object.__setattr__(self, "template_options", _plain(self.template_options, "model.template_options"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMix:
    """One task and its share of the rollouts."""

    name: str
    """A task known to agentbench_fc: built in, from another package, or `path/to/file.py:TASK`."""
    weight: float = 1.0
    """Relative share of the groups; 0 only evaluates it."""
    split: str = "train"
    """Where training samples are drawn from."""
    eval_split: str = "dev"
    """Held-out samples for the evaluation."""
    prompt: str = AUTO
    """Prompt style; auto: `compact` for tiny-fc on built-in tasks, else `default`."""
    profile: str = "default"
    """`default` or `agentbench`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the task, e.g. `level`, `max_turns`, `max_invalid_calls`, a backend; see also `TINY_OPTIONS`."""
    concurrency: int = 0
    """Episodes of this task that may be open at once; 0: no limit of its own."""

    def __post_init__(self) -> None:
        if not self.name:
            raise CallerError("a task has no name [tasks]. Give each entry a name, e.g. `- name: db`.")
        _check(self.weight, f"tasks.{self.name}.weight", "Use 0 (evaluate only) or more.", low=0)
        _check(self.concurrency, f"tasks.{self.name}.concurrency", "Use 0 (no limit) or more.", low=0)
        object.__setattr__(self, "options", _plain(self.options, f"tasks.{self.name}.options"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How training rollouts are sampled. There is no top-p or top-k: they would bias the importance ratio."""

    temperature: float = 0.8
    """Of engines and loss alike. 0 cannot be trained on."""
    max_new_tokens: int = 96
    """Tokens of one agent turn; a longer turn is cut and ends as it stands."""
    max_context: int = 1024
    """Tokens of a whole trajectory; beyond, the episode ends as `agent context limit`."""

    def __post_init__(self) -> None:
        _check(self.temperature, "sampling.temperature", "Use more than 0.", low=0, strict=True)
        _check(self.max_new_tokens, "sampling.max_new_tokens", "Use 1 or more.", low=1)
        if self.max_context <= self.max_new_tokens:
            raise CallerError(
                f"max_context is {self.max_context} [sampling.max_context]. "
                f"It must hold a prompt and max_new_tokens = {self.max_new_tokens}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout process: how much is in flight and how long anything may take."""

    max_groups: int = 12
    """Places for episodes, in groups: `max_groups` x `group_size` are played at once."""
    max_episodes: int = 0
    """Places for episodes where that is no whole number of groups, e.g. 1: one after the other; 0: see `max_groups`."""
    queue_groups: int = 6
    """Finished groups that may wait for the trainer; fewer are fresher. When full, admission stops, nothing is lost."""
    depth: Literal["auto", "full"] = "auto"
    """What may be on its way: `auto` just above what keeps the trainer busy, `full` all that `max_lag` allows."""
    straggler_s: float = 120.0
    """Seconds from its start after which an unfinished episode is cancelled and masked."""
    generate_timeout_s: float = 60.0
    """Deadline of one agent turn on an engine; afterwards another engine is tried."""
    start_timeout_s: float = 300.0
    """Deadline for the rollout process and its engines to be ready."""
    retries: int = 2
    """Attempts after the first for an episode that failed by infrastructure, before its member is masked."""
    restarts: int = 3
    """How often a dead rollout process is started again before the run ends; see also `engines.restarts`."""
    branches: int = 1
    """Above 1, tree mode: each episode is branched at a random turn into so many, which other policies go on with, and
    turns are credited within the tree (rollout/tree.py). A group has `group_size` / `branches` trees."""
    url: str = ""
    """Of a controller (`agentbench-fc serve`) whose workers run the sessions; empty: the rollout process runs them."""
    abnormal_penalty: float = -0.2
    """Reward of an episode that ends abnormally (limits, invalid actions); 0 keeps the raw reward."""

    def __post_init__(self) -> None:
        _check(self.max_groups, "rollout.max_groups", "Use 1 or more.", low=1)
        _check(self.max_episodes, "rollout.max_episodes", "Use 0 (by max_groups) or more.", low=0)
        _check(self.queue_groups, "rollout.queue_groups", "Use 1 or more.", low=1)
        _check(self.retries, "rollout.retries", "Use 0 or more.", low=0)
        _check(self.branches, "rollout.branches", "Use 1 (no trees) or more.", low=1)
        _check(self.restarts, "rollout.restarts", "Use 0 (never) or more.", low=0)
        for name in ("straggler_s", "generate_timeout_s", "start_timeout_s"):
            _check(getattr(self, name), f"rollout.{name}", "Use seconds > 0.", low=0, strict=True)
        if not -1 <= self.abnormal_penalty <= 0:
            raise CallerError(
                f"abnormal_penalty is {self.abnormal_penalty} [rollout.abnormal_penalty]. Use a value from -1 to 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How old a trained token may be; ages count weight versions, one per optimizer step."""

    max_lag: int = 2
    """Hard bound on fresh-engine tokens: an older one is masked in the loss and counted. 0 is synchronous training."""

    def __post_init__(self) -> None:
        _check(self.max_lag, "staleness.max_lag", "Use 0 (synchronous) or more.", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The pool that samples: fresh engines follow every step, stale ones lag (cross-policy sampling)."""

    kind: Literal["transformers", "sglang"] = "transformers"
    """`transformers`: processes of our own, nothing to start; `sglang`: servers that run already (docs/engines.md)."""
    fresh: int = 1
    """Engines with the newest weights; with `sglang` as many as `fresh_urls`."""
    stale: int = 1
    """Engines that take new weights only every `stale_sync_steps`; with `sglang` as many as `stale_urls`."""
    fresh_urls: tuple[str, ...] = ()
    """`sglang`: servers that follow every step, e.g. `http://gpu1:30000,http://gpu2:30000`."""
    stale_urls: tuple[str, ...] = ()
    """`sglang`: servers that lag."""
    api_key_env: str = ""
    """`sglang`: variable that holds the servers' key, where they ask for one."""
    cross_policy: Literal["step", "trajectory", "none"] = "step"
    """What one draw from the pool decides: one agent turn (the paper), a whole trajectory, or fresh engines only."""
    stale_sync_steps: int = 4
    """Optimizer steps between two updates of the stale engines."""
    stale_lags: tuple[int, ...] = ()
    """Of each stale engine, the steps between two of its updates, e.g. `4,16` for two that lag differently: then each
    lag is a policy of its own. Empty: `stale_sync_steps` for all."""
    weights: tuple[float, ...] = ()
    """How often each policy is drawn: the fresh one first, then the stale ones by rising lag. Empty: equally."""
    adaptive: bool = False
    """Let the weights follow how much variance each policy brings to the groups."""
    max_batch: int = 64
    """Sequences that one engine decodes together."""
    batch_wait_ms: float = 3.0
    """How long an idle engine waits for further requests before it starts."""
    weights_dir: Path | None = None
    """Where weight versions pass from the trainer to the engines; None: memory-backed where there is room. Servers on
    other machines need a folder that they see under the same path."""
    restarts: int = 3
    """How often a dead engine is brought back (its process started, its server found again) before it stays out."""
    canary: Literal["error", "warn", "off"] = "error"
    """After each publication the engines' log-probs are held against the trainer's: what a difference does. An engine
    that differs at the start ends the run in either case."""
    canary_tolerance: float = 0.0
    """Mean difference of log-probs that is no fault; 0: 0.01 for engines of our own in float32, else 0.1."""

    def __post_init__(self) -> None:
        self._check_urls()
        _check(self.fresh, "engines.fresh", "At least one engine must follow the trainer.", low=1)
        _check(self.stale, "engines.stale", "Use 0 or more.", low=0)
        _check(self.stale_sync_steps, "engines.stale_sync_steps", "Use 1 or more.", low=1)
        self._check_mix()
        _check(self.max_batch, "engines.max_batch", "Use 1 or more.", low=1)
        _check(self.batch_wait_ms, "engines.batch_wait_ms", "Use 0 or more milliseconds.", low=0)
        _check(self.restarts, "engines.restarts", "Use 0 (never) or more.", low=0)
        _check(self.canary_tolerance, "engines.canary_tolerance", "Use 0 (by kind and dtype) or more.", low=0)
        if self.fresh + self.stale > 127:
            raise CallerError(f"{self.fresh + self.stale} engines [engines]. A pool holds at most 127.")

    def _check_mix(self) -> None:
        if self.stale_lags and len(self.stale_lags) != self.stale:
            raise CallerError(
                f"{len(self.stale_lags)} lags for {self.stale} stale engines [engines.stale_lags]. Give one each."
            )
        for lag in self.stale_lags:
            _check(lag, "engines.stale_lags", "Use 1 step or more.", low=1)
        if self.stale_lags:  # no stale version is older than its last multiple of this, whichever engine it is of
            object.__setattr__(self, "stale_sync_steps", math.gcd(*self.stale_lags))
        for weight in self.weights:
            _check(weight, "engines.weights", "Use 0 or more.", low=0)
        policies = 1 + len(set(self.stale_lags) or {0} if self.stale else ())
        if self.weights and (len(self.weights) != policies or sum(self.weights) <= 0):
            raise CallerError(
                f"weights are {', '.join(f'{w:g}' for w in self.weights)} for {policies} policies [engines.weights]. "
                "Give one for the fresh engines and one for each lag, with a sum above 0."
            )
        if self.weights and self.weights[0] <= 0:
            raise CallerError("the fresh engines have weight 0 [engines.weights]. They are what is trained.")

    def _check_urls(self) -> None:
        """Servers are counted by their addresses: what reads `fresh` and `stale` need not know the kind."""
        urls = [*self.fresh_urls, *self.stale_urls]
        if self.kind != "sglang":
            if urls:
                raise CallerError(f"addresses are given for kind {self.kind} [engines]. Set engines.kind=sglang.")
            return
        if not self.fresh_urls:
            raise CallerError("no server follows the trainer [engines.fresh_urls]. Name at least one address.")
        for url in urls:
            if not _ADDRESS.match(url):
                raise CallerError(f"{url!r} is no address [engines]. Use http://host:port.")
        if doubled := sorted({url for url in urls if urls.count(url) > 1}):
            raise CallerError(f"{', '.join(doubled)} given twice [engines]. A server is fresh or stale, once.")
        object.__setattr__(self, "fresh", len(self.fresh_urls))
        object.__setattr__(self, "stale", len(self.stale_urls))

    @property
    def used_stale(self) -> int:
        """Stale engines that are started; none without cross-policy sampling."""
        return 0 if self.cross_policy == "none" else self.stale


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The dynamic batch: a step takes what waits, between two bounds."""

    min_trajectories: int = 96
    """A step waits for so many."""
    max_trajectories: int = 128
    """A step takes no more; the rest stays queued. Whole groups only."""
    refill: float = 1.0
    """Above 1, groups with equal rewards do not count and others are played in their place; a step takes at most
    `refill` x `min_trajectories` in all. They are in the figures all the same. 1: they count, and teach nothing."""
    micro_batch_tokens: int = 8192
    """Padded tokens (rows x longest) of one forward pass; the gradient does not depend on it."""
    wait_s: float = 300.0
    """Seconds without a batch after which the run ends with a diagnosis."""
    stall_report_s: float = 30.0
    """Seconds of waiting after which the log says who waits on what."""

    def __post_init__(self) -> None:
        _check(self.min_trajectories, "batch.min_trajectories", "Use 1 or more.", low=1)
        _check(self.refill, "batch.refill", "Use 1 (no refill) or more, e.g. 3.", low=1)
        _check(self.micro_batch_tokens, "batch.micro_batch_tokens", "Use 1 or more.", low=1)
        for name in ("wait_s", "stall_report_s"):
            _check(getattr(self, name), f"batch.{name}", "Use seconds > 0.", low=0, strict=True)
        if self.max_trajectories < self.min_trajectories:
            raise CallerError(
                f"max_trajectories is {self.max_trajectories} [batch.max_trajectories]. "
                f"It must not be below min_trajectories = {self.min_trajectories}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Success on held-out samples, before, during and after."""

    n: int = 64
    """Samples per task; 0: no evaluation at all."""
    every: int = 0
    """Steps between evaluations; 0: only before the first and after the last."""
    temperature: float = 0.8
    """Of the sampled evaluation."""
    greedy: bool = True
    """Evaluate greedily too: it tells learning from mere sharpening."""
    timeout_s: float = 600.0
    """Deadline of one evaluation."""

    def __post_init__(self) -> None:
        _check(self.n, "evaluation.n", "Use 0 (none) or more.", low=0)
        _check(self.every, "evaluation.every", "Use 0 (before and after) or more.", low=0)
        _check(self.temperature, "evaluation.temperature", "Use more than 0.", low=0, strict=True)
        _check(self.timeout_s, "evaluation.timeout_s", "Use seconds > 0.", low=0, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What survives a crash."""

    every: int = 10
    """Steps between checkpoints; 0: only at the end and when interrupted."""
    keep: int = 2
    """Newest checkpoints that stay; two, so that a damaged one has a predecessor."""

    def __post_init__(self) -> None:
        _check(self.every, "checkpoints.every", "Use 0 (only at the end) or more.", low=0)
        _check(self.keep, "checkpoints.keep", "Use 1 or more.", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that a run needs to know."""

    model: Model = field(default_factory=Model)
    tasks: tuple[TaskMix, ...] = (TaskMix(name="db"), TaskMix(name="kg"))
    """What is trained on; `tasks=db,kg` is short for names alone."""
    steps: int = 40
    """Optimizer steps."""
    group_size: int = 8
    """Trajectories per sample (K); advantages are relative to them."""
    seed: int = 0
    """Of everything random: sample order, episodes, sampling, initialization."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    rollout: Rollout = field(default_factory=Rollout)
    staleness: Staleness = field(default_factory=Staleness)
    engines: Engines = field(default_factory=Engines)
    batch: Batch = field(default_factory=Batch)
    optimization: Optimization = field(default_factory=Optimization)
    off_policy: OffPolicy = field(default_factory=OffPolicy)
    normalization: Normalization = field(default_factory=Normalization)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    output: Path | None = None
    """The run's folder; None: `runs/<date>-<time>`, made at the start."""
    resume: str = "never"
    """`never`; `auto`: from the newest whole checkpoint in `output`, if any; or the folder of one checkpoint."""
    transcripts: bool = True
    """Keep what was trained on in `transcripts/` of the run's folder (shards.py)."""
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """Display; auto: rich on a terminal, plain lines elsewhere."""
    report_to: tuple[str, ...] = ()
    """Trackers that get the figures too, by Hugging Face's names, e.g. `tensorboard` or `wandb,mlflow`."""
    trl: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `trl.GRPOConfig`, e.g. `entropy_coef: 0.01`; those that this configuration sets are refused."""

    def __post_init__(self) -> None:
        _check(self.steps, "steps", "Use 1 or more.", low=1)
        _check(self.seed, "seed", "Use 0 or more.", low=0)
        if self.seed > SEEDS:
            raise CallerError(f"seed is {self.seed} [seed]. Use {SEEDS} or less.")
        object.__setattr__(self, "trl", _plain(self.trl, "trl"))
        _check(self.group_size, "group_size", "Use 2 or more: advantages compare the members of a group.", low=2)
        if not self.tasks:
            raise CallerError("no tasks [tasks]. Name at least one, e.g. tasks=db,kg.")
        names = [task.name for task in self.tasks]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise CallerError(f"{', '.join(doubled)} given twice [tasks]. Name each once; `weight` sets its share.")
        if not any(task.weight for task in self.tasks):
            raise CallerError("all weights are 0 [tasks]. Give at least one task a weight above 0.")
        if lost := [name for name in self.report_to if name not in TRACKERS]:
            raise CallerError(f"no tracker {lost[0]!r} [report_to]. {did_you_mean(lost[0], TRACKERS)}")
        if self.batch.max_trajectories < self.group_size:
            raise CallerError(
                f"max_trajectories is {self.batch.max_trajectories} [batch.max_trajectories]. "
                f"It must hold one whole group: group_size = {self.group_size}."
            )
        if self.batch.micro_batch_tokens < self.sampling.max_context:
            raise CallerError(
                f"micro_batch_tokens is {self.batch.micro_batch_tokens} [batch.micro_batch_tokens]. "
                f"It must hold one trajectory: sampling.max_context = {self.sampling.max_context}."
            )
        branches = self.rollout.branches
        if self.group_size % branches or (branches > 1 and self.group_size // branches < 2):
            raise CallerError(
                f"{self.group_size} trajectories are not two or more trees of {branches} [rollout.branches, "
                "group_size]. Use a multiple of branches, e.g. group_size=8 with branches=2."
            )
        if branches > 1 and self.engines.cross_policy == "none":
            raise CallerError(
                "branches need a second policy [rollout.branches, engines.cross_policy]. Set cross_policy=step, or "
                "branches=1."
            )
        if self.batch.refill > 1 and not self.normalization.exclude_zero_variance:
            raise CallerError(
                "groups with equal rewards are refilled and trained on at once [batch.refill, "
                "normalization.exclude_zero_variance]. Set refill=1, or exclude_zero_variance=true."
            )
        capacity = (self.rollout.max_groups + self.rollout.queue_groups) * self.group_size
        if self.batch.min_trajectories > capacity:
            raise CallerError(
                f"min_trajectories is {self.batch.min_trajectories} [batch.min_trajectories]. At most {capacity} can "
                "be in flight and queued: lower it, or raise rollout.max_groups or rollout.queue_groups."
            )
        if self.off_policy.ratio == "mixture" and not self.engines.used_stale:
            raise CallerError(
                "ratio=mixture with one policy to draw from [off_policy.ratio]. "
                "Use ratio=conditional, or engines.stale=1 with cross_policy=step or trajectory."
            )
        if self.off_policy.mode == "decoupled" and self.optimization.loss_type == "vespo":
            raise CallerError(
                "mode=decoupled with loss_type=vespo [off_policy.mode]. VESPO weighs whole sequences by their ratio to "
                "the sampling policy itself: use mode=behavior, or loss_type dapo or cispo."
            )
        # a frozen dataclass resolves its own defaults in the only place that sees both sections
        object.__setattr__(self, "tasks", tuple(self._resolved(task) for task in self.tasks))

    def _resolved(self, task: TaskMix) -> TaskMix:
        from agentbench_fc.registry import BUILT_IN

        tiny = self.model.path == TINY and task.name in BUILT_IN
        prompt = task.prompt if task.prompt != AUTO else "compact" if tiny else "default"
        options = dict(TINY_OPTIONS.get(task.name, {}) if tiny else {}, **task.options)
        return replace(task, prompt=prompt, options=options)

    @property
    def places(self) -> int:
        """Episodes that are played at once."""
        return self.rollout.max_episodes or self.rollout.max_groups * self.group_size

    @property
    def refill_tolerance(self) -> float | None:
        """Rewards within it are equal and their group is refilled; None: no group is."""
        return self.normalization.tolerance if self.batch.refill > 1 else None

    @property
    def trained_tasks(self) -> tuple[TaskMix, ...]:
        """Those with a share of the rollouts."""
        return tuple(task for task in self.tasks if task.weight)
