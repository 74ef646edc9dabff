"""RemoteSession: a session on another machine, with the part of `Session` that a Gymnasium env uses.

A failure of the machines between ends the episode as data: `task error`, masked, with the reason in its metrics.

Not here: the env (env.py); HTTP and its repeats (serve/client.py).
"""

from dataclasses import replace
from typing import Any

from agentbench_fc.connecting import connect, reach
from agentbench_fc.envs.choosing import Choice
from agentbench_fc.envs.slots import Source, failed_turn
from agentbench_fc.episode import Sample, Turn
from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError
from agentbench_fc.messages import Message, ToolSpec
from agentbench_fc.record import Played
from agentbench_fc.rewards import Status
from agentbench_fc.sync_client import SyncClient


class RemoteTask:
    """A task that a controller serves: its tools, and sessions of it.

    Args:
        url: Of the controller.
        source: Task, profile, prompt style and options.
        split: Where samples are drawn; None: the task's own default.

    Raises:
        NotFound: no such task or split.
        InfrastructureError: no answer.
    """

    def __init__(self, url: str, source: Source, split: str | None) -> None:
        reach(url)
        self.client = SyncClient(connect(url))
        self.source = source
        self.users = 1
        """Envs that share the client; the last one closes it."""
        try:
            turn = self.client.start_sample(
                source.task,
                split=split,
                seed=0,
                profile=source.profile,
                prompt=source.prompt,
                options=source.options,
            )
            self.client.cancel(turn.session_id)
        except BaseException:
            self.client.close()
            raise
        self.tools: list[ToolSpec] = turn.tools

    def open(self, choice: Choice, session_id: str) -> "RemoteSession":
        """A session that has not started."""
        return RemoteSession(self, choice, session_id)

    def share(self) -> bool:
        """One user more."""
        self.users += 1
        return True

    def close(self) -> None:
        """One user less."""
        self.users -= 1
        if self.users == 0:
            self.client.close()


class RemoteSession:
    """One session; the attributes are those of `Session`.

    Its id is the one that the env drew, so that equal seeds give equal infos; the worker's own is `remote_id`.
    """

    def __init__(
        self, task: RemoteTask, choice: Choice, session_id: str, *, parent: "RemoteSession | None" = None
    ) -> None:
        self._task = task
        self._choice = choice
        self.id = session_id
        self.remote_id = ""
        self.log: list[Played] = [] if parent is None else list(parent.log)
        self.raw_reward = 0.0
        self.sample: Sample = parent.sample if parent else Sample(str(choice.sample), -1, choice.split or "")

    @property
    def last(self) -> Turn:
        """The newest turn."""
        return self.log[-1].turn

    @property
    def turn(self) -> int:
        """Number of the last turn."""
        return self.last.turn

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.last.status

    @property
    def finished(self) -> bool:
        """Whether it takes no further turn."""
        return self.last.finish

    def start(self) -> Turn:
        """Opens it; a failure of the machines is an ending."""
        source = self._task.source
        try:
            turn, sample = self._task.client.submit(lambda client: source.start(client, self._choice)).result()
            self.remote_id = turn.session_id
            if sample is not None:
                self.sample = replace(self.sample, id=sample)
        except InfrastructureError as error:
            turn = failed_turn(error, None)
        return self._note([], turn)

    def interact(self, messages: list[Message]) -> Turn:
        """Plays a turn; a failure of the machines is an ending."""
        try:
            turn = self._task.client.interact(self.remote_id, messages, self.turn + 1)
        except InfrastructureError as error:
            turn = failed_turn(error, self.last)
            self._end_quietly()
        return self._note(messages, turn)

    def cancel(self, *, reason: str) -> Turn:
        """Ends it; what cannot be reached any more expires by itself."""
        turn = self._end_quietly()
        if turn is None:
            turn = replace(self.last, messages=[], status=Status.CANCELLED, finish=True, metrics={"reason": reason})
        return self._note([], turn)

    def fork(self, turn: int | None = None) -> "RemoteSession":
        """An independent session that stands where this one stood after `turn`."""
        at = self._task.client.fork(self.remote_id, turn)
        child = RemoteSession(self._task, self._choice, at.session_id, parent=self)
        child.remote_id = at.session_id
        child.log = [Played(p.sent, replace(p.turn, session_id=child.id)) for p in self.log[: at.turn + 1]]
        child.raw_reward = min(sum(played.turn.reward or 0.0 for played in child.log), 1.0)
        return child

    def _note(self, sent: list[Message], turn: Turn) -> Turn:
        turn = replace(turn, session_id=self.id)
        self.log.append(Played(tuple(sent), turn))
        self.raw_reward = min(max(self.raw_reward + (turn.reward or 0.0), 0.0), 1.0)
        return turn

    def _end_quietly(self) -> Turn | None:
        try:
            return self._task.client.cancel(self.remote_id)
        except AgentBenchError:
            return None


def remote_task(
    url: str, task: Any, split: str | None, profile: str, prompt: str, options: dict[str, Any]
) -> RemoteTask:
    """The task behind a URL; a ready-made task cannot be sent there."""
    if not isinstance(task, str):
        raise CallerError("a Task is given with a url [env]. Give an id that the workers serve.")
    return RemoteTask(url, Source(task=task, profile=profile, prompt=prompt, options=options), split)
