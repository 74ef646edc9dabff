"""A catalogue: an immutable folder of products, goals and search index, mapped and shared by all processes of a host.

`meta.json` names the format, what built it, and size and hashes of every file. Opening checks them: small files whole,
large ones by sampled blocks (`verify` reads everything). A folder appears whole or not at all.

Not here: where the products come from (generate.py, convert.py).
"""

import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentbench_fc.errors import CallerError, InfrastructureError, NotFound, TaskError
from agentbench_fc.tasks.webshop.goals import product_price, shuffled
from agentbench_fc.tasks.webshop.index import Index, write_index
from agentbench_fc.tasks.webshop.prepare import index_text
from agentbench_fc.tasks.webshop.records import Goal, Product
from agentbench_fc.tasks.webshop.store import ProductStore, StoreWriter

FORMAT = 1
CACHED_QUERIES = 1024
_WHOLE = 8 << 20
_BLOCK = 1 << 16


class Catalogue:
    """An opened catalogue. Reads only; one object serves all sessions and threads of a process.

    Raises:
        NotFound: no catalogue at `folder`.
        TaskError: another format, or a damaged file, which is named.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        check_files(folder, self.meta)
        self.seed = int(self.meta["seed"])
        self.products = ProductStore(folder)
        self._index = Index(folder)
        self._goal_offsets = np.load(folder / "goal_offsets.npy", mmap_mode="r")
        self._goal_order = np.load(folder / "goal_order.npy", mmap_mode="r")
        self._goals = np.memmap(folder / "goals.jsonl", np.uint8, "r") if self.goal_count else np.empty(0, np.uint8)
        self.search = lru_cache(maxsize=CACHED_QUERIES)(self._search)
        """Text -> ids of the best 50 products, best first."""

    @property
    def goal_count(self) -> int:
        """Number of goals."""
        return len(self._goal_order)

    def goal(self, index: int) -> Goal:
        """The goal at an index, in the shuffled order.

        Raises:
            NotFound: the index is out of range.
        """
        if not 0 <= index < self.goal_count:
            raise NotFound(f"there is no goal {index} [{self.folder.name}]. It has goals 0 to {self.goal_count - 1}.")
        at = int(self._goal_order[index])
        line = self._goals[self._goal_offsets[at] : self._goal_offsets[at + 1]].tobytes()
        return Goal.from_dict(json.loads(line))

    def product(self, asin: str) -> Product:
        """The product of that id."""
        return self.products.get(asin)

    def price(self, product: Product) -> float:
        """What it costs, in dollars."""
        return product_price(product, self.seed)

    def _search(self, text: str) -> Sequence[str]:
        return tuple(self.products.at(number).asin for number in self._index.search(text))


def write_catalogue(
    folder: Path,
    products: Iterable[Product],
    goals_of: Callable[[Product], Iterable[Goal]],
    *,
    meta: dict[str, Any],
    order: Callable[[int], Sequence[int]] = shuffled,
) -> dict[str, Any]:
    """Writes a catalogue in bounded memory, from a stream of products.

    Args:
        folder: The new folder. An existing one is replaced.
        products: Read once.
        goals_of: The goals of a product.
        meta: What built it: `source`, `seed`, `tagger` and the like.
        order: Number of goals -> goal index to position in product order.

    Returns:
        The metadata written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        offsets, attributes = array("q", [0]), []
        with (building / "goals.jsonl").open("wb") as goals_file, StoreWriter(building) as writer:

            def stored() -> Iterable[str]:
                for product in products:
                    writer.append(product)
                    for goal in goals_of(product):
                        line = json.dumps(goal.to_dict(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
                        goals_file.write(line)
                        offsets.append(offsets[-1] + len(line))
                        attributes.append(goal.attributes)
                    yield index_text(product)

            write_index(building, stored(), writer.asins)
        np.save(building / "goal_offsets.npy", np.frombuffer(offsets, np.int64))
        np.save(building / "goal_order.npy", np.array(order(len(offsets) - 1), np.int64))
        np.save(building / "goal_weights.npy", _weights(attributes))
        full = {"format": FORMAT, "products": len(writer.asins), "goals": len(offsets) - 1, **meta}
        full["content"] = writer.digest.hexdigest()
        full["files"] = {p.name: _describe(p) for p in sorted(building.iterdir())}
        (building / "meta.json").write_text(json.dumps(full, indent=1))
        _replace(building, folder)
    except OSError as error:
        raise InfrastructureError(f"the catalogue cannot be written: {error} [{folder}]. Free some space.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return full


def read_meta(folder: Path) -> dict[str, Any]:
    """The metadata of a catalogue."""
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    except FileNotFoundError:
        raise NotFound(
            f"no catalogue at {folder} [webshop]. Make one: agentbench-fc webshop build|convert --out {folder}"
        ) from None
    except ValueError as error:
        raise TaskError(f"meta.json is damaged: {error} [{folder}]. Build the catalogue again.") from error
    if meta.get("format") != FORMAT:
        raise TaskError(f"the catalogue has format {meta.get('format')}, not {FORMAT} [{folder}]. Build it again.")
    return meta


def check_files(folder: Path, meta: dict[str, Any], *, whole: bool = False) -> None:
    """Compares every file with the metadata; `whole` reads large files to the end.

    Raises:
        TaskError: a file is missing or damaged; it is named.
    """
    for name, wanted in meta["files"].items():
        path = folder / name
        if not path.exists():
            raise TaskError(f"{name} is missing [{folder}]. Build the catalogue again.")
        found = _describe(path, whole=whole)
        if any(found[key] != wanted[key] for key in found):
            raise TaskError(f"{name} is damaged [{folder}]. Build the catalogue again.")


def default_folder(name: str) -> Path:
    """Where a generated catalogue of that name is kept."""
    from agentbench_fc.cache import cache_dir

    if "/" in name or name.startswith("."):
        raise CallerError(f"{name!r} is no name of a catalogue [webshop]. Use letters, digits and dashes.")
    return cache_dir() / "webshop" / name


def _describe(path: Path, *, whole: bool = True) -> dict[str, Any]:
    size = path.stat().st_size
    described: dict[str, Any] = {"size": size, "sample": _sample_hash(path, size)}
    if whole or size <= _WHOLE:
        with path.open("rb") as file:
            described["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return described


def _sample_hash(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for part in range(17):
            file.seek(max(size - _BLOCK, 0) * part // 16)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:16]


def _weights(attributes: Sequence[tuple[str, ...]]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The original's weight of a goal: the mean over its attributes of 1 / (goals that have the attribute)."""
    counts: dict[str, int] = {}
    for own in attributes:
        for attribute in own:
            counts[attribute] = counts.get(attribute, 0) + 1
    return np.array([sum(1.0 / counts[a] for a in own) / max(len(own), 1) for own in attributes])


def _replace(building: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    try:
        building.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster with the same content
            raise
    shutil.rmtree(old, ignore_errors=True)
