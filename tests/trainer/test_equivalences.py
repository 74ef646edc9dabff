"""The trainer's options against each other and against TRL: equal where the mathematics says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_trainer.config import (
    Batch,
    Engines,
    Normalization,
    OffPolicy,
    Optimization,
    RunConfig,
    SamplingOptions,
    Staleness,
)
from agentrl_trainer.mixture import PolicyHistory
from agentrl_trainer.queue import StepBatch, TrajectoryQueue
from agentrl_trainer.trainer import AgentGRPOTrainer
from agentrl_trainer.types import Group, Trajectory

TEMPERATURE = 0.8
RAW = Normalization(group_scale="none", task="none")
Gradients = dict[str, torch.Tensor]


def config(**changes: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "group_size": 4,
        "sampling": SamplingOptions(temperature=TEMPERATURE, max_new_tokens=16, max_context=64),
        "batch": Batch(min_trajectories=4, max_trajectories=64, micro_batch_tokens=4096),
        "normalization": RAW,
    }
    return RunConfig(**(defaults | changes))


def trainer_of(folder: Path, options: RunConfig, output: Path) -> AgentGRPOTrainer:
    queue = TrajectoryQueue(None, capacity=1)  # type: ignore[arg-type]  # never started: batches are given by hand
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return AgentGRPOTrainer(
        model, options, queue, processing_class=AutoTokenizer.from_pretrained(folder), output=output
    )


def gradients(trainer: AgentGRPOTrainer, groups: list[Group], version: int = 0) -> Gradients:
    trainer.model.zero_grad()
    batch = StepBatch(groups=tuple(groups), version=version, waited_s=0.0, left=0)
    trainer.current_gradient_accumulation_steps = 1
    trainer.training_step(trainer.model, {"batch": batch})
    found = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    return found


def apart(found: Gradients, expected: Gradients) -> float:
    """The distance of two gradients, relative to their length."""
    assert found.keys() == expected.keys()
    length = sum(float((g.double() ** 2).sum()) for g in expected.values()) ** 0.5
    assert length > 1e-3, "a zero gradient proves nothing"
    return sum(float(((found[n] - g).double() ** 2).sum()) for n, g in expected.items()) ** 0.5 / length


def figure(trainer: AgentGRPOTrainer, name: str) -> float:
    return float(trainer._metrics["train"][name][-1])


@torch.no_grad()
def log_probs(model: Any, ids: np.ndarray) -> np.ndarray:
    """(T,) of each token after the ones before it, at the sampling temperature; the first is 0."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    logits = model(tokens[None]).logits[0] / TEMPERATURE
    picked = torch.log_softmax(logits, -1)[:-1].gather(1, tokens[1:, None])[:, 0]
    return torch.cat([torch.zeros(1), picked]).numpy()


