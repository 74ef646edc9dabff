"""What the envs of a vector env play: one task for all, or several, and the client that runs their sessions.

Not here: the vector env itself (vector.py); one env's session (slots.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.client import LocalClient
from agentbench_fc.connecting import connect, reach
from agentbench_fc.envs.choosing import open_task
from agentbench_fc.envs.slots import Source
from agentbench_fc.episode import Task
from agentbench_fc.errors import CallerError
from agentbench_fc.messages import ToolSpec, tool_name
from agentbench_fc.protocol import Client
from agentbench_fc.samples import choose_split
from agentbench_fc.sync_client import SyncClient


@dataclass(frozen=True, slots=True)
class Part:
    """A task under fixed options."""

    source: Source
    split: str | None
    """Where samples are drawn; None: the task's own default."""
    tools: list[ToolSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all parts share."""

    split: str | None
    profile: str
    prompt: str
    options: dict[str, Any]


def local_parts(
    tasks: Sequence[str | Task], settings: Settings, known: tuple[str, ...], transcripts: str | Path | None
) -> tuple[LocalClient, list[Part]]:
    """A client of this process for the tasks, and one part for each.

    Raises:
        CallerError: a bad option, or two tasks of one name.
        NotFound: no such task or split.
    """
    made: dict[str, tuple[Task, bool]] = {}
    try:
        for task in tasks:
            opened, owned = open_task(task, settings.profile, settings.prompt, settings.options, known)
            name = task if isinstance(task, str) else opened.spec.name
            if name in made:
                raise CallerError(f"task {name!r} is given twice [vector env]. Give each once.")
            made[name] = opened, owned
        parts = []
        for name, (task, _) in made.items():
            split = choose_split(task, settings.split)
            task.samples(split)  # an unknown split fails here, not at the first reset
            parts.append(Part(_source(name, settings), split, list(task.spec.tools)))
    except BaseException:
        for task, owned in made.values():
            if owned:
                task.close()
        raise
    given = {name: task for name, (task, owned) in made.items() if not owned}
    client = LocalClient(tasks=given, idle_timeout_s=None, lifetime_s=None, transcripts=transcripts)
    for name, (task, owned) in made.items():
        if owned:
            client.adopt(task, name, profile=settings.profile, prompt=settings.prompt, options=settings.options)
    return client, parts


def remote_client(client: Client | SyncClient | None, url: str | None, timeout_s: float) -> SyncClient:
    """The client given, or one of the controller at `url`, without `await`."""
    if isinstance(client, SyncClient):
        return client
    if client is None:
        assert url is not None
        reach(url)
        client = connect(url, timeout_s=timeout_s, start_wait_s=timeout_s)
    return SyncClient(client, timeout_s=timeout_s)


def remote_part(client: SyncClient, task: str | Task, settings: Settings) -> Part:
    """A part that a client knows; the task itself may be out of reach, so a session is asked for its tools."""
    if not isinstance(task, str):
        raise CallerError("a Task is given with a client [vector env]. Give an id that the client knows.")
    source = _source(task, settings)
    turn = client.start_sample(
        task, split=settings.split, seed=0, profile=source.profile, prompt=source.prompt, options=source.options
    )
    client.cancel(turn.session_id)
    return Part(source, settings.split, turn.tools)


def all_tools(parts: Sequence[Part]) -> list[ToolSpec]:
    """The tools of all parts; of those with the same name the first."""
    tools: dict[str, ToolSpec] = {}
    for part in parts:
        for tool in part.tools:
            tools.setdefault(tool_name(tool), tool)
    return list(tools.values())


def shares(weights: Mapping[str, float], count: int) -> list[str]:
    """Which of `count` places each name gets, by weight: largest remainders, then dealt out in turn.

    >>> shares({"db": 2, "kg": 1}, 6)
    ['db', 'kg', 'db', 'kg', 'db', 'db']

    Raises:
        CallerError: no name, a weight that is not > 0, or fewer places than names.
    """
    if not weights or any(not weight > 0 for weight in weights.values()):
        raise CallerError(f"the tasks are {dict(weights)} [mixed env]. Give at least one, each with a weight > 0.")
    if count < len(weights):
        raise CallerError(f"{count} envs for {len(weights)} tasks [mixed env]. Give each task at least one.")
    total = sum(weights.values())
    exact = {name: weight / total * (count - len(weights)) for name, weight in weights.items()}
    places = {name: 1 + int(part) for name, part in exact.items()}
    by_remainder = sorted(weights, key=lambda name: int(exact[name]) - exact[name])
    for name in by_remainder[: count - sum(places.values())]:
        places[name] += 1
    dealt: list[str] = []
    while len(dealt) < count:
        for name in weights:
            if places[name] > 0:
                places[name] -= 1
                dealt.append(name)
    return dealt


def _source(task: str, settings: Settings) -> Source:
    return Source(task=task, profile=settings.profile, prompt=settings.prompt, options=settings.options)
