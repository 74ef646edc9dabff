"""Model families by name: chat template, tool-call parser, and the special tokens by which a tokenizer is known.

>>> FAMILIES["glm4"].parser, FAMILIES["glm4"].template.startswith("{#- GLM-4-0414")
('glm4', True)
>>> [family.name for family in families_of({"<|im_start|>", "<|im_end|>", "<|endoftext|>"})]
['qwen2.5', 'smollm2']

`model.chat_template=NAME` takes one. The templates are ours: control tokens, roles and the form of calls are the
family's, the sentences around the tools are not, and every turn renders the same whatever follows it. Where a model's
own wording matters and its template appends, leave `chat_template` unset.

Not here: rendering and the self-check (template.py); parsers (agentbench_fc.parsers).
Source: tokenizers and model cards of Qwen2.5, Qwen3, GLM-4-0414, Llama 3.1 and SmolLM2.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the models of one family have in common."""

    name: str
    models: str
    """Whom it is for."""
    parser: str
    """Format of the calls, by its name in agentbench_fc.parsers."""
    tokens: frozenset[str]
    """Special tokens that every tokenizer of the family has and that the template writes."""
    marks: frozenset[str] = frozenset()
    """Further ones that tell it from a family with the same control tokens."""

    @property
    def template(self) -> str:
        """The Jinja text."""
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")


_CHATML = frozenset({"<|im_start|>", "<|im_end|>"})
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family(
                name="qwen3",
                models="Qwen3, thinking or not (template_options: {enable_thinking: false})",
                parser="hermes",
                tokens=_CHATML,
                marks=frozenset({"<think>", "</think>"}),
            ),
            Family(name="qwen2.5", models="Qwen2.5-Instruct and -Coder", parser="hermes", tokens=_CHATML),
            Family(
                name="glm4",
                models="GLM-4-0414 (9B, 32B)",
                parser="glm4",
                tokens=frozenset({"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}),
            ),
            Family(
                name="llama3",
                models="Llama 3.1, 3.2 and 3.3 Instruct",
                parser="llama3",
                tokens=frozenset({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
            ),
            Family(name="smollm2", models="SmolLM2-Instruct", parser="smollm2", tokens=_CHATML),
        )
    }
)
"""Name -> family."""


def families_of(tokens: Collection[str]) -> list[Family]:
    """The families whose special tokens are among a tokenizer's, the most special ones first.

    Args:
        tokens: Special and added tokens of the tokenizer.
    """
    have = set(tokens)
    fitting = [family for family in FAMILIES.values() if family.tokens | family.marks <= have]
    return sorted(fitting, key=lambda family: -len(family.tokens | family.marks))
