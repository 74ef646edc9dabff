"""Transcripts of both kinds become training rows whose learnt tokens are the agent's, and training learns them."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc import transcript
from agentbench_fc.episode import ToolEpisode, make_task, tool
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolCall, assistant
from agentbench_fc.players import make_player, play
from agentrl_trainer import warmstart
from agentrl_trainer.chat.template import ChatRenderer
from agentrl_trainer.tiny_tokenizer import train_tokenizer

WORDS = ("red", "green", "blue", "grey", "pink")


class Say(ToolEpisode):
    finish_tool = "say"

    def start(self) -> str:
        return f"Say {self.sample.data['word']} twice."

    @tool
    def say(self, word: str) -> Any:
        """Says a word."""
        if not hasattr(self, "said"):
            self.said = word
            return "Again."
        return self.finish("Thank you.", reward=float(word == self.said == self.sample.data["word"]))


def solve(sample: Any) -> Any:
    for number in range(2):
        yield ToolCall(f"c{number}", "say", json.dumps({"word": sample.data["word"]}))


@pytest.fixture
def sessions() -> list[Any]:
    task = make_task(Say, samples={"train": [{"word": word} for word in WORDS]}, expert=solve)
    player = make_player("expert", task)
    return [play(task, sample, player) for sample in task.samples("train")]


@pytest.fixture
def transcripts(sessions: list[Any], tmp_path: Path) -> Path:
    for session in sessions:
        transcript.append(tmp_path / "t.jsonl", session)
    return tmp_path / "t.jsonl"


@pytest.fixture
def plain(sessions: list[Any], tmp_path: Path) -> Path:
    """The same episodes as one conversation a line."""
    rows = [
        {
            "messages": [m for played in s.log for m in (*played.sent, *played.turn.messages)],
            "tools": s.task.spec.tools,
        }
        for s in sessions
    ]
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "plain.jsonl"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(
        [f'Say {word} twice. {{"name": "say", "arguments": {{"word": "{word}"}}}}' for word in WORDS]
    )


def test_both_kinds_of_file_hold_the_same_conversations(transcripts: Path, plain: Path) -> None:
    recorded = warmstart.read_conversations(transcripts)
    assert recorded == warmstart.read_conversations(plain)
    assert len(recorded) == len(WORDS)
    assert recorded[0].messages[1]["tool_calls"][0]["function"]["arguments"] == {"word": "red"}


def test_exactly_the_tokens_of_the_agent_are_learnt(transcripts: Path, tokenizer: Any) -> None:
    call = '<tool_call>\n{"name": "say", "arguments": {"word": "red"}}\n</tool_call><|im_end|>'
    row = warmstart.tokenize(tokenizer, warmstart.read_conversations(transcripts), max_length=999)[0]
    learnt = [label for label in row["labels"] if label != warmstart.IGNORED]
    assert tokenizer.decode(learnt) == 2 * call
    assert all(
        label in {warmstart.IGNORED, token} for token, label in zip(row["input_ids"], row["labels"], strict=True)
    )


def test_observations_are_learnt_on_demand_but_never_the_prompt(transcripts: Path, tokenizer: Any) -> None:
    conversations = warmstart.read_conversations(transcripts)
    row = warmstart.tokenize(tokenizer, conversations, max_length=999, observations=True)[0]
    learnt = tokenizer.decode([label for label in row["labels"] if label != warmstart.IGNORED])
    assert learnt.startswith("<tool_call>")
    assert learnt.count("<tool_response>") == 2


def test_a_training_row_is_what_a_rollout_would_hold(sessions: list[Any], tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    renderer = ChatRenderer(tmp_path)
    session = sessions[0]
    ids = renderer.render_prompt(session.log[0].turn.messages, session.task.spec.tools)
    sampled = tokenizer.encode('<tool_call>\n{"name": "say", "arguments": {"word": "red"}}\n</tool_call>')
    for played in session.log[1:]:
        ids = ids + sampled + renderer.observation_ids(played.turn.messages)
    transcript.append(tmp_path / "t.jsonl", session)
    conversations = warmstart.read_conversations(tmp_path / "t.jsonl")
    row = warmstart.tokenize(tokenizer, conversations, max_length=999)[0]["input_ids"]
    assert row == ids[: len(row)]
    assert tokenizer.decode(ids[len(row) :]) == "<|im_start|>assistant\n"


def test_a_long_conversation_is_cut_and_one_without_an_agent_token_left_out(transcripts: Path, tokenizer: Any) -> None:
    conversations = warmstart.read_conversations(transcripts)
    whole = warmstart.tokenize(tokenizer, conversations, max_length=999)[0]
    first = next(i for i, label in enumerate(whole["labels"]) if label != warmstart.IGNORED)
    cut = warmstart.tokenize(tokenizer, conversations, max_length=first + 3)[0]
    assert cut["input_ids"] == whole["input_ids"][: first + 3]
    with pytest.raises(CallerError, match="max_length"):
        warmstart.tokenize(tokenizer, conversations, max_length=first)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no conversation"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n', "no conversation"),
        ('{"messages": 3}\n', "line 1"),
        ('{"messages": ["x"]}\n', "line 1"),
        ('{"messages": [], "tools": "x"}\n', "line 1"),
        ("[]\n", "line 1"),
        ('\n{"messages"\n', "line 2"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(CallerError, match=says):
        warmstart.read_conversations(tmp_path / "bad.jsonl")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="JSONL"):
        warmstart.read_conversations(tmp_path / "none.jsonl")


def test_a_template_without_marks_is_refused(transcripts: Path) -> None:
    unmarked = train_tokenizer(["Say it."])
    unmarked.chat_template = unmarked.chat_template.replace("{%- generation -%}", "").replace(
        "{%- endgeneration -%}", ""
    )
    with pytest.raises(CallerError, match="generation"):
        warmstart.tokenize(unmarked, warmstart.read_conversations(transcripts), max_length=999)


@pytest.mark.parametrize("field", ["epochs", "batch_size", "learning_rate", "max_length"])
def test_an_option_that_cannot_be_is_refused(field: str) -> None:
    with pytest.raises(CallerError, match=field):
        warmstart.WarmStart(**{field: 0})


def test_the_command_trains_a_model_that_then_solves_the_task(
    transcripts: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    arguments = ["--model", tmp_path / "start", "--transcripts", transcripts, "--out", tmp_path / "end"]
    options = ["--learning-rate", "0.01", "--max-steps", "100", "--batch-size", "5"]
    assert warmstart.main([*map(str, arguments), *options]) == 0
    assert "5 conversations" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "end")
    conversation = warmstart.read_conversations(transcripts)[2]
    prompt = tokenizer.apply_chat_template(
        conversation.messages[:1], tools=conversation.tools, add_generation_prompt=True, return_tensors="pt"
    )
    output = model.generate(**prompt, max_new_tokens=30, do_sample=False)
    text = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert text == '<tool_call>\n{"name": "say", "arguments": {"word": "blue"}}\n</tool_call><|im_end|>'


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = warmstart.main(["--model", "x", "--transcripts", str(tmp_path / "none"), "--out", str(tmp_path)])
    assert code == 2
    assert "cannot be read" in capsys.readouterr().err
    file = tmp_path / "t.jsonl"
    for message, told in (
        ({"role": "assistant", "tool_calls": 3}, "not OpenAI's"),
        ({"role": "assistant", "tool_calls": [{"id": 1}]}, "not OpenAI's"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "not OpenAI's"),
        ({"role": "assistant", "content": [{"type": "text", "text": "x"}]}, "is no text"),
    ):
        file.write_text(json.dumps({"messages": [message]}) + "\n")
        assert warmstart.main(["--model", "x", "--transcripts", str(file), "--out", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err
    file.write_text('{"messages": [{"role": "assistant", "content": "x"}]}\n')
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    arguments = ["--transcripts", str(file), "--out"]
    assert warmstart.main([*arguments, str(tmp_path / "o"), "--model", str(tmp_path / "m")]) == 2
    assert "the policy cannot be loaded" in capsys.readouterr().err
    assert warmstart.main([*arguments, str(file / "o"), "--model", "tiny-fc"]) == 2
    assert "choose another one with --out" in capsys.readouterr().err.lower()


def test_call_arguments_that_are_no_object_stay_text() -> None:
    message = dict(assistant(None, [ToolCall("c", "say", "{")]))
    assert warmstart._for_template(message)["tool_calls"][0]["function"]["arguments"] == "{"
