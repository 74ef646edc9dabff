"""The task: moves, bad input, forks, splits, catalogues and their damage."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError, NotFound, TaskError
from agentbench_fc.messages import Message, ToolCall, assistant
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.rewards import Status
from agentbench_fc.session import Session
from agentbench_fc.tasks.webshop import make
from agentbench_fc.tasks.webshop.catalogue import Catalogue, check_files
from agentbench_fc.tasks.webshop.convert import convert
from agentbench_fc.tasks.webshop.generate import generate, generated_catalogue
from agentbench_fc.tasks.webshop.task import WebShopTask


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task("webshop")


def act(tool: str, value: str) -> list[Message]:
    argument = "keywords" if tool == "search_action" else "value"
    return [assistant(None, [ToolCall("c1", tool, json.dumps({argument: value}))])]


def search(session: Session, keywords: str) -> str:
    return str(session.interact(act("search_action", keywords)).messages[0]["content"])


def click(session: Session, value: str) -> str:
    return str(session.interact(act("click_action", value)).messages[0]["content"])


def play(session: Session, task: WebShopTask) -> Turn:
    turn = session.start()
    expert = task.expert(session.sample)
    move = next(expert)
    while not turn.finish:
        assert isinstance(move, ToolCall)
        turn = session.interact([assistant(None, [move])])
        if not turn.finish:
            move = expert.send(turn)
    return turn


def transcript(session: Session) -> list[list[Message]]:
    return [played.turn.messages for played in session.log]


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_the_expert_buys_what_every_goal_wants(level: str) -> None:
    task = load_task("webshop", level=level)
    for split in ("test", "dev", "train"):
        for sample in task.samples(split)[::40]:
            turn = play(Session(task, sample), task)  # type: ignore[arg-type]
            assert (turn.status, turn.reward, turn.success) == (Status.COMPLETED, 1.0, True), sample.id


def test_splits_share_no_product(task: WebShopTask) -> None:
    goals = {split: task.samples(split) for split in ("train", "dev", "test")}
    assert {split: len(samples) for split, samples in goals.items()} == {"train": 3000, "dev": 500, "test": 500}
    products = {s: {task.catalogue.goal(x.data["goal"]).asin for x in samples} for s, samples in goals.items()}
    assert not products["train"] & products["test"]
    assert not products["train"] & products["dev"]
    assert not products["dev"] & products["test"]
    assert len({task.catalogue.goal(n).instruction for n in range(4000)}) > 3900
    assert [s.id for s in goals["dev"][:2]] == ["webshop/dev/0", "webshop/dev/1"]
    assert goals["dev"][-1].index == 499


def test_the_generated_catalogue_is_the_same_everywhere(task: WebShopTask, tmp_path: Path) -> None:
    folder = tasks_root() / "webshop"
    listed = json.loads((folder / "manifest.json").read_text())["catalogues"]
    for level in ("easy", "medium", "hard"):
        meta = generated_catalogue(folder, level=level).meta
        files = {name: described["sha256"] for name, described in meta["files"].items()}
        assert {"products": meta["content"], "goals": files["goals.jsonl"], "order": files["goal_order.npy"]} == listed[
            level
        ], f"{level}: raise VERSION in generate.py and rewrite the manifest if this was meant"
    again = generate(folder, tmp_path / "again", level="easy", seed=1, products=200)
    assert again["content"] != generated_catalogue(folder, level="easy", products=200).meta["content"]


def test_pages_lead_where_they_should(task: WebShopTask) -> None:
    session = Session(task, task.samples("dev")[0])
    opening = session.start()
    assert str(opening.messages[1]["content"]).startswith("WebShop [SEP] Instruction: [SEP]")
    assert "Page 1 (Total results: 50)" in search(session, "running shoes")
    assert "Page 2 (Total results: 50) [SEP] < Prev [SEP] Next >" in click(session, "Next >")
    product = task.catalogue.product(task.catalogue.search("running shoes")[10])
    assert f"[SEP] {product.title} [SEP] Price: {product.price_tag}" in click(session, product.asin)
    value = next(iter(product.options.values()))[0]
    name = next(iter(product.options))
    assert f"Chosen: {name}: {value}" in click(session, value)
    assert product.description.strip() in click(session, "description")
    assert f"Chosen: {name}: {value}" in click(session, "< prev")
    assert "Page 2" in click(session, "< prev")
    assert "Chosen" not in click(session, product.asin.lower())
    assert "WebShop [SEP] Instruction:" in click(session, "back to search")
    search(session, "x")
    click(session, "buy now")
    assert not session.finished


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("click_action", "nothing of that name"),
        ("click_action", ""),
        ("click_action", "search"),
        ("click_action", "buy now"),
        ("click_action", "next >"),
        ("click_action", "a [b] c"),
        ("click_action", "\U0001f468\u200d\U0001f469"),
        ("click_action", "x" * 100_000),
        ("search_action", ""),
    ],
)
def test_moves_that_do_nothing_say_why_and_change_nothing(task: WebShopTask, tool: str, value: str) -> None:
    session = Session(task, task.samples("dev")[1])
    page = str(session.start().messages[1]["content"])
    turn = session.interact(act(tool, value))
    text = str(turn.messages[0]["content"])
    assert text.startswith("Nothing happened")
    assert text.endswith(page)
    assert len(text) < len(page) + 300
    assert (turn.finish, turn.reward) == (False, None)


@pytest.mark.parametrize(
    "keywords",
    [
        "the of and",
        "!!!",
        "   ",
        "zzzzqqqq",
        "\U0001f338" * 50,
        "<b>lamp</b>\x00\x1b[31m",
        "a\nb",
        "lamp " * 20_000,
        "<r>",
    ],
    ids=lambda text: text[:8].encode("ascii", "replace").decode(),
)
def test_any_text_can_be_searched(task: WebShopTask, keywords: str) -> None:
    session = Session(task, task.samples("dev")[2])
    session.start()
    assert "Page 1 (Total results: " in search(session, keywords)
    for _ in range(7):
        assert "Next >" in click(session, "next >")
    assert "Page 8" in str(session.last.messages[0]["content"])
    session.cancel()


def test_the_agentbench_profile_has_the_originals_message_structure() -> None:
    task = load_task("webshop", profile="agentbench")
    session = Session(task, task.samples("dev")[0])
    opening = str(session.start().messages[1]["content"])
    assert opening.startswith("The initial observation:\nWebShop [SEP] Instruction: [SEP] ")
    assert opening.endswith("\n\nAvailable Actions:\n{'has_search_bar': True, 'clickables': ['search']}")
    assert search(session, "Lamp").startswith("Action: search[Lamp]\n\nObservation:\nInstruction: [SEP] ")
    assert click(session, "nothing").startswith("Action: click[nothing]\n\nObservation:\nInstruction: [SEP] ")
    calls = [ToolCall("a", "click_action", '{"value": "back to search"}'), ToolCall("b", "click_action", "{}")]
    turn = session.interact([assistant(None, calls)])
    assert [m.get("tool_call_id") for m in turn.messages] == ["a", "b"]
    text = session.interact([assistant("hm")]).messages
    assert text[0]["role"] == "user"
    assert "Available Actions" in str(text[0]["content"])


def test_a_fork_goes_its_own_way(task: WebShopTask) -> None:
    session = Session(task, task.samples("dev")[3])
    session.start()
    search(session, "floor lamp")
    child = session.fork()
    first = task.catalogue.search("floor lamp")[0]
    click(child, first)
    click(child, "buy now")
    assert child.finished
    assert not session.finished
    assert "Page 1" in click(session, "nothing")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WebShop's three files in small, with everything that is odd about the real ones."""
    folder = tmp_path_factory.mktemp("files")
    items: list[dict[str, Any]] = [
        {
            "asin": f"B0000000{n:02d}",
            "name": f"Lamp number {n}",
            "full_description": "A lamp." if n else None,
            "small_description": ["Bright. ", "Small. "] if n % 2 else "One bullet as a text",
            "pricing": ["", "$12.50", "$10.00 - $30.00"][n % 3],
            "images": ["x"],
            "product_category": "Home \u203a Lamps",
            "category": "garden",
            "query": " Floor Lamps ",
            "customization_options": ""
            if n
            else {"Color": [{"value": " Red/Blue "}, {"value": "Green"}], "Size": None},
        }
        for n in range(12)
    ]
    items += [items[0], {**items[0], "asin": "nan"}, {**items[0], "asin": "B00000000000"}]
    human = [
        {"instruction": "i need a lamp.", "instruction_attributes": ["bright"], "instruction_options": ["green"]},
        {"instruction": "nothing", "instruction_attributes": [], "instruction_options": []},
    ]
    about = {"attributes": ["bright"], "instruction": "Find me lamps", "instruction_attributes": ["bright"]}
    (folder / "items.json").write_text(json.dumps(items))
    (folder / "ins.json").write_text(json.dumps({"B000000000": about}))
    (folder / "human.json").write_text(json.dumps({"B000000000": human, "B000000003": human}))
    return folder


