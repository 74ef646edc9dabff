"""A pool of fresh and stale SGLang servers as one server, for any trainer: the policy is drawn anew for every call.

    python -m agentrl_trainer.router --fresh http://gpu1:30000 --stale http://gpu2:30000 --port 30010

A trainer that knows SGLang talks to the router as to one server. `POST /generate` goes to a fresh or to a stale server;
the answer is that server's, and `meta_info` also says `policy`, `engine` and always `weight_versions`, so that each
token has its log-prob and its version. `POST /update_weights_from_disk` with a whole number as `weight_version` reaches
the fresh servers each time, and the stale ones every `--stale-sync-steps` versions. Requests that an update interrupts
return as `abort` with their tokens so far, as SGLang's own do: send prompt and tokens again.

The header `X-Policy: fresh` or `stale` pins a call; with `--per trajectory` calls with the same `X-Trajectory` keep
their policy. A server that fails is passed over, and gets the newest weights before it serves again.

Not here: the trainer's own pool (engines/pool.py, the same class); batches in one request and streams, which are
refused.
Source: cross-policy sampling, AgentRL, arXiv 2510.04206.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from agentbench_fc.errors import AgentBenchError, CallerError, InfrastructureError
from agentrl_trainer.engines.base import EngineRole
from agentrl_trainer.engines.pool import EnginePool
from agentrl_trainer.engines.sglang import SGLangEngine, version_spans

logger = logging.getLogger(__name__)
DRAWN = ("/generate", "/v1/chat/completions", "/v1/completions")
"""One server takes each of these calls."""
TOLD_TO_ALL = ("/pause_generation", "/continue_generation", "/abort_request")
ROLES: Mapping[str, EngineRole] = {"fresh": "fresh", "stale": "stale"}
RESTARTS = 1_000_000
"""Servers are somebody else's to start: each is waited for as long as the router runs."""


