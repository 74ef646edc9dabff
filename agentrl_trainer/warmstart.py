"""Supervised start: trains a model on transcripts with TRL's SFTTrainer, so that reinforcement has something to reward.

    python -m agentrl_trainer.warmstart --model DIR --transcripts FILE --out DIR

A transcript file is JSON lines: the transcripts of agentbench_fc (`agentbench-fc traces`, a run's own), or one
conversation a line, `{"messages": […], "tools": […]}` in OpenAI's shapes. Only the assistant's tokens are learnt; the
chat template says which those are, and renders a turn here as it does in a rollout.

Not here: where demonstrations come from (demonstrations.py, agentbench_fc.players); reinforcement (trainer.py).
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from agentbench_fc.errors import AgentBenchError, CallerError
from agentbench_fc.transcript import Recorded, read
from agentrl_trainer.disk import RunFolder, writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Conversation:
    """One transcript as a chat template takes it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How to train; the defaults suit the tiny policy, a pretrained model wants a learning rate near 1e-5."""

    epochs: float = 3.0
    max_steps: int = -1
    """Optimizer steps; over `epochs` when positive."""
    batch_size: int = 16
    learning_rate: float = 3e-3
    """Highest; warmed up linearly over a twentieth of the steps, then a cosine to zero."""
    max_length: int = 2048
    """Tokens; a longer conversation is cut at its end."""
    observations: bool = False
    """Learn the environment's messages too: more signal for a fresh model, and it need not be right about them."""
    bf16: bool = True
    """Mixed precision; weights stay as they are."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "max_length"):
            if getattr(self, name) <= 0:
                raise CallerError(f"{name} is {getattr(self, name)} [warm start]. Use a positive number.")


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file: agentbench_fc's transcripts, or one conversation a line.

    Raises:
        CallerError: no such file, a line of neither kind, or no conversation with an assistant's turn.
    """
    try:
        with path.open(encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"the transcripts cannot be read: {error} [{path}]. Name a JSONL file.") from error
    if '"session_id"' in first:
        conversations = [_of_session(session) for session in read(path).sessions]
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        conversations = [_of_line(line, f"[{path}, line {n}]") for n, line in enumerate(lines, 1) if line.strip()]
    kept = [c for c in conversations if any(message["role"] == "assistant" for message in c.messages)]
    if not kept:
        raise CallerError(f"no conversation with an assistant's turn [{path}]. Record some: `agentbench-fc traces`.")
    return kept


def _of_session(session: Recorded) -> Conversation:
    messages = [message for turn in session.turns for message in (*turn.sent, *turn.messages)]
    return Conversation([_for_template(message) for message in messages], session.start.get("tools") or [])


def _of_line(line: str, where: str) -> Conversation:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CallerError(f"a line is not JSON: {error} {where}. Mend or remove it.") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise CallerError(f'a line is no conversation {where}. Write {{"messages": […], "tools": […]}}.')
    for message in messages:
        _check_message(message, where)
    tools = row.get("tools") or []
    if not isinstance(tools, list):
        raise CallerError(f"tools is no list {where}. Write a list of tools in OpenAI's shape.")
    return Conversation([_for_template(message) for message in messages], tools)


