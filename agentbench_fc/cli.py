"""The command line: evaluate, show transcripts, replay them, list the tasks, look at the installation.

Each command is a call of the public API. An error is one line on stderr; the exit code says whose it is: 1 a replay
that diverged, 2 the caller's, 3 a task's, 4 the machines'.

Not here: what the commands do (evaluate.py, players.py, replay.py, doctor.py).
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agentbench_fc.errors import AgentBenchError, CallerError, NotFound

app = typer.Typer(
    name="agentbench-fc",
    help="AgentBench's function-call tasks: evaluate, inspect and replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Option = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the task, e.g. max_turns=5.")
]
Profile = Annotated[str, typer.Option(help="default, or agentbench: AgentBench's own rules.")]
Prompt = Annotated[str, typer.Option(help="Style of the prompts: default or compact.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def main() -> None:
    """Runs the command line; every error becomes one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)  # so that what is open gets closed
    try:
        _mount_parts(sys.argv[1:])
        app()
    except AgentBenchError as error:
        _die(str(error), error.exit_code)


def _mount_parts(arguments: list[str]) -> None:
    """Adds the service's commands, and each task's own: `agentbench_fc/tasks/NAME/cli.py` as `NAME`.

    Of the tasks only the one that is called is imported: `--help` stays cheap.
    """
    from agentbench_fc.registry import available_built_ins
    from agentbench_fc.serve.cli import add_to

    add_to(app)
    for name in available_built_ins():
        if not (Path(__file__).parent / "tasks" / name / "cli.py").exists():
            continue
        if arguments[:1] == [name]:
            app.add_typer(importlib.import_module(f"agentbench_fc.tasks.{name}.cli").app, name=name)
        else:
            app.add_typer(typer.Typer(help=f"Commands of the task {name}."), name=name)
    if arguments[:1] == ["sandbox"]:
        app.add_typer(importlib.import_module("agentbench_fc.tasks.os.sandbox.cli").app, name="sandbox")
    else:
        app.add_typer(typer.Typer(help="Sandboxes of the OS task: build images, probe, tidy up."), name="sandbox")


