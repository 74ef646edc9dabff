"""The processes that games run in: one per core, many sessions each.

The engine's library and the translator keep their state in globals, so sessions share a process one call at a time and
scale by processes. A process that has had its number of sessions, or has grown, takes no new ones and ends with its
last; one that dies takes only its own sessions with it.

Not here: how a process is started, called and killed (procs.py); the game itself (engine.py).
"""

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from agentbench_fc.errors import NotFound, Unavailable
from agentbench_fc.procs import Child, ChildPool
from agentbench_fc.tasks.alfworld.engine import LOADED, Engine, Game, Play, Seen
from agentbench_fc.tasks.alfworld.progress import Goal, read_goal

SESSIONS = 2_000
"""A process is replaced after so many sessions: a safety net, since nothing in it is known to grow."""
MAX_RSS_BYTES = 600 * 2**20
START_TIMEOUT_S = 60.0


class Sessions:
    """What a process serves: an engine and its sessions by number.

    Args:
        loaded: Games that stay loaded at once.
    """

    def __init__(self, *, loaded: int = LOADED) -> None:
        self._engine = Engine(loaded=loaded)
        self._plays: dict[int, tuple[Play, Goal | None]] = {}
        self._numbers = itertools.count(1)

    def start(
        self, *, content: Mapping[str, Any], where: str, trust: bool, shaped: bool, ended: Sequence[int]
    ) -> dict[str, Any]:
        """Starts a game from the content of its file; a `shaped` one tells how far it is."""
        self._forget(ended)
        game = Game.read(content, where=where, trust=trust)
        return self._keep(self._engine.start(game), read_goal(game.problem) if shaped else None)

    def step(self, *, session: int, command: str, ended: Sequence[int]) -> dict[str, Any]:
        """Plays a command."""
        self._forget(ended)
        play, goal = self._play(session)
        play.step(command)
        return _sent(session, play, goal)

    def fork(self, *, session: int, ended: Sequence[int]) -> dict[str, Any]:
        """Copies a session."""
        self._forget(ended)
        play, goal = self._play(session)
        return self._keep(play.fork(), goal)

    def living(self) -> int:
        """Sessions that have not ended, as far as this process was told."""
        return len(self._plays)

    def close(self) -> None:
        """Frees everything."""
        self._plays.clear()
        self._engine.close()

    def _forget(self, ended: Sequence[int]) -> None:
        for session in ended:
            self._plays.pop(session, None)

    def _keep(self, play: Play, goal: Goal | None) -> dict[str, Any]:
        number = next(self._numbers)
        self._plays[number] = play, goal
        return _sent(number, play, goal)

    def _play(self, session: int) -> tuple[Play, Goal | None]:
        if session not in self._plays:
            raise NotFound(f"no session {session} [alfworld process]. It has ended.")
        return self._plays[session]


def _sent(number: int, play: Play, goal: Goal | None) -> dict[str, Any]:
    seen = play.seen
    return {
        "session": number,
        "feedback": seen.feedback,
        "admissible": seen.admissible,
        "won": seen.won,
        "acted": seen.acted,
        "progress": 0.0 if goal is None else goal.done(play.facts) / (goal.steps - 1),
    }


class Room:
    """A game that runs in a process. Close it after use."""

    def __init__(self, workers: "Workers", child: Child, sent: Mapping[str, Any]) -> None:
        self._workers = workers
        self._child: Child | None = child
        self._session = int(sent["session"])
        self.seen = Seen("", (), False)
        """The newest observation."""
        self.progress = 0.0
        """Share of the steps before the last that are done; 0 unless the game was started as `shaped`."""
        self._take(sent)

    @property
    def pid(self) -> int | None:
        """The process; None: closed."""
        return None if self._child is None else self._child.pid

    def step(self, command: str, *, timeout_s: float) -> Seen:
        """Plays a command.

        Raises:
            InfrastructureError: the process died, or did not answer in time.
        """
        self._take(self._call("step", {"command": command}, timeout_s))
        return self.seen

    def fork(self, *, timeout_s: float) -> "Room":
        """An independent copy in the same process; errors as in `step`."""
        child = self._workers.pool.share(self._living())
        try:
            return Room(self._workers, child, self._call("fork", {}, timeout_s))
        except BaseException:
            self._workers.pool.unpin(child)
            raise

    def close(self) -> None:
        """Ends the session; safe to repeat."""
        child, self._child = self._child, None
        if child is not None:
            self._workers.end(child, self._session)

    def _call(self, method: str, params: Mapping[str, Any], timeout_s: float) -> Any:
        return self._workers.call(self._living(), method, {"session": self._session, **params}, timeout_s)

    def _living(self) -> Child:
        if self._child is None:
            raise NotFound("the room was closed [alfworld]. Start another session.")
        return self._child

    def _take(self, sent: Mapping[str, Any]) -> None:
        self.seen = Seen(sent["feedback"], tuple(sent["admissible"]), sent["won"], sent["acted"])
        self.progress = sent["progress"]


