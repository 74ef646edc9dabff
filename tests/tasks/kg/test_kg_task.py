"""The task as it is loaded: players, profiles, options, and other people's files."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kg_toys import FILMS, ntriples

from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError, NotFound
from agentbench_fc.messages import tool_name
from agentbench_fc.players import best_constant, make_player, play
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.kg.expressions import Entity, Join
from agentbench_fc.tasks.kg.plans import expression
from agentbench_fc.tasks.kg.readers import read_faults, read_ontology, read_reverses, read_table

LEVELS = ("easy", "medium", "hard")
SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("kg")


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_wins_at_every_level(task: Task, split: str) -> None:
    expert = make_player("expert", task)
    won, played = Counter[str](), Counter[str]()
    for sample in task.samples(split)[:90]:
        session = play(task, sample, expert)
        assert session.turn == sample.data["calls"]
        won[sample.data["level"]] += session.raw_reward == 1.0
        played[sample.data["level"]] += 1
    assert min(played[level] for level in LEVELS) >= 20
    assert all(won[level] >= 0.99 * played[level] for level in LEVELS)


@pytest.mark.parametrize("prompt", ["default", "compact"])
def test_the_expert_wins_in_agentbenchs_profile_in_words(prompt: str) -> None:
    task = load_task("kg", profile="agentbench", prompt=prompt)
    assert [tool_name(tool) for tool in task.spec.tools][-1] == "count"
    expert = make_player("expert", task)
    sessions = [play(task, sample, expert) for sample in task.samples("dev")[:60]]
    assert all(session.raw_reward == 1.0 for session in sessions)
    assert all(not session.log[-1].sent[0].get("tool_calls") for session in sessions)


def test_nothing_comes_from_nothing(task: Task) -> None:
    noop, chance = make_player("noop", task), make_player("random", task)
    for sample in task.samples("test")[:60]:
        assert play(task, sample, noop).raw_reward == 0.0
        assert play(task, sample, chance).raw_reward == 0.0


@pytest.mark.parametrize("level", LEVELS)
def test_the_best_constant_earns_less_than_5_percent(level: str) -> None:
    task = load_task("kg", level=level)
    assert best_constant(task, split="test", limit=30).score < 0.05


def test_sessions_share_one_store_and_nothing_else(task: Task) -> None:
    expert = make_player("expert", task)
    samples = task.samples("dev")[:64]
    with ThreadPoolExecutor(8) as threads:
        sessions = list(threads.map(lambda sample: play(task, sample, expert), samples))
    assert [session.raw_reward for session in sessions] == [1.0] * 64


def test_a_closed_task_holds_no_triples() -> None:
    task = load_task("kg")
    backend = task._rules.backend  # type: ignore[attr-defined]
    begin = Entity(next(iter(task.samples("dev")[0].data["entities"].values())))
    assert backend.predicates(begin)
    task.close()
    task.close()
    assert not backend.predicates(begin)


def test_a_level_keeps_the_ids_of_its_samples() -> None:
    everything, easy = load_task("kg").samples("dev"), load_task("kg", level="easy").samples("dev")
    assert [s.id for s in easy] == [s.id for s in everything if s.data["level"] == "easy"]
    assert [s.index for s in easy] == list(range(len(easy)))


def test_compact_prompts_are_under_50_words() -> None:
    task = load_task("kg", prompt="compact")
    for sample in task.samples("train")[:300]:
        words = " ".join(str(m["content"]) for m in task.open(sample, 0).start()).split()
        assert len(words) < (15 if sample.data["level"] == "easy" else 50)


@pytest.mark.parametrize("profile", ["default", "agentbench"])
def test_the_worked_example_is_a_whole_and_true_dialogue(profile: str) -> None:
    task = load_task("kg", profile=profile, one_shot=True)
    sample = task.samples("dev")[0]
    messages = task.open(sample, 0).start()
    assert [m["role"] for m in messages[:2]] == ["system", "user"]
    assert str(messages[-1]["content"]).startswith(sample.data["question"])
    asked = [c["id"] for m in messages for c in m.get("tool_calls", [])]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == len(asked) >= 5
    assert not any("Error" in str(m["content"]) for m in messages if m["role"] == "tool")
    last = messages[-2]
    assert ("Final Answer: #2" in str(last["content"])) == (profile == "agentbench")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "endpoint"}, "go together"),
        ({"endpoint": "http://localhost:1/sparql"}, "go together"),
        ({"endpoint_graph": "http://example.org/g"}, "go together"),
        ({"backend": "endpoint", "endpoint": "localhost"}, "Give an address"),
        ({"backend": "endpoint", "endpoint": "http://localhost:99999/"}, "Give an address"),
        ({"backend": "endpoint", "endpoint": "http://h/", "on_disk": True}, "has its own graph"),
        ({"backend": "endpoint", "endpoint": "http://h/", "graph": "g.nt", "data": "d"}, "has its own graph"),
        ({"query_timeout_s": 0}, "needs less"),
        ({"query_timeout_s": 30}, "needs less"),
        ({"backend": "virtuoso"}, "no backend"),
        ({"type_check": "loose"}, "no type check"),
        ({"level": "eazy"}, "no level"),
        ({"data": "/nowhere"}, "Give graph="),
        ({"data": "/nowhere", "graph": "x.nt"}, "no such file or folder"),
        ({"graph": "/nowhere.tsv"}, "table"),
        ({"graph": "/nowhere.nt"}, "table"),
        ({"graph": "x.tsv", "size": 4000}, "generated world"),
        ({"sise": 1}, "no option"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(CallerError, match=says):
        load_task("kg", **options)


def test_an_unknown_split_names_the_known(task: Task) -> None:
    with pytest.raises(NotFound, match="dev, test, train"):
        task.samples("std")


def test_agentbench_needs_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTBENCH_DATA", raising=False)
    with pytest.raises(CallerError, match="AGENTBENCH_DATA"):
        load_task("kg", data="agentbench", graph="x.nt")


# other people's files


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up folder in AgentBench's layout, with its graph."""
    folder = tmp_path_factory.mktemp("agentbench") / "data" / "knowledgegraph"
    ontology = folder.parent.parent / "src" / "server" / "tasks" / "knowledgegraph" / "ontology"
    folder.mkdir(parents=True)
    ontology.mkdir(parents=True)
    row = {
        "question": "which films did ann direct with bob?",
        "qid": "1_made_up",
        "entities": {"Ann": "m.ann", "Bob": "m.bob"},
        "actions": [
            "get_relations(m.ann)",
            "get_neighbors(m.ann,film.director.film)",
            "get_relations(m.bob)",
            "get_neighbors(m.bob,film.actor.film)",
            "intersection(#0,#1)",
            "get_attributes(#2)",
            "argmax(#2,film.film.runtime)",
        ],
        "answer": [{"answer_type": "Entity", "answer_argument": m} for m in ("m.f2", "m.f3")],
    }
    (folder / "std.json").write_text(json.dumps([row] * 8))
    (folder / "graph.nt").write_text("\n".join(ntriples(FILMS)))
    vocabulary = {"relations": ["film.director.film", "film.actor.film"], "attributes": ["film.film.runtime"]}
    (ontology / "vocab.json").write_text(json.dumps(vocabulary))
    (ontology / "fb_roles").write_text("film.director film.director.film film.film\nfilm.actor film.actor.film a.b\n")
    (ontology / "fb_types").write_text("a.b meta.subclassOf film.film\nfilm.film meta.subclassOf common.topic\n")
    (ontology / "reverse_properties").write_text("film.director.film\tfilm.film.directed_by\n")
    return folder


