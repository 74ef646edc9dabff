"""A tiny random model folder: Qwen3 configuration, a 300-token byte-level BPE, and a Qwen-style chat template."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = """
{%- if tools or messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else '' }}
{%- for tool in tools or [] %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'user' -%}
<|im_start|>user
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
TEXTS = ['<tool_call>\n{"name": "say_word", "arguments": {"word": "yes"}}\n</tool_call>', "The word is yes."] * 4


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    folder = tmp_path_factory.mktemp("chat")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_model(chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder with a random model of one seed beside the tokenizer; `changes` replace configuration fields."""
    import shutil

    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    def make(seed: int = 0, **changes: Any) -> Path:
        config = Qwen3Config(
            **{
                "vocab_size": 304,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "max_position_embeddings": 512,
                "tie_word_embeddings": True,
                "initializer_range": 0.3,  # far from uniform: a wrong mask or position shows
                "eos_token_id": 2,
                "pad_token_id": 0,
            }
            | changes
        )
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp(f"model{seed}")
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        shutil.copytree(chat_folder, folder, dirs_exist_ok=True)
        return folder

    return make


@pytest.fixture(scope="session")
def model_folder(make_model: Callable[..., Path]) -> Path:
    """A folder with a random model and its tokenizer."""
    return make_model()
