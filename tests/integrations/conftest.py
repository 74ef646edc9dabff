"""The policy that TRL's own trainer trains here."""

from pathlib import Path
from typing import Any

import pytest

TINY = Path(__file__).parents[2] / "agentrl_trainer" / "assets" / "tiny-fc"


@pytest.fixture
def tiny_policy() -> tuple[Any, Any]:
    """The default model and its tokenizer, with the response template that TRL asks for."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TINY, dtype="float32"), AutoTokenizer.from_pretrained(TINY)