@pytest.mark.parametrize("named", ["folder", "file", "variable"])
def test_agentbenchs_layout_is_played_by_path(films: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_DATA", str(films.parent))
    data = {"folder": films, "file": films / "std.json", "variable": "agentbench"}[named]
    task = load_task("kg", data=data, graph=films / "graph.nt")
    samples = task.samples("std")
    assert [s.id for s in samples][:2] == ["kg/std/0", "kg/std/1"]
    assert list(task.spec.splits) == ["std"]
    session = play(task, samples[0], make_player("expert", task))
    assert (session.status, session.raw_reward) == (Status.COMPLETED, 1.0)


def test_known_faults_are_told_and_can_be_left_out(films: Path) -> None:
    task = load_task("kg", data=films, graph=films / "graph.nt")
    assert task.samples("std")[7].data["faults"]
    assert not task.samples("std")[0].data["faults"]
    clean = load_task("kg", data=films, graph=films / "graph.nt", exclude_suspect=True).samples("std")
    assert [s.id for s in clean] == [f"kg/std/{n}" for n in range(7)]


def test_strict_types_forbid_what_a_supertype_allows(films: Path) -> None:
    strict = load_task("kg", data=films, graph=films / "graph.nt", type_check="strict")
    session = play(strict, strict.samples("std")[0], make_player("expert", strict))
    assert session.raw_reward == 0.0
    assert "same type" in str(session.log[-2].turn.messages)


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "cannot be read"), ("{}", "no list"), ('[{"question": 1}]', "row 0"), ("[[]]", "row 0")],
)
def test_a_damaged_file_is_named(films: Path, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "ontology").symlink_to(films.parent.parent / "src/server/tasks/knowledgegraph/ontology")
    (tmp_path / "std.json").write_text(content)
    with pytest.raises(CallerError, match=says):
        load_task("kg", data=tmp_path, graph=films / "graph.nt").samples("std")