def moved(folder: Path, scale: float, seed: int = 1) -> Any:
    """The policy, some steps away from itself."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


@pytest.fixture
def groups(
    policy_dir: Path, make_trajectory: Callable[..., Trajectory], make_group: Callable[..., Group]
) -> list[Group]:
    """Three groups whose tokens an older policy sampled."""
    rng, older = np.random.default_rng(3), moved(policy_dir, 0.02)
    made = []
    for number, task in enumerate(["db", "kg", "db"]):
        members = [
            make_trajectory(
                rng=rng, prompt=int(rng.integers(2, 9)), reward=reward, task=task,
                turns=[(int(rng.integers(1, 6)), int(rng.integers(0, 5))) for _ in range(int(rng.integers(1, 4)))],
                logprobs=lambda ids: log_probs(older, ids),
            )
            for reward in (1.0, 0.0, -0.2, 0.5)
        ]  # fmt: skip
        made.append(make_group(members, number))
    return made


def on_policy(groups: list[Group], folder: Path) -> None:
    model = moved(folder, 0.0)
    for group in groups:
        for t in group.trajectories:
            t.logprobs = np.where(t.mask, log_probs(model, t.ids), 0).astype(np.float32)


# TRL's own use of names that transformers has renamed
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_lag_0_with_one_engine_is_a_step_of_a_plain_synchronous_grpo_trainer(
    policy_dir: Path, groups: list[Group], tmp_path: Path
) -> None:
    """One optimizer step of TRL's own trainer, which lays out, scores and centres the same tokens in its own way."""
    from trl import GRPOConfig, GRPOTrainer

    on_policy(groups, policy_dir)
    every = [t for group in groups for t in group.trajectories]
    tokenizer = AutoTokenizer.from_pretrained(policy_dir)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [t.ids[: t.prompt_length].tolist() for t in every],
            "completion_ids": [t.ids[t.prompt_length :].tolist() for t in every],
            "logprobs": [t.logprobs[t.prompt_length :].tolist() for t in every],
            "env_mask": [t.mask[t.prompt_length :].astype(int).tolist() for t in every],
        }

    optimizer: dict[str, Any] = {"learning_rate": 0.1, "max_grad_norm": 1.0, "weight_decay": 0.0, "warmup_steps": 0}
    stock = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32),
        reward_funcs=lambda **kwargs: [t.reward for t in every],
        args=GRPOConfig(
            output_dir=str(tmp_path / "stock"), max_steps=1, num_generations=4, per_device_train_batch_size=len(every),
            temperature=TEMPERATURE, scale_rewards="none", loss_type="dapo", max_completion_length=64, use_cpu=True,
            lr_scheduler_type="constant_with_warmup", report_to="none",
            save_strategy="no", activation_checkpointing=False, shuffle_dataset=False, disable_tqdm=True,
            disable_dropout=True, bf16=False, optim="sgd", **optimizer,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w3", "w4", "w5"]}),
        processing_class=tokenizer,
        rollout_func=rollout,
    )  # fmt: skip
    stock.train()

    waiting = list(groups)

    class Source:
        def get_group(self, timeout: float) -> Group | None:
            return waiting.pop(0) if waiting else None

        def stats(self) -> dict[str, Any]:
            return {}

    options = config(
        steps=1,
        staleness=Staleness(max_lag=0),
        batch=Batch(min_trajectories=12, max_trajectories=12, micro_batch_tokens=64, wait_s=20),
        optimization=Optimization(**optimizer),
        trl={"optim": "sgd"},  # a step is the clipped gradient; AdamW's first one would be its sign alone
    )
    ours = trainer_of(policy_dir, options, tmp_path / "ours")
    ours.queue = TrajectoryQueue(Source(), capacity=3).start()
    ours.train()
    ours.queue.close()
    start = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32).state_dict()
    steps = [
        {n: (p - start[n]).detach() for n, p in t.model.state_dict().items() if p.is_floating_point()}
        for t in (ours, stock)
    ]
    assert apart(*steps) < 1e-5


def test_folded_weights_are_trls_own_correction(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    """TRL multiplies its loss by the clamped ratio of present to sampling policy; we fold it into the advantages."""
    options = OffPolicy(mode="decoupled", correction="truncate", max_ratio=1.3)
    for loss_type in ("dapo", "cispo"):
        ours = trainer_of(
            policy_dir, config(off_policy=options, optimization=Optimization(loss_type=loss_type)), tmp_path
        )
        found = gradients(ours, groups)
        assert figure(ours, "offpolicy/weight_max") == pytest.approx(1.3)
        assert 0 < figure(ours, "offpolicy/outside_share") < 1

        theirs = trainer_of(policy_dir, config(optimization=Optimization(loss_type=loss_type)), tmp_path)
        theirs.use_vllm, theirs.vllm_importance_sampling_correction = True, True
        backward = theirs._backward

        def with_correction(
            model: Any, part: dict[str, torch.Tensor], backward: Any = backward, theirs: Any = theirs
        ) -> torch.Tensor:
            now = theirs._logps(model, part)
            ratio = torch.exp(now - part["old_per_token_logps"]).clamp(max=1.3)
            return backward(model, part | {"old_per_token_logps": now, "importance_sampling_ratio": ratio})

        theirs._backward = with_correction
        assert apart(found, gradients(theirs, groups)) < 1e-6


def test_decoupled_without_bounds_has_the_first_step_of_behavior_without_a_clip(
    policy_dir: Path, groups: list[Group], tmp_path: Path
) -> None:
    """Both are the importance-weighted policy gradient, w A grad log pi."""
    wide = Optimization(epsilon=0.999, epsilon_high=1e6, delta=2e6)
    decoupled = trainer_of(policy_dir, config(off_policy=OffPolicy(mode="decoupled"), optimization=wide), tmp_path)
    behavior = trainer_of(policy_dir, config(optimization=wide), tmp_path)
    assert apart(gradients(decoupled, groups), gradients(behavior, groups)) < 1e-5


def test_the_papers_ratio_is_1_whoever_sampled(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    paper = trainer_of(policy_dir, config(off_policy=OffPolicy(ratio="paper")), tmp_path)
    found = gradients(paper, groups)
    assert figure(paper, "ratio/max_abs_log") > 0.05, "the figures tell of the ratio all the same"
    assert figure(paper, "clip_ratio/region_mean") == 0
    on_policy(groups, policy_dir)
    assert apart(found, gradients(trainer_of(policy_dir, config(), tmp_path), groups)) < 1e-5


def test_on_policy_every_option_is_the_same_gradient(policy_dir: Path, groups: list[Group], tmp_path: Path) -> None:
    on_policy(groups, policy_dir)
    expected = gradients(trainer_of(policy_dir, config(), tmp_path), groups)
    for options in (
        OffPolicy(ratio="paper"),
        OffPolicy(mode="decoupled"),
        OffPolicy(mode="decoupled", correction="truncate", level="turn", turn_ratio="product"),
        OffPolicy(correction="mask", max_ratio=1.01, min_ratio=0.99, m2_threshold=0.001),
    ):
        assert apart(gradients(trainer_of(policy_dir, config(off_policy=options), tmp_path), groups), expected) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        OffPolicy(mode="decoupled", correction="truncate", level="turn", max_ratio=1.1),
        OffPolicy(correction="mask", max_ratio=1.3, min_ratio=0.8),
        OffPolicy(mode="decoupled", m2_threshold=0.01),
    ],
    ids=["truncated turns", "masked tokens", "second moment"],
)
def test_corrections_do_not_depend_on_micro_batches(
    policy_dir: Path, groups: list[Group], tmp_path: Path, options: OffPolicy
) -> None:
    whole = trainer_of(policy_dir, config(off_policy=options), tmp_path)
    batch = Batch(min_trajectories=4, max_trajectories=64, micro_batch_tokens=64)
    split = trainer_of(policy_dir, config(off_policy=options, batch=batch), tmp_path)
    whole.model.double()
    split.model.double()
    assert apart(gradients(split, groups), gradients(whole, groups)) < 1e-6
    assert figure(split, "batch/micro_batches") > figure(whole, "batch/micro_batches")
    assert figure(split, "offpolicy/outside_share") > 0 or options.m2_threshold
    plain = gradients(trainer_of(policy_dir, config(), tmp_path), groups)
    assert apart(gradients(trainer_of(policy_dir, config(off_policy=options), tmp_path), groups), plain) > 1e-3


