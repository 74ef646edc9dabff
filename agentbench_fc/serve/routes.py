"""Wire v1 as a table: which path takes and gives what. Worker and controller offer the same one.

Not here: the bodies (schema.py), what is done (worker.py, controller.py).
"""

from typing import Protocol

from agentbench_fc.serve import schema
from agentbench_fc.serve.http import Reply, Request, Route


class Service(Protocol):
    """What stands behind the paths."""

    async def start_sample(self, request: Request) -> Reply:
        """Opens a session."""
        ...

    async def interact(self, request: Request) -> Reply:
        """Plays a turn."""
        ...

    async def cancel(self, request: Request) -> Reply:
        """Ends a session, or takes a start back."""
        ...

    async def renew(self, request: Request) -> Reply:
        """Begins a session's idle time anew."""
        ...

    async def fork(self, request: Request) -> Reply:
        """Branches a session."""
        ...

    async def list_sessions(self, request: Request) -> Reply:
        """The open sessions."""
        ...

    async def list_workers(self, request: Request) -> Reply:
        """The workers."""
        ...

    async def list_tasks(self, request: Request) -> Reply:
        """The tasks."""
        ...

    async def get_indices(self, request: Request) -> Reply:
        """The samples of a split."""
        ...

    async def calculate_overall(self, request: Request) -> Reply:
        """What results add up to."""
        ...

    async def healthz(self, request: Request) -> Reply:
        """Whether the process answers."""
        ...

    async def readyz(self, request: Request) -> Reply:
        """Whether it takes new sessions."""
        ...

    async def metrics(self, request: Request) -> Reply:
        """Everything counted, for Prometheus."""
        ...


def table(service: Service) -> list[Route]:
    """The routes of wire v1."""
    s = service
    return [
        Route(
            method="POST",
            path="/v1/interact",
            handler=s.interact,
            summary="Plays one agent turn; safe to repeat with the same turn.",
            takes=schema.InteractRequest,
            gives=schema.TurnReply,
            by_session=True,
        ),
        Route(
            method="POST",
            path="/v1/start_sample",
            handler=s.start_sample,
            summary="Opens a session; safe to repeat with the same request_id.",
            takes=schema.StartRequest,
            gives=schema.TurnReply,
        ),
        Route(
            method="POST",
            path="/v1/cancel",
            handler=s.cancel,
            summary="Ends a session, or the start that was sent with a request_id; safe to repeat.",
            takes=schema.CancelRequest,
            gives=schema.TurnReply | schema.CancelStartReply,
            by_session=True,
        ),
        Route(
            method="POST",
            path="/v1/renew",
            handler=s.renew,
            summary="Begins a session's idle time anew.",
            takes=schema.RenewRequest,
            gives=schema.SessionReply,
            by_session=True,
        ),
        Route(
            method="POST",
            path="/v1/fork",
            handler=s.fork,
            summary="A new session that stands where this one stood after a turn.",
            takes=schema.ForkRequest,
            gives=schema.TurnReply,
            by_session=True,
        ),
        Route(
            method="GET",
            path="/v1/list_sessions",
            handler=s.list_sessions,
            summary="The open sessions, oldest first.",
            gives=schema.SessionsReply,
        ),
        Route(
            method="GET",
            path="/v1/list_workers",
            handler=s.list_workers,
            summary="The workers, and how full they are.",
            gives=schema.WorkersReply,
        ),
        Route(
            method="GET",
            path="/v1/list_tasks",
            handler=s.list_tasks,
            summary="The tasks that can be started.",
            gives=schema.TasksReply,
        ),
        Route(
            method="GET",
            path="/v1/get_indices",
            handler=s.get_indices,
            summary="The samples of a split, in order.",
            takes=schema.SamplesRequest,
            gives=schema.SamplesReply,
        ),
        Route(
            method="POST",
            path="/v1/calculate_overall",
            handler=s.calculate_overall,
            summary="Scores over the results of one task.",
            takes=schema.OverallRequest,
        ),
        Route(
            method="GET",
            path="/healthz",
            handler=s.healthz,
            summary="Whether the process answers.",
            gives=schema.Health,
            open=True,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=s.readyz,
            summary="Whether new sessions are taken; 503 when not.",
            gives=schema.Health,
            open=True,
        ),
        Route(method="GET", path="/metrics", handler=s.metrics, summary="Counters and latencies for Prometheus."),
    ]