def test_an_absent_or_damaged_ontology_is_named(films: Path, tmp_path: Path) -> None:
    (tmp_path / "std.json").write_text("[]")
    with pytest.raises(CallerError, match="no ontology"):
        load_task("kg", data=tmp_path, graph=films / "graph.nt")
    (tmp_path / "ontology").mkdir()
    (tmp_path / "ontology" / "vocab.json").write_text("[]")
    with pytest.raises(CallerError, match="ontology cannot be read"):
        load_task("kg", data=tmp_path, graph=films / "graph.nt")


@pytest.mark.parametrize(
    ("name", "content"),
    [("g.nt", "no triples"), ("g.tsv", "a\tb\n"), ("g.tsv", "m.1\t/a/b> ?x\tm.2\n"), ("g.csv", "m.1,a.b.c,m.2\n")],
)
def test_a_damaged_graph_is_named(films: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CallerError, match=name.replace(".", r"\.")):
        load_task("kg", data=films, graph=tmp_path / name)


def test_agentbenchs_real_files_are_read(test_data: Path) -> None:
    folder = test_data / "agentbench" / "knowledgegraph"
    table = test_data / "kg_sample" / "fb15k237_valid_test.tsv"
    task = load_task("kg", data=folder, graph=table)
    assert {split: len(task.samples(split)) for split in task.spec.splits} == {"dev": 20, "std": 150, "train": 1214}
    sample = task.samples("std")[149]
    assert sample.id == "kg/std/149"
    assert sample.data["question"] in str(task.open(sample, 0).start()[-1]["content"])
    for split in task.spec.splits:  # every plan can be read and compiled, whatever the graph holds
        for each in task.samples(split):
            assert expression(each.data["actions"]).size <= 25
    listed = set(read_faults(tasks_root() / "kg"))
    assert listed == {s.id for split in task.spec.splits for s in task.samples(split) if s.data["faults"]}
    assert sum(i.startswith("kg/std/") for i in listed) == 15


def test_supertypes_admit_gold_plans_that_strict_types_forbid(test_data: Path) -> None:
    """Of the mismatches that the audit names, those with a common type are allowed by default."""
    schema = read_ontology(test_data / "agentbench" / "knowledgegraph" / "ontology")
    assert len(schema.relations) == 13_100
    assert len(schema.attributes) == 3_385
    pairs = [
        reason.partition(":")[2].split("!=")
        for reasons in read_faults(tasks_root() / "kg").values()
        for reason in reasons
        if reason.startswith("intersection_type_mismatch")
    ]
    admitted = sum(schema.common_type(left, right, "subclass") is not None for left, right in pairs)
    assert not any(schema.common_type(left, right, "strict") for left, right in pairs)
    assert admitted >= 0.6 * len(pairs)


def test_a_real_table_is_walked_both_ways(test_data: Path) -> None:
    folder = test_data / "agentbench" / "knowledgegraph"
    reverses = read_reverses(folder / "ontology")
    table = list(read_table(test_data / "kg_sample" / "fb15k237_valid_test.tsv", reverses))
    assert len(table) == 2 * 38_001
    task = load_task("kg", data=folder, graph=test_data / "kg_sample" / "fb15k237_valid_test.tsv")
    subject, relation, target = table[0]
    back = table[1][1]
    members = task._rules.backend.members  # type: ignore[attr-defined]
    assert target in members(Join(relation, Entity(subject)))
    assert subject in members(Join(back, Entity(target)))


@pytest.mark.full
def test_questions_about_a_real_table_are_won(test_data: Path) -> None:
    task = load_task("kg", graph=test_data / "kg_sample" / "fb15k237_valid_test.tsv")
    expert = make_player("expert", task)
    samples = [*task.samples("dev"), *task.samples("test")]
    assert len(samples) == 180
    assert all(play(task, sample, expert).raw_reward == 1.0 for sample in samples)


@pytest.mark.full
@pytest.mark.parametrize("profile", ["default", "agentbench"])
def test_every_gold_plan_wins(profile: str) -> None:
    task = load_task("kg", profile=profile)
    expert = make_player("expert", task)
    samples = [sample for split in SPLITS for sample in task.samples(split)]
    assert sum(play(task, s, expert).raw_reward for s in samples) >= 0.99 * len(samples)
