"""Another package's task, known by its entry point alone: under Gymnasium, and trained on by `agentrl_trainer.run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def search_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with a folder in which the second package is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    source = str(ROOT / "tests" / "plugin_package")
    subprocess.run([*command, "--target", str(folder), source], check=True, timeout=120, capture_output=True)
    return f"{folder}{os.pathsep}{ROOT}"


def run(command: list[str], search_path: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": search_path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


PLUGIN = """
import sys
import gymnasium as gym, agentbench_fc
assert "agentbench-fc/dice-v0" in gym.registry
assert "dice_task" not in sys.modules
from gymnasium.utils.env_checker import check_env
env = gym.make("agentbench-fc/dice-v0", faces=4)
check_env(env.unwrapped)
assert "dice_task" in sys.modules
for seed in range(10):
    env.reset(seed=seed)
    session = env.unwrapped.session
    moves = env.unwrapped.task.expert(session.sample)
    move = next(moves)
    while not session.finished:
        obs, reward, *_ = env.step(move)
        move = None if session.finished else moves.send(session.last)
    assert reward == 1.0
envs = gym.make_vec("agentbench-fc/dice-v0", num_envs=2)
assert envs.reset(seed=1)[1]["sample"][0].startswith("dice/train/")
envs.close()
"""


def test_it_has_an_id_before_it_is_imported(search_path: str, tmp_path: Path) -> None:
    run([sys.executable, "-W", "error::UserWarning", "-c", PLUGIN], search_path, tmp_path)


def small_policy(folder: Path) -> Path:
    """A model directory such as any user has: an untrained policy and its tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from agentrl_trainer.tiny_tokenizer import train_tokenizer

    tokenizer = train_tokenizer(
        ["Roll the die until it shows at least 3, then keep it.", "It shows 4."], vocab_size=320
    )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.full
def test_the_trainer_trains_on_it_and_on_a_file_s_task(search_path: str, tmp_path: Path) -> None:
    settings = [
        f"model={small_policy(tmp_path / 'model')}",
        f"tasks=dice,{ROOT / 'examples' / 'guess_number.py'}:TASK",
        "steps=2",
        "group_size=4",
        "evaluation.n=0",
        "sampling.max_new_tokens=8",
        "rollout.max_groups=2",
        "batch.min_trajectories=8",
        "batch.max_trajectories=8",
        f"output={tmp_path / 'run'}",
    ]
    run([sys.executable, "-m", "agentrl_trainer.run", *settings], search_path, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewarded = {key for line in lines for key in line if key.startswith("reward/")}
    assert any("dice" in key for key in rewarded)
    assert any("guess_number" in key for key in rewarded)
    assert (tmp_path / "run" / "model" / "config.json").exists()
