"""Counters and latencies for Prometheus; each server has a registry of its own.

Not here: what a session's metrics are (session.py).
"""

from collections.abc import Callable
from typing import Any

from agentbench_fc.episode import Turn
from agentbench_fc.errors import CallerError

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise CallerError("prometheus-client is not installed [serve]. pip install 'agentbench-fc[serve]'.") from error
    return prometheus_client


class _Exposed:
    def __init__(self) -> None:
        prometheus = _client()
        self._registry = prometheus.CollectorRegistry()
        self._generate: Callable[[Any], bytes] = prometheus.generate_latest

    def text(self) -> bytes:
        """Everything in Prometheus's text format."""
        return self._generate(self._registry)


class WorkerTelemetry(_Exposed):
    """What a worker counts, per task."""

    def __init__(self) -> None:
        super().__init__()
        p, registry = _client(), self._registry
        by_task = {"labelnames": ["task"], "registry": registry}
        self.start = p.Histogram("agentbench_fc_start_seconds", "Start of a session", buckets=SECONDS, **by_task)
        self.step = p.Histogram("agentbench_fc_step_seconds", "One turn", buckets=SECONDS, **by_task)
        self.open = p.Gauge("agentbench_fc_sessions_taken", "Open and starting sessions", **by_task)
        self.capacity = p.Gauge("agentbench_fc_sessions_capacity", "Most sessions at once", **by_task)
        self.calls = p.Counter("agentbench_fc_calls", "Tool calls of sessions that ended", **by_task)
        self.invalid = p.Counter("agentbench_fc_invalid_calls", "Of these, calls that no tool could take", **by_task)
        self.turns = p.Counter("agentbench_fc_session_turns", "Turns of sessions that ended", **by_task)
        self.ended = p.Counter(
            "agentbench_fc_sessions_ended", "Sessions by their last status", ["task", "status"], registry=registry
        )
        self.faults = p.Counter(
            "agentbench_fc_session_faults", "Sessions ended by a fault", ["task", "fault"], registry=registry
        )
        self.abandoned = p.Gauge(
            "agentbench_fc_abandoned_calls", "Calls past their deadline that still run", registry=registry
        )

    def saw_end(self, task: str, turn: Turn) -> None:
        """Counts a session that ended."""
        metrics = turn.metrics
        self.ended.labels(task, str(turn.status)).inc()
        self.calls.labels(task).inc(metrics.get("calls", 0))
        self.invalid.labels(task).inc(metrics.get("invalid_calls", 0))
        self.turns.labels(task).inc(metrics.get("turns", 0))
        if "fault" in metrics:
            self.faults.labels(task, str(metrics["fault"])).inc()


class ControllerTelemetry(_Exposed):
    """What a controller counts."""

    def __init__(self) -> None:
        super().__init__()
        p, registry = _client(), self._registry
        self.queue = p.Histogram(
            "agentbench_fc_start_queue_seconds", "Wait for a free slot", ["task"], buckets=SECONDS, registry=registry
        )
        self.waiting = p.Gauge("agentbench_fc_starts_waiting", "Starts that wait for a slot", registry=registry)
        self.workers = p.Gauge("agentbench_fc_workers", "Workers by state", ["state"], registry=registry)
        self.forwarded = p.Counter(
            "agentbench_fc_forwarded", "Calls passed on to a worker", ["outcome"], registry=registry
        )
        self.lost = p.Counter("agentbench_fc_lost_replies", "Calls answered with a lost session", registry=registry)
