"""The generated world and its questions: the same everywhere, fair, and apart from each other."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kg_toys import SlowGraph, read_ntriples

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.players import make_player, play
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.kg import generate, questions
from agentbench_fc.tasks.kg.expressions import And, Entity, Expr, Join, topics
from agentbench_fc.tasks.kg.generate import QUESTIONS, DataSet, generated_world, graph_questions, lines, write_manifest
from agentbench_fc.tasks.kg.plans import expression
from agentbench_fc.tasks.kg.questions import MAX_ANSWER, make_split
from agentbench_fc.tasks.kg.readers import read_table
from agentbench_fc.tasks.kg.world import build, read_recipe

FOLDER = tasks_root() / "kg"
SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def data() -> DataSet:
    return generated_world(FOLDER)[0]


@pytest.fixture(scope="module")
def rows(data: DataSet) -> dict[str, list[dict[str, Any]]]:
    return {split: [dict(row) for _, row in data.rows(split)] for split in SPLITS}


@pytest.fixture(scope="module")
def slow(data: DataSet) -> SlowGraph:
    return SlowGraph(read_ntriples(data.graph().read_text(encoding="utf-8").splitlines()))


def test_another_process_makes_the_same_bytes() -> None:
    code = (
        "import hashlib; from agentbench_fc.registry import tasks_root;"
        "from agentbench_fc.tasks.kg.generate import lines; from agentbench_fc.tasks.kg.questions import make_split;"
        "from agentbench_fc.tasks.kg.world import build, read_recipe;"
        "world = build(read_recipe(tasks_root() / 'kg' / 'world.yaml'), size=500, seed=3);"
        "text = lines(world.to_ntriples()) + repr(make_split(world, 'dev', size=60, seed=3)).encode();"
        "print(hashlib.sha256(text).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    world = build(read_recipe(FOLDER / "world.yaml"), size=500, seed=3)
    text = lines(world.to_ntriples()) + repr(make_split(world, "dev", size=60, seed=3)).encode()
    assert other.stdout.strip() == hashlib.sha256(text).hexdigest()


def test_the_files_in_the_cache_are_those_of_the_manifest(data: DataSet) -> None:
    for split in SPLITS:
        data.rows(split)
    listed = json.loads((FOLDER / "manifest.json").read_text())["files"]
    place = data.graph().parent
    assert {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in listed} == listed


def test_another_seed_is_another_world() -> None:
    recipe = read_recipe(FOLDER / "world.yaml")
    one, two = (build(recipe, size=600, seed=seed) for seed in (0, 1))
    assert one.edges != two.edges
    assert list(one.names.values()) != list(two.names.values())


def test_names_are_single_different_words_and_links_have_a_way_back(data: DataSet) -> None:
    world = data.world
    names = list(world.names.values())
    assert len(set(names)) == len(names)
    assert all(name.isascii() and name.isalpha() and len(name) <= 6 for name in names)
    for link in world.recipe.links.values():
        for subject, objects in world.edges[link.name].items():
            assert all(subject in world.edges[link.reverse][target] for target in objects)


def test_lists_have_5_to_30_relations_and_values_are_tied_and_missing(slow: SlowGraph, data: DataSet) -> None:
    world = data.world
    leaving = Counter(subject for subject, predicate in slow.out if predicate in world.recipe.schema.relations)
    lengths = [leaving[e] for kind, ids in world.types.items() if not kind.startswith("common.") for e in ids]
    assert sum(5 <= n <= 30 for n in lengths) >= 0.9 * len(lengths)
    assert max(lengths) <= 30
    for attribute in world.recipe.attributes.values():
        values = world.values[attribute.name]
        of = world.types[attribute.of]
        assert 0 < len(values) < len(of)
    assert any(len(set(values.values())) < len(values) for values in world.values.values())


def test_there_are_enough_of_each_level(rows: dict[str, list[dict[str, Any]]]) -> None:
    assert {split: len(made) for split, made in rows.items()} == QUESTIONS
    for made in rows.values():
        levels = Counter(row["level"] for row in made)
        assert set(levels) == {"easy", "medium", "hard"}
        assert min(levels.values()) == len(made) // 3
    for split in ("dev", "test"):
        assert sum(row["calls"] >= 4 for row in rows[split]) >= 0.3 * len(rows[split])


def test_no_entity_begins_questions_of_two_splits(rows: dict[str, list[dict[str, Any]]]) -> None:
    begun = {split: {e for row in made for e in row["entities"].values()} for split, made in rows.items()}
    assert begun["train"].isdisjoint(begun["dev"] | begun["test"])
    assert begun["dev"].isdisjoint(begun["test"])


def test_some_shapes_are_only_met_after_training(rows: dict[str, list[dict[str, Any]]]) -> None:
    shapes = {split: {row["shape"] for row in made} for split, made in rows.items()}
    for split in ("dev", "test"):
        unseen = {row["shape"] for row in rows[split] if row["unseen_shape"]}
        assert unseen == shapes[split] - shapes["train"]
        assert len(unseen) >= 4


def test_questions_differ_and_name_their_entities(rows: dict[str, list[dict[str, Any]]]) -> None:
    everything = [row for made in rows.values() for row in made]
    assert len({row["s_expression"] for row in everything}) == len(everything)
    for row in everything:
        assert all(name in row["question"] for name in row["entities"])
        assert "{" not in row["question"]


def test_easy_questions_name_the_relations_in_the_order_of_the_calls(rows: dict[str, list[dict[str, Any]]]) -> None:
    easy = [row for row in rows["train"] if row["level"] == "easy"]
    for row in easy:
        followed = [a.split(",")[1].rstrip(")").split(".")[-1] for a in row["actions"] if a.startswith("get_neigh")]
        (name,) = row["entities"]
        assert row["question"] == f"From {name} follow {' then '.join(followed)}."
        assert 1 <= len(followed) <= 2
    assert len({a.split(",")[1] for row in easy for a in row["actions"] if "," in a}) <= 15


def test_gold_answers_are_what_the_triples_say(rows: dict[str, list[dict[str, Any]]], slow: SlowGraph) -> None:
    for made in rows.values():
        for row in made[::4]:
            expr = expression(row["actions"])
            assert expr.to_lisp() == row["s_expression"]
            assert list(row["entities"].values()) == list(topics(expr))
            answer = {part["answer_argument"] for part in row["answer"]}
            assert slow.members(expr) == answer
            assert 1 <= len(answer) <= MAX_ANSWER


def sides(expr: Expr) -> list[Expr]:
    return sides(expr.left) + sides(expr.right) if isinstance(expr, And) else [expr]


def parts(expr: Expr) -> list[Expr]:
    if isinstance(expr, Entity):
        return []
    return [expr, *(p for of in ([expr.left, expr.right] if isinstance(expr, And) else [expr.of]) for p in parts(of))]


def test_no_side_of_an_intersection_is_idle(rows: dict[str, list[dict[str, Any]]], slow: SlowGraph) -> None:
    meetings = [
        part
        for made in rows.values()
        for row in made[::3]
        for part in parts(expression(row["actions"]))
        if isinstance(part, And)
    ]
    assert len(meetings) > 200
    for part in meetings:
        members = slow.members(part)
        assert all(len(slow.members(side)) > len(members) for side in sides(part))


def test_no_shorter_chain_gives_the_same_set(rows: dict[str, list[dict[str, Any]]], slow: SlowGraph) -> None:
    """Every chain of one or two relations from the entities, tried out one by one."""
    leaving: dict[str, list[str]] = {}
    for subject, predicate in slow.out:
        leaving.setdefault(subject, []).append(predicate)

    def chains(start: Expr, hops: int) -> list[Expr]:
        if not hops:
            return []
        relations = {p for member in slow.raw(start) for p in leaving.get(member, [])}
        longer = [Join(relation, start) for relation in sorted(relations)]
        return longer + [c for chain in longer for c in chains(chain, hops - 1)]

    checked = [row for row in rows["test"] if row["shape"][0] in "234a"][:120]
    for row in checked:
        expr = expression(row["actions"])
        answer = {part["answer_argument"] for part in row["answer"]}
        for topic in topics(expr):
            shorter = chains(Entity(topic), min((len(row["actions"]) - 1) // 2, 2))
            assert all(slow.members(chain) != answer for chain in shorter), row["question"]


def test_no_answer_is_frequent(rows: dict[str, list[dict[str, Any]]]) -> None:
    for made in rows.values():
        for level in ("easy", "medium", "hard"):
            answers = Counter(
                frozenset(part["answer_argument"] for part in row["answer"]) for row in made if row["level"] == level
            )
            assert answers.most_common(1)[0][1] <= 0.02 * sum(answers.values())


@pytest.mark.parametrize("size", [0, -1, 499, 10**9])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(CallerError, match="size is"):
        load_task("kg", size=size)


def test_a_world_too_small_for_so_many_questions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "TRIES", 50)
    world = build(read_recipe(FOLDER / "world.yaml"), size=500, seed=0)
    world.edges = {name: {} for name in world.edges}
    with pytest.raises(TaskError, match="Make the world larger"):
        make_split(world, "dev", size=30, seed=0)
    assert make_split(world, "dev", size=30, seed=0, fewer=True) == []


def test_a_changed_recipe_does_not_pass_for_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "kg"
    folder.mkdir()
    text = (FOLDER / "world.yaml").read_text().replace("law: [2, 4]", "law: [2, 5]", 1)
    (folder / "world.yaml").write_text(text)
    (folder / "manifest.json").write_bytes((FOLDER / "manifest.json").read_bytes())
    with pytest.raises(TaskError, match="does not match its manifest"):
        generated_world(folder)[0].graph()


def test_questions_about_a_table_hold_in_its_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(questions, "TRIES", 200)
    rng = random.Random(0)
    people, towns = [f"m.p{n}" for n in range(80)], [f"m.t{n}" for n in range(12)]
    triples = [(p, "/people/person/lives_in", rng.choice(towns)) for p in people]
    triples += [(p, "/people/person/works_in./work/job/place", rng.choice(towns)) for p in people]
    triples += [(t, "/location/town/twin", rng.choice(towns)) for t in towns]
    table = tmp_path / "made_up.tsv"
    table.write_bytes(lines("\t".join(triple) for triple in triples))
    (tmp_path / "made_up_names.tsv").write_bytes(lines(f"{e}\tName {e[2:]}" for e in (*people[:70], *towns)))
    data, schema = graph_questions(table)
    assert "people.person.works_in..work.job.place" in schema.relations
    slow = SlowGraph((s, r, o) for s, r, o in read_table(table, {}))
    rows = [row for _, row in data.rows("train")]
    assert len(rows) > 100
    assert {"1", "2", "and(1,1)", "count(1)"} <= {row["shape"] for row in rows}
    for row in rows:
        assert slow.members(expression(row["actions"])) == {part["answer_argument"] for part in row["answer"]}
        assert all(name in row["question"] for name in row["entities"])
    task = load_task("kg", graph=table)
    expert = make_player("expert", task)
    assert all(play(task, sample, expert).raw_reward == 1.0 for sample in task.samples("dev")[:20])


def spoil(cache: Path) -> None:
    """Leaves questions of nobody in all files of questions that a cache has."""
    for file in cache.rglob("*.jsonl"):
        file.write_bytes(lines([json.dumps({"question": "stale"})]))


def other_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the generator is one whose code differs in a comment."""
    code = tmp_path / "code"
    code.mkdir()
    for file in Path(generate.__file__).parent.glob("*.py"):
        (code / file.name).write_bytes(file.read_bytes())
    with (code / "walk.py").open("a") as file:
        file.write("# another version\n")
    monkeypatch.setattr(generate, "__file__", str(code / "generate.py"))


