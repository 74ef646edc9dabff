"""The generated samples: the same everywhere, apart by theme, and not to be had by guessing."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from agentbench_fc.episode import Sample
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.db.backend import Table
from agentbench_fc.tasks.db.generate import LEVELS, SIZES, make_sample, run_plan
from agentbench_fc.tasks.db.sqlite import SqliteDatabase
from agentbench_fc.tasks.db.themes import SPLITS, themes

KINDS = {
    "lookup", "counting", "comparison", "ranking", "aggregation-SUM", "aggregation-MIN", "aggregation-MAX",
    "aggregation-AVG", "INSERT", "UPDATE", "DELETE",
}  # fmt: skip


@pytest.fixture(scope="module")
def held_out() -> list[Sample]:
    task = load_task("db")
    return [*task.samples("dev"), *task.samples("test")]


def test_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "import hashlib; from agentbench_fc.tasks.db.generate import make_split, make_sample\n"
        "print(hashlib.sha256(make_split('dev')).hexdigest()); print(make_sample('train', 3999))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "4711"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    digest, sample = run.stdout.splitlines()
    manifest = json.loads((tasks_root() / "db" / "manifest.json").read_text())
    assert digest == manifest["files"]["dev.jsonl"]
    assert sample == str(make_sample("train", 3999))
    assert set(manifest["files"]) == {f"{split}.jsonl" for split in SIZES}


def test_the_shipped_samples_are_those_of_the_generator() -> None:
    lines = (tasks_root() / "db" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [make_sample("dev", n) for n in range(len(lines))]


@pytest.mark.full
@pytest.mark.parametrize("split", SIZES)
def test_every_split_is_that_of_the_manifest(split: str) -> None:
    from agentbench_fc.tasks.db.generate import make_split

    manifest = json.loads((tasks_root() / "db" / "manifest.json").read_text())
    assert hashlib.sha256(make_split(split)).hexdigest() == manifest["files"][f"{split}.jsonl"]


def test_no_theme_is_in_two_splits() -> None:
    nouns = {split: {theme.noun for theme in themes(split)} for split in SPLITS}
    assert sum(map(len, nouns.values())) == len(set.union(*nouns.values())) >= 60
    assert len(nouns["train"]) >= 40
    used = {split: {_noun(make_sample(split, n)) for n in range(60)} for split in SPLITS}
    assert all(used[split] <= nouns[split] for split in SPLITS)


def _noun(sample: dict[str, object]) -> str:
    tables = sample["tables"]
    assert isinstance(tables, list)
    known = {theme.noun for split in SPLITS for theme in themes(split)}
    return next(table["name"].split("_")[0] for table in tables if table["name"].split("_")[0] in known)


def test_levels_kinds_and_discovery(held_out: Sequence[Sample]) -> None:
    levels = Counter(sample.data["level"] for sample in held_out)
    assert set(levels) == set(LEVELS)
    assert {sample.data["kind"] for sample in held_out} == KINDS
    several = sum(sample.data["min_statements"] >= 2 for sample in held_out)
    assert several >= 0.3 * len(held_out)
    for sample in held_out:
        hidden = not sample.data["shown"]
        names = [table["name"] for table in sample.data["tables"]]
        assert hidden is (sample.data["level"] == "hard")
        assert not hidden or not any(name in sample.data["question"] for name in names)


def test_a_third_of_the_easy_samples_needs_two_statements(held_out: Sequence[Sample]) -> None:
    easy = [sample for sample in held_out if sample.data["level"] == "easy"]
    double = [sample for sample in easy if sample.data["min_statements"] == 2]
    assert 0.3 <= len(double) / len(easy) <= 0.5
    for sample in double:
        database = SqliteDatabase([Table.from_data(table) for table in sample.data["tables"]])
        change, question = sample.data["plan"]
        assert run_plan(database, (question,)) != sample.data["gold"]  # the change cannot be left out
        assert run_plan(database, (change, question)) == sample.data["gold"]
        database.close()


def test_tables_have_the_promised_shape(held_out: Sequence[Sample]) -> None:
    for sample in held_out:
        main = max(sample.data["tables"], key=lambda table: len(table["rows"]))
        assert 3 <= len(main["columns"]) <= 8
        assert 8 <= len(main["rows"]) <= 40
        assert len({row[0] for row in main["rows"]}) == len(main["rows"])


def test_gold_is_what_the_statements_give(held_out: Sequence[Sample]) -> None:
    for sample in held_out[::9]:
        database = SqliteDatabase([Table.from_data(table) for table in sample.data["tables"]])
        cells = run_plan(database, tuple(sample.data["plan"]))
        database.close()
        assert sample.data["gold"] is None or cells == sample.data["gold"]


def test_no_constant_answer_pays(held_out: Sequence[Sample]) -> None:
    for level in (None, *LEVELS):
        kept = [s for s in held_out if level in {None, s.data["level"]}]
        answers = Counter(json.dumps(sorted(map(str, s.data["gold"]))) for s in kept if s.data["gold"] is not None)
        answer, count = answers.most_common(1)[0]
        print(f"db {level or 'all'}: best constant answer {answer}: {count}/{len(kept)} = {count / len(kept):.1%}")
        assert count / len(kept) < 0.05


def test_easy_prompts_are_short() -> None:
    task = load_task("db", prompt="compact", level="easy")
    for sample in task.samples("dev"):
        episode = task.open(sample, 0)
        text = " ".join(str(message["content"]) for message in episode.start())
        episode.close()
        assert len(text.split()) < 60