def _die(text: str, code: int) -> NoReturn:
    print(f"agentbench-fc: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)


def _terminated(*_: object) -> NoReturn:
    sys.exit(143)


def _version(value: bool) -> None:
    if value:
        import importlib.metadata

        print(f"agentbench-fc {importlib.metadata.version('agentbench-fc')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


@app.command("eval")
def eval_(
    task: Annotated[list[str], typer.Option(help="A task id or path/to/file.py:TASK; may be repeated.")],
    split: Annotated[str, typer.Option(help="The split to play.")] = "dev",
    model: Annotated[str | None, typer.Option(help="Name of the model, as the endpoint knows it.")] = None,
    base_url: Annotated[str | None, typer.Option(help="OpenAI-compatible address, e.g. http://host:8000/v1.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Variable that holds the API key.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL@URL", help="Two or more models: pass@k of each, of mixed episodes and steps."),
    ] = None,
    player: Annotated[str | None, typer.Option(help="Instead of a model: expert, noop, constant or random.")] = None,
    parser: Annotated[str | None, typer.Option(help="Reads calls from text: hermes, glm4, llama3 …")] = None,
    repeats: Annotated[int, typer.Option(help="Episodes per sample.")] = 4,
    temperature: Annotated[float, typer.Option(help="Below 0: left to the endpoint.")] = 0.8,
    max_tokens: Annotated[int, typer.Option(help="Of one answer; 0: left to the endpoint.")] = 1024,
    body: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A further key of each request, e.g. top_p=0.95.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many samples of each task.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="A sample id or a pattern with *; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of environments and players.")] = 0,
    profile: Profile = "default",
    prompt: Prompt = "default",
    option: Option = None,
    concurrency: Annotated[int, typer.Option(help="Episodes at once.")] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds for one try of a request.")] = 120.0,
    deadline: Annotated[float, typer.Option(help="Seconds for a request with all its tries.")] = 600.0,
    retries: Annotated[int, typer.Option(help="Further tries of a failed request.")] = 5,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Play episodes without a score again.")] = False,
    transcripts: Annotated[bool, typer.Option("--transcripts", help="Keep the record of each episode.")] = False,
    url: Annotated[str | None, typer.Option(help="Of a controller whose workers run the sessions.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results and reports; by default below runs/eval/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model behind an OpenAI-compatible endpoint, or a player. The same command continues a killed run."""
    import asyncio

    from agentbench_fc.evaluate import EvalConfig, evaluate
    from agentbench_fc.evaluation.pool import evaluate_pool, read_policy

    policies = tuple(read_policy(text) for text in policy or ())
    config = EvalConfig(
        tasks=tuple(task),
        split=split,
        model=model,
        base_url=base_url,
        policies=policies,
        player=player,
        parser=parser,
        repeats=repeats,
        temperature=temperature if temperature >= 0 else None,
        max_tokens=max_tokens or None,
        body=_pairs(body, "--body"),
        limit=limit,
        samples=tuple(sample or ()),
        seed=seed,
        profile=profile,
        prompt=prompt,
        options=_pairs(option, "--option"),
        concurrency=concurrency,
        timeout_s=timeout,
        deadline_s=deadline,
        retries=retries,
        retry_errors=retry_errors,
        transcripts=transcripts,
        url=url,
        out=out
        or Path("runs/eval")
        / _slug(f"{player or model or '+'.join(each.name for each in policies)}-{'+'.join(task)}-{split}"),
    )
    try:
        play: Any = evaluate_pool if policies else evaluate
        report = asyncio.run(play(config, api_key=_api_key(api_key_env), on_result=_Progress()))
    except KeyboardInterrupt:
        _die(f"stopped [{config.out}]. The same command goes on.", 130)
    print(json.dumps(report.to_dict(), ensure_ascii=False) if as_json else report.to_markdown())
    print(f"results and reports: {config.out}", file=sys.stderr)
    if report.exit_code:
        missing = report.planned - report.scored
        text = (
            f"{missing} of {report.planned} episodes have no score [{config.out}]. See Missing scores; --retry-errors."
        )
        _die(text, report.exit_code)


@app.command()
def traces(
    task: Annotated[str, typer.Argument(help="A task id or path/to/file.py:TASK.")],
    player: Annotated[str, typer.Option(help="expert, noop, constant or random.")] = "expert",
    sample: Annotated[str | None, typer.Option(help="One sample by id.")] = None,
    split: Annotated[str | None, typer.Option(help="The split; by default the id's, else train.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="The first so many samples of the split.")] = 1,
    seed: Annotated[int, typer.Option(help="Of episodes and players.")] = 0,
    profile: Profile = "default",
    prompt: Prompt = "default",
    option: Option = None,
    out: Annotated[Path | None, typer.Option(help="Append the records as JSON lines to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play samples with a player; print what happened, or write it to a file, and the score."""
    from agentbench_fc.loaded import check_options
    from agentbench_fc.players import make_player, play
    from agentbench_fc.registry import load_task
    from agentbench_fc.samples import choose_split, find_sample
    from agentbench_fc.show import Tally, transcript_text
    from agentbench_fc.transcript import append, dump, records

    options = _pairs(option, "--option")
    check_options(options)
    loaded = load_task(task, profile=profile, prompt=prompt, **options)
    try:
        if sample is not None:
            samples = [find_sample(loaded, sample, split=split)]
        else:
            samples = list(loaded.samples(choose_split(loaded, split))[:n])
        policy = make_player(player, loaded)
        tally = Tally()
        for row in samples:
            session = play(loaded, row, policy, seed=seed, options=options)
            tally.add(session)
            if out is not None:
                try:
                    append(out, session, task)
                except OSError as error:
                    raise CallerError(
                        f"the record cannot be written: {error} [{out}]. Choose another --out."
                    ) from error
            elif as_json:
                sys.stdout.writelines(dump(record) for record in records(session, task))
            else:
                print(transcript_text(session))
        print(tally.line(f"{player} on {task}"), file=sys.stderr if as_json else sys.stdout)
    finally:
        loaded.close()


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A transcript file.")],
    as_json: AsJson = False,
) -> None:
    """Play recorded sessions again; exit 1 if any observation or reward comes out differently."""
    from agentbench_fc.replay import replay_file

    report = replay_file(file)
    if as_json:
        print(json.dumps({"ok": report.ok, **asdict(report)}, ensure_ascii=False, default=str))
    else:
        print(report.to_text())
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks, their splits and versions."""
    from agentbench_fc.registry import BUILT_IN, available_built_ins, entry_points, load_task

    rows: list[dict[str, Any]] = []
    for name in [*available_built_ins(), *sorted(entry_points())]:
        loaded = load_task(name)
        spec = loaded.spec
        tools = [tool["function"]["name"] for tool in spec.tools]
        rows.append(
            {
                "task": name,
                "version": spec.version,
                "splits": dict(spec.splits),
                "tools": tools,
                "summary": spec.summary,
            }
        )
        loaded.close()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        print(f"{row['task']} {row['version']}  {row['summary']}")
        print(f"  tools: {', '.join(row['tools'])}")
        for split, about in row["splits"].items():
            print(f"  {split}: {about}")
    if later := [name for name in BUILT_IN if name not in available_built_ins()]:
        print(f"not in this version yet: {', '.join(later)}")


@app.command()
def doctor(
    missing: Annotated[bool, typer.Option("--missing", help="Only what is missing, and what mends it.")] = False,
    url: Annotated[str | None, typer.Option(help="Of a controller: say too how it and its workers are.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is installed, which backend each task will use, and what mends what is missing."""
    from agentbench_fc.doctor import diagnose

    diagnosis = diagnose(url)
    print(json.dumps(diagnosis.to_dict(), ensure_ascii=False) if as_json else diagnosis.to_text(only_missing=missing))


class _Progress:
    """A line on stderr: rewritten in place on a terminal, every ten seconds elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._next = 0.0
        self._scored = self._won = 0

    def __call__(self, result: Any, done: int, planned: int) -> None:
        self._scored += result.scored
        self._won += bool(result.success)
        now = time.monotonic()
        if now < self._next and done < planned:
            return
        self._next = now + (0.2 if self._tty else 10.0)
        rate = f"{100 * self._won / self._scored:.1f} %" if self._scored else "–"
        end = "\n" if done >= planned or not self._tty else ""
        start = "\r" if self._tty else ""
        print(
            f"{start}{done}/{planned} episodes, success {rate} of this call's {self._scored}", end=end, file=sys.stderr
        )


def _pairs(items: list[str] | None, flag: str) -> Mapping[str, Any]:
    """KEY=VALUE pairs; a value is JSON where it can be read as such, else text."""
    out: dict[str, Any] = {}
    for item in items or ():
        key, sign, text = item.partition("=")
        if not sign or not key:
            raise CallerError(f"{item!r} is no pair [{flag}]. Write {flag} key=value.")
        try:
            out[key] = json.loads(text)
        except ValueError:
            out[key] = text
    return out


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise NotFound(f"the variable {name} is not set [--api-key-env]. Export it, or name another one.")
    return key


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in text).strip("-.")[:120]


if __name__ == "__main__":
    main()