def test_questions_of_another_generator_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(questions, "TRIES", 50)
    table = tmp_path / "made_up.tsv"
    table.write_bytes(lines(f"m.p{n}\t/people/person/lives_in\tm.t{n % 7}" for n in range(40)))
    (tmp_path / "names.tsv").write_bytes(
        lines([*(f"m.p{n}\tP{n}" for n in range(40)), *(f"m.t{n}\tT{n}" for n in range(7))])
    )

    def asked() -> tuple[list[Any], list[Any]]:
        data = graph_questions(table)[0], generated_world(FOLDER, size=500, seed=3)[0]
        return data[0].rows("dev"), data[1].rows("dev")

    fresh = asked()
    assert all(rows and rows[0][1]["question"] != "stale" for rows in fresh)
    spoil(tmp_path / "cache")
    assert [rows[0][1]["question"] for rows in asked()] == ["stale", "stale"]  # the same code reads what it has made
    other_generator(tmp_path, monkeypatch)
    assert asked() == fresh


def test_files_of_a_table_lie_apart_by_everything_that_shapes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, names = tmp_path / "graph.tsv", tmp_path / "names.tsv"
    first, second = (f"m.p{n}\t/people/person/lives_in\tm.t1" for n in range(2))
    places = []

    def note() -> None:
        places.append(graph_questions(table)[0]._place)

    table.write_text(f"{first}\n")
    note()
    names.write_text("m.p0\tP\n")
    note()
    table.write_text(f"{first}\n{second}\n")
    note()
    places.append(graph_questions(table, seed=1)[0]._place)
    monkeypatch.setitem(generate.GRAPH_QUESTIONS, "dev", 5)
    note()
    monkeypatch.undo()
    names.write_text("")
    note()
    table.write_text(f"{first}\n")
    names.write_text(f"{second}\n")  # the same bytes in all, but a line has gone to the other file
    note()
    assert len(set(places)) == len(places) == 7


@pytest.mark.full
def test_the_manifest_is_rewritten_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "world.yaml").write_bytes((FOLDER / "world.yaml").read_bytes())
    write_manifest(tmp_path)
    for name in ("manifest.json", "samples.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.full
def test_a_large_world_is_made_within_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    start = time.process_time()
    task = load_task("kg", size=20_000)
    questions = sum(len(task.samples(split)) for split in SPLITS)
    assert time.process_time() - start < 60
    assert questions >= 10_000
    assert task._rules.backend._triples >= 150_000  # type: ignore[attr-defined]
    expert = make_player("expert", task)
    assert all(play(task, sample, expert).raw_reward == 1.0 for sample in task.samples("test")[:300])
    task.close()
