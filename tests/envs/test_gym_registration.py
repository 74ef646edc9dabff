"""Gymnasium ids in fresh interpreters, and from a wheel that is installed outside the repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ["torch", "transformers", "trl", "pydantic", "jsonschema", "yaml", "sqlglot", "pyoxigraph", "aiohttp", "typer"]

EPISODE = """
obs, info = env.reset(seed=1)
obs, reward, terminated, truncated, info = env.step("I look first.")
assert info["turn"] == 1, info
env.close()
"""
VECTORS = """
import json, warnings
import gymnasium as gym, numpy as np
warnings.simplefilter("error", UserWarning)
import agentbench_fc
seen = {}
first = gym.make("agentbench-fc/KG-v0")  # its helper threads stay behind when the async vector env forks
first.reset(seed=1)
first.step("I look first.")
for mode in ("async", "sync", "vector_entry_point"):
    kwargs = {"shared_memory": False} if mode == "async" else None
    envs = gym.make_vec("agentbench-fc/KG-v0", 2, mode, vector_kwargs=kwargs, prompt="compact")
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    obs, infos = envs.reset(seed=5)
    envs.action_space.seed(5)
    actions = envs.action_space.sample()
    stepped = [envs.step(actions)[0] for _ in range(2)]
    seen[mode] = json.dumps([obs, stepped])
    envs.close()
assert len(set(seen.values())) == 1, seen
"""


def run(program: str, *, path: Path | None = None, cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path or ROOT)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the built wheel is installed; nothing of the repository is on its path."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder / "site"),
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=120, capture_output=True)
    return folder / "site"


@pytest.mark.parametrize(
    "program",
    [
        'import gymnasium as gym, agentbench_fc\nenv = gym.make("agentbench-fc/KG-v0")'
        + EPISODE
        + 'env = gym.make("agentbench-fc/DB-v0")'
        + EPISODE,
        'import gymnasium as gym\nenv = gym.make("agentbench_fc:agentbench-fc/KG-v0")' + EPISODE,
        VECTORS,
    ],
    ids=["after import", "by module", "vectors"],
)
def test_a_wheel_works_outside_the_repository(program: str, wheel_target: Path, tmp_path: Path) -> None:
    where = "\nimport agentbench_fc\nprint(agentbench_fc.__file__)"
    assert run(program + where, path=wheel_target, cwd=tmp_path).strip().startswith(str(wheel_target))


def test_importing_the_package_loads_nothing_heavy_and_registers_all_ids(tmp_path: Path) -> None:
    program = (
        "import agentbench_fc, gymnasium, json, sys\nprint(json.dumps([list(sys.modules), list(gymnasium.registry)]))"
    )
    modules, ids = json.loads(run(program, cwd=tmp_path))
    assert set(HEAVY) & set(modules) == set()
    assert {f"agentbench-fc/{name}-v0" for name in ("DB", "KG", "OS", "ALFWorld", "WebShop", "Task")} <= set(ids)


def test_the_package_costs_less_than_three_times_gymnasium() -> None:
    program = ROOT / "benchmarks" / "import_time.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


TAKEN = """
import gymnasium as gym, agentbench_fc, logging
from agentbench_fc.envs.registration import register_all
before = dict(gym.registry)
register_all(["DB", "task", "no good id!", "kg"])
assert gym.registry.keys() == before.keys()
"""


def test_built_in_names_cannot_be_taken() -> None:
    run(TAKEN)
