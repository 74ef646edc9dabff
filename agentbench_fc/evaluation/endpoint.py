"""A client of any OpenAI-compatible `/chat/completions` endpoint that expects it to fail.

Rate limits, server errors, hangs, cut bodies and garbage are tried again, with growing pauses and as `Retry-After`
asks, until the tries or the deadline are used up; then the episode is a model error, which evaluation counts apart. A
refused key or an unknown model is the caller's fault and stops at once; a context that is too long is neither.

Not here: the agent loop and the accounting (evaluate.py), tool calls in raw text (parsers.py).
Source: OpenAI chat completions API; the texts of context-length errors of vLLM, SGLang, llama.cpp and OpenAI.
"""

import asyncio
import email.utils
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import aiohttp

from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.messages import Message, ToolSpec, clean_text, read_agent_messages

MAX_BODY = 32_000_000
"""Bytes of an answer; a longer one is garbage."""
LONGEST_PAUSE_S = 60.0
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum (?:context|prompt|input|model) len|max_model_len"
    r"|(?:prompt|input|request|conversation)[\w ()]{0,40} (?:is|are) (?:too long|longer than)"
    r"|(?:too many|exceed\w*)[\w ()]{0,60} tokens|tokens[\w ()]{0,60} exceed",
    re.IGNORECASE,
)


class ModelError(InfrastructureError):
    """The endpoint gave no usable answer within its tries and its deadline; `kind` is for the accounting."""

    def __init__(self, message: str, kind: str = "unknown") -> None:
        super().__init__(message)
        self.kind = kind


class Unreachable(ModelError):
    """Nobody answers at the address: this says nothing about the model, so no episode is charged with it."""


class ContextLimit(CallerError):
    """The endpoint says that the conversation is too long for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What is sent beside messages and tools."""

    temperature: float | None = 0.8
    """None leaves it to the endpoint."""
    max_tokens: int | None = 1024
    """Of one answer; None leaves it to the endpoint."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the request, such as top_p, seed or chat_template_kwargs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the endpoint."""

    message: dict[str, Any]
    """The assistant message: `read_agent_messages` takes it."""
    cut: bool
    """The answer ended because it reached `max_tokens`."""
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    """Of the try that succeeded."""
    attempts: int


