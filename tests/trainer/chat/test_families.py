"""Each family's template appends exactly, agrees with its parser, and is named where another one is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import Message, ToolCall, assistant, function_tool, system, tool_result, user
from agentrl_trainer.chat.buffer import TokenBuffer
from agentrl_trainer.chat.families import FAMILIES, families_of
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.engines.base import Completion

TOOLS = [function_tool("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})]
OPENING = [system("You look."), user("Look at it.")]


@pytest.fixture(scope="module")
def tokenizer_of(chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder whose tokenizer carries the special tokens of a family and no chat template."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            from transformers import AutoTokenizer

            family = FAMILIES[name]
            tokenizer = AutoTokenizer.from_pretrained(chat_folder)
            if "<|im_end|>" not in family.tokens:
                backend = tokenizer.backend_tokenizer.to_str().replace("<|im_start|>", "<|x1|>")
                from tokenizers import Tokenizer
                from transformers import PreTrainedTokenizerFast

                renamed = Tokenizer.from_str(backend.replace("<|im_end|>", "<|x2|>"))
                tokenizer = PreTrainedTokenizerFast(tokenizer_object=renamed, eos_token="<|endoftext|>")
            tokenizer.add_special_tokens({"extra_special_tokens": sorted(family.tokens | family.marks)})
            tokenizer.chat_template = None
            folders[name] = tmp_path_factory.mktemp(name)
            tokenizer.save_pretrained(folders[name])
        return folders[name]

    return make


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def renderer_of(folder: Path, name: str, **options: Any) -> ChatRenderer:
    return ChatRenderer(folder, template=name, **options)


def whole(renderer: ChatRenderer, messages: list[Message]) -> str:
    return renderer.decode(renderer.render_prompt(messages, TOOLS))


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}], ids=["plain", "no thinking"])
def test_a_conversation_appended_turn_by_turn_is_the_one_rendered_at_once(
    tokenizer_of: Callable[[str], Path], family: str, options: dict[str, Any]
) -> None:
    renderer = renderer_of(tokenizer_of(family), family, options=options)
    turns: list[tuple[Message, list[Message]]] = [
        (assistant("Let me see.", [ToolCall("c1", "look", '{"x": "1"}')]), [tool_result("c1", "one")]),
        (
            assistant("", [ToolCall("c2", "look", '{"x": "2"}'), ToolCall("c3", "look", "{}")]),
            [tool_result("c2", "two\n"), tool_result("c3", "")],
        ),
        (assistant("It is seen."), [user("Go on.")]),
        (assistant("", [ToolCall("c4", "look", "{}")]), [tool_result("c4", "four"), user("And now?")]),
    ]
    history: list[Message] = list(OPENING)
    buffer = TokenBuffer(renderer.render_prompt(history, TOOLS))
    for number, (said, observed) in enumerate(turns, start=1):
        asked = whole(renderer, history)
        at_once = whole(renderer, [*history, said, *observed])
        tail = renderer.decode(renderer.observation_ids(observed))
        assert at_once.startswith(asked)
        assert at_once.endswith(tail)
        sampled = renderer._encode(at_once[len(asked) : len(at_once) - len(tail)])
        assert [c.name for c in renderer.parse(sampled).calls] == ["look"] * len(said.get("tool_calls") or [])
        buffer.append_sampled(
            Completion(tuple(sampled), (-1.0,) * len(sampled), (0,) * len(sampled), "length"), 0, number
        )
        buffer.append_observed(renderer.observation_ids(observed), number)
        history += [said, *observed]
        assert buffer.ids == renderer.render_prompt(history, TOOLS)


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text('aé中"\\\n {}[]<>|:,', max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(arguments=st.lists(st.dictionaries(st.text("xyz", min_size=1), json_texts, max_size=3), min_size=1, max_size=3))
def test_what_the_template_writes_the_parser_reads(
    tokenizer_of: Callable[[str], Path], family: str, arguments: list[dict[str, Any]]
) -> None:
    import json

    renderer = renderer_of(tokenizer_of(family), family)
    calls = [ToolCall(f"c{i}", "look", json.dumps(given)) for i, given in enumerate(arguments)]
    asked = whole(renderer, OPENING)
    text = whole(renderer, [*OPENING, assistant("", calls), user("x")])
    tail = renderer.decode(renderer.observation_ids([user("x")]))
    turn = renderer.parser(text[len(asked) : len(text) - len(tail)])
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [("look", a) for a in arguments]


def test_the_tools_are_shown_and_the_end_of_a_turn_stops_it(tokenizer_of: Callable[[str], Path], family: str) -> None:
    renderer = renderer_of(tokenizer_of(family), family)
    prompt = whole(renderer, OPENING)
    assert '"look"' in prompt
    assert "You look." in prompt
    for observed in ([tool_result("c", "one")], [user("two")]):
        assert renderer.observation_ids(observed)[0] in renderer.stop_ids
    for token in sorted(FAMILIES[family].tokens - {"<|end_header_id|>", "<|system|>"}):
        assert len(renderer._encode(token)) == 1


def test_without_thinking_qwen3_puts_the_empty_block_into_prompt_and_history_alike(
    tokenizer_of: Callable[[str], Path],
) -> None:
    renderer = renderer_of(tokenizer_of("qwen3"), "qwen3", options={"enable_thinking": False})
    text = whole(renderer, [*OPENING, assistant("Seen."), user("Well?")])
    assert text.count("<|im_start|>assistant\n<think>\n\n</think>\n\n") == 2
    thinking = renderer_of(tokenizer_of("qwen3"), "qwen3")
    text = whole(thinking, [*OPENING, assistant("<think>\nHm.\n</think>\n\nSeen."), user("Well?")])
    assert "<think>\nHm.\n</think>\n\nSeen.<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_tokenizer_is_told_by_its_special_tokens(tokenizer_of: Callable[[str], Path], chat_folder: Path) -> None:
    assert [f.name for f in families_of(FAMILIES["glm4"].tokens)] == ["glm4"]
    assert families_of({"<|im_start|>", "<|im_end|>", "<think>", "</think>"})[0].name == "qwen3"
    with pytest.raises(CallerError, match=r"no chat template.*Name one: model.chat_template=llama3 is ours"):
        ChatRenderer(tokenizer_of("llama3"))
    with pytest.raises(CallerError, match=r"has no <sop>.*is for GLM-4.*chat_template=qwen2.5"):
        ChatRenderer(chat_folder, template="glm4")
    with pytest.raises(CallerError, match=r"no chat template 'qwen2'.*Did you mean 'qwen2.5'"):
        ChatRenderer(chat_folder, template="qwen2")


HISTORY_DEPENDENT = {
    "drops thoughts of earlier turns": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{{ tools | tojson }}"
    ),
    "numbers the messages": (
        "{{ tools | tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
        "{% endfor %}"
    ),
    "counts backwards": (
        "{{ tools | tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }}{{ loop.revindex }}\n"
        "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
        "<|im_end|>\n{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", sorted(HISTORY_DEPENDENT))
def test_a_template_that_looks_ahead_or_counts_is_refused_with_ours_named(chat_folder: Path, name: str) -> None:
    with pytest.raises(CallerError, match=r"model.chat_template=qwen2.5 \(or smollm2\) is ours"):
        ChatRenderer(chat_folder, template=HISTORY_DEPENDENT[name])
