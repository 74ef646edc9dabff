"""The default data set: the generated world and its splits, as files in the cache.

A file is made once per recipe, size and seed, and then only read. Those of the default size and seed must match the
task's manifest: a changed generator is noticed, not shipped by accident.

Not here: how the world is made (world.py) and its questions (questions.py).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated, manifest_hash
from agentbench_fc.tasks.kg.questions import SIZES, make_split
from agentbench_fc.tasks.kg.world import World, build, read_recipe

SIZE, SEED = 4_000, 0


class DataSet:
    """The files of one world."""

    def __init__(self, folder: Path, *, size: int = SIZE, seed: int = SEED) -> None:
        self.recipe = read_recipe(folder / "world.yaml")
        self._folder, self._size, self._seed = folder, size, seed
        recipe = hashlib.sha256((folder / "world.yaml").read_bytes()).hexdigest()[:8]
        self._place = f"kg/{recipe}-{size}-{seed}"

    @cached_property
    def world(self) -> World:
        """The world itself; only made when a file is missing."""
        return build(self.recipe, size=self._size, seed=self._seed)

    def graph(self) -> Path:
        """The triples, as N-Triples."""
        return self._file("world.nt", lambda: _lines(self.world.to_ntriples()))

    def rows(self, split: str) -> list[Mapping[str, Any]]:
        """The samples of a split."""
        size = SIZES[split] * max(1, self._size // SIZE)
        path = self._file(
            f"{split}.jsonl",
            lambda: _lines(
                json.dumps(row, ensure_ascii=False) for row in make_split(self.world, split, size=size, seed=self._seed)
            ),
        )
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def _file(self, name: str, make: Callable[[], bytes]) -> Path:
        default = (self._size, self._seed) == (SIZE, SEED)
        return generated(f"{self._place}/{name}", make, sha256=manifest_hash(self._folder, name) if default else None)


def write_manifest(folder: Path) -> None:
    """Rewrites manifest.json and samples.jsonl after a deliberate change of the generator."""
    (folder / "manifest.json").unlink(missing_ok=True)
    data = DataSet(folder)
    world = data.world
    rows = {split: make_split(world, split, size=size, seed=SEED) for split, size in SIZES.items()}
    files = {"world.nt": _lines(world.to_ntriples())} | {
        f"{split}.jsonl": _lines(json.dumps(row, ensure_ascii=False) for row in made) for split, made in rows.items()
    }
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": hashes}, indent=2) + "\n", encoding="utf-8")
    shown = [
        next(row for row in rows["train"] if row["shape"] == shape) for shape in ("1", "2", "and(1,1)", "count(2)")
    ]
    (folder / "samples.jsonl").write_bytes(_lines(json.dumps(row, ensure_ascii=False) for row in shown))


def _lines(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


if __name__ == "__main__":
    from agentbench_fc.registry import tasks_root

    write_manifest(tasks_root() / "kg")
