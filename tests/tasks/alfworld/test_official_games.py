"""ALFWorld's own files: found, listed, numbered as AgentBench numbers them, and every fault named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from alfworld_toys import need_engine
from typer.testing import CliRunner

from agentbench_fc.errors import CallerError, InfrastructureError, NotFound
from agentbench_fc.registry import tasks_root
from agentbench_fc.tasks.alfworld import official
from agentbench_fc.tasks.alfworld.cli import app
from agentbench_fc.tasks.alfworld.games import open_games
from agentbench_fc.tasks.alfworld.generate import TASK_TYPES
from agentbench_fc.tasks.alfworld.generated import generate_into
from agentbench_fc.tasks.alfworld.official import OfficialGames, read_index, report

FOLDER = tasks_root() / "alfworld"


@pytest.fixture(autouse=True, scope="module")
def engine() -> None:
    need_engine()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated games in the official layout; tests copy it."""
    root = tmp_path_factory.mktemp("alfworld")
    for split in ("train", "valid_unseen"):
        generate_into(FOLDER, root / "json_2.1.1", split=split, games=6, level="easy")
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "root"))


def files(root: Path, split: str = "train") -> list[Path]:
    return sorted((root / "json_2.1.1" / split).glob("*/*/game.tw-pddl"))


def index_of(root: Path, path: Path, games: list[str]) -> Path:
    path.write_text(json.dumps({"pick_and_place": games[:1], "pick_two_obj": games[1:]}), encoding="utf-8")
    return path


def changed(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, **values}), encoding="utf-8")


def test_a_folder_is_listed_in_the_order_of_its_paths(root: Path) -> None:
    for data in (root, root / "json_2.1.1"):
        games = OfficialGames(data)
        assert list(games.splits) == ["train", "valid_unseen"]
        samples = games.samples("train")
        assert [sample.id for sample in samples] == [f"alfworld/train/{n}" for n in range(6)]
        assert [games.path(sample) for sample in samples] == files(root)
        assert {sample.data["task_type"] for sample in samples} == set(TASK_TYPES)
        for sample in samples:
            content = games.content(sample)
            assert sample.data["walkthrough"] == content["walkthrough"]
            assert f"{sample.data['goal']['object']}Type" in content["pddl_problem"]
            assert f"{sample.data['goal']['receptacle']}Type" in content["pddl_problem"]
    assert games.source == 'ALFWorld\'s games json_2.1.1, release 2.1 ("move X to Y")'


def test_the_folder_can_come_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(root))
    assert len(open_games(FOLDER, data="official").samples("valid_unseen")) == 6


def test_the_other_tasks_names_of_splits_are_understood_unless_a_list_has_them(root: Path, tmp_path: Path) -> None:
    games = OfficialGames(root)
    assert games.samples("test") == games.samples("valid_unseen")
    with pytest.raises(NotFound, match="no split 'dev'"):
        games.samples("dev")
    index = index_of(root, tmp_path / "dev.json", [path.relative_to(root).as_posix() for path in files(root)[:2]])
    assert [sample.id for sample in OfficialGames(root, index=index).samples("dev")] == [
        "alfworld/dev/0",
        "alfworld/dev/1",
    ]


def test_only_what_alfworld_itself_would_play_is_in_a_split(root: Path) -> None:
    first, second, third, *_ = files(root)
    changed(first, solvable=False)
    content = json.loads(second.read_text(encoding="utf-8"))
    del content["solvable"]
    second.write_text(json.dumps(content), encoding="utf-8")
    shutil.copytree(third.parent, root / "json_2.1.1/train/pick_and_place_simple-AppleSliced-None-Fridge-1/trial_x")
    shutil.copytree(third.parent, root / "json_2.1.1/train/pick_and_place_with_movable_recep-A-B-C-1/trial_x")
    games = OfficialGames(root)
    assert [sample.id for sample in games.samples("train")] == [f"alfworld/train/{n}" for n in (2, 3, 4, 5)]
    assert [sample.index for sample in games.samples("train")] == [0, 1, 2, 3]
    assert report(games, "train")["said_unsolvable"] == 2


