"""SGLang behind the engine protocol: ids in, ids, log-probs and weight versions out, over its native `/generate`.

New weights pass by disk: generation is paused with mode `abort`, so that requests in flight return with the tokens they
have and the pool sends them again; the server loads the snapshot, drops its prefix cache, whose keys and values belong
to the old weights, and goes on. A server that restarts on its own holds the weights it was started with: its answers
then bear a version that is not ours, and it is out of service until it got the newest ones again.

Not here: HTTP (sglang_http.py); who takes a turn and what follows a fault (pool.py).
Source: SGLang 0.5.23; abort and resubmit after AReaL, arXiv 2505.24298.
"""

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from agentbench_fc.errors import CallerError, InfrastructureError
from agentrl_trainer.engines.base import Completion, ContextFull, EngineRole, FinishReason, Sampling
from agentrl_trainer.engines.sglang_http import BACKOFF_S, RELEASE, SGLangServer
from agentrl_trainer.types import NO_VERSION

logger = logging.getLogger(__name__)
RETRIES = 2
"""Further tries of one request on the same server, for broken connections; the pool then draws another."""
CONTROL_S = 60.0
"""Deadline of pausing, going on and the like: pausing waits for the scheduler in rounds of a second."""
UPDATE_S = 280.0
HEALTH_S = 15.0
"""`/health` makes the server generate a token, and answers within a second or two."""
UNFLUSHED = "cache was not flushed"
"""How SGLang says that it has the new weights and still the old prefix cache."""
FLUSHES = 4
FLUSH_PAUSE_S = 0.5
REVIVE_S = 300.0
"""How long a server may take to be started again by whoever runs it."""
ABORT_S = 5.0
CONNECT_PAUSE_S = 1.0


