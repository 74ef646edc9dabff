"""What plays an episode in an evaluation: a model behind an endpoint, or a player. One agent per episode.

Not here: HTTP and its retries (endpoint.py), what the players do (players.py), sessions (client.py).
Source: cross-policy sampling at inference, AgentRL, arXiv 2510.04206, figure 8a.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from agentbench_fc.episode import Turn
from agentbench_fc.evaluation.endpoint import Endpoint, Sampling
from agentbench_fc.messages import AgentTurn, Message, ToolCall, assistant, read_agent_messages
from agentbench_fc.parsers import Parser
from agentbench_fc.players import Player

Mix = Literal["trajectory", "step"]
"""What one draw from a pool of policies decides."""


class Policy(NamedTuple):
    """One of several models."""

    name: str
    endpoint: Endpoint


@dataclass(slots=True)
class Usage:
    """What an agent's answers cost in one episode."""

    seconds: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cut_answers: int = 0
    tries: int = 0
    """Tries beyond the first of each request that was answered."""


class Agent(Protocol):
    """One policy in one episode, as evaluation drives it."""

    usage: Usage

    async def act(self, turn: Turn) -> list[Message]:
        """The assistant messages that answer a turn."""
        ...


class ModelAgent:
    """A model behind an endpoint; it holds the conversation, since turns bring only what is new.

    Args:
        endpoint: Shared by all agents.
        sampling: Likewise.
        parser: Reads tool calls from the text of an answer that has none in its fields.
    """

    def __init__(self, endpoint: Endpoint, sampling: Sampling, parser: Parser | None = None) -> None:
        self.usage = Usage()
        self._endpoint = endpoint
        self._sampling = sampling
        self._parser = parser
        self._history: list[Message] = []

    async def act(self, turn: Turn) -> list[Message]:
        """Sends the conversation so far; raises what `Endpoint.complete` raises."""
        self._history += turn.messages
        answer = await self._next_endpoint().complete(self._history, turn.tools, self._sampling)
        self.usage.seconds.append(answer.seconds)
        self.usage.prompt_tokens = _plus(self.usage.prompt_tokens, answer.prompt_tokens)
        self.usage.completion_tokens = _plus(self.usage.completion_tokens, answer.completion_tokens)
        self.usage.cut_answers += answer.cut
        self.usage.tries += answer.attempts - 1
        said = read_agent_messages([answer.message])
        if self._parser is not None and not said.calls:
            # such an endpoint renders history from text alone: the model's own words go back to it as they were
            self._history.append(assistant(said.text))
            return self._parser(said.text).to_messages()
        self._history.append(remembered(said))
        return said.to_messages()

    def _next_endpoint(self) -> Endpoint:
        """Who answers this turn."""
        return self._endpoint


class PoolAgent(ModelAgent):
    """Several models that play one episode between them: drawn uniformly for each turn, or once for all turns.

    They share the conversation, so that a turn answers what another policy did; all must read the same tool format.
    """

    def __init__(
        self,
        pool: Sequence[Policy],
        mix: Mix,
        rng: random.Random,
        sampling: Sampling,
        parser: Parser | None = None,
    ) -> None:
        first = rng.choice(pool)
        super().__init__(first.endpoint, sampling, parser)
        self.policies: list[str] = []
        """Who answered each turn."""
        self._pool, self._rng = ([first] if mix == "trajectory" else pool), rng

    def _next_endpoint(self) -> Endpoint:
        drawn = self._rng.choice(self._pool)
        self.policies.append(drawn.name)
        return drawn.endpoint


class PlayerAgent:
    """A player that needs no model."""

    def __init__(self, player: Player) -> None:
        self.usage = Usage()
        self._player = player

    async def act(self, turn: Turn) -> list[Message]:
        """The player's move."""
        return self._player.act(turn)


def remembered(said: AgentTurn) -> Message:
    """The assistant message as it goes back to the endpoint.

    Servers parse the arguments of earlier calls to render them, and refuse the whole conversation when one is no JSON
    object. Such arguments go back wrapped; the tool message that follows tells the model what was wrong.
    """
    if not said.calls:
        return assistant(said.text)
    calls = [
        ToolCall(call.id, call.name or "unnamed", call.arguments if _is_object(call.arguments) else _wrapped(call))
        for call in said.calls
    ]
    return assistant(said.text or None, calls)


def _wrapped(call: ToolCall) -> str:
    return json.dumps({"malformed": call.arguments})


def _is_object(text: str) -> bool:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
