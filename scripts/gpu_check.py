"""Checks engines and trainer on one GPU in under 8 minutes, without network; on a CPU with `--device cpu`.

    python scripts/gpu_check.py                                   # all checks on the GPU
    python scripts/gpu_check.py --device cpu                      # the same code, small sizes
    python scripts/gpu_check.py --sglang http://localhost:30000 --model /models/Qwen3-0.6B   # and a running server

Prints one line a check, and everything as JSON with `--out FILE`. Exit code 0: all passed; 1: one failed, or time ran
out. A check whose packages are absent is skipped, and says so.

Not here: tests of the parts (tests/); what the figures mean (docs/engines.md).
"""

import argparse
import asyncio
import functools
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

TEMPERATURE = 0.8
EXACT = 2e-3
"""Log-prob by which float32 on two devices, or decoding and a full pass, may differ."""
NUMERIC = 0.1
"""Mean log-prob by which bfloat16 may differ from float32."""
Figures = dict[str, Any]


class Failed(Exception):
    """A check found what must not be."""


class Skipped(Exception):
    """A check cannot be made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all checks know."""

    device: str
    model: Path
    sglang: str
    work: Path
    deadline: float

    @property
    def large(self) -> bool:
        """A GPU takes sizes that a CPU would need hours for."""
        return self.device != "cpu"

    @property
    def left_s(self) -> float:
        """Until the time is used up."""
        return self.deadline - time.monotonic()


@dataclass(slots=True)
class Outcome:
    """Of one check."""

    name: str
    state: str
    seconds: float
    figures: Figures = field(default_factory=dict)
    said: str = ""


def environment(setting: Setting) -> Figures:
    """Which device and packages these are."""
    import torch
    import transformers

    found: Figures = {"torch": torch.__version__, "transformers": transformers.__version__, "cpus": os.cpu_count()}
    if setting.device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise Failed("torch sees no CUDA device. Install a CUDA build of torch, or use --device cpu.")
        found |= {"gpu": torch.cuda.get_device_name(setting.device), "memory_gib": _gib(torch.cuda.mem_get_info()[1])}
    return found


def logprobs(setting: Setting) -> Figures:
    """The same ids have the same log-probs on the device and on the CPU; bfloat16 is near."""
    rows = _prompts(4, 60, _vocabulary(setting.model))
    exact = [_full_pass(setting.model, row, "cpu", "float32") for row in rows]
    here = [_full_pass(setting.model, row, setting.device, "float32") for row in rows]
    half = [_full_pass(setting.model, row, setting.device, "bfloat16") for row in rows]
    largest = max(abs(a - b) for x, y in zip(exact, here, strict=True) for a, b in zip(x, y, strict=True))
    rough = _mean_gap(exact, half)
    _demand(largest < EXACT, f"float32 differs between devices by {largest:.2g}")
    _demand(rough < NUMERIC, f"bfloat16 differs from float32 by {rough:.2g} on average")
    return {"float32_largest": largest, "bfloat16_mean": rough}


def engine(setting: Setting) -> Figures:
    """The engine's log-probs are those of a full pass, in a ragged batch and across new weights."""
    from agentrl_trainer.engines.base import Sampling
    from agentrl_trainer.engines.transformers import TransformersEngine

    other = _perturbed(setting)
    folders = {0: setting.model, 1: other}
    prompts = _prompts(12, 50, _vocabulary(setting.model))

    async def play() -> list[Any]:
        served = TransformersEngine(setting.model, max_context=400, device=setting.device)
        sampling = Sampling(max_tokens=60, temperature=TEMPERATURE)
        running = [asyncio.create_task(served.generate(p, sampling, timeout_s=120)) for p in prompts]
        await served.generate(prompts[0], Sampling(max_tokens=15), timeout_s=120)
        await served.update_weights(other, 1)
        answers = [await each for each in running]
        await served.aclose()
        return answers

    answers = asyncio.run(play())
    mixed = sum(len(set(a.versions)) == 2 for a in answers)
    gaps: list[float] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = [*prompt, *answer.ids]
        tables = {v: _full_pass(folders[v], ids, setting.device, "float32") for v in set(answer.versions)}
        tail = len(prompt) - 1
        gaps += [abs(answer.logprobs[i] - tables[version][tail + i]) for i, version in enumerate(answer.versions)]
    _demand(mixed > 0, "no turn met the new weights on its way")
    _demand(max(gaps) < EXACT, f"log-probs differ from a full pass by {max(gaps):.2g}")
    return {"tokens": len(gaps), "largest": max(gaps), "turns_of_two_versions": mixed}


