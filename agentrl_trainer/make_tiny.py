"""Builds tiny-fc, the default policy: `python -m agentrl_trainer.make_tiny [--out DIR] [--seed N]`; minutes, one core.

Each step is seeded: demonstrations of slipping experts on the real tasks, their names changed; a tokenizer of their
texts; a fresh model that learns to copy; a supervised start on the demonstrations. Then both tasks are played on
held-out samples, and the figures go into the manifest and the model card. The result is meant to be mediocre: good
enough to be rewarded, with room for reinforcement.

Not here: the parts (demonstrations.py, renaming.py, tiny_tokenizer.py, copy_pretraining.py, warmstart.py).
"""

import argparse
import importlib.metadata
import json
import logging
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_fc import transcript
from agentbench_fc.errors import AgentBenchError, CallerError
from agentbench_fc.registry import load_task
from agentrl_trainer.copy_pretraining import STAGES, CopyStage, pretrain_copying
from agentrl_trainer.demonstrations import demonstrate
from agentrl_trainer.renaming import Renamer
from agentrl_trainer.tiny_asset import FOLDER, read_manifest, seal, spec_digest
from agentrl_trainer.tiny_tokenizer import CONTROL_TOKENS, TAG_TOKENS, train_tokenizer
from agentrl_trainer.warmstart import Conversation, WarmStart, read_conversations, warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PROMPT = "compact"
HELD_OUT = "dev"
PACKAGES = ("torch", "transformers", "trl", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is shown of one task."""

    samples: int
    """Demonstrations: the first samples of the train split, each played once."""
    slip_rate: float
    """Probability that a move of the expert slips."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what comes out."""

    seed: int = 0
    lessons: Mapping[str, Lesson] = field(
        default_factory=lambda: {
            "db": Lesson(samples=1600, slip_rate=0.2, options={"level": "easy"}),
            "kg": Lesson(samples=1600, slip_rate=0.1, options={"level": "easy"}),
        }
    )
    renamings: int = 2
    """How often a demonstration is shown, every time with other names in it."""
    vocab_size: int = 1024
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    mlp_size: int = 512
    context: int = 4096
    stages: Sequence[CopyStage] = STAGES
    start: WarmStart = field(default_factory=lambda: WarmStart(max_steps=800))


def build(recipe: Recipe, out: Path) -> None:
    """Makes the policy and saves it, sealed, but not yet measured.

    Raises:
        CallerError: a task has no train split or no expert.
    """
    import torch

    torch.manual_seed(recipe.seed)
    with tempfile.TemporaryDirectory(prefix="make-tiny-") as scratch:
        conversations = renamed(recipe, demonstrations(recipe, Path(scratch) / "demonstrations.jsonl"))
    tokenizer = make_tokenizer(recipe, conversations)
    model = make_model(recipe, tokenizer)
    reserved = {tokenizer.convert_tokens_to_ids(token) for token in (*CONTROL_TOKENS, *TAG_TOKENS)}
    steps = pretrain_copying(
        model, [i for i in range(len(tokenizer)) if i not in reserved], stages=recipe.stages, seed=recipe.seed
    )
    loss = warm_start(model, tokenizer, conversations, recipe.start)
    save(model, tokenizer, out)
    facts = {"parameters": model.num_parameters(), "copy_steps": steps, "loss": round(loss, 4)}
    seal(out, {**_facts(recipe), **facts})


def demonstrations(recipe: Recipe, file: Path) -> list[Conversation]:
    """Plays the lessons into a transcript file and reads it back, as a user's own transcripts would be."""
    for name, lesson in recipe.lessons.items():
        task = load_task(name, prompt=PROMPT, **lesson.options)
        try:
            samples = task.samples("train")[: lesson.samples]
            for session in demonstrate(
                task, samples, slip_rate=lesson.slip_rate, seed=recipe.seed, options=dict(lesson.options)
            ):
                transcript.append(file, session, name)
        finally:
            task.close()
    return read_conversations(file)


def renamed(recipe: Recipe, conversations: Sequence[Conversation]) -> list[Conversation]:
    """Each conversation `renamings` times, every time with other names in it."""
    renamer = Renamer(conversations)
    rng = random.Random(recipe.seed)
    return [renamer.rename(each, rng) for _ in range(recipe.renamings) for each in conversations]


def make_tokenizer(recipe: Recipe, conversations: Sequence[Conversation]) -> "PreTrainedTokenizerBase":
    """The tokenizer of what the demonstrations say and show."""
    plain = train_tokenizer((), vocab_size=0, context=recipe.context)  # bytes alone, to render the template's texts
    texts = (
        str(plain.apply_chat_template(conversation.messages, tools=conversation.tools or None, tokenize=False))
        for conversation in conversations
    )
    return train_tokenizer(texts, vocab_size=recipe.vocab_size, context=recipe.context)


def make_model(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedModel":
    """A fresh model on torch's present seed."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.mlp_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.hidden_size // recipe.heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: PreTrainedModel = Qwen3ForCausalLM(config)
    return model


def save(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", out: Path) -> None:
    """Saves weights and tokenizer; weights are float32 with bfloat16's precision, which halves them when compressed."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # it is written for its owner alone, and ships in a wheel


def _facts(recipe: Recipe) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for name, lesson in recipe.lessons.items():
        task = load_task(name, prompt=PROMPT, **lesson.options)
        played = {**asdict(lesson), "samples": min(lesson.samples, len(task.samples("train")))}
        tasks[name] = {"prompt": PROMPT, "digest": spec_digest(task.spec), **played}
        task.close()
    return {
        "seed": recipe.seed,
        "command": f"python -m agentrl_trainer.make_tiny --seed {recipe.seed}",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "tasks": tasks,
    }


def measure(recipe: Recipe, out: Path, *, samples: int) -> dict[str, Any]:
    """Plays held-out samples and adds the figures to the manifest and the card."""
    from agentrl_trainer.tiny_scores import score

    options = {name: lesson.options for name, lesson in recipe.lessons.items()}
    scores = score(out, options, prompt=PROMPT, split=HELD_OUT, samples=samples, seed=recipe.seed)
    measured = {
        name: {"split": HELD_OUT, **{_decoding(t): asdict(value) for t, value in by_temperature.items()}}
        for name, by_temperature in scores.items()
    }
    facts = {key: value for key, value in read_manifest(out).data.items() if key not in {"name", "format", "files"}}
    seal(out, {**facts, "measured": measured})
    (out / "README.md").write_text(card(read_manifest(out).data), encoding="utf-8")
    return measured


def card(manifest: Mapping[str, Any]) -> str:
    """The model card of a sealed and measured policy."""
    rows = []
    for name, scores in manifest["measured"].items():
        sampled, greedy = scores["T=0.8"], scores["greedy"]
        rows.append(
            f"| {name} | {sampled['success']:.2f} | {greedy['success']:.2f} | {sampled['episodes']} "
            f"| {sampled['turns']:.1f} | {sampled['tokens']:.0f} |"
        )
    lessons = "; ".join(
        f"{name}: {task['samples']} samples of `train`, options {json.dumps(task['options'])}, "
        f"a move slips with probability {task['slip_rate']}"
        for name, task in manifest["tasks"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    return CARD.format(
        parameters=manifest["parameters"] / 1e6,
        rows="\n".join(rows),
        lessons=lessons,
        command=manifest["command"],
        versions=versions,
        prompt=PROMPT,
        split=HELD_OUT,
    )


CARD = """# tiny-fc: a policy of {parameters:.2f} M parameters for two function-call tasks

It exists to be trained: large enough to play the tasks DB and KG with the `{prompt}` prompts, small enough for a CPU,
and mediocre by design. It knows nothing else, and no language beyond these tasks.

| task | success at T = 0.8 | greedy | held-out episodes | turns | tokens |
|---|---|---|---|---|---|
{rows}

Held-out samples are those of `{split}`: other tables or entities than it was trained on.

**Made by** `{command}` with {versions}: from scratch, first on random sequences that repeat themselves (copying), then
on demonstrations of the tasks' own experts with slips ({lessons}).

**Format** Qwen3; weights in float32 with bfloat16's precision. A chat template of its own: ChatML, tools as
signatures, calls as `<tool_call>` with JSON. Vocabulary, template and weights belong together: `manifest.json` holds
their hashes, and those of the tasks' prompts and tools; `agentrl_trainer.tiny_asset.check_asset` compares them.

**Licence** Apache-2.0, as the package. All texts that it has seen are generated by this package.
"""


def _decoding(temperature: float) -> str:
    return f"T={temperature:g}" if temperature else "greedy"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl_trainer.make_tiny", description="Builds tiny-fc, the default policy."
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write (default: the package's own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=150, help="held-out episodes per task and decoding")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = Recipe(seed=given.seed)
    try:
        if given.samples < 1:
            raise CallerError(f"samples is {given.samples} [--samples]. Use 1 or more.")
        import torch

        torch.set_num_threads(1)  # more do not help at this size, and one gives the same weights everywhere
        build(recipe, given.out)
        measured = measure(recipe, given.out, samples=given.samples)
    except AgentBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(measured, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
