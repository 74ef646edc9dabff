"""`calculate_overall`: what the results of one task add up to.

Not here: the statistics (scores.py).
"""

from dataclasses import asdict
from typing import Any

from agentbench_fc.errors import CallerError
from agentbench_fc.evaluation.results import EpisodeResult
from agentbench_fc.evaluation.scores import summarize
from agentbench_fc.serve.schema import OverallRequest

MAX_WORK = 5_000_000
"""Rows times repeats; beyond, one request would hold up the server."""


def overall(request: OverallRequest) -> dict[str, Any]:
    """The scores as JSON values; pure computation, seconds at most.

    Raises:
        CallerError: too many rows and repeats.
    """
    repeats = 1 + max((row.repeat for row in request.results), default=0)
    if repeats * len(request.results) > MAX_WORK:
        raise CallerError(f"{len(request.results)} rows of {repeats} repeats are too many [calculate_overall]. Split.")
    rows = [
        EpisodeResult(task=request.task, seed=0, **{name: getattr(row, name) for name in type(row).model_fields})
        for row in request.results
    ]
    return asdict(summarize(request.task, rows))
