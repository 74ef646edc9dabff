"""Renames the rare words of a conversation, so that a model has to copy them instead of knowing them by heart.

The tables and entities of held-out samples have names that no demonstration has. A tiny model that only ever saw some
fifty nouns learns those; one that meets each question with ever new nouns, most of them spelt in several tokens, learns
to read the noun that stands there.

Not here: where conversations come from (demonstrations.py).
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agentrl_trainer.warmstart import Conversation

WORD = re.compile(r"[A-Za-z_]+")
SHORTEST, LONGEST = 3, 9
"""Letters of a made-up word."""
REPEATED = 0.1
"""A word is one to be copied if turns repeat it in more than this share of the conversations that open with it."""


class Renamer:
    """Knows which words of a set of conversations are rare."""

    def __init__(self, conversations: Sequence[Conversation], *, rare: float = 0.04, share: float = 0.7) -> None:
        """Counts words. Only those are renamed that turns repeat: "over" in a question must go on meaning `>`.

        Args:
            conversations: All of them.
            rare: A word of fewer conversations than this share is rare.
            share: Probability that a rare word of an opening message is renamed.
        """
        counts = Counter(word for conversation in conversations for word in _words(conversation))
        fixed = {w for c in conversations for tool in c.tools for w in WORD.findall(str(tool))}
        most = rare * len(conversations)
        opening = Counter(word for c in conversations for word in _opening_words(c))
        repeated = Counter(word for c in conversations for word in _turn_words(c).intersection(_opening_words(c)))
        self._rare = sorted(
            word
            for word in opening
            if counts[word] < most
            and repeated[word] > REPEATED * opening[word]
            and word not in fixed
            and len(word) >= SHORTEST
        )
        self._known = set(self._rare)
        self._share = share

    def rename(self, conversation: Conversation, rng: random.Random) -> Conversation:
        """The conversation with some rare words of its opening replaced everywhere by others, old or made up."""
        taken = _words(conversation)
        names: dict[str, str] = {}
        for word in _opening_words(conversation):
            if word in self._known and rng.random() < self._share:
                new = self._made_up(rng) if rng.random() < 0.7 else rng.choice(self._rare)
                new = new.capitalize() if word[0].isupper() else new.lower()
                if new not in taken:
                    names[word] = new
                    taken.add(new)

        def swap(text: str) -> str:
            return WORD.sub(lambda match: names.get(match[0], match[0]), text)

        return replace(conversation, messages=[_map_texts(message, swap) for message in conversation.messages])

    def _made_up(self, rng: random.Random) -> str:
        """The beginning of one rare word and the end of another: it looks like a word and is none."""
        first, second = rng.choice(self._rare), rng.choice(self._rare)
        word = first[: rng.randint(1, len(first))] + second[rng.randint(0, len(second) - 1) :]
        return word[:LONGEST] if len(word) >= SHORTEST else first


def _opening_words(conversation: Conversation) -> list[str]:
    """Words of the user's messages before the first turn, each once, in order."""
    words: dict[str, None] = {}
    for message in conversation.messages:
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            words |= dict.fromkeys(WORD.findall(message["content"]))
    return list(words)


def _turn_words(conversation: Conversation) -> set[str]:
    return _words(conversation, [message for message in conversation.messages if message["role"] == "assistant"])


def _words(conversation: Conversation, messages: Sequence[dict[str, Any]] | None = None) -> set[str]:
    words: set[str] = set()

    def collect(text: str) -> str:
        words.update(WORD.findall(text))
        return text

    for message in conversation.messages if messages is None else messages:
        _map_texts(message, collect)
    return words


def _map_texts(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """A message with its content and call arguments changed; roles, ids and tool names stay."""
    if isinstance(value, dict):
        return {k: _map_texts(v, change, k if key != "arguments" else key) for k, v in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change, key) for item in value]
    return change(value) if isinstance(value, str) and key in {"content", "arguments"} else value
