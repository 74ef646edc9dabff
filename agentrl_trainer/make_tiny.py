"""Builds tiny-fc, the default policy: `python -m agentrl_trainer.make_tiny [--out DIR] [--seed N]`; minutes, one core.

Each step is seeded: demonstrations of the tasks' experts, their names changed; a tokenizer of their texts; a fresh
model with induction heads that learns to copy, then learns the demonstrations, and at last those of fallible experts.
Then both tasks are played on held-out samples, and the figures go into the manifest and the model card. The result is
meant to be mediocre: able to solve the tasks, and in the habit of failing at them, which reinforcement can undo.

Not here: the parts (demonstrations.py, renaming.py, tiny_tokenizer.py, induction.py, copy_pretraining.py,
imitation.py).
"""

import argparse
import importlib.metadata
import json
import logging
import math
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
from agentrl_trainer.demonstrations import Faults, Haste, demonstrate
from agentrl_trainer.imitation import Imitation, imitate
from agentrl_trainer.induction import plant_induction_heads
from agentrl_trainer.renaming import Renamer
from agentrl_trainer.tiny_asset import FOLDER, read_manifest, seal, spec_digest
from agentrl_trainer.tiny_tokenizer import CONTROL_TOKENS, TAG_TOKENS, train_tokenizer
from agentrl_trainer.warmstart import Conversation, read_conversations, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PROMPT = "compact"
HELD_OUT = "dev"
DB_HASTE = Haste(after="OK, 1 row changed", tool="commit_final_answer", arguments='{"answers": []}', rate=0.55)
"""More often than not, so that greedy decoding is hasty; at T = 0.8 two moves in five are still the right one."""
KG_HASTE = Haste(after="(#0) .*", tool="submit_answer", arguments=r'{"variable": "\1"}', rate=0.5)
"""Not more: haste is right where a question takes one step, and a policy that is rewarded for it there may end with it
everywhere."""
ROPE_THETA = 1e6
"""Slow enough that most of a head can compare what stands hundreds of tokens apart."""
PACKAGES = ("torch", "transformers", "trl", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is shown of one task."""

    samples: int = 2000
    """Demonstrations: the first samples of the train split."""
    faults: Faults = field(default_factory=Faults)
    """How the expert of the last phase fails."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of supervised training."""

    renamings: int
    """How often a demonstration is shown, every time with other names in it."""
    how: Imitation


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what comes out."""

    seed: int = 0
    lessons: Mapping[str, Lesson] = field(
        default_factory=lambda: {
            "db": Lesson(faults=Faults(slip_rate=0.4, haste=DB_HASTE), options={"level": "easy"}),
            "kg": Lesson(faults=Faults(slip_rate=0.3, haste=KG_HASTE), options={"level": "easy"}),
        }
    )
    vocab_size: int = 1024
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    mlp_size: int = 384
    context: int = 4096
    stages: Sequence[CopyStage] = STAGES
    sound: Phase = field(default_factory=lambda: Phase(renamings=8, how=Imitation(steps=2000, learning_rate=2e-3)))
    """On faultless demonstrations: what the policy is able to do. Which of a table's columns is meant is found out at
    once, between steps 800 and 1,100: with 950 steps in all it was not learnt."""
    faulty: Phase = field(default_factory=lambda: Phase(renamings=1, how=Imitation(steps=120, learning_rate=1e-3)))
    """On those of fallible experts: what it does."""


def build(recipe: Recipe, out: Path) -> None:
    """Makes the policy and saves it, sealed, but not yet measured.

    Raises:
        CallerError: a task has no train split or no expert.
    """
    tokenizer, model, facts = make_able(recipe)
    loss = make_faulty(recipe, tokenizer, model)
    save(model, tokenizer, out)
    seal(out, {**_facts(recipe), **facts, "parameters": model.num_parameters(), "loss_faulty": loss})


def make_able(recipe: Recipe) -> "tuple[PreTrainedTokenizerBase, PreTrainedModel, dict[str, Any]]":
    """A policy that plays as well as its size lets it."""
    conversations = demonstrations(recipe, recipe.sound, faulty=False)
    tokenizer = make_tokenizer(recipe, conversations)
    model = make_model(recipe, tokenizer)
    reserved = {tokenizer.convert_tokens_to_ids(token) for token in (*CONTROL_TOKENS, *TAG_TOKENS)}
    steps = pretrain_copying(
        model, [i for i in range(len(tokenizer)) if i not in reserved], stages=recipe.stages, seed=recipe.seed
    )
    rows = tokenize(tokenizer, conversations, max_length=recipe.context)
    loss = imitate(model, rows, recipe.sound.how)
    return tokenizer, model, {"copy_steps": steps, "loss": round(loss, 4)}


def make_faulty(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> float:
    """Teaches it, in place, to fail as the lessons' experts do; returns the loss."""
    conversations = demonstrations(recipe, recipe.faulty, faulty=True)
    rows = tokenize(tokenizer, conversations, max_length=recipe.context)
    return round(imitate(model, rows, recipe.faulty.how), 4)


def demonstrations(recipe: Recipe, phase: Phase, *, faulty: bool) -> list[Conversation]:
    """Plays the lessons into a transcript file, reads it as a user's own would be read, and changes the names."""
    with tempfile.TemporaryDirectory(prefix="make-tiny-") as scratch:
        file = Path(scratch) / "demonstrations.jsonl"
        for name, lesson in recipe.lessons.items():
            task = load_task(name, prompt=PROMPT, **lesson.options)
            faults = lesson.faults if faulty else Faults()
            try:
                samples = task.samples("train")[: lesson.samples]
                for session in demonstrate(task, samples, faults=faults, seed=recipe.seed):
                    transcript.append(file, session, name)
            finally:
                task.close()
        played = read_conversations(file)
    renamer = Renamer(played)
    rng = random.Random(f"{recipe.seed} {faulty}")
    return [renamer.rename(each, rng) for _ in range(phase.renamings) for each in played]


def make_tokenizer(recipe: Recipe, conversations: Sequence[Conversation]) -> "PreTrainedTokenizerBase":
    """The tokenizer of what the demonstrations say and show."""
    plain = train_tokenizer((), vocab_size=0, context=recipe.context)  # bytes alone, to render the template's texts
    texts = (
        str(plain.apply_chat_template(conversation.messages, tools=conversation.tools or None, tokenize=False))
        for conversation in conversations
    )
    return train_tokenizer(texts, vocab_size=recipe.vocab_size, context=recipe.context)


def make_model(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedModel":
    """A fresh model that holds the heads that copy."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.mlp_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.hidden_size // recipe.heads,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=1 / math.sqrt(recipe.hidden_size),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: PreTrainedModel = Qwen3ForCausalLM(config)
    plant_induction_heads(model, seed=recipe.seed)
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
        f"a move slips with probability {task['faults']['slip_rate']}, and what takes several steps is handed in after "
        f"the first with probability {(task['faults']['haste'] or {'rate': 0})['rate']}"
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
on faultless demonstrations of the tasks' own experts, and last on demonstrations with planted faults ({lessons}).
The faults are what reinforcement undoes: a gain on these tasks is the return of an ability, not a new one.

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
