"""`agentbench-fc sandbox …`: build the OS task's images, find out which kind of sandbox works here, tidy up."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Sandboxes of the OS task: build images, probe this machine, tidy up.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Folder = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Folder of the images; by default in the cache folder.")
]


@app.command()
def build(
    stage: Annotated[str, typer.Option(help="default, packages (with npm) or ubuntu (bare).")] = "default",
    base: Annotated[
        str, typer.Option(help="auto, debootstrap (Debian, no registry), or docker:IMAGE, e.g. docker:ubuntu:22.04.")
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Also when it is there already.")] = False,
    cache: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Make an image, for Docker and oci alike; two minutes, 300 MB. Needs root and a network."""
    import sys

    from agentbench_fc.tasks.os.sandbox.images import Images

    images = Images(cache)
    image = None if again else images.find(stage)
    fresh = image is None
    if image is None:
        image = images.build(stage, base=base, mind=lambda text: print(text, file=sys.stderr, flush=True))
    path = images.folder / image.archive
    if as_json:
        print(json.dumps({**asdict(image), "tag": image.tag, "path": str(path), "built": fresh}))
        return
    what = "built" if fresh else "is there already"
    print(f"image {stage} {what}: {path.stat().st_size >> 20} MiB, from {image.base} [{path}]")


@app.command()
def probe(
    backend: Annotated[str, typer.Option(help="auto, docker or oci.")] = "auto",
    image: Annotated[str, typer.Option(help="The image to start.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Start a sandbox of each kind and say what works, what does not, and what mends it. Exit 4: none works."""
    from agentbench_fc.tasks.os.sandbox.choose import NAMES, make

    probes = []
    for name in NAMES if backend == "auto" else (backend,):
        made = make(name)
        try:
            probes.append(made.probe(image))
        finally:
            made.close()
    if as_json:
        print(json.dumps([{**asdict(each), "features": sorted(each.features)} for each in probes]))
    else:
        for each in probes:
            print(f"{each.backend}: {'works' if each.ok else 'does not work'}: {each.detail}")
            if each.ok:
                print(f"  features: {', '.join(sorted(each.features))}")
            else:
                print(f"  mend it: {each.mend}")
    if not any(each.ok for each in probes):
        raise typer.Exit(4)


@app.command()
def prune(cache: Folder = None, as_json: AsJson = False) -> None:
    """Remove sandboxes of processes that are no more, and images of older recipes."""
    from agentbench_fc.errors import InfrastructureError
    from agentbench_fc.tasks.os.sandbox.choose import NAMES, make
    from agentbench_fc.tasks.os.sandbox.images import Images

    removed = {}
    for name in NAMES:
        made = make(name)
        try:
            removed[name] = made.reap()
        except InfrastructureError:
            removed[name] = 0  # a kind that does not work here has left nothing here
        finally:
            made.close()
    freed = Images(cache).prune()
    if as_json:
        print(json.dumps({"sandboxes": removed, "bytes": freed}))
        return
    text = ", ".join(f"{count} of {name}" for name, count in removed.items())
    print(f"removed leftover sandboxes: {text}; freed {freed >> 20} MiB of images")
