"""The counter as a task file: `toys_as_task.py:TASK`. It imports `toys` by path, since it also runs outside pytest."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("toys_of_the_tests", Path(__file__).parent / "toys.py")
assert _spec is not None
assert _spec.loader is not None
_toys = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_toys)

TASK = _toys.counter_task()
