"""An SGLang server over a real tiny model: the pinned release's routes and fields, nothing beyond them.

    async with FakeSGLang(folder) as server: ...                       # in this process
    python tests/fake_sglang.py --model-path FOLDER --port 30000       # as a process that can be killed

What the release does not know is refused (fields are read from sglang_contract.json, which a test holds against the
wheel). Tokens come from TransformersEngine in pieces, so that an abort returns what there is; log-probs are those of a
full pass. As in SGLang, a paused server lets requests wait, an update waits for requests in flight unless the server is
paused, and an update without `flush_cache` leaves the old weights' keys and values in use for prompts that it knows.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from agentbench_fc.errors import AgentBenchError
from agentrl_trainer.engines.base import Sampling
from agentrl_trainer.engines.transformers import TransformersEngine

CONTRACT: Mapping[str, Any] = json.loads((Path(__file__).parent / "sglang_contract.json").read_text())
Fault = Callable[[str, int, Mapping[str, Any]], str | None]
"""Route, how often it was asked, body -> hang, cut, garbage, unflushed, nan, short or a status; None: no fault."""
KNOWN_PREFIX = 8
"""So many equal first tokens are a prefix that the cache knows."""
PIECE = 4


class FakeSGLang:
    """The server; an async context manager that knows its `url`."""

    def __init__(
        self,
        folder: Path,
        *,
        fault: Fault = lambda path, n, body: None,
        context: int = 512,
        shift: float = 0.0,
        info: Mapping[str, Any] = {},
        key: str = "",
        port: int = 0,
    ) -> None:
        self.fault = fault
        self.shift = shift
        """Added to each log-prob: a server whose numbers are wrong."""
        self.url = ""
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.aborted: list[str] = []
        self.version = "default"
        self._folder, self._context, self._info, self._port = folder, context, info, port
        self._key = key
        self._engine = TransformersEngine(folder, max_context=context)
        self._outdated: TransformersEngine | None = None
        self._known: set[tuple[int, ...]] = set()
        self._known_before: set[tuple[int, ...]] = set()
        self.sampled = asyncio.Event()
        """Set when a request has its first tokens."""
        self._active: dict[str, bool] = {}
        self._changed = asyncio.Condition()
        self._paused = False
        self._asked: Counter[str] = Counter()
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        for path in CONTRACT["routes"]:
            handler = getattr(self, f"_{path[1:]}")
            app.router.add_route("*", path, self._checked(path, handler))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()
        for engine in (self._engine, self._outdated):
            if engine is not None:
                await engine.aclose()

    def asked(self, path: str) -> list[dict[str, Any]]:
        """The bodies that came to a route."""
        return [body for route, body in self.bodies if route == path]

    def _checked(self, path: str, handler: Callable[[dict[str, Any]], Any]) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = json.loads(await request.text() or "{}")
            self.bodies.append((path, body))
            self._asked[path] += 1
            if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            fault = self.fault(path, self._asked[path], body)
            if fault is not None and fault not in ("nan", "short"):
                return await self._misbehave(fault, request)
            unknown = set(body) - set(CONTRACT["requests"].get(path, ()))
            unknown |= set(body.get("sampling_params") or ()) - set(CONTRACT["sampling_params"])
            if unknown:
                return web.json_response({"error": f"unknown field `{min(unknown)}`"}, status=400)
            answer: web.StreamResponse = await handler(body | ({"_fault": fault} if fault else {}))
            return answer

        return handle

    async def _misbehave(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault == "hang":
            await self._closing.wait()
            return web.Response(status=500)
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": "10000"})
            await response.prepare(request)
            await response.write(b'{"text": "x", "meta')
            assert request.transport is not None
            request.transport.close()
            return response
        if fault == "garbage":
            return web.Response(text="<html>It works!</html>")
        if fault == "unflushed":
            text = "Weights were updated, but the cache was not flushed because requests are still running or queued."
            return web.json_response({"success": False, "message": text, "num_paused_requests": 0}, status=400)
        return web.json_response({"object": "error", "message": "out of luck", "code": int(fault)}, status=int(fault))

    async def _health(self, body: dict[str, Any]) -> web.Response:
        return web.Response()

    async def _flush_cache(self, body: dict[str, Any]) -> web.Response:
        self._flush()
        return web.Response(text="Cache flushed.\n")

    async def _model_info(self, body: dict[str, Any]) -> web.Response:
        config = json.loads((self._folder / "config.json").read_text())
        told = {"model_path": str(self._folder), "is_generation": True, "weight_version": self.version}
        told |= {"architectures": config["architectures"], "preferred_sampling_params": None}
        return web.json_response(told | dict(self._info))

    async def _server_info(self, body: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"version": CONTRACT["release"], "context_length": self._context, "internal_states": []} | dict(self._info)
        )

    async def _pause_generation(self, body: dict[str, Any]) -> web.Response:
        assert body.get("mode", "abort") == "abort", "the other modes are not imitated"
        self._paused = True
        self._abort(lambda rid: True)
        async with self._changed:
            await self._changed.wait_for(lambda: not self._active)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue_generation(self, body: dict[str, Any]) -> web.Response:
        async with self._changed:
            self._paused = False
            self._changed.notify_all()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _abort_request(self, body: dict[str, Any]) -> web.Response:
        self.aborted.append(body.get("rid", ""))
        self._abort(lambda rid: body.get("abort_all", False) or rid.startswith(body["rid"]))
        return web.Response()

    async def _update_weights_from_disk(self, body: dict[str, Any]) -> web.Response:
        async with self._changed:  # in SGLang, the writer's side of a lock whose readers are the requests
            await self._changed.wait_for(lambda: self._paused or not self._active)
        before = self._engine
        fresh = TransformersEngine(self._folder, max_context=self._context)
        try:
            await fresh.update_weights(Path(body["model_path"]), 0)
        except AgentBenchError as error:
            await fresh.aclose()
            told = {"success": False, "message": f"Failed to update weights: {error}", "num_paused_requests": 0}
            return web.json_response(told, status=400)
        if self._outdated is not None:
            await self._outdated.aclose()
        self._engine, self._outdated = fresh, before
        self._known_before |= self._known
        if body.get("flush_cache", True):
            self._flush()
        if (version := body.get("weight_version")) is not None:
            self.version = version
        return web.json_response({"success": True, "message": "Succeeded to update.", "num_paused_requests": 0})

    async def _generate(self, body: dict[str, Any]) -> web.Response:
        ids, params, rid = list(body["input_ids"]), body["sampling_params"], body["rid"]
        limit = params["max_new_tokens"]
        if len(ids) + limit > self._context:
            text = f"Requested token count exceeds the model's maximum context length of {self._context} tokens."
            return web.json_response({"object": "error", "message": text, "code": 400}, status=400)
        if rid in self._active:
            return web.json_response({"error": f"Duplicate request ID detected: {rid}"}, status=400)
        started = time.monotonic()
        async with self._changed:
            await self._changed.wait_for(lambda: not self._paused)
        self._active[rid] = False
        try:
            engine = self._engine_for(ids)
            version = self.version
            new: list[int] = []
            logprobs: list[float] = []
            finish = {"type": "length", "length": limit}
            while len(new) < limit:
                if self._active[rid]:
                    finish = {"type": "abort", "message": "Abort before prefill"}
                    break
                part = await engine.generate([*ids, *new], self._sampling(params, len(new), limit), timeout_s=120.0)
                new += part.ids
                logprobs += part.logprobs
                self.sampled.set()
                if part.finish_reason == "stop":
                    finish = {"type": "stop", "matched": new[-1]}
                    break
        finally:
            async with self._changed:
                del self._active[rid]
                self._changed.notify_all()
        if body.get("_fault") == "nan":
            logprobs[0] = float("nan")
        entries = [[value + self.shift, token, None] for value, token in zip(logprobs, new, strict=True)]
        meta: dict[str, Any] = {
            "id": rid, "finish_reason": finish, "prompt_tokens": len(ids), "completion_tokens": len(new),
            "cached_tokens": 0, "weight_version": version, "e2e_latency": time.monotonic() - started,
            "weight_versions": [{"version": version, "start": 0, "end": len(new)}],
        }  # fmt: skip
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = entries[1:] if body.get("_fault") == "short" else entries
        return web.json_response({"text": "", "output_ids": new, "meta_info": meta})

    def _sampling(self, params: Mapping[str, Any], done: int, limit: int) -> Sampling:
        greedy = params["temperature"] == 0 or params.get("top_k") == 1
        seed = params.get("sampling_seed")
        return Sampling(
            max_tokens=min(PIECE, limit - done),
            temperature=0.0 if greedy else params["temperature"],
            stop_ids=tuple(params.get("stop_token_ids") or ()),
            seed=None if seed is None else seed * 1000 + done,
        )

    def _engine_for(self, ids: list[int]) -> TransformersEngine:
        head = tuple(ids[:KNOWN_PREFIX])
        stale = self._outdated if head in self._known_before else None
        self._known.add(head)
        return stale or self._engine

    def _flush(self) -> None:
        self._known.clear()
        self._known_before.clear()

    def _abort(self, concerns: Callable[[str], bool]) -> None:
        for rid in self._active:
            if concerns(rid):
                self._active[rid] = True


async def _serve(folder: Path, port: int, shift: float) -> None:
    async with FakeSGLang(folder, port=port, context=4096, shift=shift) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--shift", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(_serve(given.model_path, given.port, given.shift))
