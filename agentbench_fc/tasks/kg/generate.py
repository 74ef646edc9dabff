"""Generated data sets as files in the cache: a world and its questions, or questions about a graph that is given.

A file is made once per recipe, size and seed, and then only read. Those of the default world must match the task's
manifest: a changed generator is noticed, not shipped by accident. `python -m agentbench_fc.tasks.kg.generate` rewrites
the manifest. All others lie under a name that holds a hash of the generator's code: what another version of it has
made is never read.

Not here: how a world is made (world.py) and its questions (questions.py).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from agentbench_fc.cache import generated, manifest_hash
from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.kg.questions import make_split
from agentbench_fc.tasks.kg.readers import read_names, read_table
from agentbench_fc.tasks.kg.schema import TOPIC, Schema
from agentbench_fc.tasks.kg.task import Rows
from agentbench_fc.tasks.kg.world import Link, Recipe, World, build, check_size, read_recipe

SIZE, SEED = 4_000, 0
QUESTIONS = {"train": 4_200, "dev": 510, "test": 510}
GRAPH_QUESTIONS = {"train": 600, "dev": 90, "test": 90}
VERSION = 1
"""Names the default world's files in the cache, whose content the manifest decides."""


class DataSet:
    """The files of one world.

    Args:
        place: Where they lie in the cache; names everything that shapes them.
        make_world: Makes the world; only called when a file is missing.
        questions: Split -> number of questions.
        seed: Of the questions.
        manifest: Folder of the manifest that the files must match; None: not checked.
        fewer: Take what can be found where the world is too small for so many.
    """

    def __init__(
        self,
        place: str,
        make_world: Callable[[], World],
        questions: Mapping[str, int],
        *,
        seed: int,
        manifest: Path | None = None,
        fewer: bool = False,
    ) -> None:
        self._place, self._make_world, self._questions = place, make_world, questions
        self._seed, self._manifest, self._fewer = seed, manifest, fewer

    @cached_property
    def world(self) -> World:
        """The world itself."""
        return self._make_world()

    def graph(self) -> Path:
        """The triples, as N-Triples."""
        return self._file("world.nt", lambda: lines(self.world.to_ntriples()))

    def split(self, name: str) -> bytes:
        """The questions of a split, as JSON lines."""
        rows = make_split(self.world, name, size=self._questions[name], seed=self._seed, fewer=self._fewer)
        return lines(json.dumps(row, ensure_ascii=False) for row in rows)

    def rows(self, name: str) -> Rows:
        """The questions of a split, numbered."""
        path = self._file(f"{name}.jsonl", lambda: self.split(name))
        with path.open(encoding="utf-8") as file:
            return [(number, json.loads(line)) for number, line in enumerate(file)]

    def _file(self, name: str, make: Callable[[], bytes]) -> Path:
        return generated(
            f"{self._place}/{name}", make, sha256=manifest_hash(self._manifest, name) if self._manifest else None
        )


