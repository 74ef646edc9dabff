"""A catalogue: an immutable folder of products, goals and search index, mapped and shared by all processes of a host.

`meta.json` names the format, what built it, and size and hashes of every file. Opening checks them: small files whole,
large ones by sampled blocks (`verify` reads everything). A folder appears whole or not at all.

Not here: where the products come from (generate.py, convert.py).
"""

import hashlib
import json
import os
import secrets
import shutil
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
_LONGEST_CACHED = 1000
"""Characters of a query that is remembered: a thousand queries of a megabyte would be a gigabyte."""


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
        self.seed: int = self.meta["seed"]
        try:
            self.products = ProductStore(folder)
            self._index = Index(folder)
            self._goal_offsets = np.load(folder / "goal_offsets.npy", mmap_mode="r")
            self._goal_order = np.load(folder / "goal_order.npy", mmap_mode="r")
            self._goals = np.memmap(folder / "goals.jsonl", np.uint8, "r") if self.goal_count else np.empty(0, np.uint8)
        except FileNotFoundError as error:  # replaced or deleted since it was checked
            raise _missing(folder, str(error.filename)) from error
        self._remembered = lru_cache(maxsize=CACHED_QUERIES)(self._search)

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

    def search(self, text: str) -> Sequence[str]:
        """Ids of the best 50 products, best first."""
        return self._remembered(text) if len(text) <= _LONGEST_CACHED else self._search(text)

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
        folder: The new folder. A catalogue that is there is replaced; anything else is left alone.
        products: Read once.
        goals_of: The goals of a product.
        meta: What built it: `source`, `seed`, `tagger` and the like.
        order: Number of goals -> goal index to position in product order.

    Returns:
        The metadata written.

    Raises:
        CallerError: the folder holds something else than a catalogue.
        InfrastructureError: the catalogue cannot be written.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        _check_replaceable(folder)
        building.mkdir(parents=True)
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
        raise InfrastructureError(
            f"the catalogue cannot be written: {error} [{folder}]. Free some space, or name another folder."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return full


def read_meta(folder: Path) -> dict[str, Any]:
    """The metadata of a catalogue.

    Raises:
        NotFound: there is no catalogue.
        TaskError: the metadata is damaged, or of another format.
    """
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"no catalogue at {folder} [webshop]. Make one: agentbench-fc webshop build|convert --out {folder}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"meta.json is damaged: {error} [{folder}]. Build the catalogue again.") from error
    if not isinstance(meta, dict):
        raise TaskError(f"meta.json is damaged: it holds no object [{folder}]. Build the catalogue again.")
    if meta.get("format") != FORMAT:
        raise TaskError(f"the catalogue has format {meta.get('format')}, not {FORMAT} [{folder}]. Build it again.")
    needed = {"source": str, "seed": int, "products": int, "goals": int, "files": dict}
    if wrong := [key for key, kind in needed.items() if not isinstance(meta.get(key), kind)]:
        raise TaskError(f"meta.json is damaged: no {wrong[0]} in it [{folder}]. Build the catalogue again.")
    return meta


def check_files(folder: Path, meta: dict[str, Any], *, whole: bool = False) -> None:
    """Compares every file with the metadata; `whole` reads large files to the end.

    Raises:
        TaskError: a file is missing or damaged; it is named.
    """
    for name, wanted in meta["files"].items():
        try:
            found = _describe(folder / name, whole=whole)
        except FileNotFoundError as error:
            raise _missing(folder, name) from error
        if any(found[key] != wanted.get(key) for key in found):
            raise TaskError(f"{name} is damaged [{folder}]. Build the catalogue again.")


def default_folder(name: str) -> Path:
    """Where a generated catalogue of that name is kept."""
    from agentbench_fc.cache import cache_dir

    if "/" in name or name.startswith("."):
        raise CallerError(f"{name!r} is no name of a catalogue [webshop]. Use letters, digits and dashes.")
    return cache_dir() / "webshop" / name


def _missing(folder: Path, name: str) -> TaskError:
    return TaskError(f"{Path(name).name} is missing [{folder}]. Build the catalogue again.")


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


def _check_replaceable(folder: Path) -> None:
    """Nobody's files are deleted for a slip in a path: only a catalogue, or an empty folder, makes way."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / "meta.json").is_file() or not (folder / "products.bin").exists():
        raise CallerError(f"{folder} exists and is no catalogue [webshop]. Name a new folder; nothing was changed.")


def _replace(building: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        if folder.exists() and any(folder.iterdir()):
            folder.rename(old)
        building.rename(folder)
    finally:
        shutil.rmtree(old, ignore_errors=True)
