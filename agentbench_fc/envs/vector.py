"""AgentVectorEnv: many sessions of one task, all advancing at once.

>>> import gymnasium as gym, agentbench_fc
>>> envs = gym.make_vec("agentbench-fc/KG-v0", num_envs=3)
>>> observations, infos = envs.reset(seed=1)
>>> action = {"name": "get_relations", "arguments": {"variable": "Nobody"}}
>>> envs.send([action, action], ids=[0, 2])
>>> ids, observations, rewards, terminated, truncated, infos = envs.recv(min=2)
>>> ids.tolist(), infos["turn"].tolist()
([0, 2], [1, 1])
>>> envs.close()

`step` is `send` to all and `recv` from all. Between them a slow episode holds up nobody: `recv(min=1)` gives what is
there. A session that fails becomes an env that is truncated, `masked` in its info; the others go on.

Not here: one call and its fate (slots.py); sessions themselves (client.py).
"""

import copy
import operator
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from agentbench_fc.envs.actions import Action, read_action
from agentbench_fc.envs.choosing import Choice, draw, read_options
from agentbench_fc.envs.env import OWN_OPTIONS, message_lines
from agentbench_fc.envs.infos import batch_infos
from agentbench_fc.envs.parts import Settings, all_tools, local_parts, remote_client, remote_part
from agentbench_fc.envs.scoring import RewardKind, Scoring, info_of
from agentbench_fc.envs.slots import Result, Slot
from agentbench_fc.envs.spaces import ActionSpace, MessagesSpace
from agentbench_fc.envs.vector_options import per_env, read_autoreset_mode, read_mask, seeds_of
from agentbench_fc.episode import Task, Turn
from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.messages import Message, ToolSpec
from agentbench_fc.parsers import get_parser
from agentbench_fc.protocol import Client, SampleRef, SessionInfo, WorkerInfo
from agentbench_fc.rewards import ABNORMAL_PENALTY
from agentbench_fc.sync_client import SyncClient

Observation = tuple[Message, ...]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
VECTOR_OPTIONS = (*OWN_OPTIONS, "num_envs", "autoreset_mode", "client", "timeout_s")
CLOSE_WAIT_S = 10.0


class Batch(NamedTuple):
    """What `recv` gives: everything is ordered as `ids`."""

    ids: npt.NDArray[np.int64]
    observations: tuple[Observation, ...]
    rewards: Floats
    terminated: Bools
    truncated: Bools
    infos: dict[str, Any]


