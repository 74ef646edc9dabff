"""AgentEnv: one task as a Gymnasium env.

>>> import gymnasium as gym, agentbench_fc
>>> env = gym.make("agentbench-fc/KG-v0")
>>> messages, info = env.reset(seed=1)
>>> [message["role"] for message in messages], info["status"]
(['system', 'user'], 'running')
>>> action = {"name": "get_relations", "arguments": {"variable": "Nobody"}}
>>> messages, reward, terminated, truncated, info = env.step(action)
>>> messages[0]["role"], reward, terminated, info["turn"]
('tool', 0.0, False, 1)
>>> env.close()

An observation is the tuple of new messages, never the history. An action is an assistant message, a function call, or
raw model text. The sum of the rewards is the episode's shaped reward; the task ends itself, so there is no TimeLimit.

Not here: the turn loop (session.py), many sessions at once (vector.py), what a status is worth (scoring.py).
"""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym

from agentbench_fc.envs.actions import Action, read_action
from agentbench_fc.envs.choosing import draw, open_task, read_options
from agentbench_fc.envs.scoring import RewardKind, Scored, Scoring, info_of
from agentbench_fc.envs.spaces import ActionSpace, MessagesSpace
from agentbench_fc.episode import Task, Turn
from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.messages import Message
from agentbench_fc.parsers import get_parser
from agentbench_fc.rewards import ABNORMAL_PENALTY
from agentbench_fc.samples import choose_split, find_sample
from agentbench_fc.session import Session

if TYPE_CHECKING:
    from agentbench_fc.envs.remote import RemoteSession, RemoteTask

OWN_OPTIONS = (
    "task",
    "split",
    "profile",
    "prompt",
    "reward",
    "abnormal_penalty",
    "parser",
    "transcripts",
    "render_mode",
    "url",
)


