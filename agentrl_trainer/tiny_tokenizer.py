"""The tokenizer of the tiny policy: a small byte-level BPE whose words look the same wherever they stand.

>>> tokenizer = train_tokenizer(["SELECT name FROM ships", '{"name": "ships"}'], vocab_size=320)
>>> bare, quoted = tokenizer.encode("name"), tokenizer.encode('"name"')
>>> len(bare), bare[0] in quoted
(1, True)

A tiny model solves tasks by copying names out of what it reads. Copying is learnt once for all contexts only if a name
has the same ids after a space, a quote or a bracket, so a pre-token is a run of letters, one digit, or a run of
anything else. The chat template renders each message the same whatever follows it, marks the assistant's tokens, and
comes with the response template by which transformers and TRL read tool calls back.

Not here: what the texts are (demonstrations.py); the model (make_tiny.py).
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
END = "<|im_end|>"
CONTROL_TOKENS = (PAD, "<|im_start|>", END)
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens too, but text: decoding without special tokens keeps them, or no parser could read a call."""
PRE_TOKEN = r"[A-Za-z_]+|[0-9]|[^A-Za-z_0-9]+"
CHAT_TEMPLATE = Path(__file__).parent / "assets" / "tiny_chat.jinja"
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 1024, context: int = 4096) -> "PreTrainedTokenizerFast":
    """Trains the tokenizer on texts; equal texts in equal order give an equal tokenizer.

    Args:
        texts: What it will meet: prompts, tool calls and observations.
        vocab_size: Size with the special tokens and the 256 bytes; training stops earlier when texts are few.
        context: The model's context length in tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL_TOKENS, *TAG_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    between = re.compile("|".join(re.escape(token) for token in (*CONTROL_TOKENS, *TAG_TOKENS)))
    core.train_from_iterator((part for text in texts for part in between.split(text) if part), trainer)
    layout = json.loads(core.to_str())
    for token in layout["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(layout)),
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[token for token in CONTROL_TOKENS if token not in (PAD, END)],
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer
