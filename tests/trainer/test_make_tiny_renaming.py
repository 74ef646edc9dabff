"""A renamed conversation is the same conversation about other things."""

import random
from dataclasses import replace
from typing import Any

import pytest

from agentbench_fc.messages import ToolCall, assistant, function_tool, system, tool_result, user
from agentrl_trainer.renaming import WORD, Renamer
from agentrl_trainer.warmstart import Conversation, _for_template

NOUNS = ["ships", "towns", "cows", "lamps", "birds", "trees", "Wagons"]
TOOL = function_tool("ask", "Asks.", {"type": "object", "properties": {"query": {"type": "string"}}})


def conversation(noun: str, place: str) -> Conversation:
    messages: list[Any] = [
        system("Use SQL."),
        user(f"Table {noun}: name. How many {noun} lie over {place}?"),
        assistant(None, [ToolCall("ships", "ask", f'{{"query": "SELECT name FROM {noun} WHERE place > {place}"}}')]),
        tool_result("ships", f"{noun} {place} name"),
    ]
    return Conversation([_for_template(message) for message in messages], [TOOL])


@pytest.fixture
def conversations() -> list[Conversation]:
    return [conversation(NOUNS[n % 7], ["Rome", "Oslo", "Lima"][n % 3]) for n in range(63)]


def texts(item: Conversation) -> list[str]:
    calls = [call["function"]["arguments"]["query"] for m in item.messages for call in m.get("tool_calls", [])]
    return [*(message["content"] for message in item.messages), *calls]


def test_a_rare_word_changes_everywhere_and_nothing_else_does(conversations: list[Conversation]) -> None:
    renamer = Renamer(conversations, rare=0.5, share=1.0)
    rng = random.Random(0)
    for before in conversations:
        after = renamer.rename(before, rng)
        names: dict[str, str] = {}
        for old, new in zip(texts(before), texts(after), strict=True):
            assert WORD.sub("_", old) == WORD.sub("_", new)
            for word, other in zip(WORD.findall(old), WORD.findall(new), strict=True):
                assert names.setdefault(word, other) == other
        changed = {word for word, other in names.items() if word != other}
        assert changed <= {*NOUNS, "Rome", "Oslo", "Lima"}
        assert len(set(names.values())) == len(names)
        assert all(word[0].isupper() == other[0].isupper() for word, other in names.items())
        assert after.tools == before.tools
        assert after.messages[2]["tool_calls"][0]["id"] == "ships"  # ids are no text
        assert [m["role"] for m in after.messages] == [m["role"] for m in before.messages]


def test_made_up_words_outnumber_the_old_ones(conversations: list[Conversation]) -> None:
    renamer = Renamer(conversations, rare=0.5, share=1.0)
    rng = random.Random(0)
    nouns = [texts(renamer.rename(item, rng))[1].split()[1].rstrip(":") for item in conversations]
    assert sum(noun not in NOUNS for noun in nouns) > len(nouns) / 2
    assert len(set(nouns)) > 20


def test_words_that_turns_do_not_repeat_keep_their_meaning(conversations: list[Conversation]) -> None:
    rare_word = replace(
        conversations[0],
        messages=[
            message | {"content": message["content"].replace("over", "beyond")} for message in conversations[0].messages
        ],
    )
    renamer = Renamer([*conversations, rare_word], rare=0.5, share=1.0)
    assert all("beyond" in texts(renamer.rename(rare_word, random.Random(seed)))[1] for seed in range(20))


def test_frequent_words_and_a_share_of_none_change_nothing(conversations: list[Conversation]) -> None:
    for renamer in (Renamer(conversations, rare=0.0, share=1.0), Renamer(conversations, rare=0.5, share=0.0)):
        assert [renamer.rename(item, random.Random(0)) for item in conversations] == conversations


def test_the_same_random_numbers_give_the_same_names(conversations: list[Conversation]) -> None:
    renamer = Renamer(conversations, rare=0.5)
    assert renamer.rename(conversations[0], random.Random(5)) == renamer.rename(conversations[0], random.Random(5))
