"""`agentbench-fc serve`, `controller`, `worker`, `sessions` and `workers`.

Not here: the other commands (agentbench_fc/cli.py).
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentbench_fc.errors import CallerError, NotFound

DEFAULT_PORT = 5020
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

Tasks = Annotated[list[str], typer.Argument(help="Task ids or path/to/file.py:TASK.")]
Host = Annotated[str, typer.Option(help="Address to listen on; any but a loopback one demands a token.")]
TokenEnv = Annotated[str, typer.Option(metavar="NAME", help="Variable that holds the token, if there is one.")]
Capacity = Annotated[
    list[str] | None,
    typer.Option("--capacity", metavar="[TASK=]N", help="Most sessions at once of a task, or of every task."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow-option", metavar="TASK.NAME", help="An option of the task that clients may set."),
]
Idle = Annotated[float, typer.Option(help="Seconds after which an unused session expires; 0: never.")]
Lifetime = Annotated[float, typer.Option(help="Seconds after which any session expires; 0: never.")]
Drain = Annotated[float, typer.Option(help="Seconds that open sessions may go on after the order to stop.")]
Transcripts = Annotated[Path | None, typer.Option(help="A file or an existing folder for the sessions' records.")]
Url = Annotated[str, typer.Option(envvar="AGENTBENCH_FC_URL", help="Of the controller, or of a single worker.")]
Rate = Annotated[float | None, typer.Option(help="Most requests per second and address.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Watch = Annotated[float | None, typer.Option("--watch", metavar="SECONDS", help="Show it again and again.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log what happens to sessions and workers.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    for name, command in (
        ("serve", serve),
        ("controller", controller),
        ("worker", worker),
        ("sessions", sessions),
        ("workers", workers),
    ):
        app.command(name)(command)


def serve(
    tasks: Tasks,
    port: Annotated[int, typer.Option(help="Of the controller.")] = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    n_workers: Annotated[int, typer.Option("--workers", min=1, help="Worker processes; each serves all tasks.")] = 2,
    capacity: Capacity = None,
    allow_option: Allow = None,
    idle_timeout: Idle = 600.0,
    lifetime: Lifetime = 4 * 3600.0,
    drain: Drain = 30.0,
    transcripts: Transcripts = None,
    heartbeat: Annotated[float, typer.Option(help="Seconds between the workers' signs of life.")] = 2.0,
    token_env: TokenEnv = "AGENTBENCH_FC_TOKEN",
    rate: Rate = None,
    verbose: Verbose = False,
) -> None:
    """Serve tasks: a controller and its workers as one process tree, until Ctrl-C."""
    from agentbench_fc.serve.server import bind, check_installed
    from agentbench_fc.serve.tree import Tree

    _log(verbose)
    check_installed()
    bind(host, port, _token(token_env)).close()  # a taken port or a missing token is told here, not by a child
    _check_tasks(tasks)
    common = ["--token-env", token_env, *(["--verbose"] if verbose else [])]
    reached = "127.0.0.1" if host in {"0.0.0.0", "::", "localhost"} else host
    url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
    commands: dict[str, list[str]] = {
        "controller": [
            "controller",
            *("--host", host, "--port", str(port), "--heartbeat", str(heartbeat)),
            *(["--rate", str(rate)] if rate is not None else []),
            *common,
        ]
    }
    for number in range(1, n_workers + 1):
        commands[f"worker w{number}"] = [
            "worker",
            *tasks,
            *("--controller", url, "--host", host, "--port", "0", "--name", f"w{number}"),
            *("--idle-timeout", str(idle_timeout), "--lifetime", str(lifetime), "--drain", str(drain)),
            *(part for item in capacity or () for part in ("--capacity", item)),
            *(part for item in allow_option or () for part in ("--allow-option", item)),
            *(["--transcripts", str(transcripts)] if transcripts is not None else []),
            *common,
        ]
    tree = Tree(commands, env={}, drain_s=drain)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: tree.stop())
    print(f"{url} serves {', '.join(tasks)} with {n_workers} workers; Ctrl-C ends it", flush=True)
    tree.run()


def controller(
    port: Annotated[int, typer.Option(help="Where to listen; 0: a free port.")] = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    heartbeat: Annotated[float, typer.Option(help="Seconds between the workers' signs of life.")] = 2.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Starts that may wait for a slot.")] = 10_000,
    token_env: TokenEnv = "AGENTBENCH_FC_TOKEN",
    rate: Rate = None,
    ready_file: Annotated[Path | None, typer.Option(help="Its address is written there when it serves.")] = None,
    verbose: Verbose = False,
) -> None:
    """Run a controller: workers report to it, clients start sessions through it."""
    from agentbench_fc.serve.config import ControllerConfig
    from agentbench_fc.serve.http import Limits
    from agentbench_fc.serve.processes import run_controller
    from agentbench_fc.serve.tree import end_with_parent

    end_with_parent()
    _log(verbose)
    config = ControllerConfig(
        heartbeat_s=heartbeat, max_waiting=max_waiting, token=_token(token_env), limits=Limits(rate=rate)
    )
    _run(lambda: run_controller(config, host=host, port=port, ready_file=ready_file))


def worker(
    tasks: Tasks,
    controller: Annotated[
        str | None, typer.Option(metavar="URL", help="Its controller; none: it stands alone.")
    ] = None,
    port: Annotated[int, typer.Option(help="Where to listen; 0: a free port.")] = 0,
    host: Host = "127.0.0.1",
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="How others reach it, where that is another address.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="In lists and session ids; by default from host and process.")
    ] = None,
    capacity: Capacity = None,
    allow_option: Allow = None,
    threads: Annotated[int, typer.Option(min=1, help="Calls per task that run at once.")] = 32,
    idle_timeout: Idle = 600.0,
    lifetime: Lifetime = 4 * 3600.0,
    drain: Drain = 30.0,
    start_timeout: Annotated[float, typer.Option(help="Seconds for a start as a whole.")] = 300.0,
    step_timeout: Annotated[float, typer.Option(help="Seconds for a turn as a whole.")] = 900.0,
    max_abandoned: Annotated[int, typer.Option(min=1, help="Hanging calls after which it restarts itself.")] = 8,
    transcripts: Transcripts = None,
    token_env: TokenEnv = "AGENTBENCH_FC_TOKEN",
    rate: Rate = None,
    ready_file: Annotated[Path | None, typer.Option(help="Its address is written there when it serves.")] = None,
    verbose: Verbose = False,
) -> None:
    """Run a worker: the process that plays sessions of one or more tasks."""
    from agentbench_fc.serve.config import WorkerConfig
    from agentbench_fc.serve.http import Limits
    from agentbench_fc.serve.processes import run_worker, start_again
    from agentbench_fc.serve.tree import end_with_parent

    end_with_parent()
    _log(verbose)
    capacities, default = _capacities(capacity)
    config = WorkerConfig(
        tasks=tuple(tasks),
        name=name or _default_name(),
        capacity=capacities,
        default_capacity=default,
        threads_per_task=threads,
        idle_timeout_s=idle_timeout or None,
        lifetime_s=lifetime or None,
        start_timeout_s=start_timeout,
        step_timeout_s=step_timeout,
        max_abandoned=max_abandoned,
        drain_s=drain,
        transcripts=transcripts,
        allowed_options=_allowed(allow_option),
        token=_token(token_env),
        limits=Limits(rate=rate),
    )
    again = _run(
        lambda: run_worker(
            config, host=host, port=port, controller=controller, advertise=advertise, ready_file=ready_file
        )
    )
    if again:
        start_again()


def sessions(
    url: Url = DEFAULT_URL, token_env: TokenEnv = "AGENTBENCH_FC_TOKEN", watch: Watch = None, as_json: AsJson = False
) -> None:
    """List the open sessions."""
    columns: Mapping[str, Callable[[Any], str]] = {
        "session": lambda s: s["session_id"],
        "task": lambda s: s["task"],
        "sample": lambda s: s["sample"],
        "turn": lambda s: str(s["turn"]),
        "busy": lambda s: "yes" if s["busy"] else "",
        "age": lambda s: f"{s['age_s']:.0f} s",
        "expires in": lambda s: "" if s["expires_in_s"] is None else f"{s['expires_in_s']:.0f} s",
        "client": lambda s: s["client"],
    }

    def note(reply: Any) -> str:
        silent = ", ".join(reply["unheard"])
        return f"{len(reply['sessions'])} open sessions" + (f"; no answer from {silent}" if silent else "")

    _show(url, token_env, "/v1/list_sessions", "sessions", columns, note, watch, as_json)


def workers(
    url: Url = DEFAULT_URL, token_env: TokenEnv = "AGENTBENCH_FC_TOKEN", watch: Watch = None, as_json: AsJson = False
) -> None:
    """List the workers and how full they are."""
    columns: Mapping[str, Callable[[Any], str]] = {
        "worker": lambda w: w["worker_id"],
        "status": lambda w: w["status"],
        "tasks": lambda w: ", ".join(f"{t['task']} {t['taken']}/{t['capacity']}" for t in w["tasks"]),
        "started": lambda w: str(w["started"]),
        "finished": lambda w: str(w["finished"]),
        "expired": lambda w: str(w["expired"]),
        "seen": lambda w: f"{w['last_seen_s']:.1f} s ago",
        "address": lambda w: w["address"],
        "note": lambda w: w["reason"],
    }
    _show(
        url,
        token_env,
        "/v1/list_workers",
        "workers",
        columns,
        lambda reply: f"{len(reply['workers'])} workers",
        watch,
        as_json,
    )


def _show(
    url: str,
    token_env: str,
    path: str,
    key: str,
    columns: Mapping[str, Callable[[Any], str]],
    note: Callable[[Any], str],
    watch: float | None,
    as_json: bool,
) -> None:
    import asyncio

    from agentbench_fc.serve.link import Link

    async def ask() -> Any:
        link = Link(token=_token(token_env))
        try:
            return await link.call("GET", url.rstrip("/") + path, timeout_s=10)
        finally:
            await link.aclose()

    while True:
        reply = asyncio.run(ask())
        if as_json:
            print(json.dumps(reply, ensure_ascii=False))
        else:
            table = [list(columns), *([cell(row) for cell in columns.values()] for row in reply[key])]
            widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
            if watch is not None and sys.stdout.isatty():
                print("\033[H\033[J", end="")
            for row in table:
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            print(note(reply))
        sys.stdout.flush()
        if watch is None:
            return
        time.sleep(max(watch, 0.1))


def _run(main: Callable[[], Any]) -> Any:
    import asyncio

    from agentbench_fc.serve.processes import loop_factory

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


def _log(verbose: bool) -> None:
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _token(name: str) -> str | None:
    token = os.environ.get(name)
    if token == "":
        raise NotFound(f"the variable {name} is empty [--token-env]. Set it to a long random word, or unset it.")
    return token


def _capacities(items: list[str] | None) -> tuple[dict[str, int], int]:
    from agentbench_fc.serve.config import WorkerConfig

    default: int = WorkerConfig(tasks=("any",)).default_capacity
    capacities: dict[str, int] = {}
    for item in items or ():
        name, _, number = item.rpartition("=")
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise CallerError(f"{item!r} is no capacity [--capacity]. Write --capacity db=64, or --capacity 64.")
        if name:
            capacities[name] = int(number)
        else:
            default = int(number)
    return capacities, default


def _allowed(items: list[str] | None) -> dict[str, frozenset[str]]:
    allowed: dict[str, frozenset[str]] = {}
    for item in items or ():
        task, _, name = item.rpartition(".")
        if not task or not name:
            raise CallerError(f"{item!r} is no option [--allow-option]. Write --allow-option kg.level.")
        allowed[task] = allowed.get(task, frozenset()) | {name}
    return allowed


def _check_tasks(tasks: list[str]) -> None:
    """Wrong names are told at once; a child would only be started again and again."""
    from agentbench_fc.errors import did_you_mean
    from agentbench_fc.registry import available_built_ins, entry_points

    known = [*available_built_ins(), *entry_points()]
    for task in tasks:
        if ":" in task:
            if not Path(task.rpartition(":")[0]).is_file():
                raise NotFound(f"no such file [task {task!r}]. Give path/to/file.py:TASK.")
        elif task not in known:
            raise NotFound(f"no task {task!r} [serve]. {did_you_mean(task, known)}")


def _default_name() -> str:
    import socket

    host = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in socket.gethostname())[:30]
    return f"{host or 'worker'}-{os.getpid()}"
