"""The router is one SGLang server to its caller: drawn per call, tagged, updated by role, and steady when one fails."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from fake_sglang import FakeSGLang

from agentbench_fc.errors import CallerError
from agentrl_trainer.engines.base import Sampling
from agentrl_trainer.engines.sglang import generate_body
from agentrl_trainer.router import Router, main, open_pool


class Stack(NamedTuple):
    fresh: FakeSGLang
    stale: FakeSGLang
    url: str
    http: aiohttp.ClientSession


@pytest.fixture
async def make_stack(make_model: Callable[..., Path]) -> AsyncIterator[Callable[..., Any]]:
    opened: list[Any] = []

    async def make(**options: Any) -> Stack:
        fresh, stale = FakeSGLang(make_model()), FakeSGLang(make_model())
        opened.extend([fresh, stale])
        await fresh.__aenter__()
        await stale.__aenter__()
        pool = await open_pool([fresh.url], [stale.url], timeout_s=10)
        server = TestServer(Router(pool, seed=0, **options).application())
        await server.start_server()
        http = aiohttp.ClientSession()
        opened.insert(0, server)
        opened.insert(0, http)
        return Stack(fresh, stale, str(server.make_url("")).rstrip("/"), http)

    yield make
    for each in opened:
        if isinstance(each, FakeSGLang):
            await each.__aexit__()
        else:
            await each.close()


async def ask(stack: Stack, *, status: int = 200, path: str = "/generate", body: Any = None, **headers: str) -> Any:
    body = generate_body([5, 6, 7], Sampling(max_tokens=4)) if body is None else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with stack.http.post(stack.url + path, json=body, headers=named) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_each_call_is_drawn_and_tells_policy_log_probs_and_version(
    make_stack: Callable[..., Any], make_model: Callable[..., Path]
) -> None:
    stack = await make_stack(stale_sync_steps=2)
    for version in (0, 1):
        update = {"model_path": str(make_model(version)), "weight_version": str(version)}
        told = await ask(stack, path="/update_weights_from_disk", body=update)
        assert (told["success"], told["policies"]) == (True, ["fresh", "stale"] if version == 0 else ["fresh"])
    answers = await asyncio.gather(*(ask(stack) for _ in range(40)))
    versions = Counter((a["meta_info"]["policy"], a["meta_info"]["weight_version"]) for a in answers)
    assert set(versions) == {("fresh", "1"), ("stale", "0")}
    assert 10 <= versions["fresh", "1"] <= 30
    for answer in answers:
        meta = answer["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
        assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 4}]
        assert meta["engine"] == (stack.fresh.url if meta["policy"] == "fresh" else stack.stale.url)
    pinned = [await ask(stack, X_Policy="stale") for _ in range(5)]
    assert {a["meta_info"]["policy"] for a in pinned} == {"stale"}


async def test_a_trajectory_keeps_its_policy(make_stack: Callable[..., Any]) -> None:
    stack = await make_stack(per="trajectory")
    drawn = {
        name: {(await ask(stack, X_Trajectory=name))["meta_info"]["policy"] for _ in range(3)}
        for name in map(str, range(12))
    }
    assert all(len(policies) == 1 for policies in drawn.values())
    assert set().union(*drawn.values()) == {"fresh", "stale"}
    assert "--per call" in (await ask(stack, status=400))["message"]


async def test_a_failing_server_is_the_routers_business(make_stack: Callable[..., Any]) -> None:
    stack = await make_stack()
    stack.stale.fault = lambda path, n, body: "503"
    answers = [await ask(stack) for _ in range(8)]
    assert {a["meta_info"]["policy"] for a in answers} == {"fresh"}
    async with stack.http.get(stack.url + "/engines") as told:
        assert [bool(state["fault"]) for state in await told.json()] == [False, True]
    async with stack.http.get(stack.url + "/health") as told:
        assert told.status == 200


@pytest.mark.parametrize(
    ("body", "path", "headers", "message"),
    [
        ({"stream": True, "input_ids": [5]}, "/generate", {}, "streams are not passed on"),
        ({"input_ids": [[5], [6]]}, "/generate", {}, "several prompts"),
        ({"input_ids": [5], "sampling_parms": {}}, "/generate", {}, "unknown field"),
        ({"input_ids": [5]}, "/generate", {"X_Policy": "old"}, "Use fresh or stale"),
        ({"model_path": "/x", "weight_version": "v1"}, "/update_weights_from_disk", {}, "as a whole number"),
        ({"model_path": "/x", "weight_version": "1"}, "/update_weights_from_disk", {}, "was not taken"),
        ([], "/generate", {}, "no object"),
    ],
)
async def test_what_cannot_be_passed_on_is_refused(
    make_stack: Callable[..., Any], body: Any, path: str, headers: dict[str, str], message: str
) -> None:
    stack = await make_stack()
    assert message in (await ask(stack, status=400, path=path, body=body, **headers))["message"]


async def test_the_command_serves_until_it_is_told_to_end(make_model: Callable[..., Path]) -> None:
    async with FakeSGLang(make_model()) as fresh:
        command = [sys.executable, "-m", "agentrl_trainer.router", "--fresh", fresh.url, "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line.decode().startswith("router: 1 fresh, 0 stale, on 127.0.0.1:")
            os.kill(process.pid, signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def test_without_a_server_the_command_says_how_to_start_one() -> None:
    failed = subprocess.run(
        [sys.executable, "-m", "agentrl_trainer.router", "--fresh", "http://127.0.0.1:9", "--start-timeout", "0.3"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert failed.returncode == 4
    assert "no SGLang server was ready" in failed.stderr


async def test_what_cannot_be_passed_on_is_answered_in_sglangs_shape(make_stack: Callable[..., Any]) -> None:
    stack = await make_stack()
    update = {"model_path": "/x", "weight_version": "\u00b2"}  # a digit to str.isdigit, and no number
    told = await ask(stack, status=400, path="/update_weights_from_disk", body=update)
    assert "whole number" in told["message"]
    for body, kind in ((b"{", "json"), (b"\xff", "json"), (b"[" * 100_000, "json"), (b"{}", "json; charset=nothing")):
        headers = {"Content-Type": f"application/{kind}"}
        async with stack.http.post(f"{stack.url}/generate", data=body, headers=headers) as answer:
            assert (answer.status, (await answer.json())["success"]) == (400, False)
    await stack.stale.__aexit__()
    told = await ask(stack, status=503, path="/pause_generation", body={"mode": "abort"})
    assert stack.stale.url in told["message"]
    assert (await ask(stack, path="/continue_generation", body={}))["status"] == "ok", "the dead one is out by now"


async def test_one_server_is_not_of_both_kinds() -> None:
    with pytest.raises(CallerError, match="given twice"):
        await open_pool(["http://a:1"], ["http://a:1"])
    with pytest.raises(CallerError, match="is no address"):
        await open_pool(["localhost:9"], [], timeout_s=5)


@pytest.mark.parametrize("option", ["--stale-sync-steps=0", "--timeout=0", "--start-timeout=nan"])
def test_options_that_cannot_be_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--fresh", "http://127.0.0.1:9", option])
    assert ended.value.code == 2
    assert "must be above 0" in capsys.readouterr().err
