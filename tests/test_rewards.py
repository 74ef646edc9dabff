"""The table of statuses, row by row."""

import pytest

from agentbench_fc.rewards import Outcome, Status, settle

TABLE = [  # status, raw, penalty, outcome
    ("completed", 0.7, -0.2, Outcome(True, False, 0.7, True)),
    ("completed", None, -0.2, Outcome(True, False, 0.0, True)),
    ("task limit reached", 0.7, -0.2, Outcome(False, True, -0.2, True)),
    ("agent context limit", 0.0, -0.2, Outcome(False, True, -0.2, True)),
    ("agent validation failed", 0.0, -0.2, Outcome(True, False, -0.2, True)),
    ("agent invalid action", 0.0, -0.2, Outcome(True, False, -0.2, True)),
    ("task limit reached", 0.7, 0.0, Outcome(False, True, 0.7, True)),
    ("agent invalid action", 0.0, 0.0, Outcome(True, False, 0.0, True)),
    ("cancelled", 0.5, -0.2, Outcome(False, True, None, False)),
    ("task error", 0.5, -0.2, Outcome(False, True, None, False)),
    ("unknown", None, -0.2, Outcome(False, True, None, False)),
    ("env init failed", None, -0.2, Outcome(False, True, None, False)),
]


@pytest.mark.parametrize(("status", "raw", "penalty", "outcome"), TABLE)
def test_every_status_has_its_outcome(status: str, raw: float | None, penalty: float, outcome: Outcome) -> None:
    assert settle(status, raw, abnormal_penalty=penalty) == outcome


def test_the_table_covers_every_status() -> None:
    assert {row[0] for row in TABLE} | {"running"} == {str(status) for status in Status}
    with pytest.raises(ValueError, match="no outcome yet"):
        settle("running", 0.0)
    with pytest.raises(ValueError, match="not a valid Status"):
        settle("done", 0.0)