def test_the_mixture_asks_each_version_that_could_have_sampled(
    policy_dir: Path, groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 5 trains; turns come from version 4 (fresh) or 0 (stale). The pool's log-probs by hand."""
    versions = {v: moved(policy_dir, 0.03, seed=v) for v in (0, 4, 5)}
    for group in groups:
        group.admitted_version = 4
        for i, t in enumerate(group.trajectories):
            for turn in np.unique(t.turns[t.mask]):
                own, version = t.mask & (t.turns == turn), 4 * int((turn + i) % 2)
                t.versions[own], t.engines[own] = version, int(version == 0)
                t.logprobs[own] = log_probs(versions[version], t.ids)[own]
    options = config(
        off_policy=OffPolicy(ratio="mixture"), staleness=Staleness(max_lag=1), engines=Engines(stale_sync_steps=8)
    )
    trainer = trainer_of(policy_dir, options, tmp_path)
    for version in (0, 4, 5):
        trainer.model.load_state_dict(versions[version].state_dict())
        trainer.remember(version)
    before = {n: p.clone() for n, p in trainer.model.state_dict().items()}
    found = gradients(trainer, groups, version=5)
    assert figure(trainer, "offpolicy/mixture_missing_share") == 0
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.state_dict().items()), "the weights are back"

    for group in groups:
        for t in group.trajectories:
            both = np.stack([log_probs(versions[v], t.ids) for v in (0, 4)]).astype(float)
            for turn in np.unique(t.turns[t.mask]):
                own = np.flatnonzero(t.mask & (t.turns == turn))
                for n, place in enumerate(own):
                    likelihood = [np.exp(both[:, own[:k]].sum(axis=1)).mean() for k in (n, n + 1)]
                    t.logprobs[place] = np.log(likelihood[1] / likelihood[0])
    by_hand = trainer_of(policy_dir, config(staleness=Staleness(max_lag=1)), tmp_path)
    by_hand.model.load_state_dict(before)
    assert apart(found, gradients(by_hand, groups, version=5)) < 1e-5

    class Signal(BaseException):
        """Ctrl-C while other weights are in the model: what follows is a checkpoint."""

    def interrupted(model: object, version: int) -> None:
        PolicyHistory.load(trainer.history, trainer.model, version)
        raise Signal

    monkeypatch.setattr(trainer.history, "load", interrupted)
    with pytest.raises(Signal):
        gradients(trainer, groups, version=5)
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.state_dict().items()), "the weights are back"
