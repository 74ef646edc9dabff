"""Catalogues under bad luck and slips: several builders, damage, wrong folders, wrong files, wrong options."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.cache import only_one
from agentbench_fc.errors import CallerError, InfrastructureError, TaskError
from agentbench_fc.registry import load_task, tasks_root
from agentbench_fc.tasks.webshop.analyzer import tokenize
from agentbench_fc.tasks.webshop.catalogue import Catalogue
from agentbench_fc.tasks.webshop.convert import convert, stream_array
from agentbench_fc.tasks.webshop.generate import generate, generated_catalogue
from agentbench_fc.tasks.webshop.shop import Shop

FOLDER = tasks_root() / "webshop"
LAMP: dict[str, Any] = {"asin": "B000000001", "name": "Floor lamp", "pricing": "$5", "customization_options": ""}


def make(out: Path, products: int = 12) -> Path:
    generate(FOLDER, out, level="easy", seed=0, products=products)
    return out


def converted(tmp_path: Path, items: object, out: str = "c") -> Catalogue:
    (tmp_path / "items.json").write_text(items if isinstance(items, str) else json.dumps(items))
    (tmp_path / "ins.json").write_text("{}")
    convert(tmp_path / "items.json", tmp_path / "ins.json", None, tmp_path / out, goals="synthetic")
    return Catalogue(tmp_path / out)


def test_processes_that_want_the_same_catalogue_at_once_all_get_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from agentbench_fc.registry import tasks_root\n"
        "from agentbench_fc.tasks.webshop.generate import generated_catalogue as made\n"
        "time.sleep(max(float(sys.argv[1]) - time.time(), 0))\n"
        "for n in range(20, 30):\n"
        "    made(tasks_root() / 'webshop', level='easy', products=n).search('lamp')\n"
    )
    start = str(time.time() + 1.5)
    env = os.environ | {"AGENTBENCH_FC_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, start], env=env, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    left = [path.name for path in (tmp_path / "webshop").iterdir() if not path.name.endswith(".lock")]
    assert len(left) == 10
    assert not [name for name in left if name.startswith(".")]


def test_a_damaged_generated_catalogue_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    first = generated_catalogue(FOLDER, level="easy", products=12)
    (first.folder / "docs.npy").write_bytes(b"garbage")
    again = generated_catalogue(FOLDER, level="easy", products=12)
    assert again.meta == first.meta
    assert "docs.npy is damaged" in caplog.text
    (again.folder / "meta.json").write_text("{")
    assert generated_catalogue(FOLDER, level="easy", products=12).meta == first.meta


def test_a_catalogue_that_is_replaced_or_deleted_stays_readable_where_it_is_open(tmp_path: Path) -> None:
    catalogue = Catalogue(make(tmp_path / "c"))
    goal, found = catalogue.goal(0), catalogue.search("model")
    make(tmp_path / "c", products=20)
    for path in (tmp_path / "c").iterdir():
        path.unlink()
    assert (catalogue.goal(0), catalogue.search("the model"), catalogue.goal_count) == (goal, found, 24)
    assert catalogue.product(goal.asin).asin == goal.asin


def test_only_a_catalogue_or_an_empty_folder_makes_way_for_a_new_one(tmp_path: Path) -> None:
    precious = tmp_path / "home" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("three years")
    with pytest.raises(CallerError, match="is no catalogue"):
        make(precious.parent)
    with pytest.raises(CallerError, match="is no catalogue"):
        make(precious)
    assert precious.read_text() == "three years"
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")
    make(tmp_path / "empty", products=14)  # a catalogue is replaced
    assert len(Catalogue(tmp_path / "empty").products) == 14
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "home"]


def test_the_present_folder_can_be_named_and_others_can_read_a_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    make(Path())
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(here.stat().st_mode) == 0o777 & ~umask
    assert len(Catalogue(here).products) == 12


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InfrastructureError, match="cannot be written"):
        make(tmp_path / "file" / "c")
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    (tmp_path / "webshop").write_text("x")
    with pytest.raises(InfrastructureError, match="AGENTBENCH_FC_CACHE"):
        generated_catalogue(FOLDER, level="easy", products=12)


def test_a_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    inside = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with only_one(tmp_path / "lock", 1):
            inside.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(10)
    with pytest.raises(InfrastructureError, match=r"held it for 0\.1 s"), only_one(tmp_path / "lock", 0.1):
        pass
    leave.set()
    holder.join(10)
    with only_one(tmp_path / "lock", 1):
        pass


@pytest.mark.parametrize(
    "meta",
    ["[]", "null", "{", "{}", '{"format": 1}', '{"format": 1, "files": []}', "[" * 100_000],
    ids=lambda text: text[:24],
)
def test_metadata_that_is_none_is_refused(tmp_path: Path, meta: str) -> None:
    (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(TaskError, match=r"again|format"):
        Catalogue(tmp_path)


@pytest.mark.parametrize(
    "items",
    [
        [1, 2],
        [{"asin": 5}],
        [{"asin": "B000000001"}],
        [{**LAMP, "name": None}],
        [{**LAMP, "pricing": 5}],
        [{**LAMP, "customization_options": {"color": [{"v": 1}]}}],
        [{**LAMP, "customization_options": ["color"]}],
        "[" * 100_000,
        "[1",
    ],
    ids=lambda items: str(items)[-30:],
)
def test_files_that_are_not_webshops_are_named(tmp_path: Path, items: object) -> None:
    with pytest.raises(TaskError, match=r"product|items\.json"):
        converted(tmp_path, items)
    assert not (tmp_path / "c").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(TaskError, match=r"no UTF-8.*items\.json"):
        list(stream_array(path))


def test_a_broken_start_is_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_fc.tasks.webshop.convert._CHUNK", 100)
    monkeypatch.setattr("agentbench_fc.tasks.webshop.convert._LARGEST", 10_000)
    path = tmp_path / "items.json"
    path.write_text('[{"asin": nonsense}, ' + '{"asin": "B"}, ' * 100_000 + "{}]")
    with pytest.raises(TaskError, match=r"nonsense.*items\.json"):
        list(stream_array(path))


def test_odd_ids_do_not_stop_a_conversion_and_can_be_clicked(tmp_path: Path) -> None:
    items = [{**LAMP, "asin": "b00lower01"}, {**LAMP, "asin": "B\u00e9"}, LAMP]
    catalogue = converted(tmp_path, items)
    assert len(catalogue.products) == 2  # what is not ASCII is no product id
    (tmp_path / "ins.json").write_text("{}")
    shop = Shop(catalogue, Catalogue(make(tmp_path / "g")).goal(0))
    assert shop.search("lamp")
    assert shop.click("b00lower01")
    assert "Floor lamp" in shop.page.text


@pytest.mark.parametrize(
    "options",
    [
        {"seed": "x"},
        {"seed": 1.5},
        {"seed": True},
        {"level": 3},
        {"level": ["easy"]},
        {"catalogue": ""},
        {"catalogue": 5},
    ],
    ids=str,
)
def test_options_of_a_wrong_type_are_the_callers_fault(options: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match=next(iter(options))):
        load_task("webshop", **options)


@pytest.mark.parametrize(
    "text",
    ["_" * 200_000, "_\u0301" * 100_000, "\U0001f468\u200d" * 50_000, "a'\u0301" * 50_000, "#\ufe0f" * 100_000],
    ids=["joiners", "joiners with marks", "pictographs", "apostrophes", "hashes"],
)
def test_no_text_takes_long_to_cut_into_words(text: str) -> None:
    began = time.process_time()
    tokenize(text)
    assert time.process_time() - began < 5


def test_joined_pictographs_and_joiners_around_words_are_one_word() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert tokenize(f"{family} __init__ ___ a_b") == [family, "__init__", "a_b"]


def test_huge_queries_are_not_remembered(tmp_path: Path) -> None:
    catalogue = Catalogue(make(tmp_path / "c"))
    long = "lamp " * 1000
    assert catalogue.search(long) == catalogue.search("lamp")
    assert catalogue._remembered.cache_info().currsize == 1