def test_a_list_of_agentbench_keeps_its_order_and_numbers_and_plays_what_is_said_to_be_unsolvable(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [path.relative_to(root).as_posix() for path in reversed(files(root, "valid_unseen"))]
    changed(files(root, "valid_unseen")[-1], solvable=False)
    lists = tmp_path / "agentbench" / "alfworld"
    lists.mkdir(parents=True)
    index_of(root, lists / "new_std.json", places)
    monkeypatch.setenv("AGENTBENCH_DATA", str(tmp_path / "agentbench"))
    games = open_games(FOLDER, data=root, index="agentbench")
    assert isinstance(games, OfficialGames)
    assert dict(games.splits) == {"std": "AgentBench's list new_std.json"}
    assert [str(games.path(sample)) for sample in games.samples("std")] == [str(root / place) for place in places]
    assert report(games, "std")["said_unsolvable"] == 1
    only = open_games(FOLDER, data=root, index=lists / "new_std.json", task_type=TASK_TYPES[1]).samples("std")
    assert [sample.data["task_type"] for sample in only] == [TASK_TYPES[1]]
    assert only[0].id == next(s.id for s in games.samples("std") if s.data["task_type"] == TASK_TYPES[1])
    assert only[0].index == 0


def test_missing_games_are_named_and_left_out_only_when_that_is_wanted(root: Path, tmp_path: Path) -> None:
    places = [path.relative_to(root).as_posix() for path in files(root)]
    shutil.rmtree((root / places[2]).parent)
    shutil.rmtree((root / places[4]).parent)
    index = index_of(root, tmp_path / "mine.json", places)
    with pytest.raises(CallerError, match="2 of 6 games of 'mine' cannot be played") as caught:
        OfficialGames(root, index=index).samples("mine")
    assert places[2].removeprefix("json_2.1.1/") in str(caught.value)
    games = OfficialGames(root, index=index, allow_missing=True)
    assert [sample.id for sample in games.samples("mine")] == [f"alfworld/mine/{n}" for n in (0, 1, 3, 5)]
    faults = report(games, "mine")["faults"]
    assert faults == {places[n].removeprefix("json_2.1.1/"): "the game is not there" for n in (2, 4)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the game cannot be read"),
        ('{"pddl_domain": "(define', "the game cannot be read"),
        ("[]", "it is no game: pddl_domain, grammar, pddl_problem missing"),
        ('{"pddl_domain": "", "grammar": 3, "pddl_problem": ""}', "it is no game: grammar missing"),
        (b"\xff\xfe\x00", "the game cannot be read"),
    ],
)
def test_a_damaged_game_is_named(root: Path, text: str | bytes, fault: str) -> None:
    victim = files(root)[3]
    good = OfficialGames(root).samples("train")[3]
    victim.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CallerError, match=f"1 of 6 games.*{fault}"):
        OfficialGames(root).samples("train")
    with pytest.raises(InfrastructureError, match=fault):
        OfficialGames(root).content(good)
    assert len(OfficialGames(root, allow_missing=True).samples("train")) == 5


def test_two_games_in_one_folder_are_refused(root: Path) -> None:
    victim = files(root)[0]
    good = OfficialGames(root).samples("train")[0]
    shutil.copy(victim, victim.parent / "old.tw-pddl")
    with pytest.raises(CallerError, match=r"two games in one folder, with old\.tw-pddl"):
        OfficialGames(root).samples("train")
    with pytest.raises(InfrastructureError, match="two games in one folder"):
        OfficialGames(root).content(good)


def test_what_was_found_is_kept_until_a_file_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = OfficialGames(root).samples("train")
    with monkeypatch.context() as patch:
        patch.setattr("agentbench_fc.tasks.alfworld.official.look_at", None)  # nothing is read again
        assert OfficialGames(root).samples("train") == before
    changed(files(root)[1], walkthrough=["look"])
    assert OfficialGames(root).samples("train")[1].data["walkthrough"] == ["look"]


def test_a_damaged_listing_and_one_of_another_version_are_made_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    expected = OfficialGames(root).samples("train")
    (listing,) = (tmp_path / "cache" / "alfworld").iterdir()
    whole = listing.read_bytes()
    for damage in (b"", whole[:-9], b"[{}]"):
        listing.write_bytes(damage)
        assert OfficialGames(root).samples("train") == expected
    listing.write_bytes(whole.replace(b'"walkthrough": ["', b'"walkthrough": ["stale'))
    assert OfficialGames(root).samples("train") != expected  # the same code reads what it has made
    monkeypatch.setattr(official, "MADE_BY", "another")
    assert OfficialGames(root).samples("train") == expected