class _Again(Exception):
    """One try failed in a way that may pass."""

    def __init__(self, kind: str, text: str, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.pause_s = pause_s


class Endpoint:
    """One model behind one address. Use as an async context manager; safe for many requests at once.

    Args:
        base_url: With or without the `/chat/completions` at its end.
        model: Name of the model, as the endpoint knows it.
        api_key: Sent as a bearer token; never logged.
        timeout_s: Of one try, connection and body included.
        deadline_s: Of a request with all its tries and pauses.
        retries: Tries after the first.
        backoff_s: First pause; each further one is twice as long, with jitter.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        deadline_s: float = 600.0,
        retries: int = 5,
        backoff_s: float = 1.0,
    ) -> None:
        if urlsplit(base_url).scheme not in {"http", "https"}:
            raise CallerError(f"base_url is {base_url!r} [endpoint]. Give http://host:port/v1 or https://….")
        base = base_url.rstrip("/")
        self.url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        self.model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._jitter = random.Random()
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=0),  # the caller bounds its concurrency
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Answer:
        """Asks for the next assistant message.

        Raises:
            ContextLimit: the conversation is too long; end the session as `agent context limit`.
            Unreachable: no connection in all tries.
            ModelError: no usable answer in all tries or within the deadline.
            CallerError: the key, the model or the address is refused.
        """
        body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if sampling.temperature is not None:
            body["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            body["max_tokens"] = sampling.max_tokens
        data = json.dumps(body | dict(sampling.body)).encode()
        end = time.monotonic() + self._deadline_s
        for attempt in range(1, self._retries + 2):
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    return await self._try(data, attempt)
            except TimeoutError:
                last = _Again("timeout", f"no whole answer within {min(self._timeout_s, self._deadline_s):g} s")
            except _Again as again:
                last = again
            pause = self._pause(attempt, last.pause_s)
            if attempt > self._retries or time.monotonic() + pause >= end:
                break
            await asyncio.sleep(pause)
        text = f"{last} after {attempt} tries [{self.url}]."
        if last.kind == "unreachable":
            raise Unreachable(f"{text} Start the server, or mend the address.", last.kind) from last
        raise ModelError(f"{text} Look at the endpoint's log, or give it more time.", last.kind) from last

    def _pause(self, attempt: int, asked_s: float | None) -> float:
        if asked_s is not None:
            return asked_s
        pause: float = min(self._backoff_s * 2.0 ** (attempt - 1), LONGEST_PAUSE_S)
        return pause * self._jitter.uniform(0.5, 1.0)

    async def _try(self, data: bytes, attempt: int) -> Answer:
        assert self._http is not None, "use the endpoint as an async context manager"
        start = time.monotonic()
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self.url, data=data, headers=headers, allow_redirects=False) as response:
                raw = await _bounded(response.content)
                status, retry_after = response.status, response.headers.get("Retry-After")
        except aiohttp.ClientConnectorError as error:
            raise _Again("unreachable", f"no connection: {error}") from error
        except TimeoutError:
            raise
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            # a cut stream, a broken header or encoding: what is half there is not an answer
            raise _Again("cut", f"the answer broke off: {type(error).__name__}: {str(error)[:200]}") from error
        if status != 200:
            self._refuse(status, raw, retry_after)
        return self._read(raw, time.monotonic() - start, attempt)

    def _refuse(self, status: int, raw: bytes, retry_after: str | None) -> NoReturn:
        text = clean_text(raw[:2000].decode("utf-8", "replace")).strip()
        said = f"HTTP {status}: {text[:300]}" if text else f"HTTP {status}"
        if status in {400, 413, 422, 500} and _TOO_LONG.search(text):
            raise ContextLimit(f"the conversation is too long for the model: {said} [{self.url}]. Shorten it.")
        if status == 429 or status >= 500 or status in {408, 409, 425}:
            raise _Again(f"http {status}", said, _seconds(retry_after))
        if status in {401, 403}:
            raise CallerError(f"the endpoint refuses the key, {said} [{self.url}]. Name it by --api-key-env.")
        if status in {404, 405} or 300 <= status < 400:
            raise CallerError(f"no such model or address, {said} [model {self.model!r}, {self.url}]. Mend either.")
        raise ModelError(f"the request was refused, {said} [{self.url}]. Read what it says.", f"http {status}")

    def _read(self, raw: bytes, seconds: float, attempt: int) -> Answer:
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Again("garbage", f"not JSON: {raw[:120]!r}") from error
        if isinstance(body, dict) and "choices" not in body and "error" in body:
            self._refuse(_code(body["error"]), raw, None)  # some proxies report errors with HTTP 200
        try:
            choice = body["choices"][0]
            message = {**choice["message"], "role": "assistant"}
            read_agent_messages([message])
            usage = body.get("usage") or {}
            tokens = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
            return Answer(message, choice.get("finish_reason") == "length", *tokens, seconds, attempt)
        except (CallerError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise _Again("garbage", f"not a chat completion ({str(error)[:80]}): {raw[:120]!r}") from error


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in stream.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise _Again("garbage", f"an answer of over {MAX_BODY:,} bytes")
    return b"".join(parts)


def _seconds(retry_after: str | None) -> float | None:
    """The pause that a Retry-After header asks for: seconds, or a date."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _code(error: object) -> int:
    """The HTTP code inside an error body; 502 where it has none."""
    code = error.get("code") if isinstance(error, Mapping) else None
    try:
        number = int(str(code))
    except ValueError:
        return 502
    return number if 400 <= number < 600 else 502


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
