"""`agentbench-fc alfworld …`: write generated games, and say what a set of games holds."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from agentbench_fc.tasks.alfworld.games import Games, open_games

app = typer.Typer(help="ALFWorld: write and inspect games.", no_args_is_help=True)


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder; games come to OUT/SPLIT/TASK/TRIAL/, as ALFWorld reads them.")],
    split: Annotated[str, typer.Option(help="train, valid_seen or valid_unseen.")] = "train",
    games: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    level: Annotated[str | None, typer.Option(help="Only easy, normal or hard.")] = None,
    seed: Annotated[int, typer.Option(help="Of rooms and games.")] = 0,
) -> None:
    """Write generated games for other ALFWorld programs."""
    from agentbench_fc.registry import tasks_root
    from agentbench_fc.tasks.alfworld.generated import generate_into

    written = generate_into(tasks_root() / "alfworld", out, split=split, games=games, seed=seed, level=level)
    print(f"{written:,} games [{out / split}]")


@app.command()
def verify(
    data: Annotated[
        str | None, typer.Option(help="Folder with json_2.1.1, or official: $ALFWORLD_DATA. Default: generated games.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="AgentBench's lists, or agentbench: $AGENTBENCH_DATA/alfworld.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    play: Annotated[bool, typer.Option("--play", help="Play every walkthrough, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Say what there is, of which release, and what is missing or damaged; exit code 1 if anything is."""
    from agentbench_fc.registry import tasks_root

    games = open_games(tasks_root() / "alfworld", data=data, index=index, allow_missing=data is not None)
    reports = []
    for name in [split] if split is not None else games.splits:
        report = _report(games, name)
        if play:
            report["not_won"] = _not_won(games, name)
        reports.append(report)
    if as_json:
        print(json.dumps(reports))
    else:
        print(games.source)
        for report in reports:
            _show(report)
    if any(report["faults"] or report.get("not_won") for report in reports):
        raise typer.Exit(1)


def _report(games: Games, split: str) -> dict[str, Any]:
    from agentbench_fc.tasks.alfworld.generated import BLOCK, GeneratedGames
    from agentbench_fc.tasks.alfworld.official import OfficialGames
    from agentbench_fc.tasks.alfworld.official import report as official_report

    if isinstance(games, OfficialGames):
        return official_report(games, split)
    samples = games.samples(split)
    if isinstance(games, GeneratedGames):
        for number in range(0, len(samples), BLOCK):
            games.verify(split, number)
    return {
        "split": split,
        "games": len(samples),
        "types": dict(sorted(Counter(str(sample.data["task_type"]) for sample in samples).items())),
        "faults": {},
    }


def _not_won(games: Games, split: str) -> list[str]:
    from agentbench_fc.tasks.alfworld.engine import Engine, Game

    engine = Engine()
    failed = []
    for sample in games.samples(split):
        game = Game.read(games.content(sample), where=sample.id)
        play = engine.start(game)
        won_before = play.seen.won
        for command in game.walkthrough:
            play.step(command)
        if won_before or not play.seen.won:
            failed.append(sample.id)
    engine.close()
    return failed


def _show(report: dict[str, Any]) -> None:
    types = ", ".join(f"{name} {number}" for name, number in report["types"].items())
    print(f"{report['split']}: {report['games']:,} games ({types})")
    for release, number in report.get("releases", {}).items():
        print(f"  release {release}: {number:,}")
    if report.get("said_unsolvable"):
        print(f"  said to be unsolvable: {report['said_unsolvable']}")
    if "sha256" in report:
        print(f"  sha256 of all: {report['sha256']}")
    for game, fault in report["faults"].items():
        print(f"  {game}: {fault}")
    if "not_won" in report:
        print(f"  walkthroughs that do not win: {', '.join(report['not_won']) or 'none'}")