def test_the_release_is_told_by_the_words_of_the_grammar(root: Path) -> None:
    file = files(root)[0]
    grammar = json.loads(file.read_text(encoding="utf-8"))["grammar"]
    changed(file, grammar=grammar.replace('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"'))
    changed(files(root)[1], grammar="what")
    releases = report(OfficialGames(root), "train")["releases"]
    assert releases == {'0.2 ("put X in/on Y")': 1, '2.1 ("move X to Y")': 4, "unknown": 1}


def test_the_hash_of_a_split_changes_with_any_game(root: Path) -> None:
    before = report(OfficialGames(root), "train")["sha256"]
    changed(files(root)[5], walkthrough=[])
    assert report(OfficialGames(root), "train")["sha256"] != before


def test_places_without_games_or_lists_are_named(root: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CallerError, match="no such folder"):
        OfficialGames(tmp_path / "absent")
    with pytest.raises(CallerError, match="there are no games in it"):
        OfficialGames(empty)
    with pytest.raises(CallerError, match="no lists of games in it"):
        OfficialGames(root, index=empty)
    with pytest.raises(NotFound, match="no split 'dev'"):
        OfficialGames(root).samples("dev")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"pick": 3}',
        '{"pick": ["json_2.1.1/train/a/../../../../etc/game.tw-pddl"]}',
        '{"pick": ["/etc/a/b/game.tw-pddl"]}',
        '{"pick": ["train/passwd"]}',
    ],
)
def test_a_list_that_is_none_or_leads_elsewhere_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CallerError, match=r"\[.*dev\.json\]"):
        read_index(path)


def test_the_command_line_says_what_is_there_and_what_is_wrong(root: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(app, ["verify", "--data", str(root), "--split", "train", "--play"])
    assert done.exit_code == 0, done.output
    assert "train: 6 games" in done.output
    assert "walkthroughs that do not win: none" in done.output
    changed(files(root)[0], walkthrough=["look"])
    files(root)[1].write_text("{", encoding="utf-8")
    done = run(app, ["verify", "--data", str(root), "--split", "train", "--play", "--json"])
    assert done.exit_code == 1
    (found,) = json.loads(done.output)
    assert found["not_won"] == ["alfworld/train/0"]
    (fault,) = found["faults"].values()
    assert fault.startswith("the game cannot be read")
    done = run(app, ["generate", "--out", str(tmp_path / "out"), "--games", "2", "--level", "easy"])
    assert done.exit_code == 0
    assert len(list((tmp_path / "out" / "train").glob("*/*/game.tw-pddl"))) == 2


def test_generated_games_are_verified_from_the_command_line() -> None:
    done = CliRunner().invoke(app, ["verify", "--split", "valid_seen"])
    assert done.exit_code == 0
    assert "valid_seen: 180 games" in done.output


def test_the_real_sample_is_whole_and_agentbench_s_lists_find_their_games(test_data: Path) -> None:
    data, lists = test_data / "alfworld_sample", test_data / "agentbench" / "alfworld"
    games = OfficialGames(data)
    assert {split: len(games.samples(split)) for split in games.splits} == {
        "train": 24,
        "valid_seen": 18,
        "valid_unseen": 18,
    }
    for split in games.splits:
        found = report(games, split)
        assert set(found["types"]) == set(TASK_TYPES)
        assert list(found["releases"]) == ['2.1 ("move X to Y")']
        assert all(sample.data["walkthrough"] and sample.data["goal"] for sample in games.samples(split))
    listed = OfficialGames(data, index=lists, allow_missing=True)
    sizes = {split: len(listed.found(split)) for split in listed.splits}
    assert sizes == {"dev": 20, "std": 109, "standard": 50, "train": 3150}
    assert len(listed.samples("std")) == 17
    with pytest.raises(CallerError, match="92 of 109 games of 'std' cannot be played"):
        OfficialGames(data, index=lists).samples("std")
