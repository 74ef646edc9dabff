"""The parts of the tiny policy, each by what it promises: tokenizer, template, faults, copying, imitation."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolCall, assistant, function_tool, system, tool_result, user
from agentbench_fc.registry import load_task
from agentbench_fc.session import Session
from agentrl_trainer.demonstrations import WORD, Faults, Haste, demonstrate, slip
from agentrl_trainer.tiny_tokenizer import CONTROL_TOKENS, TAG_TOKENS, train_tokenizer

TEXTS = [
    "SELECT name FROM ships WHERE crew > 12",
    'The ships: "name", (crew).\n{"name": "execute_sql", "arguments": {"query": "SELECT crew FROM ships"}}',
]
TOOLS = [
    function_tool(
        "find",
        "Finds.",
        {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]},
    ),
    function_tool("stop", "Stops.", {"type": "object", "properties": {}}),
]
CALL = ToolCall("c1", "find", '{"a": "é <b>", "n": 2}')
DIALOGUE = [
    system("Be short."),
    user("Find é."),
    assistant(None, [CALL, CALL]),
    tool_result("c1", "one\ntwo"),
    tool_result("c1", "three"),
    assistant("Hm."),
    user("Go on."),
    assistant("So:", [ToolCall("c2", "stop", "{}")]),
    tool_result("c2", ""),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, vocab_size=400)


def render(tokenizer: Any, messages: list[Any], **options: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, tools=TOOLS, return_dict=False, **options)
    return ids


@pytest.mark.parametrize("word", ["name", "ships", "crew"])
def test_a_word_has_one_id_wherever_it_stands(tokenizer: Any, word: str) -> None:
    [alone] = tokenizer.encode(word)
    for context in (" {} ", '"{}"', "({}).", "1{}2", "\n{}\n", "{}>{}"):
        assert alone in tokenizer.encode(context.replace("{}", word))


@pytest.mark.parametrize("token", [*CONTROL_TOKENS, *TAG_TOKENS])
def test_control_tokens_and_tags_are_single_tokens(tokenizer: Any, token: str) -> None:
    assert len(tokenizer.encode(token)) == 1
    assert len(tokenizer.encode(f"ships{token}crew")) == 3


def test_decoding_without_control_tokens_keeps_the_tags(tokenizer: Any) -> None:
    text = tokenizer.decode(tokenizer.encode("<tool_call>ships</tool_call><|im_end|>"), skip_special_tokens=True)
    assert text == "<tool_call>ships</tool_call>"


@given(st.text(max_size=60))
def test_any_text_survives(text: str) -> None:
    tokenizer = _shared()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def _shared(made: list[Any] = []) -> Any:  # noqa: B006  one tokenizer for all examples
    if not made:
        made.append(train_tokenizer(TEXTS, vocab_size=400))
    return made[0]


def test_the_same_texts_give_the_same_tokenizer(tokenizer: Any) -> None:
    assert train_tokenizer(TEXTS, vocab_size=400).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_it_comes_back_from_disk_with_template_and_response_template(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert render(loaded, DIALOGUE) == render(tokenizer, DIALOGUE)
    assert loaded.response_template == tokenizer.response_template
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_what_was_rendered_never_changes(tokenizer: Any) -> None:
    whole = render(tokenizer, DIALOGUE)
    for end in range(2, len(DIALOGUE)):
        if DIALOGUE[end - 1]["role"] == "tool" and DIALOGUE[end]["role"] == "tool":
            continue  # answers to one turn are one message
        ids = render(tokenizer, DIALOGUE[:end])
        assert whole[: len(ids)] == ids, end
        if DIALOGUE[end]["role"] == "assistant":
            ids = render(tokenizer, DIALOGUE[:end], add_generation_prompt=True)
            assert whole[: len(ids)] == ids


def test_the_template_shows_tools_as_signatures_and_calls_as_hermes(tokenizer: Any) -> None:
    text = tokenizer.decode(render(tokenizer, DIALOGUE))
    assert text.startswith("<|im_start|>system\nBe short.\nTools:\nfind(a: string, n?: integer)\nstop()\n<|im_end|>\n")
    assert '<tool_call>\n{"name": "find", "arguments": {"a": "é <b>", "n": 2}}\n</tool_call>\n<tool_call>' in text
    assert "<tool_response>\none\ntwo\n</tool_response>\n<tool_response>\nthree\n</tool_response><|im_end|>" in text
    assert text.endswith("<tool_response>\n\n</tool_response><|im_end|>\n")


def test_trl_finds_what_it_asks_of_a_template(tokenizer: Any) -> None:
    from trl import chat_template_utils as trl

    assert trl.supports_tool_calling(tokenizer)
    assert trl.is_chat_template_prefix_preserving(tokenizer)
    assert trl.is_chat_template_stop_token_trained(tokenizer)
    assert trl.get_training_chat_template(tokenizer) is None


def test_trl_reads_calls_back_and_takes_a_broken_one_as_text(tokenizer: Any) -> None:
    from trl.chat_template_utils import parse_response

    prefix = render(tokenizer, DIALOGUE, add_generation_prompt=True)
    sent = '<tool_call>\n{"name": "find", "arguments": {"a": "x"}}\n</tool_call><|im_end|>'
    parsed = parse_response(tokenizer, tokenizer.encode("So:\n" + sent), prefix=prefix, tools=TOOLS)
    assert parsed["tool_calls"] == [{"type": "function", "function": {"name": "find", "arguments": {"a": "x"}}}]
    assert parsed["content"].strip() == "So:"
    broken = parse_response(tokenizer, tokenizer.encode(sent.replace('"find"', "find")), prefix=prefix, tools=TOOLS)
    assert "tool_calls" not in broken
    assert "<tool_call>" in broken["content"]


names = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@given(st.lists(names, min_size=2, unique=True), st.data())
def test_a_slip_changes_one_read_word_into_its_neighbour(words: list[str], data: st.DataObject) -> None:
    used = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=3))
    arguments = {"query": f"PICK {' , '.join(used)} !", "rest": ["OTHER"]}
    seen = ["zzzzzz yyyyyy", " ".join([*words, "Capital", "1", "#0", "dotted.name"])]
    slipped = json.loads(slip(json.dumps(arguments), seen, random.Random(data.draw(st.integers(0, 9)))))
    before, after = (WORD.findall(value["query"]) for value in (arguments, slipped))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    assert changed[0][1] in words
    assert slipped["rest"] == ["OTHER"]


@pytest.mark.parametrize("arguments", ['{"answers": []}', '{"query": "UNSEEN"}', "{}", '{"n": 3}', '{"v": "#0"}'])
def test_what_was_not_read_or_has_no_neighbour_does_not_slip(arguments: str) -> None:
    assert slip(arguments, ["a b c #0"], random.Random(0)) == arguments


@pytest.mark.parametrize("name", ["db", "kg"])
def test_experts_slip_as_often_as_they_are_told(name: str) -> None:
    task = load_task(name, prompt="compact", level="easy")
    samples = task.samples("train")[:60]
    wins = {
        rate: sum(bool(s.last.success) for s in demonstrate(task, samples, faults=Faults(slip_rate=rate), seed=0))
        for rate in (0.0, 0.15, 1.0)
    }
    assert wins[0.0] == 60
    assert wins[1.0] < 30
    assert 30 < wins[0.15] < 60
    again = [s.raw_reward for s in demonstrate(task, samples, faults=Faults(slip_rate=0.15), seed=0)]
    assert sum(again) == wins[0.15]


@pytest.mark.parametrize("name", ["db", "kg"])
def test_hasty_experts_hand_in_what_takes_several_steps_after_the_first(name: str) -> None:
    from agentrl_trainer.make_tiny import DB_HASTE, KG_HASTE

    task = load_task(name, prompt="compact", level="easy")
    samples = task.samples("train")[:80]
    haste = replace({"db": DB_HASTE, "kg": KG_HASTE}[name], rate=1.0)
    sound = list(demonstrate(task, samples, faults=Faults(), seed=0))
    hasty = list(demonstrate(task, samples, faults=Faults(haste=haste), seed=0))
    long = [_calls(a) != _calls(b) for a, b in zip(sound, hasty, strict=True)]
    assert 0.3 * len(samples) <= sum(long) <= 0.6 * len(samples)
    for before, after, several in zip(sound, hasty, long, strict=True):
        assert after.last.finish
        assert bool(after.last.success) is not several
        assert _calls(after) == _calls(before) if not several else len(_calls(after)) < len(_calls(before))


def _calls(session: Session) -> list[str]:
    sent = [message for played in session.log for message in played.sent or ()]
    return [call["function"]["arguments"] for message in sent for call in message.get("tool_calls") or ()]


def test_haste_comes_at_its_rate_and_never_where_the_end_is_right() -> None:
    task = load_task("db", prompt="compact", level="easy")
    samples = [s for s in task.samples("train") if s.data["min_statements"] > 1][:100]
    haste = Haste(after="OK, .* changed", tool="commit_final_answer", arguments='{"answers": []}', rate=0.5)
    wins = sum(bool(s.last.success) for s in demonstrate(task, samples, faults=Faults(haste=haste), seed=0))
    assert 30 < wins < 70
    changes = [s for s in task.samples("train") if s.data["kind"] in {"UPDATE", "DELETE"}][:20]
    always = replace(haste, rate=1.0)
    assert all(s.last.success for s in demonstrate(task, changes, faults=Faults(haste=always), seed=0))


@settings(max_examples=20)
@given(st.integers(0, 1000), st.booleans())
def test_labels_of_a_copy_batch_are_what_stood_one_period_earlier(seed: int, few: bool) -> None:
    import torch

    from agentrl_trainer.copy_pretraining import IGNORED, SHORTEST_PERIOD, CopyStage, copy_batch

    stage = CopyStage(length=40, batch=4, max_steps=1, few=few, loss=0.0)
    words = torch.arange(100, 160)
    ids, labels = copy_batch(words, stage, torch.Generator().manual_seed(seed))
    assert ids.shape == labels.shape == (4, 40)
    assert set(ids.flatten().tolist()) <= set(words.tolist())
    for row, wanted in zip(ids.tolist(), labels.tolist(), strict=True):
        period = sum(label == IGNORED for label in wanted)
        assert SHORTEST_PERIOD <= period <= 20
        assert wanted[period:] == row[period:] == row[:-period]


def fresh_model(layers: int = 2, **options: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = {
        "vocab_size": 512, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "initializer_range": 0.09,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
    } | options  # fmt: skip
    return Qwen3ForCausalLM(Qwen3Config(**config))


def copying_loss(model: Any, length: int = 64) -> float:
    import torch

    from agentrl_trainer.copy_pretraining import CopyStage, copy_batch

    stage = CopyStage(length=length, batch=16, max_steps=1, loss=0.0)
    ids, labels = copy_batch(torch.arange(7, 512), stage, torch.Generator().manual_seed(99))
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels).loss)


@pytest.mark.parametrize("layers", [2, 3])
def test_planted_heads_copy_before_any_training_and_well_after_a_little(layers: int) -> None:
    from agentrl_trainer.copy_pretraining import CopyStage, pretrain_copying
    from agentrl_trainer.induction import plant_induction_heads

    model = fresh_model(layers)
    assert copying_loss(model) > 6.2  # ln 505 and worse: it knows nothing
    plant_induction_heads(model)
    assert copying_loss(model) < 4.5
    [steps] = pretrain_copying(model, range(7, 512), stages=[CopyStage(length=64, batch=16, max_steps=300, loss=0.6)])
    assert steps < 300
    assert copying_loss(model) < 1.0


@pytest.mark.parametrize(
    "options", [{"num_hidden_layers": 1}, {"head_dim": 64}, {"num_key_value_heads": 2}], ids=["layers", "size", "keys"]
)
def test_a_model_that_has_no_place_for_the_heads_is_refused(options: dict[str, int]) -> None:
    from agentrl_trainer.induction import plant_induction_heads

    with pytest.raises(CallerError, match="head"):
        plant_induction_heads(fresh_model(**options))


def test_imitation_learns_what_is_labelled_and_nothing_else() -> None:
    import torch

    from agentrl_trainer.imitation import IGNORED, Imitation, imitate

    model = fresh_model(1, vocab_size=32, hidden_size=32, head_dim=8)
    rows = [{"input_ids": [n, 20, n, 21], "labels": [IGNORED, IGNORED, n, IGNORED]} for n in range(8)]
    rows.append({"input_ids": [9, 20], "labels": [IGNORED, 9]})
    loss = imitate(model, rows, Imitation(steps=150, learning_rate=1e-2, batch_size=4))
    assert loss < 0.3
    with torch.no_grad():
        logits = model(torch.tensor([[3, 20, 3]])).logits[0]
    assert int(logits[1].argmax()) == 3
    assert int(logits[2].argmax()) != 21


def test_imitation_is_the_same_twice() -> None:
    from agentrl_trainer.imitation import Imitation, imitate

    rows = [{"input_ids": [n, n + 1, n], "labels": [n, n + 1, n]} for n in range(20)]
    how = Imitation(steps=5, learning_rate=1e-2, batch_size=4, seed=3)
    assert len({imitate(fresh_model(1), rows, how) for _ in range(2)}) == 1
