"""The policy that TRL's own trainer trains here."""

import os
from pathlib import Path
from typing import Any

import pytest

TINY = Path(__file__).parents[2] / "agentrl_trainer" / "assets" / "tiny-fc"


@pytest.fixture
def tiny_policy() -> tuple[Any, Any]:
    """The default model and its tokenizer, with the response template that TRL asks for."""
    if not (TINY / "config.json").exists():
        absent = "tiny-fc is not built; run `python -m agentrl_trainer.make_tiny`"
        pytest.fail(absent) if os.environ.get("AGENTBENCH_FC_REQUIRE_ALL") == "1" else pytest.skip(absent)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TINY, dtype="float32"), AutoTokenizer.from_pretrained(TINY)