class AgentEnv(gym.Env[tuple[Message, ...], Action]):
    """A task of `agentbench_fc` behind Gymnasium's interface; it drives a `Session` directly, without an event loop.

    Args:
        task: An id (`kg`), a path (`my_task.py:TASK`), or a `Task`.
        split: Where `reset` draws samples; by default `train`, or the task's only split.
        profile: `default`, or `agentbench` for AgentBench's own rules.
        prompt: Style of the prompts, `default` or `compact`.
        reward: `raw` (in [0, 1], as the task gives it) or `success` (0 or 1 at the end).
        abnormal_penalty: Return of an episode that hits a limit or is invalid; 0 keeps the task's own reward.
        parser: How raw text is read: `hermes`, `glm4`, `llama3`.
        transcripts: A file, or an existing folder, to which each episode's record is appended when it ends; not with
            `url`.
        render_mode: `ansi`, or none.
        url: Of a controller (`agentbench-fc serve`) whose workers run the episodes; `task` is an id that they serve.
        options: Of the task, such as `max_turns=10`.

    Raises:
        CallerError: a bad option; the message names the nearest good one.
        NotFound: no such task or split.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (Gymnasium declares it on the instance)

    def __init__(
        self,
        task: str | Task,
        *,
        split: str | None = None,
        profile: str = "default",
        prompt: str = "default",
        reward: RewardKind = "raw",
        abnormal_penalty: float = ABNORMAL_PENALTY,
        parser: str = "hermes",
        transcripts: str | Path | None = None,
        render_mode: str | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise CallerError(f"no render_mode {render_mode!r} [env]. {did_you_mean(render_mode, ['ansi'])}")
        self.render_mode = render_mode
        self.scoring = Scoring(reward, abnormal_penalty)
        self._parse = get_parser(parser)
        self._options = options
        self._transcripts = None if transcripts is None else Path(transcripts)
        self.task: Task | None = None
        """The task in this process; None where its episodes run elsewhere."""
        self._remote: RemoteTask | None = None
        if url is None:
            self.task, self._owned = open_task(task, profile, prompt, options, OWN_OPTIONS)
            self._name = task if isinstance(task, str) else self.task.spec.name
            self.split: str | None = choose_split(self.task, split)
            self.task.samples(self.split)  # an unknown split fails here, not at the first reset
            tools = list(self.task.spec.tools)
        else:
            from agentbench_fc.envs.remote import remote_task

            if transcripts is not None:
                raise CallerError("transcripts is given with a url [env]. Tell the workers where to write them.")
            self._remote, self._owned, self.split = remote_task(url, task, split, profile, prompt, options), True, split
            tools = self._remote.tools
        self.observation_space = MessagesSpace()
        self.action_space = ActionSpace(tools, parser)
        self.session: Session | RemoteSession | None = None
        """The running or finished episode."""
        self._over = True
        self._closed = False
        self._tools = copy.deepcopy(tools)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """Starts an episode; equal seed and options give an equal one.

        Args:
            seed: Of the draws of episode seed and session id, here and in the unseeded resets that follow.
            options: `sample` (id or number), `split`, `seed` (of the episode; it also chooses the sample where none is
                named, as in the client's `start_sample`). What is absent is drawn.

        Returns:
            The opening messages, and an info with `session_id`, `sample`, `turn`, `tools`, `status`, `success`,
            `raw_reward`, `masked` and `metrics`. Where the task could not start, the status says so and the next step
            is the last.

        Raises:
            CallerError: an unknown option, or no such sample or split.
            gymnasium.error.ClosedEnvironmentError: the env was closed.
        """
        if self._closed:
            raise gym.error.ClosedEnvironmentError("the env was closed [reset]. Make another one.")
        super().reset(seed=seed)
        drawn, session_id = draw(self.np_random)
        choice = read_options(options, self.split, drawn)
        if self.task is not None:
            sample = find_sample(self.task, choice.sample, split=choice.split, seed=choice.seed)
            self._leave("the env was reset")
            self.session = Session(self.task, sample, seed=choice.seed, session_id=session_id, options=self._options)
        else:
            assert self._remote is not None
            self._leave("the env was reset")
            self.session = self._remote.open(choice, session_id)
        turn = self.session.start()
        self._over = False
        self._write(turn)
        return self._observed(turn), self._info(turn, self.scoring.of(turn, 0.0))

    def step(self, action: Action) -> tuple[tuple[Message, ...], SupportsFloat, bool, bool, dict[str, Any]]:
        """Plays one agent turn.

        Raises:
            CallerError: the action has none of the known shapes. What a model gets wrong never raises.
            gymnasium.error.ResetNeeded: no episode is running.
        """
        if self.session is None or self._over:
            raise gym.error.ResetNeeded("no episode is running [step]. Call reset first.")
        earned = self.session.raw_reward
        if self.session.finished:  # it could not start: `reset` has no way to say so but through this step
            turn = self.session.last
        else:
            turn = self.session.interact(read_action(action, self._parse))
            self._write(turn)
        scored = self.scoring.of(turn, earned)
        self._over = turn.finish
        return self._observed(turn), scored.reward, scored.terminated, scored.truncated, self._info(turn, scored)

    def fork(self, turn: int | None = None) -> "AgentEnv":
        """An independent env that stands where this one stood after `turn`; by default where it stands now.

        Raises:
            CallerError: no such turn, or the episode had ended by then.
        """
        if self.session is None:
            raise gym.error.ResetNeeded("no episode is running [fork]. Call reset first.")
        child = copy.copy(self)
        child._owned = self._remote is not None and self._remote.share()
        child.session = self.session.fork(turn)
        child._over = child._closed = False
        child._np_random = copy.deepcopy(self._np_random)
        child.action_space, child.observation_space = copy.deepcopy((self.action_space, self.observation_space))
        return child

    def render(self) -> str | None:
        """With `render_mode="ansi"` the conversation so far as text."""
        if self.render_mode is None or self.session is None:
            return None if self.render_mode is None else ""
        return conversation(self.session)

    def close(self) -> None:
        """Frees the episode and what the task holds; safe to repeat."""
        self._leave("the env was closed")
        self._over = self._closed = True
        held = self.task or self._remote
        if self._owned and held is not None:
            self._owned = False
            held.close()

    def _leave(self, reason: str) -> None:
        if self.session is not None and self.session.log and not self.session.finished:
            self._write(self.session.cancel(reason=reason))

    def _write(self, turn: Turn) -> None:
        if turn.finish and self._transcripts is not None and isinstance(self.session, Session):
            from agentbench_fc.transcript import append

            append(self._transcripts, self.session, self._name)

    def _observed(self, turn: Turn) -> tuple[Message, ...]:
        return tuple(copy.deepcopy(turn.messages))

    def _info(self, turn: Turn, scored: Scored) -> dict[str, Any]:
        assert self.session is not None
        return info_of(turn, scored, self._tools, self.session.sample.id)


def conversation(session: "Session | RemoteSession") -> str:
    """All messages of a session as text, and how it stands."""
    lines = [line for played in session.log for m in (*played.sent, *played.turn.messages) for line in message_lines(m)]
    return "\n".join([*lines, f"[{session.sample.id}, turn {session.turn}: {session.status}]"])


def message_lines(message: Message) -> list[str]:
    """A message as text: its content, then its calls."""
    lines = [f"{message['role']}: {message['content']}"] if message["content"] else []
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return lines + [f"{message['role']}: {call['name']}({call['arguments']})" for call in calls]