def converted(files: Path, out: Path, **options: Any) -> Catalogue:
    convert(files / "items.json", files / "ins.json", files / "human.json", out, **options)
    return Catalogue(out)


def test_the_originals_files_are_converted(files: Path, tmp_path: Path) -> None:
    catalogue = converted(files, tmp_path / "c")
    assert (catalogue.meta["products"], catalogue.goal_count, catalogue.meta["tagger"]) == (12, 2, "rules")
    first = catalogue.product("B000000000")
    assert (first.query, first.bullets, first.attributes) == ("floor lamps", ("One bullet as a text",), ("bright",))
    assert dict(first.options) == {"color": ("red | blue", "green")}
    assert catalogue.goal(0).instruction.startswith("i need a lamp, and price lower than ")
    synthetic = converted(files, tmp_path / "s", goals="synthetic")
    assert {tuple(synthetic.goal(n).options.items()) for n in range(2)} == {  # type: ignore[union-attr]
        (("color", "red | blue"),),
        (("color", "green"),),
    }
    with pytest.raises(CallerError, match="human goals need"):
        convert(files / "items.json", files / "ins.json", None, tmp_path / "x")
    with pytest.raises(CallerError, match="no such file"):
        convert(files / "absent.json", files / "ins.json", None, tmp_path / "x", goals="synthetic")


