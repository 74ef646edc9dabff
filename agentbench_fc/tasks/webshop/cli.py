"""`agentbench-fc webshop …`: make and inspect catalogues."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="WebShop: make and inspect catalogues.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.command()
def build(
    out: Annotated[Path | None, typer.Option(help="Folder; by default in the cache, where the task finds it.")] = None,
    level: Annotated[str, typer.Option(help="easy, medium or hard.")] = "medium",
    seed: Annotated[int, typer.Option(help="Of products and goals.")] = 0,
    products: Annotated[int, typer.Option(min=1, help="Number of products; two goals each.")] = 2000,
) -> None:
    """Generate a catalogue."""
    from agentbench_fc.errors import CallerError, did_you_mean
    from agentbench_fc.registry import tasks_root
    from agentbench_fc.tasks.webshop.generate import LEVELS, generate, generated_catalogue

    folder = tasks_root() / "webshop"
    if level not in LEVELS:
        raise CallerError(f"no level {level!r} [--level]. {did_you_mean(level, LEVELS)}")
    if out is None:
        catalogue = generated_catalogue(folder, level=level, seed=seed, products=products)
        out, meta = catalogue.folder, catalogue.meta
    else:
        meta = generate(folder, out, level=level, seed=seed, products=products)
    print(f"{meta['products']:,} products and {meta['goals']:,} goals [{out}]")


@app.command()
def convert(
    items: Annotated[Path, typer.Option(help="items_shuffle*.json")],
    attributes: Annotated[Path, typer.Option(help="items_ins_v2*.json")],
    out: Annotated[Path, typer.Option(help="The new catalogue's folder.")],
    humans: Annotated[Path | None, typer.Option(help="items_human_ins.json; for human goals.")] = None,
    goals: Annotated[str, typer.Option(help="human (AgentBench's) or synthetic.")] = "human",
    seed: Annotated[int, typer.Option(help="Of prices within ranges and of price limits.")] = 0,
    tagger: Annotated[
        str, typer.Option(help="How nouns of titles are found: rules, or spacy (the original's).")
    ] = "rules",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many products.")] = None,
) -> None:
    """Make a catalogue of WebShop's own files; then `load_task("webshop", catalogue=OUT)`."""
    from agentbench_fc.errors import CallerError
    from agentbench_fc.tasks.webshop.convert import convert as convert_files

    if goals not in ("human", "synthetic"):
        raise CallerError(f"goals is {goals!r} [--goals]. Use human or synthetic.")
    meta = convert_files(
        items,
        attributes,
        humans,
        out,
        goals=goals,  # type: ignore[arg-type]
        seed=seed,
        tagger_name=tagger,
        limit=limit,
    )
    print(f"{meta['products']:,} products and {meta['goals']:,} goals [{out}]")


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(help="A catalogue's folder.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every file to its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a catalogue holds, and whether it is whole."""
    from agentbench_fc.tasks.webshop.catalogue import check_files, read_meta

    meta = read_meta(folder)
    check_files(folder, meta, whole=verify)
    if as_json:
        print(json.dumps(meta))
        return
    for key, value in meta.items():
        if key != "files":
            print(f"{key}: {value}")
    size = sum(described["size"] for described in meta["files"].values())
    print(f"size: {size / 1e6:.1f} MB in {len(meta['files'])} files, {'all' if verify else 'a sample'} of it checked")
