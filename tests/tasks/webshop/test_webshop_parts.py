"""Words, stems, ranks, prices and fuzzy matches, each against its definition."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.webshop.analyzer import analyze, tokenize
from agentbench_fc.tasks.webshop.convert import stream_array, stream_object
from agentbench_fc.tasks.webshop.fuzzy import token_set_ratio
from agentbench_fc.tasks.webshop.index import K1, B, Index, _one_byte, write_index
from agentbench_fc.tasks.webshop.prepare import read_prices
from agentbench_fc.tasks.webshop.stemmer import stem


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("can't stop", ["can't", "stop"]),
        ("3.5oz 1,000 e-mail a_b", ["3.5oz", "1,000", "e", "mail", "a_b"]),
        ("ok. U.S.A. 10.5\u2019s", ["ok", "U.S.A", "10.5", "s"]),
        ("60x40x40cm 1/2 50%", ["60x40x40cm", "1", "2", "50"]),
        ("red\u2764\ufe0f\U0001f338 \U0001f468\u200d\U0001f469", ["red", "\u2764\ufe0f", "\U0001f338"]),
        ("\u9505\u5df4 \u30ab\u30e1\u30e9", ["\u9505", "\u5df4", "\u30ab\u30e1\u30e9"]),
        ("\xbd cup m\xb2", ["cup", "m"]),
        ("___ _", []),
    ],
)
def test_words_break_where_unicode_says(text: str, tokens: list[str]) -> None:
    assert tokenize(text)[: len(tokens)] == tokens


def test_a_run_longer_than_255_is_cut() -> None:
    assert [len(token) for token in tokenize("x" * 600)] == [255, 255, 90]


def test_stop_words_and_possessives_go() -> None:
    assert analyze("The Women's AND the men\u2019s") == ["women", "men"]
    assert analyze("") == analyze("the of and") == analyze("!!!") == []


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("feed", "feed"), ("agreed", "agre"),
        ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("hopping", "hop"),
        ("falling", "fall"), ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"),
        ("conditional", "condit"), ("digitizer", "digit"), ("possibly", "possibl"), ("radically", "radic"),
        ("vietnamization", "vietnam"), ("hopefulness", "hope"), ("formality", "formal"), ("technology", "technolog"),
        ("triplicate", "triplic"), ("electrical", "electr"), ("goodness", "good"), ("revival", "reviv"),
        ("adjustment", "adjust"), ("adoption", "adopt"), ("probate", "probat"), ("rate", "rate"),
        ("controll", "control"), ("roll", "roll"), ("is", "is"), ("", ""),
    ],
)  # fmt: skip
def test_stems_are_porters(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


def test_lengths_are_lucenes_one_byte_values() -> None:
    assert _one_byte(np.arange(41)).tolist() == list(range(41))  # exact up to 40
    assert _one_byte(np.array([41, 57, 58, 100, 1000, 100_000])).tolist() == [40, 56, 56, 96, 984, 98328]


documents = st.lists(
    st.lists(st.sampled_from("red blue shoe shoes running lamp table 12 ounce x".split()), max_size=60).map(" ".join),
    min_size=1,
    max_size=80,
)
queries = st.lists(st.sampled_from("red blue shoe running lamp table absent the".split()), max_size=6).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(documents, st.lists(queries, min_size=1, max_size=5), st.integers(1, 60), st.integers(1, 400))
def test_search_is_the_slow_definition_of_bm25(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], asked: list[str], top: int, chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    ids = [f"B{n * 7919 % 1000:09d}" for n in range(len(texts))]
    write_index(folder, texts, ids, chunk=chunk)
    index = Index(folder)
    terms = [Counter(analyze(text)) for text in texts]
    lengths = np.array([sum(counts.values()) for counts in terms])
    average = np.float32(lengths.sum() / len(texts))
    norm = (np.float32(1) / (K1 * ((1 - B) + B * _one_byte(lengths) / average))).astype(np.float32) if average else []
    for query in asked:
        scores = [0.0] * len(texts)
        for term, boost in sorted(Counter(analyze(query)).items(), key=lambda item: item[0].encode()):
            frequency = sum(term in counts for counts in terms)
            if not frequency:
                continue
            idf = np.float32(math.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5)))
            for n, counts in enumerate(terms):
                if term in counts:
                    weight = idf - idf / (np.float32(1) + np.float32(counts[term]) * norm[n])
                    scores[n] += float(weight) * boost
        matches = [n for n in range(len(texts)) if scores[n] > 0]
        matches.sort(key=lambda n: (-np.float32(scores[n]), ids[n]))
        assert index.search(query, top) == matches[:top]


def test_pruning_leaves_the_best_untouched(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"w{n}" for n in range(60)]
    weights = [1 / (n + 1) for n in range(60)]
    texts = [" ".join(rng.choices(words, weights, k=rng.randint(5, 60))) for _ in range(3000)]
    write_index(tmp_path, texts, [f"{n:05d}" for n in range(3000)])
    index = Index(tmp_path)
    for _ in range(100):
        query = " ".join(rng.sample(words, 6))
        assert index.search(query, 50) == index.search(query, 3000)[:50]


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("", (100.0,), "$100.0"),
        ("$319", (319.0,), "$319.0"),
        ("$1,200.00", (1200.0,), "$1200.0"),
        ("$23.99 - $21.59", (23.99, 21.59), "$23.99 to $21.59"),
        ("from $3 to $4 or $5", (3.0, 4.0), "$3.0 to $4.0"),
        ("free", (100.0,), "$100.0"),
        ("$", (100.0,), "$100.0"),
        ("$1.2.3", (100.0,), "$100.0"),
    ],
)
def test_prices_are_read_as_the_original_reads_them(pricing: str, prices: tuple[float, ...], tag: str) -> None:
    assert read_prices(pricing) == (prices, tag)


@given(st.text(max_size=30), st.text(max_size=30))
def test_fuzzy_matches_are_percentages_and_know_their_words(first: str, second: str) -> None:
    assert 0 <= token_set_ratio(first, second) <= 100
    if any(word.isascii() and word.isalnum() for word in first.split()):
        assert token_set_ratio(first, f"{first} {second}") == 100


def test_a_text_without_words_matches_nothing() -> None:
    assert token_set_ratio("!!!", "!!!") == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(json_values), st.dictionaries(st.text(max_size=4), json_values), st.integers(1, 40), st.booleans())
def test_streaming_reads_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, array: list[object], mapping: dict[str, object], chunk: int, indent: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentbench_fc.tasks.webshop.convert._CHUNK", chunk)
        path.write_text(json.dumps(array, indent=1 if indent else None))
        assert list(stream_array(path)) == array
        path.write_text(json.dumps(mapping, indent=1 if indent else None))
        assert dict(stream_object(path)) == mapping


@pytest.mark.parametrize("content", ["", "{}", '[{"a": 1}', '[{"a": 1}, {"b"', "[nothing]"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "items.json"
    path.write_text(content)
    with pytest.raises(TaskError, match=r"items\.json"):
        list(stream_array(path))