class SGLangEngine:
    """An `InferenceEngine` over one server; made by `connect`."""

    def __init__(self, server: SGLangServer, *, name: str, role: EngineRole, vocabulary: int = 0) -> None:
        self.name = name
        self.role: EngineRole = role
        self.version = NO_VERSION
        """Of the newest weights that we gave it; NO_VERSION: it holds those it was started with."""
        self.vocabulary = vocabulary
        self.context = 0
        """Most tokens of prompt and output together; 0: it does not say."""
        self._server = server
        self._updating = asyncio.Lock()
        self._strange = ""
        self._aborts: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str = "engine-0",
        role: EngineRole = "fresh",
        key: str = "",
        architecture: str = "",
        vocabulary: int = 0,
        timeout_s: float = 300.0,
    ) -> Self:
        """Waits until the server is there, and checks that it can serve the policy.

        Args:
            url: `http://host:port`.
            name: In messages and logs.
            role: Which weights it gets.
            key: Of the server, where it asks for one.
            architecture: Of the policy, e.g. `Qwen3ForCausalLM`; empty: not checked.
            vocabulary: Ids of the policy.
            timeout_s: Until it must be ready; a server that loads a large model takes minutes.

        Raises:
            CallerError: it serves another model, or changes what is sampled.
            InfrastructureError: nobody answered in time.
        """
        engine = cls(SGLangServer(url, key=key), name=name, role=role, vocabulary=vocabulary)
        try:
            await engine._wait_until_ready(timeout_s)
            await engine._check(architecture)
        except BaseException:
            await engine.aclose()
            raise
        return engine

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, timeout_s: float) -> Completion:
        """Continues `ids`; see `InferenceEngine`."""
        if not ids or sampling.max_tokens < 1:
            raise CallerError(
                f"{len(ids)} ids and {sampling.max_tokens} new tokens [{self.name}]. Send ids, and ask for 1 or more."
            )
        if self.context and len(ids) + sampling.max_tokens > self.context:
            raise ContextFull(
                f"{len(ids)} tokens and {sampling.max_tokens} new ones exceed the context of {self.context} "
                f"[{self.name}]. End the session as `agent context limit`."
            )
        if self._strange:
            raise InfrastructureError(self._strange)
        completion = read_completion(await self._ask(ids, sampling, timeout_s), self.name)
        self._refuse_strange(completion.versions)
        return completion

    async def forward(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Passes a request on as it is and returns the JSON that comes back; for the router."""
        if self._strange:
            raise InfrastructureError(self._strange)
        answer = await self._server.post(path, body, timeout_s=timeout_s)
        if path == "/generate":
            self._refuse_strange([_number(span["version"]) for span in version_spans(answer)])
        return answer

    async def update_weights(self, path: Path, version: int) -> None:
        """Takes the weights in `path`; requests in flight end as `abort`.

        Raises:
            CallerError: the server cannot load them: another model, or a folder that it does not see.
            InfrastructureError: it did not answer in time.
        """
        async with self._updating:
            try:
                await self._server.post("/pause_generation", {"mode": "abort"}, timeout_s=CONTROL_S)
                await self._load(path, version)
            except BaseException:
                with contextlib.suppress(InfrastructureError, CallerError):  # the first fault is the one to tell
                    await self._continue()
                raise
            await self._continue()

    async def health(self) -> bool:
        """Whether it would answer a request now; while it loads weights, whether it is there at all."""
        try:
            if self._updating.locked():
                await self._server.get("/model_info", timeout_s=HEALTH_S)
            else:
                await self._server.get("/health", timeout_s=HEALTH_S)
        except (InfrastructureError, CallerError):
            return False
        return not self._strange

    async def revive(self) -> None:
        """Waits until the server is there again, whatever weights it holds: new ones follow.

        Raises:
            InfrastructureError: nobody started it in time.
        """
        await self._wait_until_ready(REVIVE_S)
        await self._continue()  # it may have been paused when the connection broke
        self.version, self._strange = NO_VERSION, ""

    async def aclose(self) -> None:
        """Lets the server be; safe to repeat."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_S)
        await self._server.aclose()

    async def _ask(self, ids: Sequence[int], sampling: Sampling, timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        for left in reversed(range(RETRIES + 1)):
            body = generate_body(ids, sampling)  # with an id of its own: the try before may still run over there
            try:
                return await self._server.post("/generate", body, timeout_s=end - time.monotonic())
            except asyncio.CancelledError:
                self._abort(body["rid"])  # nobody waits for it any more
                raise
            except InfrastructureError:
                self._abort(body["rid"])
                pause = BACKOFF_S * 2.0 ** (RETRIES - left)
                if not left or time.monotonic() + pause >= end:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _continue(self) -> None:
        await self._server.post("/continue_generation", {}, timeout_s=CONTROL_S, retries=RETRIES)

    async def _load(self, path: Path, version: int) -> None:
        body = {"model_path": str(path), "weight_version": str(version), "flush_cache": True}
        for left in reversed(range(FLUSHES)):
            try:
                answer = await self._server.post("/update_weights_from_disk", body, timeout_s=UPDATE_S)
            except CallerError as error:
                if UNFLUSHED not in str(error):
                    raise CallerError(
                        f"version {version} was not taken: {error} Start the server with the policy's own folder, and "
                        "let engines.weights_dir be one that it sees under the same path."
                    ) from error
                if not left:
                    raise InfrastructureError(
                        f"version {version} is there, with keys and values of the old weights: {error} "
                        "Let no other client use the server."
                    ) from error
                await asyncio.sleep(FLUSH_PAUSE_S)  # somebody else's request, or a health check, is still running
            else:
                break
        if not (isinstance(answer, dict) and answer.get("success") is True):
            raise InfrastructureError(f"version {version} was not taken: {answer} [{self.name}]. Look at its log.")
        self.version = version

    async def _wait_until_ready(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        told = False
        while True:
            try:
                await self._server.get("/health", timeout_s=min(HEALTH_S, timeout_s))
            except InfrastructureError as error:
                if not told:
                    logger.warning("%s is waited for, %.0f s at most: %s", self.name, timeout_s, error)
                    told = True
                if time.monotonic() + CONNECT_PAUSE_S >= end:
                    raise InfrastructureError(
                        f"no SGLang server was ready within {timeout_s:g} s [{self.name}]: {error} "
                        "Start it with `python -m sglang.launch_server --model-path MODEL --port PORT`."
                    ) from error
            else:
                return
            await asyncio.sleep(CONNECT_PAUSE_S)

    async def _check(self, architecture: str) -> None:
        model = await self._server.get("/model_info", timeout_s=CONTROL_S)
        server = await self._server.get("/server_info", timeout_s=CONTROL_S)
        if not isinstance(model, dict) or not isinstance(server, dict):
            raise CallerError(f"the server does not describe itself as SGLang does [{self._server.url}]. Start SGLang.")
        if not model.get("is_generation", True):
            raise CallerError(f"it serves an embedding model [{self._server.url}]. Start it with the policy.")
        served = model.get("architectures") or []
        if architecture and served and architecture not in served:
            raise CallerError(
                f"the policy is a {architecture}, the server holds a {served[0]} ({model.get('model_path')}) "
                f"[{self._server.url}]. Start it with --model-path of the policy."
            )
        if preferred := model.get("preferred_sampling_params"):
            raise CallerError(
                f"the server changes how is sampled: {preferred} [{self._server.url}]. "
                "Start it without --preferred-sampling-params: log-probs must be those of the whole distribution."
            )
        if (release := str(server.get("version", ""))) != RELEASE:
            logger.warning("%s runs SGLang %s; this client was checked against %s", self.name, release, RELEASE)
        context = server.get("context_length") or server.get("max_context_length")
        self.context = context if isinstance(context, int) else 0

    def _refuse_strange(self, versions: Sequence[int]) -> None:
        if NO_VERSION in versions and self.version != NO_VERSION:
            self._strange = (
                f"the server answers with weights that it did not get from us [{self.name}]. It was started again, or "
                "something else updates it: leave it to one trainer."
            )
            raise InfrastructureError(self._strange)

    def _abort(self, rid: str) -> None:
        async def tell() -> None:
            with contextlib.suppress(InfrastructureError, CallerError):
                await self._server.post("/abort_request", {"rid": rid}, timeout_s=ABORT_S)

        task = asyncio.create_task(tell(), name=f"abort-{rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


def generate_body(ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """The body of `/generate`: the whole distribution, every sampled token, and its log-prob."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed & 0x7FFFFFFF
    return {
        "rid": uuid.uuid4().hex,
        "input_ids": list(ids),
        "sampling_params": params,
        "return_logprob": True,
        "logprob_start_len": -1,  # none of the prompt's
        "stream": False,
    }


def read_completion(answer: Any, name: str) -> Completion:
    """What `/generate` gave, token for token.

    Raises:
        CallerError: log-probs or versions are missing: not the wire that this client knows.
        InfrastructureError: a log-prob is no number.
    """
    try:
        meta: Mapping[str, Any] = answer["meta_info"]
        finish = meta["finish_reason"]["type"]
        entries = meta.get("output_token_logprobs") or []
        ids = tuple(int(entry[1]) for entry in entries)
        logprobs = tuple(float(entry[0]) for entry in entries)
        given = answer.get("output_ids")
        if finish == "abort" and given is not None:  # a token without its log-prob, or the reverse, is sampled again
            both = min(len(given), len(ids))
            given, ids, logprobs = given[:both], ids[:both], logprobs[:both]
        if given is not None and tuple(given) != ids:
            raise CallerError(
                f"{len(given)} ids came with {len(ids)} log-probs [{name}]. Start the server without speculative or "
                f"beam decoding, in release {RELEASE}."
            )
        versions = read_versions(meta, len(ids))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CallerError(
            f"the answer is not SGLang's: {error!r} in {str(answer)[:200]} [{name}]. Use release {RELEASE}."
        ) from error
    if not all(math.isfinite(logprob) for logprob in logprobs):
        raise InfrastructureError(f"a log-prob is not finite [{name}]. Look at the weights and at its log.")
    reasons: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
    if finish not in reasons:
        raise CallerError(f"the server ended with {finish!r} [{name}]. Use release {RELEASE}.")
    return Completion(ids, logprobs, versions, reasons[finish])


def read_versions(meta: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """The weight version of each of `count` tokens: from spans where the answer has them, else one for all.

    >>> spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    >>> read_versions({"weight_versions": spans}, 3)
    (3, 3, 4)
    >>> read_versions({"weight_version": "default"}, 2)  # never updated
    (-1, -1)

    Raises:
        ValueError: the spans do not cover the tokens.
    """
    spans = meta.get("weight_versions")
    if not spans:
        return (_number(meta["weight_version"]),) * count if count else ()
    versions = [_number(span["version"]) for span in spans for _ in range(span["start"], min(span["end"], count))]
    if len(versions) != count:
        raise ValueError(f"weight_versions cover {len(versions)} of {count} tokens")
    return tuple(versions)


def version_spans(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The spans of an answer, one over all tokens where it has none.

    >>> version_spans({"output_ids": [4, 5], "meta_info": {"weight_version": "3"}})
    [{'version': '3', 'start': 0, 'end': 2}]
    """
    meta = answer.get("meta_info") or {}
    if spans := meta.get("weight_versions"):
        return list(spans)
    return [{"version": meta.get("weight_version"), "start": 0, "end": len(answer.get("output_ids") or ())}]


def _number(text: Any) -> int:
    """Ours are numbers; a server that was never updated says `default`."""
    return int(text) if str(text).isdecimal() else NO_VERSION
