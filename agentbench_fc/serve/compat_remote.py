"""AgentRL's wire as its workers speak it: calls to one of them, and its answers as turns of ours.

Not here: sessions (compat_stub.py).
Source: agentrl-worker 0.4.0, as it behaves.
"""

import json
import logging
import math
import time
from typing import Any

from agentbench_fc.errors import TaskError, Unavailable
from agentbench_fc.rewards import Status
from agentbench_fc.serve.http import encode
from agentbench_fc.serve.link import Link, NoAnswer

logger = logging.getLogger(__name__)

CALL_LIMIT_S = 900.0
ASK_LIMIT_S = 5.0
FRESH_S = 2.0
"""A worker that answered so lately is taken to be there."""
_UNSCORED = {Status.CANCELLED, Status.TASK_ERROR, Status.UNKNOWN}


class UnknownThere(Exception):
    """The worker does not know the session."""


class RemoteWorker:
    """Calls to one worker of AgentRL.

    Args:
        base: URL of its API.
        link: For the calls.
        shown: Its name in messages.
    """

    def __init__(self, base: str, link: Link, shown: str) -> None:
        self._base = base.rstrip("/")
        self._link = link
        self._shown = shown
        self._heard = -math.inf

    async def check(self) -> None:
        """Makes sure that it is there: what is answered in its name is taken for a sign of its life.

        Raises:
            NoAnswer: it is not.
        """
        if time.monotonic() - self._heard >= FRESH_S:
            await self.ask("worker_status")

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """One call about a session.

        Raises:
            NoAnswer: there was none.
            UnknownThere: there is no such session.
            Unavailable: there is no slot.
            TaskError: any other refusal.
        """
        status, raw = await self._send("POST", name, encode(body), CALL_LIMIT_S)
        text = raw[:300].decode("utf-8", "replace")
        if status == 406:
            raise Unavailable(f"the worker refuses: {text} [{self._shown}]. Try again later.")
        if status == 400 and "No such session" in text:
            raise UnknownThere
        if status != 200:
            raise TaskError(f"the worker answers {status}: {text} [{self._shown}]. Its log may say why.")
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise TaskError(f"the worker's answer is no JSON object: {text} [{self._shown}]. Is it AgentRL's?")
        return value

    async def ask(self, name: str) -> Any:
        """What it says about itself."""
        status, raw = await self._send("GET", name, None, ASK_LIMIT_S)
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if status != 200 or value is None:
            text = raw[:300].decode("utf-8", "replace")
            raise TaskError(f"the worker answers {status}: {text} [{self._shown}]. Is it AgentRL's?")
        return value

    async def cancel(self, number: int) -> bool:
        """Ends a session; whether it was over already. Else the worker sends a notice when it is."""
        body = encode({"session_id": number})
        try:
            status, _ = await self._send("POST", "cancel_with_notice", body, ASK_LIMIT_S)
        except NoAnswer as error:
            logger.info("a session of %s was not cancelled: %s", self._shown, error)
            return False
        return status == 400

    async def _send(self, method: str, name: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        try:
            answer = await self._link.send(method, f"{self._base}/{name}", body, timeout_s=limit_s)
        except NoAnswer:
            self._heard = -math.inf
            raise
        self._heard = time.monotonic()
        return answer


def read_flat(flat: dict[str, Any], session_id: str, number: int) -> dict[str, Any]:
    """A worker's answer as the fields of a turn.

    >>> flat = {"messages": [], "status": "completed", "finish": True, "reward": 1, "metric": {"score": 1.0}}
    >>> turn = read_flat(flat, "s", 3)
    >>> turn["turn"], turn["reward"], turn["success"], turn["metrics"]
    (3, 1.0, True, {'score': 1.0})

    Raises:
        TaskError: it is none.
    """
    try:
        status, finish, metrics = Status(flat["status"]), bool(flat["finish"]), dict(flat.get("metric") or {})
        reward: float | None = float(flat.get("reward") or 0)
        messages = [dict(message) for message in flat["messages"]]
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(
            f"the worker's answer is no turn: {error!r} [session {session_id}]. Is it AgentRL's?"
        ) from error
    if status in _UNSCORED or (not finish and not reward and not metrics):
        reward = None  # on AgentRL's wire 0 stands for no reward, too
    success = None if reward is None or not finish else reward == 1.0
    return _fields(session_id, number, status, finish=finish, messages=messages, reward=reward, success=success) | {
        "metrics": metrics
    }


def cut_short(session_id: str, number: int, status: Status) -> dict[str, Any]:
    """The last turn of a session that the client ended."""
    scored = status not in _UNSCORED
    reward, success = (0.0, False) if scored else (None, None)
    return _fields(session_id, number, status, finish=True, messages=[], reward=reward, success=success)


def _fields(
    session_id: str,
    number: int,
    status: Status,
    *,
    finish: bool,
    messages: list[Any],
    reward: float | None,
    success: bool | None,
) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "turn": number,
        "messages": messages,
        "status": status,
        "finish": finish,
        "reward": reward,
        "success": success,
        "metrics": {},
    }