def generated_world(folder: Path, *, size: int = SIZE, seed: int = SEED) -> tuple[DataSet, Schema]:
    """The world of `tasks/kg/world.yaml`, and what its relations are called.

    Raises:
        CallerError: the size is out of range.
    """
    check_size(size)
    recipe = read_recipe(folder / "world.yaml")
    place = f"kg/{VERSION}-{_hash((folder / 'world.yaml').read_bytes())[:8]}-{size}-{seed}"
    factor = max(1, size // SIZE)
    questions = {split: number * factor for split, number in QUESTIONS.items()}
    manifest = folder if (size, seed) == (SIZE, SEED) else None
    if manifest is None:
        place = f"{place}-{generator_hash()[:12]}"
    fewer = size < SIZE
    make = lambda: build(recipe, size=size, seed=seed)  # noqa: E731
    return DataSet(place, make, questions, seed=seed, manifest=manifest, fewer=fewer), recipe.schema


def graph_questions(path: Path, *, names: Path | None = None, seed: int = SEED) -> tuple[DataSet, Schema]:
    """Questions about a table of triples, such as FB15k-237's: chains, intersections and counts.

    Args:
        path: Subject, relation, object.
        names: Id, name; by default a file beside it whose name ends in `names.tsv`. Ids without a name of their own are
            in the graph but begin no question.
        seed: Of the questions.

    Raises:
        CallerError: the file cannot be read.
    """
    if path.suffix not in {".tsv", ".txt"} or not path.is_file():
        raise CallerError(
            f"questions can only be made about a .tsv table [{path}]. With N-Triples, give data=<questions> as well."
        )
    named = names or next(iter(sorted(path.parent.glob("*names.tsv"))), None)
    contents = [_hash(file.read_bytes()) for file in (path, named) if file is not None]
    edges: dict[str, dict[str, list[str]]] = {}
    links: dict[str, Link] = {}
    triples = list(read_table(path, {}))
    for subject, relation, target in triples:
        objects = edges.setdefault(relation, {}).setdefault(subject, [])
        if target not in objects:
            objects.append(target)
    words = Counter(relation.rpartition(".")[2] for relation in edges if not relation.startswith("reverse_of."))
    for relation in edges:
        forward = relation.removeprefix("reverse_of.")
        last = forward.rpartition(".")[2]
        word = last.replace("_", " ")
        if relation == forward:
            phrases: tuple[str, ...] = tuple(
                f"the {word} {way} {{x}}" for way in ("of", "listed for", "that belongs to")
            )
            reverse = f"reverse_of.{forward}"
            links[relation] = Link(relation, TOPIC, TOPIC, reverse, phrases, easy=words[last] == 1)
        else:
            phrases = (
                f"the things whose {word} is {{x}}",
                f"the things with {{x}} as {word}",
                f"the things that list {{x}} under {word}",
            )
            links[relation] = Link(relation, TOPIC, TOPIC, forward, phrases)
    schema = Schema(frozenset(links), frozenset())
    recipe = Recipe({"types": {TOPIC: {}}, "roles": {}}, links, {}, {TOPIC: "things"}, schema)
    entities = list(dict.fromkeys(subject for subject, _, _ in triples))  # each target is a subject of its reverse
    world = World(recipe, read_names(named) if named else {}, {TOPIC: entities}, edges)
    made_of = json.dumps([generator_hash(), contents, GRAPH_QUESTIONS, seed])
    place = f"kg/graph-{_hash(made_of.encode())[:24]}"
    return DataSet(place, lambda: world, GRAPH_QUESTIONS, seed=seed, fewer=True), schema


def generator_hash() -> str:
    """A hash of this task's code: of all of it, since a part that was left out would be the one that changes."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _hash(json.dumps([(file.name, _hash(file.read_bytes())) for file in files]).encode())


def write_manifest(folder: Path) -> None:
    """Rewrites manifest.json and samples.jsonl after a deliberate change of the generator."""
    data, _ = generated_world(folder)
    files = {"world.nt": lines(data.world.to_ntriples())} | {f"{s}.jsonl": data.split(s) for s in QUESTIONS}
    hashes = {"files": {name: _hash(content) for name, content in files.items()}}
    (folder / "manifest.json").write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")
    rows: list[dict[str, Any]] = [json.loads(line) for line in files["train.jsonl"].splitlines()]
    shown = [next(row for row in rows if row["shape"] == shape) for shape in ("1", "2", "and(1,1)", "count(2)")]
    (folder / "samples.jsonl").write_bytes(lines(json.dumps(row, ensure_ascii=False) for row in shown))


def lines(texts: Iterable[str]) -> bytes:
    """Lines of a text file."""
    return ("\n".join(texts) + "\n").encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    from agentbench_fc.registry import tasks_root

    write_manifest(tasks_root() / "kg")
