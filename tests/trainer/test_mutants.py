"""A flipped sign, a dropped mask, a wrong denominator: each must fail a unit test."""

import subprocess
import sys
from pathlib import Path


def test_no_mutant_of_the_pure_modules_survives(tmp_path: Path) -> None:
    script = Path(__file__).parent / "mutants.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("killed") >= 35