class AgentVectorEnv(gym.vector.VectorEnv[tuple[Observation, ...], Sequence[Action], Any]):
    """Many episodes of one task at once; observations and actions are tuples, one entry per env.

    Args:
        task: An id (`kg`), a path (`my_task.py:TASK`), or a `Task`; with `client` or `url` an id that it knows. Several
            of these: env i plays the i-th, and so on from the first (`Mixed-v0` deals them out by weight).
        num_envs: How many.
        split: Where samples are drawn; by default `train`, or the task's only split.
        profile: `default`, or `agentbench` for AgentBench's own rules.
        prompt: Style of the prompts, `default` or `compact`.
        reward: `raw` (in [0, 1], as the task gives it) or `success` (0 or 1 at the end).
        abnormal_penalty: Return of an episode that hits a limit or is invalid; 0 keeps the task's own reward.
        parser: How raw text is read: `hermes`, `glm4`, `llama3`.
        transcripts: A file, or an existing folder, for the episodes' records; not with `client` or `url`.
        render_mode: `ansi`, or none.
        autoreset_mode: When an env whose episode ended starts the next: with the next step (default), within the same
            step, or never (`reset(options={"reset_mask": …})`).
        client: Runs the sessions, e.g. on other machines. A `SyncClient` stays its owner's to close; any other client
            belongs to this env from now on. By default a client of its own, in this process.
        url: Of a controller (`agentbench-fc serve`) whose workers run the sessions; instead of `client`.
        timeout_s: A call without an answer by then ends its session, as a failure that is no fault of the agent.
        options: Of the task, such as `max_turns=10`.

    Raises:
        CallerError: a bad option; the message names the nearest good one.
        NotFound: no such task or split.
    """

    def __init__(
        self,
        task: str | Task | Sequence[str | Task],
        num_envs: int = 1,
        *,
        split: str | None = None,
        profile: str = "default",
        prompt: str = "default",
        reward: RewardKind = "raw",
        abnormal_penalty: float = ABNORMAL_PENALTY,
        parser: str = "hermes",
        transcripts: str | Path | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        client: Client | SyncClient | None = None,
        url: str | None = None,
        timeout_s: float = 600.0,
        **options: Any,
    ) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise CallerError(f"num_envs is {num_envs!r} [vector env]. Use an integer >= 1.")
        if render_mode not in {None, "ansi"}:
            raise CallerError(
                f"no render_mode {render_mode!r} [vector env]. {did_you_mean(str(render_mode), ['ansi'])}"
            )
        if not timeout_s > 0:
            raise CallerError(f"timeout_s is {timeout_s} [vector env]. Use seconds > 0.")
        if url is not None and client is not None:
            raise CallerError("url and client are given [vector env]. Give one of them.")
        if (client is not None or url is not None) and transcripts is not None:
            raise CallerError("transcripts is given with a client [vector env]. Tell the client where to write them.")
        self.closed = True  # until everything stands: a half-made env has nothing to close
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = read_autoreset_mode(autoreset_mode)
        self.metadata = {"render_modes": ["ansi"], "render_fps": 1, "autoreset_mode": self.autoreset_mode}
        self._parse = get_parser(parser)
        scoring = Scoring(reward, abnormal_penalty)
        settings = Settings(split=split, profile=profile, prompt=prompt, options=options)
        tasks = [task] if isinstance(task, str) or not isinstance(task, Sequence) else list(task)
        if client is None and url is None:
            local, parts = local_parts(tasks, settings, VECTOR_OPTIONS, transcripts)
            self.client, self._owns_client = SyncClient(local, timeout_s=timeout_s), True
        else:
            self.client = remote_client(client, url, timeout_s)
            self._owns_client = client is not self.client
            try:
                parts = [remote_part(self.client, each, settings) for each in tasks]
            except BaseException:
                if self._owns_client:
                    self.client.close()
                raise
        self._parts = [parts[place] for place in self._places(len(parts))]
        """What each env plays."""
        self.single_observation_space = MessagesSpace()
        self.single_action_space = ActionSpace(all_tools(parts), parser)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = (
            batch_space(self.single_action_space, num_envs)
            if len(parts) == 1
            else gym.spaces.Tuple([ActionSpace(part.tools, parser) for part in self._parts])
        )
        self._tools: list[list[ToolSpec]] = [copy.deepcopy(part.tools) for part in self._parts]
        self._answers: queue.SimpleQueue[tuple[Slot, Future[Any]]] = queue.SimpleQueue()
        arrived = self._answers  # the slots must not hold the env itself
        self._slots = [
            Slot(
                i, self.client, self._parts[i].source, scoring, timeout_s, lambda slot, done: arrived.put((slot, done))
            )
            for i in range(num_envs)
        ]
        self._ready: dict[int, tuple[Result, Result | None]] = {}
        """Answers not yet given out, by env: what to tell, and in SAME_STEP mode the end before it."""
        self._ends: dict[int, Result] = {}
        self._seen: list[Observation] = [()] * num_envs
        self._told: list[list[str]] = [[] for _ in range(num_envs)]
        self._started = False
        self.closed = False

    # Gymnasium's interface

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Observation, ...], dict[str, Any]]:
        """Starts an episode in every env; what runs, and what was sent but not received, is dropped.

        Args:
            seed: Env i gets `seed + i`, as in Gymnasium's own vector envs; or one seed per env.
            options: `sample`, `split`, `seed` as for a single env (each also as a list, one value per env), and
                `reset_mask`, a bool array (num_envs,): only these envs are reset.

        Raises:
            CallerError: an unknown option, or no such sample or split. A task that cannot start is no error: the info
                says so, and the next step of that env is the last.
        """
        self._check_open()
        mask, choices_of = read_mask(options, self.num_envs), per_env(options, self.num_envs)
        seeds = seeds_of(seed, self.num_envs)
        super().reset(seed=seed if isinstance(seed, int) else None)
        chosen = [slot for slot in self._slots if mask[slot.number]]
        plans: list[Choice] = []
        for slot in chosen:
            if seeds[slot.number] is not None or slot.rng is None:
                slot.rng, _ = seeding.np_random(seeds[slot.number])
            plans.append(self._choice(slot, choices_of[slot.number]))
        for slot, plan in zip(chosen, plans, strict=True):
            self._ready.pop(slot.number, None)
            self._ends.pop(slot.number, None)
            slot.start(plan)
        self._started = True
        self._await([slot.number for slot in chosen], len(chosen), None)
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for slot in chosen:
            result, _ = self._ready.pop(slot.number)
            infos[slot.number] = self._tell(slot.number, result)
        for slot in chosen:
            if isinstance(slot.error, CallerError):  # no such sample: not the session's fault but the call's
                raise slot.error
        return tuple(self._seen), batch_infos(infos)

    def step(self, actions: Sequence[Action]) -> tuple[tuple[Observation, ...], Floats, Bools, Bools, dict[str, Any]]:
        """One agent turn in every env, all at once; returns when the last has its answer.

        In NEXT_STEP mode the action of an env whose episode ended is ignored and its next episode starts.

        Raises:
            CallerError: not one action per env, one that has none of the known shapes, or an answer that was sent for
                and not received.
            gymnasium.error.ResetNeeded: no reset yet, or in DISABLED mode an env whose episode has ended.
        """
        self.send(actions, range(self.num_envs))
        _, observations, rewards, terminated, truncated, infos = self.recv(self.num_envs)
        return observations, rewards, terminated, truncated, infos

    def send(self, actions: Sequence[Action], ids: Iterable[int] | None = None) -> None:
        """Begins a turn in some envs without waiting. Nothing is begun where anything is wrong.

        Args:
            actions: One per id.
            ids: Numbers of envs that have no answer outstanding; by default all envs.

        Raises:
            CallerError: as `step`, or a wrong id.
            gymnasium.error.ResetNeeded: as `step`.
        """
        self._check_open()
        if not self._started:
            raise gym.error.ResetNeeded("no episode is running [vector env]. Call reset first.")
        slots = [self._slots[i] for i in self._checked_ids(ids)]
        if isinstance(actions, (str, Mapping)) or not isinstance(actions, Iterable):
            raise CallerError(f"actions is of type {type(actions).__name__} [vector env]. Give one action per env.")
        actions = list(actions)
        if len(actions) != len(slots):
            raise CallerError(f"{len(actions)} actions for {len(slots)} envs [vector env]. Give one for each.")
        messages: list[list[Message] | None] = []
        for slot, action in zip(slots, actions, strict=True):
            if slot.call is not None or slot.number in self._ready:
                raise CallerError(f"env {slot.number} has an answer outstanding [vector env]. Call recv first.")
            if slot.over and self.autoreset_mode is AutoresetMode.DISABLED:
                raise gym.error.ResetNeeded(f"the episode of env {slot.number} has ended. Reset it by reset_mask.")
            messages.append(None if slot.over else read_action(action, self._parse))
        for slot, sent in zip(slots, messages, strict=True):
            if sent is None:
                slot.start(self._choice(slot, None))
            else:
                self._note(slot.number, sent)
                slot.play(sent)

    def recv(self, min: int = 1, timeout: float | None = None) -> Batch:
        """Answers to what was sent: at least `min` of those outstanding, and all others that are there by then.

        Args:
            min: Where fewer are outstanding, all of them.
            timeout: After so many seconds, whatever is there, be it nothing; the rest stays outstanding. None: until
                `min` are there, which the deadline of each call bounds.

        Raises:
            CallerError: nothing is outstanding.
        """
        self._check_open()
        waiting = {slot.number for slot in self._slots if slot.call is not None} | set(self._ready)
        if not waiting:
            raise CallerError("nothing is outstanding [vector env]. Call send before recv.")
        if min < 0 or (timeout is not None and timeout < 0):
            raise CallerError(f"min is {min}, timeout is {timeout} [recv]. Use values >= 0.")
        self._await(waiting, min, timeout)
        ids = sorted(self._ready)
        rewards, ended = np.zeros(len(ids)), np.zeros((2, len(ids)), dtype=np.bool_)
        infos: list[dict[str, Any]] = []
        for place, number in enumerate(ids):
            result, end = self._ready.pop(number)
            judged = end or result
            if not judged.started:
                rewards[place] = judged.scored.reward
                ended[:, place] = judged.scored.terminated, judged.scored.truncated
            final = {} if end is None else {"final_obs": _observed(end), "final_info": self._info(number, end)}
            infos.append(final | self._tell(number, result))
        observations = tuple(self._seen[number] for number in ids)
        return Batch(np.array(ids, dtype=np.int64), observations, rewards, ended[0], ended[1], batch_infos(infos))

    def render(self) -> tuple[str, ...] | None:
        """With `render_mode="ansi"` the conversation of each env so far."""
        return None if self.render_mode is None else tuple("\n".join(lines) for lines in self._told)

    def close_extras(self, **kwargs: Any) -> None:
        """Cancels the sessions, and closes the client where it is this env's own."""
        left = [future for slot in self._slots if (future := slot.leave()) is not None]
        wait(left, CLOSE_WAIT_S)
        if self._owns_client:
            self.client.close()

    # the client's interface, for sessions beside the envs

    def start_sample(
        self, sample: SampleRef | None = None, *, split: str | None = None, seed: int | None = None, env: int = 0
    ) -> Turn:
        """A session of env `env`'s task that belongs to no env; drive it by `interact`, end it by `cancel`."""
        part = self._parts[self._checked_ids([env])[0]]
        default = None if isinstance(sample, str) else part.split
        return self.client.start_sample(
            part.source.task,
            sample,
            split=split or default,
            seed=seed,
            profile=part.source.profile,
            prompt=part.source.prompt,
            options=part.source.options,
        )

    def interact(self, session_id: str, messages: Iterable[Mapping[str, Any]], turn: int | None = None) -> Turn:
        """A turn of a session that belongs to no env; see `Client.interact`."""
        return self.client.interact(session_id, messages, turn)

    def cancel(self, session_id: str, status: str = "cancelled") -> Turn:
        """Ends a session. An env whose session is ended so is truncated at its next step."""
        return self.client.cancel(session_id, status)

    def fork(self, session_id: str, turn: int | None = None) -> Turn:
        """A new session, of no env, that stands where another one stood; see `Client.fork`."""
        return self.client.fork(session_id, turn)

    def list_sessions(self) -> list[SessionInfo]:
        """The client's open sessions, oldest first."""
        return self.client.list_sessions()

    def list_workers(self) -> list[WorkerInfo]:
        """The processes behind the client."""
        return self.client.list_workers()

    # waiting

    def _await(self, numbers: Iterable[int], want: int, timeout: float | None) -> None:
        """Moves answers to `_ready` until `want` of `numbers` are there, or time is up."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._answers.empty():  # notices of what the next line sees anyway, or of calls that were given up
            self._answers.get_nowait()
        self._collect_all()  # also what an interrupted wait had taken off the queue
        missing = {number for number in numbers if number not in self._ready}
        want -= len(set(numbers) - missing)
        nearest = self._nearest(until)  # not looked for anew at each answer: a call begun later has a later deadline
        while want > 0 and missing:
            try:
                slot, answer = self._answers.get(timeout=max(nearest - time.monotonic(), 0.0))
            except queue.Empty:
                self._collect_all()
                arrived = missing & self._ready.keys()
                if not arrived and until is not None and time.monotonic() >= until:
                    return
                nearest = self._nearest(until)
            else:
                if slot.call is not answer:
                    continue  # it was given up meanwhile
                self._collect(slot)
                arrived = {slot.number} & missing & self._ready.keys()
            missing -= arrived
            want -= len(arrived)

    def _nearest(self, until: float | None) -> float:
        """The next deadline: that of a call, or `until`."""
        deadlines = [slot.deadline for slot in self._slots if slot.call is not None]
        return min(deadlines + ([] if until is None else [until]), default=0.0)

    def _collect_all(self) -> None:
        for slot in self._slots:
            self._collect(slot)

    def _collect(self, slot: Slot) -> None:
        """Takes a slot's answer if it is there or overdue; after an end in SAME_STEP mode the next episode starts."""
        if slot.call is None or not (slot.call.done() or time.monotonic() >= slot.deadline):
            return
        result = slot.take()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and slot.over:
            self._ends[slot.number] = result
            slot.start(self._choice(slot, None))
        else:
            self._ready[slot.number] = result, self._ends.pop(slot.number, None)

    # telling

    def _tell(self, number: int, result: Result) -> dict[str, Any]:
        """The info of an answer; its messages become what was seen last."""
        self._seen[number] = _observed(result)
        if result.started:
            self._told[number].clear()
        if self.render_mode is not None:
            self._told[number] += [line for message in self._seen[number] for line in message_lines(message)]
        return self._info(number, result)

    def _note(self, number: int, sent: Sequence[Message]) -> None:
        if self.render_mode is not None:
            self._told[number] += [line for message in sent for line in message_lines(message)]

    def _info(self, number: int, result: Result) -> dict[str, Any]:
        return info_of(result.turn, result.scored, self._tools[number], result.sample)

    # checking

    def _choice(self, slot: Slot, options: Mapping[str, Any] | None) -> Choice:
        assert slot.rng is not None
        return read_options(options, self._parts[slot.number].split, draw(slot.rng)[0])

    def _checked_ids(self, ids: Iterable[int] | None) -> list[int]:
        try:
            checked = list(range(self.num_envs)) if ids is None else [operator.index(i) for i in ids]
        except TypeError as error:
            raise CallerError(f"ids is {ids!r:.80} [vector env]. Give numbers of envs, as integers.") from error
        if wrong := [i for i in checked if not 0 <= i < self.num_envs]:
            raise CallerError(f"there is no env {wrong[0]} [vector env]. Ids go from 0 to {self.num_envs - 1}.")
        if len(set(checked)) < len(checked):
            raise CallerError(f"an id is given twice: {checked} [vector env]. Give each at most once.")
        return checked

    def _check_open(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError("the vector env was closed. Make another one.")

    def _places(self, parts: int) -> list[int]:
        """Which part each env plays."""
        return [number % parts for number in range(self.num_envs)]


def _observed(result: Result) -> Observation:
    return tuple(copy.deepcopy(result.turn.messages))