class Workers:
    """The processes of one task.

    Args:
        size: How many at once; None: one per core that this process may use.
        sessions: A process is replaced after so many sessions.
        max_rss_bytes: And when it takes more memory.
        loaded: Games that stay loaded in a process.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        sessions: int = SESSIONS,
        max_rss_bytes: int = MAX_RSS_BYTES,
        loaded: int = LOADED,
    ) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._ended: WeakKeyDictionary[Child, list[int]] = WeakKeyDictionary()
        self.pool = ChildPool(
            "agentbench_fc.tasks.alfworld.workers:Sessions",
            cores() if size is None else size,
            {"loaded": loaded},
            max_users=sessions,
            max_rss_bytes=max_rss_bytes,
            start_timeout_s=START_TIMEOUT_S,
        )

    def start(
        self, content: Mapping[str, Any], *, where: str, trust: bool = False, shaped: bool = False, timeout_s: float
    ) -> Room:
        """Starts a game in the process with the fewest sessions.

        Args:
            content: Of the game file.
            where: Names it in messages.
            trust: Play grammars that are not known too.
            shaped: Tell how far the game is.
            timeout_s: Longest wait, in seconds.

        Raises:
            TaskError: the game's file is wrong.
            CallerError: its grammar is not known, or what plays it is not installed.
            InfrastructureError: the process died, or did not answer in time.
        """
        child = self.pool.pin(timeout_s=timeout_s)
        try:
            params = {"content": content, "where": where, "trust": trust, "shaped": shaped}
            return Room(self, child, self.call(child, "start", params, timeout_s))
        except BaseException:
            self.pool.unpin(child)
            raise

    def call(self, child: Child, method: str, params: Mapping[str, Any], timeout_s: float) -> Any:
        """Calls a process, and tells it which of its sessions have ended: that needs no call of its own."""
        with self._lock:
            ended = self._ended.pop(child, [])
        try:
            return child.call(method, {**params, "ended": ended}, timeout_s=timeout_s)
        except Unavailable:  # it has not heard of it
            with self._lock:
                self._ended.setdefault(child, []).extend(ended)
            raise

    def end(self, child: Child, session: int) -> None:
        """Ends a session of a process."""
        with self._lock:
            self._ended.setdefault(child, []).append(session)
        self.pool.unpin(child)

    def close(self) -> None:
        """Ends all processes; safe to repeat."""
        self.closed = True
        self.pool.close()


class SharedWorkers:
    """Workers by their settings, for the tasks of one process: many environments of one kind need no more processes.

    Those of a task that was forgotten rather than closed go with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[tuple[int, int, int], Workers] = WeakValueDictionary()
        self._users: WeakKeyDictionary[Workers, int] = WeakKeyDictionary()

    def take(self, size: int | None, sessions: int, max_rss_bytes: int) -> Workers:
        """Workers with these settings; give them back."""
        key = (cores() if size is None else size, sessions, max_rss_bytes)
        with self._lock:
            workers = self._open.get(key)
            if workers is None or workers.closed:
                workers = self._open[key] = Workers(key[0], sessions=sessions, max_rss_bytes=max_rss_bytes)
            self._users[workers] = self._users.get(workers, 0) + 1
            return workers

    def give_back(self, workers: Workers) -> None:
        """Ends them when nobody else has them."""
        with self._lock:
            self._users[workers] -= 1
            last = not self._users[workers]
            if last:
                workers.closed = True  # from here on others get new ones
        if last:
            workers.close()


shared_workers = SharedWorkers()  # processes belong to the whole process, as its helper threads do


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