def throughput(setting: Setting) -> Figures:
    """Sampled tokens a second of the transformers engine, by concurrency; a figure, not a bound."""
    from agentrl_trainer.engines.base import Sampling
    from agentrl_trainer.engines.transformers import TransformersEngine

    folder = _random_model(setting) if setting.large else setting.model
    tokens = 128 if setting.large else 32
    found: Figures = {"parameters_m": round(_parameters(folder) / 1e6, 2)}

    async def measure(count: int) -> float:
        dtype = "bfloat16" if setting.large else "float32"
        served = TransformersEngine(folder, max_context=512, max_batch=256, device=setting.device, dtype=dtype)
        prompts = _prompts(count, 64, _vocabulary(folder))
        await served.generate(prompts[0], Sampling(max_tokens=4), timeout_s=120)
        start = time.perf_counter()
        sampling = Sampling(max_tokens=tokens)
        await asyncio.gather(*(served.generate(p, sampling, timeout_s=300) for p in prompts))
        seconds = time.perf_counter() - start
        await served.aclose()
        return count * tokens / seconds

    for count in (1, 16, 64, 256) if setting.large else (1, 8):
        found[f"tokens_per_s_{count}"] = round(asyncio.run(measure(count)), 1)
    return found


def training(setting: Setting) -> Figures:
    """A short asynchronous run with a fresh and a stale engine on the device: finite, in bounds, equal log-probs."""
    for name in ("trl", "accelerate", "datasets", "matplotlib", "rich"):
        if importlib.util.find_spec(name) is None:
            raise Skipped(f"{name} is not installed")
    from agentrl_trainer.configfile import load_config
    from agentrl_trainer.report import read_metrics
    from agentrl_trainer.run import train

    # the worth of more steps is seen by whoever has the minutes
    steps = max(2, min(12 if setting.large else 3, int(setting.left_s / 20)))
    batch = 32 if setting.large else 8
    output = setting.work / "run"
    settings = [
        "tasks=db", f"steps={steps}", "group_size=4", f"batch.min_trajectories={batch}",
        f"batch.max_trajectories={2 * batch}", "evaluation.n=0", "checkpoints.every=0", "progress=none",
        "engines.stale_sync_steps=2", f"model.device={setting.device}", f"output={output}",
    ]  # fmt: skip
    if setting.model != _tiny():
        settings += [f"model={setting.model}", "sampling.max_context=4096", "batch.micro_batch_tokens=16384"]
    train(load_config(overrides=settings))
    rows = [row for row in read_metrics(output / "metrics.jsonl") if row["kind"] == "step"]
    _demand(len(rows) == steps, f"{len(rows)} of {steps} steps were logged")
    lag = max(row["lag/max"] for row in rows)
    _demand(lag <= 2, f"a trained token was {lag} versions old")
    drift = sum(row.get("chat/drift_tokens", 0) for row in rows)
    _demand(drift == 0, f"{drift} tokens drifted")
    canary = [row["canary/mean_difference"] for row in rows if "canary/mean_difference" in row]
    waiting = sum(row["time/wait_s"] for row in rows)
    busy = sum(row["time/train_s"] for row in rows)
    return {
        "steps": steps,
        "lag_max": lag,
        "lag_mean": round(sum(row["lag/mean"] for row in rows) / steps, 2),
        "mixed_versions_share": round(sum(row["lag/mixed_share"] for row in rows) / steps, 2),
        "canary_largest_mean": max(canary, default=None),
        "trainer_idle_share": round(waiting / (waiting + busy), 2),
        "tokens_per_s": round(sum(row["tokens_per_s"] for row in rows) / steps, 1),
    }


