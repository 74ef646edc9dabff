"""Generated samples: the manifest, their spread, what no constant answer earns, and what keeps the splits apart."""

import hashlib
import json
import re
from collections import Counter
from typing import Any

import pytest

from agentbench_fc.tasks.os import generate
from agentbench_fc.tasks.os.checks import match_passes
from agentbench_fc.tasks.os.generate_world import _PEOPLE, _WORDS, share
from agentbench_fc.tasks.os.phrases import PHRASES
from agentbench_fc.tasks.os.state import KINDS

SPLITS = list(generate.SIZES)


@pytest.fixture(scope="module")
def made() -> dict[str, list[dict[str, Any]]]:
    return {split: [json.loads(line) for line in generate.make_split(split).decode().splitlines()] for split in SPLITS}


def test_there_are_a_thousand_samples_and_more(made: dict[str, list[dict[str, Any]]]) -> None:
    assert {split: len(rows) for split, rows in made.items()} == generate.SIZES
    assert sum(generate.SIZES.values()) >= 1_000
    setups = [row["init"][0]["code"] for rows in made.values() for row in rows]
    assert len(set(setups)) == len(setups)


@pytest.mark.parametrize("split", SPLITS)
def test_levels_and_families_are_even(made: dict[str, list[dict[str, Any]]], split: str) -> None:
    pairs = Counter((row["level"], row["family"]) for row in made[split])
    assert set(pairs) == {(level, family) for level in generate.LEVELS for family in generate.FAMILIES}
    assert len(set(pairs.values())) == 1


def test_every_kind_of_problem_occurs_and_has_its_wordings(made: dict[str, list[dict[str, Any]]]) -> None:
    names = [template.name for template in generate.TEMPLATES]
    assert len(set(names)) == len(names)
    assert set(PHRASES) == set(names)
    assert all(len(set(texts)) >= 2 for texts in PHRASES.values())
    unseen = {template.name for template in generate.TEMPLATES if template.unseen}
    assert {row["template"] for row in made["train"]} == set(names) - unseen
    assert {row["template"] for split in ("dev", "test") for row in made[split]} == set(names)
    assert {row["family"] for row in made["dev"] + made["test"] if row["unseen"]} == set(generate.FAMILIES)


def test_a_sample_depends_on_its_split_and_number_alone(made: dict[str, list[dict[str, Any]]]) -> None:
    for split, number in (("train", 1234), ("dev", 7), ("test", 100)):
        assert json.loads(json.dumps(generate.make_sample(split, number))) == made[split][number]


@pytest.mark.parametrize("split", SPLITS)
def test_no_constant_answer_pays(made: dict[str, list[dict[str, Any]]], split: str) -> None:
    rows = made[split]
    answers = Counter(row["match"]["answer"] for row in rows if row["match"])
    frequent = [answer for answer, _ in answers.most_common(20)]
    for level in (None, *generate.LEVELS):
        asked = [row for row in rows if level in {None, row["level"]}]
        best = max(sum(match_passes(row["match"], a) for row in asked if row["match"]) for a in frequent)
        assert best < 0.03 * len(asked), (level, best)
    questions = [row for row in rows if row["match"]]
    assert answers.most_common(1)[0][1] < 0.03 * len(questions)


@pytest.mark.parametrize("split", SPLITS)
def test_a_sample_asks_for_an_answer_or_for_a_state(made: dict[str, list[dict[str, Any]]], split: str) -> None:
    for row in made[split]:
        assert (row["match"] is None) == bool(row["checks"])
        assert row["plan"]
        for step in row["checks"]:
            assert step["kind"] == "state"
            assert {condition["kind"] for condition in step["conditions"]} <= set(KINDS)
            assert step["conditions"]


@pytest.mark.parametrize("split", SPLITS)
def test_no_plan_knows_the_answer(made: dict[str, list[dict[str, Any]]], split: str) -> None:
    """Short numbers may occur in a plan by chance; tokens and names may not."""
    for row in made[split]:
        answer = row["match"] and row["match"]["answer"]
        if answer and not answer.isdigit():
            assert not any(answer in command for command in row["plan"]), row["template"]
            assert answer not in row["question"], row["template"]


def test_the_splits_share_no_words() -> None:
    for words in (_WORDS, _PEOPLE):
        parts = [share(words, split) for split in SPLITS]
        assert sorted(word for part in parts for word in part) == sorted(words)


def test_the_splits_share_no_place(made: dict[str, list[dict[str, Any]]]) -> None:
    def words(rows: list[dict[str, Any]]) -> set[str]:
        code = " ".join(row["init"][0]["code"] for row in rows)
        return set(re.findall(r"[a-z]+", code)) & set(_WORDS)

    train, dev, test = (words(made[split]) for split in ("train", "dev", "test"))
    assert not train & (dev | test)
    assert not dev & test


def test_the_manifest_is_of_this_generator(made: dict[str, list[dict[str, Any]]]) -> None:
    from agentbench_fc.registry import tasks_root

    folder = tasks_root() / "os"
    listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert listed == {f"{split}.jsonl": hashlib.sha256(generate.make_split(split)).hexdigest() for split in SPLITS}
    shown = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert shown == made["dev"][: len(shown)]
    assert len(shown) >= 3