def _check_message(message: Mapping[str, Any], where: str) -> None:
    """Refuses what a chat template would write as something else than it is."""
    if not isinstance(message.get("content"), (str, NoneType)):
        raise CallerError(f"the content of a message is no text {where}. Write a text, or null.")
    calls = message.get("tool_calls") or []
    functions = (
        [call.get("function") if isinstance(call, dict) else None for call in calls] if isinstance(calls, list) else []
    )
    whole = (isinstance(f, dict) and isinstance(f.get("name"), str) and "arguments" in f for f in functions)
    if not isinstance(calls, list) or not all(whole):
        raise CallerError(
            f"the tool calls of a message are not OpenAI's {where}. Write "
            '[{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}].'
        )


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with call arguments as objects, as templates want them."""
    plain = dict(message) | {"content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            dict(call) | {"function": dict(call["function"]) | {"arguments": _object(call["function"]["arguments"])}}
            for call in calls
        ]
    return plain


def _object(arguments: Any) -> Any:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def tokenize(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[Conversation],
    *,
    max_length: int,
    observations: bool = False,
) -> list[dict[str, list[int]]]:
    """`input_ids` and `labels` of each conversation that has something to learn within `max_length` tokens.

    Raises:
        CallerError: the chat template cannot tell the assistant's tokens, or nothing is left to learn.
    """
    from trl.chat_template_utils import get_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise CallerError(
            f"the chat template does not mark the assistant's tokens [{tokenizer.name_or_path}]. "
            "Put {% generation %} and {% endgeneration %} around them, and render a turn the same whatever follows."
        ) from error
    rows: list[dict[str, list[int]]] = []
    for conversation in conversations:
        rendered = tokenizer.apply_chat_template(
            conversation.messages,
            tools=conversation.tools or None,
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, mask = rendered["input_ids"][:max_length], rendered["assistant_masks"][:max_length]
        if 1 not in mask:
            continue
        start = mask.index(1)
        labels = [
            token if learnt or (observations and position > start) else IGNORED
            for position, (token, learnt) in enumerate(zip(ids, mask, strict=True))
        ]
        rows.append({"input_ids": ids, "labels": labels})
    if not rows:
        raise CallerError(f"no assistant token within {max_length} tokens [warm start]. Raise max_length.")
    return rows


def warm_start(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[Conversation],
    options: WarmStart,
) -> float:
    """Trains the model in place and returns the mean training loss, in nats per learnt token.

    Raises:
        CallerError: see `tokenize`.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = tokenize(tokenizer, conversations, max_length=options.max_length, observations=options.observations)
    renamed = "activation_checkpointing" in {known.name for known in fields(SFTConfig)}
    checkpointing = {("activation" if renamed else "gradient") + "_checkpointing": False}
    with tempfile.TemporaryDirectory(prefix="warmstart-") as scratch:
        config = SFTConfig(
            output_dir=scratch,
            num_train_epochs=options.epochs,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            adam_beta2=0.98,
            weight_decay=0.01,
            bf16=options.bf16,
            use_cpu=model.device.type == "cpu",
            train_sampling_strategy="group_by_length",
            **checkpointing,
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            save_strategy="no",
            report_to="none",
            logging_steps=50,
            disable_tqdm=True,
            seed=options.seed,
            data_seed=options.seed,
        )
        trainer = SFTTrainer(
            model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        result = trainer.train()
    model.eval()
    logger.info("supervised start: %d conversations, loss %.3f", len(rows), result.training_loss)
    return float(result.training_loss)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    defaults = WarmStart()
    parser = argparse.ArgumentParser(prog="python -m agentrl_trainer.warmstart", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or hub name of the model to start from, or tiny-fc")
    parser.add_argument("--transcripts", required=True, type=Path, help="JSONL file")
    parser.add_argument("--out", required=True, type=Path, help="folder for the trained model")
    parser.add_argument("--epochs", type=float, default=defaults.epochs)
    parser.add_argument("--max-steps", type=int, default=defaults.max_steps)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument(
        "--learning-rate", type=float, default=1e-5, help="1e-5 for a pretrained model, 3e-3 for tiny-fc"
    )
    parser.add_argument("--max-length", type=int, default=defaults.max_length)
    parser.add_argument("--observations", action="store_true", help="learn the environment's messages too")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        options = WarmStart(
            epochs=given.epochs,
            max_steps=given.max_steps,
            batch_size=given.batch_size,
            learning_rate=given.learning_rate,
            max_length=given.max_length,
            observations=given.observations,
            seed=given.seed,
        )
        _run(given.model, given.transcripts, given.out, options, given.threads)
    except AgentBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run(model: str, transcripts: Path, out: Path, options: WarmStart, threads: int) -> None:
    import torch
    from transformers import set_seed

    from agentrl_trainer.config import Model
    from agentrl_trainer.policy import load_policy, policy_path

    conversations = read_conversations(transcripts)
    path = policy_path(Model(path=model))
    torch.set_num_threads(threads)
    set_seed(options.seed)
    policy, tokenizer = load_policy(path)
    with RunFolder(out, setting="--out"):  # before the work, not after it
        loss = warm_start(policy, tokenizer, conversations, options)
        with writing("the model", out):
            policy.save_pretrained(out)
            tokenizer.save_pretrained(out)
    print(f"{len(conversations)} conversations, loss {loss:.3f}: {out}")


if __name__ == "__main__":
    raise SystemExit(main())