class Router:
    """The routes over one pool."""

    def __init__(
        self,
        pool: EnginePool,
        *,
        per: Literal["call", "trajectory"] = "call",
        stale_sync_steps: int = 4,
        timeout_s: float = 600.0,
        seed: int | None = None,
    ) -> None:
        """Takes the pool over.

        Args:
            pool: Of `SGLangEngine`s.
            per: What one draw decides.
            stale_sync_steps: Versions between two updates of the stale servers.
            timeout_s: Of a call, with all its tries.
            seed: Of the draws; None: another one each time.
        """
        self._pool = pool
        self._per = per
        self._every = stale_sync_steps
        self._timeout_s = timeout_s
        self._rng = random.Random(seed)
        self._salt = self._rng.getrandbits(62)
        self._versions = 0

    def application(self) -> web.Application:
        """The aiohttp application; it closes the pool at its end."""
        app = web.Application(client_max_size=1 << 28)
        for path in DRAWN:
            app.router.add_post(path, self._handler(self._drawn))
        for path in TOLD_TO_ALL:
            app.router.add_post(path, self._handler(self._to_all))
        app.router.add_post("/update_weights_from_disk", self._handler(self._update))
        app.router.add_get("/health", self._health)
        app.router.add_get("/engines", self._engines)
        app.on_cleanup.append(lambda _: self._pool.aclose())
        return app

    def _handler(
        self, answer: Callable[[web.Request, dict[str, Any]], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Reads the body, and turns our errors into answers of SGLang's shape."""

        async def handle(request: web.Request) -> web.Response:
            try:
                try:
                    body = json.loads(await request.text() or "{}")
                except (ValueError, LookupError, RecursionError) as error:  # bytes, a charset, or depth
                    raise CallerError(f"the body is no JSON: {error} [{request.path}]. Send a JSON object.") from error
                if not isinstance(body, dict):
                    raise CallerError(f"the body is no object [{request.path}]. Send a JSON object.")
                return await answer(request, body)
            except AgentBenchError as error:
                status = 400 if isinstance(error, CallerError) else 503
                told = {"object": "error", "message": str(error), "type": type(error).__name__, "code": status}
                return web.json_response(told | {"success": False}, status=status)

        return handle

    async def _drawn(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if body.get("stream"):
            raise CallerError(f"streams are not passed on [{request.path}]. Send stream=false.")
        if request.path == "/generate":
            if isinstance(body.get("text"), list) or _is_batch(body.get("input_ids")):
                raise CallerError("one request holds several prompts [/generate]. Send each by itself: each is drawn.")
            body |= {"return_logprob": True}
        rng, role = self._source(request)
        for left in reversed(range(len(self._pool.engines))):
            index, engine = self._pool.draw(rng, role=role)
            try:
                answer = await self._pool.call(
                    index,
                    lambda engine, left_s: _sglang(engine).forward(request.path, body, timeout_s=left_s),
                    timeout_s=self._timeout_s,
                )
            except InfrastructureError:
                if not left:
                    raise
                continue
            if request.path == "/generate" and isinstance(answer, dict):
                meta = answer.setdefault("meta_info", {})
                meta |= {"policy": engine.role, "engine": engine.name, "weight_versions": version_spans(answer)}
            return web.json_response(answer, headers={"X-Policy": engine.role, "X-Engine": engine.name})
        raise AssertionError("unreachable: the last try returns or raises")

    def _source(self, request: web.Request) -> tuple[random.Random, EngineRole | None]:
        """The random numbers of one call, and the kind that it asks for."""
        pinned = request.headers.get("X-Policy", "")
        if pinned and pinned not in ROLES:
            raise CallerError(f"no policy {pinned!r} [header X-Policy]. Use fresh or stale, or leave it out.")
        if self._per == "call":
            return self._rng, ROLES.get(pinned)
        trajectory = request.headers.get("X-Trajectory")
        if trajectory is None:
            raise CallerError("no trajectory is named [header X-Trajectory]. Name it, or start with --per call.")
        return random.Random(f"{self._salt}/{trajectory}"), ROLES.get(pinned)

    async def _update(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        version, path = str(body.get("weight_version", "")), body.get("model_path")
        if not version.isdecimal() or not isinstance(path, str) or not path:
            raise CallerError(
                f"weight_version is {version!r}, model_path {path!r} [/update_weights_from_disk]. "
                "Give the version as a whole number, one more each time, and the folder of the weights."
            )
        stale = not self._versions or int(version) % self._every == 0
        roles: tuple[EngineRole, ...] = ("fresh", "stale") if stale else ("fresh",)
        await self._pool.update(Path(path), int(version), roles)
        self._versions += 1
        told = f"Version {version} is in the {' and '.join(roles)} servers."
        return web.json_response({"success": True, "message": told, "num_paused_requests": 0, "policies": roles})

    async def _to_all(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        serving = [i for i, state in enumerate(self._pool.stats()) if not state["fault"]]
        told = await asyncio.gather(*(self._tell(i, request.path, body) for i in serving), return_exceptions=True)
        if failed := [answer for answer in told if isinstance(answer, BaseException)]:
            raise failed[0]  # the others were told all the same
        return web.json_response({"status": "ok"})

    async def _tell(self, index: int, path: str, body: Mapping[str, Any]) -> None:
        """One server; its faults are the pool's."""
        await self._pool.call(
            index,
            lambda engine, left_s: _sglang(engine).forward(path, body, timeout_s=left_s),
            timeout_s=self._timeout_s,
        )

    async def _health(self, request: web.Request) -> web.Response:
        fresh = [state for state in self._pool.stats() if state["role"] == "fresh" and not state["fault"]]
        return web.Response(status=200 if fresh else 503)

    async def _engines(self, request: web.Request) -> web.Response:
        return web.json_response(self._pool.stats())


async def open_pool(
    fresh: Sequence[str], stale: Sequence[str], *, key: str = "", timeout_s: float = 300.0
) -> EnginePool:
    """Connects to all servers, side by side.

    Raises:
        CallerError: there is no fresh one, or one is no SGLang server.
        InfrastructureError: one was not ready in time.
    """
    if doubled := sorted({url for url in (*fresh, *stale) if [*fresh, *stale].count(url) > 1}):
        raise CallerError(f"{', '.join(doubled)} given twice [--fresh, --stale]. A server is fresh or stale, once.")
    roles: list[tuple[str, EngineRole]] = [
        *((url, ROLES["fresh"]) for url in fresh),
        *((url, ROLES["stale"]) for url in stale),
    ]
    calls = [SGLangEngine.connect(url, name=url, role=role, key=key, timeout_s=timeout_s) for url, role in roles]
    found = await asyncio.gather(*calls, return_exceptions=True)
    engines = [engine for engine in found if isinstance(engine, SGLangEngine)]
    if errors := [error for error in found if isinstance(error, BaseException)]:
        for engine in engines:
            await engine.aclose()
        raise errors[0]
    return EnginePool(engines[: len(fresh)], engines[len(fresh) :], restarts=RESTARTS)


def _sglang(engine: object) -> SGLangEngine:
    assert isinstance(engine, SGLangEngine), "the pool was made by open_pool"
    return engine


def _is_batch(ids: object) -> bool:
    return isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)


async def _application(options: argparse.Namespace) -> web.Application:
    key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    pool = await open_pool(options.fresh, options.stale or [], key=key, timeout_s=options.start_timeout)
    router = Router(
        pool,
        per=options.per,
        stale_sync_steps=options.stale_sync_steps,
        timeout_s=options.timeout,
        seed=options.seed,
    )
    return router.application()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl_trainer.router",
        description="Fresh and stale SGLang servers as one: the policy is drawn anew for every call.",
    )
    parser.add_argument("--fresh", action="append", required=True, metavar="URL", help="may be repeated")
    parser.add_argument("--stale", action="append", metavar="URL", help="may be repeated")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30010)
    parser.add_argument("--per", choices=["call", "trajectory"], default="call", help="what one draw decides")
    parser.add_argument("--stale-sync-steps", type=int, default=4, metavar="N", help="versions between their updates")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of a call with all its tries")
    parser.add_argument("--start-timeout", type=float, default=300.0, metavar="S", help="until all servers are ready")
    parser.add_argument("--seed", type=int, help="of the draws")
    parser.add_argument("--api-key-env", default="", metavar="NAME", help="variable that holds the servers' key")
    options = parser.parse_args(arguments)
    if options.stale_sync_steps < 1 or not (options.timeout > 0 and options.start_timeout > 0):
        parser.error("--stale-sync-steps, --timeout and --start-timeout must be above 0")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ready = f"router: {len(options.fresh)} fresh, {len(options.stale or [])} stale, on {options.host}:{options.port}"
    try:
        web.run_app(
            _application(options), host=options.host, port=options.port, access_log=None,
            print=lambda _: print(ready, flush=True),  # called when it listens, and signals end it in order
        )  # fmt: skip
    except AgentBenchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, OverflowError) as error:
        print(f"no listening on {options.host}:{options.port}: {error}. Choose another --port.", file=sys.stderr)
        return InfrastructureError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
