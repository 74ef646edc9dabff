"""Prompts are rendered once, observations as suffixes, and unusable templates are refused with the cure."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import Message, ToolCall, assistant, function_tool, system, tool_result, user
from agentrl_trainer.chat.template import ChatRenderer

TOOLS = [function_tool("say_word", "Says it.", {"type": "object", "properties": {"word": {"type": "string"}}})]
OPENING = [system("You speak."), user("Say yes.")]


@pytest.fixture(scope="module")
def renderer(chat_folder: Path) -> ChatRenderer:
    return ChatRenderer(chat_folder)


def trl_template(name: str) -> str:
    import importlib.util

    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / name).read_text()


@pytest.fixture(scope="module")
def llama_like(chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer with the control tokens of Llama and GLM added."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat_folder)
    names = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|user|>", "<|observation|>", "<|assistant|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names, "bos_token": "<|begin_of_text|>"})
    folder = tmp_path_factory.mktemp("llama")
    tokenizer.save_pretrained(folder)
    return folder


def reencoded(renderer: ChatRenderer, messages: list[Message]) -> list[int]:
    """The ids of the whole conversation rendered at once: the slow definition."""
    return renderer.render_prompt(messages, TOOLS)


@pytest.mark.parametrize(
    "observed",
    [
        [tool_result("call_1", "Thank you.")],
        [tool_result("call_1", "a"), tool_result("call_2", "b")],
        [user("Please call a tool.")],
        [tool_result("call_1", "x <|im_end|> y"), user("Go on.")],
        [tool_result("call_1", "")],
    ],
    ids=["tool", "two tools", "user", "tool and user", "empty"],
)
def test_prompt_turn_and_observation_equal_the_whole_rendered_at_once(
    renderer: ChatRenderer, observed: list[Message]
) -> None:
    with_call = observed[0]["role"] == "tool"
    said = assistant("Well.", [ToolCall("call_1", "say_word", '{"word": "yes"}')] if with_call else ())
    call = '<tool_call>\n{"name": "say_word", "arguments": {"word": "yes"}}\n</tool_call>' if with_call else ""
    sampled = renderer._encode("Well." + call)
    appended = renderer.render_prompt(OPENING, TOOLS) + sampled + renderer.observation_ids(observed)
    assert appended == reencoded(renderer, [*OPENING, said, *observed])


def test_a_sampled_turn_is_parsed_without_its_stop_token(renderer: ChatRenderer) -> None:
    text = 'Well.\n<tool_call>\n{"name": "say_word", "arguments": {"word": "yes"}}\n</tool_call><|im_end|>'
    ids = renderer._encode(text)
    assert ids[-1] in renderer.stop_ids
    turn = renderer.parse(ids)
    assert (turn.text, [(c.name, c.arguments) for c in turn.calls]) == ("Well.", [("say_word", '{"word": "yes"}')])
    assert renderer.parse([]).calls == ()


def test_stop_ids_hold_the_generation_configs_too(chat_folder: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(chat_folder, tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert ChatRenderer(folder).stop_ids == (0, 2)


@pytest.mark.parametrize("name", ["qwen2_5.jinja", "qwen2_5_training.jinja", "qwen3_training.jinja"])
def test_qwen_templates_append_exactly(chat_folder: Path, name: str) -> None:
    renderer = ChatRenderer(chat_folder, template=trl_template(name), options={"enable_thinking": False})
    observed = [tool_result("call_1", "one"), tool_result("call_2", "two")]
    text = renderer.decode(renderer.observation_ids(observed))
    assert text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo")
    assert "<|im_end|>\n<|im_start|>assistant\n" in text
    assert renderer.parser('<tool_call>{"name": "f"}</tool_call>').calls


def test_llama_and_glm_templates_append_with_their_own_end_tokens(llama_like: Path) -> None:
    llama = ChatRenderer(llama_like, template=trl_template("llama3_1.jinja"))
    text = llama.decode(llama.observation_ids([tool_result("call_1", "one")]))
    assert text.startswith("<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n")
    assert llama.parser('{"name": "f", "parameters": {}}').calls
    glm = ChatRenderer(
        llama_like,
        parser="glm4",
        template="{{ tools | tojson }}{% for m in messages %}<|{{ {'tool': 'observation'}.get(m.role, m.role) }}|>\n"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}\n{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    )
    assert glm.decode(glm.observation_ids([tool_result("c", "one")])) == "<|observation|>\none<|assistant|>\n"
    assert glm.decode(glm.observation_ids([user("two")])) == "<|user|>\ntwo<|assistant|>\n"
    ends = {glm._encode(token)[0] for token in ("<|observation|>", "<|user|>")}
    assert ends <= set(glm.stop_ids)


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<tool_call>"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("qwen3.jinja", "prefix-preserving"),
        (CHATML, "without a special token"),  # text behind the last turn, whatever follows
        (CHATML.replace("<tool_call>", "{# <tool_call> #}"), "does not show tools"),
        ("{{ raise_exception('no') }}{# <tool_call> #}", "cannot render the roles user, assistant"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# <tool_call> #}", "end-of-turn token"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "tool-call format"),
        ("/no/such/file.jinja", "no chat template there"),
    ],
)
def test_unusable_templates_are_refused_with_the_cure(chat_folder: Path, template: str, complaint: str) -> None:
    text = trl_template(template) if template == "qwen3.jinja" else template
    with pytest.raises(CallerError, match=complaint):
        ChatRenderer(chat_folder, template=text)


def test_a_folder_without_tokenizer_or_template_is_refused(
    tmp_path: Path, chat_folder: Path, make_model: Callable[..., Path]
) -> None:
    with pytest.raises(CallerError, match="no tokenizer can be loaded"):
        ChatRenderer(tmp_path)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat_folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(CallerError, match="no chat template"):
        ChatRenderer(tmp_path / "bare")
