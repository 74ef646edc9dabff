"""The whole algorithm in one file: short enough to read, and it learns both tasks."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "minimal_async_grpo.py"


def test_it_is_short_and_needs_only_environments_and_torch() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 300
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"torch", "agentbench_fc"}


def test_it_learns_both_tasks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("minimal_async_grpo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, example)  # its dataclass looks its module up
    spec.loader.exec_module(example)
    history = example.main(steps=30, latency_s=0.001)
    for task in example.TASKS:
        curve = [step[task] for step in history if task in step]
        start, end = sum(curve[:5]) / 5, sum(curve[-5:]) / 5
        assert start < 0.6, curve
        assert end > start + 0.25, curve
    printed = capsys.readouterr().out.splitlines()
    lags = [float(line.split("lag ")[1].split()[0]) for line in printed if "lag " in line]
    assert max(lags) > 0.2, "nothing waits for the trainer"