def test_too_few_goals_for_a_split_are_named(files: Path, tmp_path: Path) -> None:
    converted(files, tmp_path / "c")
    task = load_task("webshop", catalogue=str(tmp_path / "c"))
    assert len(task.samples("test")) == 2
    with pytest.raises(CallerError, match="needs goals 500 to 1500, there are 2"):
        task.samples("dev")
    agentbench = load_task("webshop", catalogue=str(tmp_path / "c"), profile="agentbench")
    with pytest.raises(CallerError, match="needs goals 0 to 200, there are 2"):
        agentbench.samples("std")


@pytest.mark.parametrize("name", ["products.bin", "goals.jsonl", "docs.npy", "terms.bin", "ids.npy"])
def test_a_damaged_catalogue_is_refused_with_the_file_named(files: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "c"
    converted(files, folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(TaskError, match=name):
        Catalogue(folder)
    (folder / name).unlink()
    with pytest.raises(TaskError, match=f"{name} is missing"):
        check_files(folder, json.loads((folder / "meta.json").read_text()), whole=True)


def test_what_is_no_catalogue_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="agentbench-fc webshop build"):
        Catalogue(tmp_path / "absent")
    (tmp_path / "meta.json").write_text('{"format": 99}')
    with pytest.raises(TaskError, match="has format 99"):
        Catalogue(tmp_path)


def test_wrong_options_and_goals_are_named(task: WebShopTask) -> None:
    with pytest.raises(CallerError, match="no level 'medum'.*Did you mean 'medium'"):
        make(task.spec, tasks_root() / "webshop", level="medum")
    with pytest.raises(NotFound, match="no split 'tests'.*Did you mean 'test'"):
        task.samples("tests")
    with pytest.raises(NotFound, match="no goal 4000"):
        task.catalogue.goal(4000)


def test_threads_do_not_mix_their_pages(task: WebShopTask) -> None:
    samples = task.samples("train")[:64]

    def run(sample: Any) -> list[list[Message]]:
        session = Session(task, sample)
        play(session, task)
        return transcript(session)

    serial = [run(sample) for sample in samples]
    parallel: dict[int, list[list[Message]]] = {}
    threads = [
        threading.Thread(target=lambda n=n, s=s: parallel.update({n: run(s)}))  # type: ignore[misc]
        for n, s in enumerate(samples)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [parallel[n] for n in range(64)] == serial
