"""WebShop: buy the right product. The original's pages and rewards, without its JVM and its HTML."""

from pathlib import Path

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.webshop.task import WebShopTask

LEVELS = ("easy", "medium", "hard")

WIRE_OPTIONS = ("level",)
"""What clients may set over HTTP: nothing that names a file or a server, or decides how much is built."""


def make(
    spec: TaskSpec,
    folder: Path,
    *,
    catalogue: str | Path | None = None,
    level: str = "medium",
    seed: int = 0,
) -> WebShopTask:
    """The task over a catalogue.

    Args:
        spec: Tools, limits and prompts.
        folder: The task's data: what generated catalogues are made of.
        catalogue: Folder of a converted catalogue; None: the generated one of `level` and `seed`, made on first use.
        level: `easy`, `medium` or `hard`; only for the generated catalogue.
        seed: Of the generated catalogue.
    """
    from agentbench_fc.tasks.webshop.catalogue import Catalogue
    from agentbench_fc.tasks.webshop.generate import generated_catalogue

    if isinstance(seed, bool) or not isinstance(seed, int):
        raise CallerError(f"seed is {seed!r} [task webshop]. Use an integer.")
    if not isinstance(catalogue, (str, Path, type(None))) or catalogue == "":
        raise CallerError(f"catalogue is {catalogue!r} [task webshop]. Give a folder, or leave it out.")
    if not isinstance(level, str) or level not in LEVELS:
        raise CallerError(f"no level {level!r} [task webshop]. {did_you_mean(str(level), LEVELS)}")
    if catalogue is not None:
        return WebShopTask(spec, Catalogue(Path(catalogue).expanduser()))
    return WebShopTask(spec, generated_catalogue(folder, level=level, seed=seed))
