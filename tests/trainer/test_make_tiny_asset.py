"""The policy that ships: its parts belong together, it knows the present tasks, and it plays them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.registry import load_task
from agentrl_trainer import tiny_asset
from agentrl_trainer.copy_pretraining import CopyStage
from agentrl_trainer.imitation import Imitation
from agentrl_trainer.make_tiny import Lesson, Phase, Recipe, build, measure
from agentrl_trainer.tiny_asset import FOLDER, check_asset, load_asset, read_manifest
from agentrl_trainer.tiny_scores import score

EASY = {"db": {"level": "easy"}, "kg": {"level": "easy"}}


def spec_of(name: str) -> Any:
    task = load_task(name, prompt="compact", **EASY[name])
    task.close()
    return task.spec


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "tiny-fc"))


def test_its_files_belong_together_and_it_knows_the_tasks_as_they_are() -> None:
    assert check_asset(specs={name: spec_of(name) for name in EASY}) == []
    assert set(read_manifest().tasks) == set(EASY)


def test_it_is_small_and_loads_in_full_precision() -> None:
    import torch

    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 4.5e6
    model, tokenizer = load_asset()
    assert model.dtype == torch.float32
    assert model.num_parameters() == read_manifest().data["parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.config.max_position_embeddings >= 2048


def test_it_wins_held_out_episodes_of_both_tasks() -> None:
    scores = score(FOLDER, EASY, samples=16, temperatures=(0.0,))
    assert all(scores[name][0.0].success > 0 for name in EASY)


def test_the_card_and_the_manifest_tell_the_same_figures() -> None:
    measured = read_manifest().data["measured"]
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in EASY:
        sampled, greedy = measured[name]["T=0.8"]["success"], measured[name]["greedy"]["success"]
        assert f"| {name} | {sampled:.2f} | {greedy:.2f} |" in card
        assert 0.15 <= sampled <= 0.6  # room to learn, and something to learn from


@pytest.mark.parametrize("name", tiny_asset.SEALED)
def test_a_file_from_elsewhere_is_refused(copy: Path, name: str) -> None:
    with (copy / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(CallerError, match=name):
        load_asset(copy)
    (copy / name).unlink()
    with pytest.raises(CallerError, match=name):
        check_asset(copy)


@pytest.mark.parametrize("text", [None, "", "[]", '{"format": 0}'])
def test_a_folder_without_a_manifest_is_refused(copy: Path, text: str | None) -> None:
    if text is None:
        (copy / "manifest.json").unlink()
    else:
        (copy / "manifest.json").write_text(text)
    with pytest.raises(CallerError, match="make_tiny"):
        check_asset(copy)


def test_a_task_that_has_changed_is_a_warning_and_its_limits_are_no_change() -> None:
    spec = spec_of("db")
    [warning] = check_asset(specs={"db": replace(spec, prompts={**spec.prompts, "system": "Other."})})
    assert "db" in warning
    assert check_asset(specs={"db": replace(spec, max_turns=3)}) == []
    [warning] = check_asset(specs={"webshop": spec})
    assert "webshop" in warning


@pytest.mark.full
def test_a_reduced_build_learns_the_format_and_is_the_same_twice(tmp_path: Path) -> None:
    recipe = Recipe(
        lessons={"db": Lesson(samples=80, options=EASY["db"])},
        vocab_size=400, hidden_size=64, layers=2, heads=4, mlp_size=128,
        stages=[CopyStage(length=64, batch=8, max_steps=20, loss=0.0)],
        sound=Phase(renamings=1, how=Imitation(steps=60, learning_rate=5e-3)),
        faulty=Phase(renamings=1, how=Imitation(steps=20, learning_rate=1e-3)),
    )  # fmt: skip
    for folder in (tmp_path / "a", tmp_path / "b"):
        build(recipe, folder)
    files = [read_manifest(folder).data["files"] for folder in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1]
    measured = measure(recipe, tmp_path / "a", samples=8)
    assert measured["db"]["greedy"]["turns"] < 15  # it ends episodes, so it makes valid calls
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["measured"] == measured
    assert check_asset(tmp_path / "a", {"db": spec_of("db")}) == []