def sglang(setting: Setting) -> Figures:
    """A running server: log-probs, versions, an update from disk in the middle of turns, a cache without old keys."""
    if not setting.sglang:
        raise Skipped("no --sglang URL")
    from agentrl_trainer.engines.base import Sampling
    from agentrl_trainer.engines.pool import generate_until_done
    from agentrl_trainer.engines.sglang import SGLangEngine

    folders = {0: setting.model, 1: _perturbed(setting)}
    prompts = _prompts(8, 40, _vocabulary(setting.model))

    async def play() -> tuple[list[Any], float]:
        served = await SGLangEngine.connect(setting.sglang, timeout_s=min(60.0, setting.left_s))
        await served.update_weights(folders[0], 0)
        sampling = Sampling(max_tokens=200, temperature=TEMPERATURE)
        turns = [asyncio.create_task(generate_until_done(served, p, sampling, timeout_s=120)) for p in prompts]
        await served.generate(prompts[0], Sampling(max_tokens=8), timeout_s=60)
        start = time.perf_counter()
        await served.update_weights(folders[1], 1)
        seconds = time.perf_counter() - start
        answers = [await turn for turn in turns]
        # prompts that the cache knew from the old weights
        answers += [await served.generate(p, Sampling(max_tokens=8), timeout_s=60) for p in prompts]
        await served.update_weights(folders[0], 2)
        await served.aclose()
        return answers, seconds

    answers, seconds = asyncio.run(play())
    gaps: list[float] = []
    for prompt, answer in zip([*prompts, *prompts], answers, strict=True):
        ids = [*prompt, *answer.ids]
        tables = {v: _full_pass(folders[v], ids, setting.device, "float32") for v in set(answer.versions)}
        tail = len(prompt) - 1
        gaps += [abs(answer.logprobs[i] - tables[version][tail + i]) for i, version in enumerate(answer.versions)]
    mean = sum(gaps) / len(gaps)
    _demand(mean < NUMERIC, f"log-probs differ from a full pass by {mean:.2g} on average")
    _demand(any(set(a.versions) == {0, 1} for a in answers), "no turn met the new weights on its way")
    _demand(all(set(a.versions) == {1} for a in answers[len(prompts) :]), "versions are not those that were given")
    return {"tokens": len(gaps), "mean": mean, "largest": max(gaps), "update_s": round(seconds, 2)}


CHECKS: Mapping[str, Callable[[Setting], Figures]] = {
    "environment": environment,
    "logprobs": logprobs,
    "engine": engine,
    "sglang": sglang,
    "training": training,
    "throughput": throughput,
}
"""In the order in which they matter when time runs out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(description="Checks engines and trainer on one device, without network.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="everything ends within so many")
    parser.add_argument("--model", type=Path, help="a policy's folder; by default tiny-fc")
    parser.add_argument("--sglang", default="", metavar="URL", help="of a server that was started with the same model")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(CHECKS)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for all figures, as JSON")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(CHECKS)
    if unknown := sorted(set(chosen) - set(CHECKS)):
        parser.error(f"no check {unknown[0]!r}: known are {', '.join(CHECKS)}")
    outcomes: list[Outcome] = []
    _end_at(options.minutes * 60, outcomes, options.out)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        setting = Setting(
            device=options.device,
            model=(options.model or _tiny()).expanduser(),
            sglang=options.sglang,
            work=Path(work),
            deadline=time.monotonic() + options.minutes * 60,
        )
        for name in CHECKS:
            if name in chosen:
                outcomes.append(_run(name, setting))
                print(_line(outcomes[-1]), flush=True)
                if name == "environment" and outcomes[-1].state == "FAILED":
                    break  # nothing else can pass
    _write(outcomes, options.out)
    return int(any(outcome.state == "FAILED" for outcome in outcomes))


def _run(name: str, setting: Setting) -> Outcome:
    start = time.monotonic()
    try:
        figures = CHECKS[name](setting)
        state, said = "passed", ""
    except Skipped as reason:
        figures, state, said = {}, "skipped", str(reason)
    except Exception as error:  # the edge of a check: one that breaks is one that failed, and the others still count
        figures, state, said = {}, "FAILED", str(error) if isinstance(error, Failed) else repr(error)
    return Outcome(name, state, time.monotonic() - start, figures, said)


def _line(outcome: Outcome) -> str:
    told = outcome.said or "  ".join(f"{name}={_short(value)}" for name, value in outcome.figures.items())
    return f"{outcome.state:8}{outcome.name:12}{outcome.seconds:6.1f} s  {told}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _end_at(seconds: float, outcomes: Sequence[Outcome], out: Path | None) -> None:
    """A check that hangs must not take the machine's time."""

    def end() -> None:
        print(f"FAILED  time is used up: {len(outcomes)} checks are done", flush=True)
        _write(outcomes, out)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _write(outcomes: Sequence[Outcome], out: Path | None) -> None:
    if out is not None:
        rows = [{name: getattr(o, name) for name in ("name", "state", "seconds", "figures", "said")} for o in outcomes]
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def _tiny() -> Path:
    from agentrl_trainer.tiny_asset import FOLDER

    return FOLDER


def _prompts(count: int, longest: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, vocabulary) for _ in range(rng.randrange(longest // 4, longest))] for _ in range(count)]


def _vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])


@functools.cache
def _model(folder: Path, device: str, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.to(device).eval()


def _full_pass(folder: Path, ids: Sequence[int], device: str, dtype: str) -> list[float]:
    """Log-prob of each id but the first, by one forward pass of the plain model."""
    import torch

    with torch.inference_mode():
        row = torch.tensor([list(ids)], device=device)
        logits = _model(folder, device, dtype)(input_ids=row).logits[0, :-1].float() / TEMPERATURE
        found: list[float] = torch.log_softmax(logits, -1).gather(1, row[0, 1:, None])[:, 0].tolist()
    return found


def _mean_gap(rows: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    gaps = [abs(a - b) for x, y in zip(rows, others, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(gaps) / len(gaps)


def _perturbed(setting: Setting) -> Path:
    """The same policy with other weights, as a snapshot that an engine takes."""
    import torch

    from agentrl_trainer.weights import write_snapshot

    folder = setting.work / "perturbed"
    if not folder.exists():
        torch.manual_seed(0)
        state = _model(setting.model, "cpu", "float32").state_dict()
        changed = {name: tensor * (1 + 0.05 * torch.randn_like(tensor)) for name, tensor in state.items()}
        tied = {tensor.data_ptr(): name for name, tensor in state.items()}
        changed = {name: changed[tied[tensor.data_ptr()]] for name, tensor in state.items()}
        config = (setting.model / "config.json").read_text(encoding="utf-8")
        write_snapshot(folder, changed, 1, {"config.json": config})
    return folder


def _random_model(setting: Setting) -> Path:
    """A random model of some 50 million parameters, with the policy's vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    folder = setting.work / "random"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_vocabulary(setting.model), hidden_size=640, intermediate_size=1792, num_hidden_layers=10,
        num_attention_heads=10, num_key_value_heads=5, head_dim=64, max_position_embeddings=2048,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(setting.model / name, folder)
    return folder


def _parameters(folder: Path) -> int:
    return sum(p.numel() for p in _model(folder, "cpu", "float32").parameters())


def _gib(count: int) -> float:
    return round(count / 2**30, 1)


if __name__ == "__main__":
    sys.exit(main())
