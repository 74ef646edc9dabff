"""AgentBench's own files and other people's triples, read as they are.

AgentBench keeps its questions in `data/knowledgegraph` and its ontology beside its code; both places are known. A row
is handed on unchanged, with the known faults of its gold plan added under `faults`.

Not here: asking the graph (backend.py); the generated world (generate.py).
Source: AgentBench's data formats; FB15k-237's table of subject, relation, object.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.kg.backend import QUERY_TIMEOUT_S, OxigraphBackend
from agentbench_fc.tasks.kg.expressions import NAMESPACE
from agentbench_fc.tasks.kg.schema import TOPIC, Schema
from agentbench_fc.tasks.kg.store import kept_folder, load_file, load_lines
from agentbench_fc.tasks.kg.task import Reader, Rows

SPLITS = {"dev.json": "dev", "std.json": "std", "kg_rl_all.json": "train"}
MISSING_ATTRIBUTE = "topic_server.population_number"
"""Used by gold plans, absent from AgentBench's vocabulary."""
LARGE_FILE = 100 * 2**20
"""Bytes; about a million triples, which take 400 MB of memory."""
_ID = re.compile(r"/?([mfg])[./]([A-Za-z0-9_]+)")
_RELATION = re.compile(r"[A-Za-z0-9_]+(?:\.{1,2}[A-Za-z0-9_]+)*")


def find_data(data: str | Path) -> Path:
    """The folder or file that the option `data` means.

    Raises:
        CallerError: it does not exist.
    """
    if str(data) == "agentbench":
        root = os.environ.get("AGENTBENCH_DATA")
        if not root:
            raise CallerError("AGENTBENCH_DATA is not set [task kg, data=agentbench]. Name AgentBench's data folder.")
        path = Path(root).expanduser() / "knowledgegraph"
    else:
        path = Path(data).expanduser()
    if not path.exists():
        raise CallerError(f"no such file or folder: {path} [task kg, data]. Name AgentBench's knowledgegraph folder.")
    return path


def agentbench_splits(path: Path, faults: Mapping[str, Any], *, exclude_suspect: bool = False) -> dict[str, Reader]:
    """Readers of a folder's files by split; a single file makes one split of its own name.

    Raises:
        CallerError: the folder has none of AgentBench's files.
    """
    files = {path: SPLITS.get(path.name, path.stem)} if path.is_file() else {path / n: s for n, s in SPLITS.items()}
    present = {split: file for file, split in files.items() if file.is_file()}
    if not present:
        raise CallerError(f"none of {', '.join(SPLITS)} is there [{path}]. Name AgentBench's knowledgegraph folder.")
    return {
        split: partial(_read_rows, file, split, faults, exclude_suspect=exclude_suspect)
        for split, file in present.items()
    }


def _read_rows(file: Path, split: str, faults: Mapping[str, Any], *, exclude_suspect: bool) -> Rows:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CallerError(f"the questions cannot be read: {error} [{file}]. Restore AgentBench's file.") from error
    if not isinstance(rows, list):
        raise CallerError(f"the file holds no list [{file}]. Name one of AgentBench's knowledgegraph files.")
    numbered: list[tuple[int, Mapping[str, Any]]] = []
    for number, row in enumerate(rows):
        wrong = not isinstance(row, dict) or any(
            not isinstance(row.get(key), kind)
            for key, kind in (("question", str), ("entities", dict), ("answer", list))
        )
        if wrong:
            raise CallerError(f"row {number} has no question, entities and answer [{file}]. Restore AgentBench's file.")
        known = faults.get(f"kg/{split}/{number}", [])
        if not (known and exclude_suspect):
            numbered.append((number, row | {"faults": known}))
    return numbered


def find_ontology(data: Path) -> Path:
    """AgentBench's ontology folder: beside the data, or in its place in the source tree.

    Raises:
        CallerError: in neither place.
    """
    folder = data if data.is_dir() else data.parent
    places = [folder / "ontology", folder.parent.parent / "src" / "server" / "tasks" / "knowledgegraph" / "ontology"]
    for place in places:
        if (place / "vocab.json").is_file():
            return place
    shown = " or ".join(str(place) for place in places)
    raise CallerError(f"no ontology at {shown} [task kg]. Copy AgentBench's ontology folder beside its data.")


def read_ontology(folder: Path, *, complete: bool = True) -> Schema:
    """AgentBench's vocabulary, ranges and types.

    Args:
        folder: Holds vocab.json, fb_roles and fb_types.
        complete: Add the attribute that gold plans use and the vocabulary lacks.

    Raises:
        CallerError: a file is missing or damaged.
    """
    try:
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        relations, attributes = frozenset(vocabulary["relations"]), frozenset(vocabulary["attributes"])
        roles = [line.split() for line in _lines(folder / "fb_roles")]
        isa = [line.split() for line in _lines(folder / "fb_types")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CallerError(f"the ontology cannot be read: {error!r} [{folder}]. Restore AgentBench's files.") from error
    parents: dict[str, set[str]] = {}
    for row in isa:
        if len(row) == 3 and row[1] == "meta.subclassOf" and row[2] != TOPIC:
            parents.setdefault(row[0], set()).add(row[2])
    return Schema(
        relations=relations,
        attributes=attributes | {MISSING_ATTRIBUTE} if complete else attributes,
        ranges={row[1]: row[2] for row in roles if len(row) == 3},
        supertypes={kind: _above(kind, parents) for kind in parents},
    )


def read_reverses(folder: Path) -> dict[str, str]:
    """Relation -> its reverse, both ways, from AgentBench's reverse_properties."""
    pairs = [line.split("\t") for line in _lines(folder / "reverse_properties")]
    one_way = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return {second: first for first, second in one_way.items()} | one_way


def _above(kind: str, parents: Mapping[str, set[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [kind]
    while waiting:
        for parent in parents.get(waiting.pop(), ()):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return frozenset(found - {kind})


def open_graph(
    path: Path,
    reverses: Mapping[str, str] | None = None,
    *,
    on_disk: bool | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> OxigraphBackend:
    """N-Triples (`.nt`, `.nt.gz`) or a table of subject, relation, object (`.tsv`, `.txt`) as a graph to be asked.

    Args:
        path: The file.
        reverses: Relation -> its reverse, for tables.
        on_disk: Keep the triples in the cache folder instead of memory; None: files above LARGE_FILE bytes.
        timeout_s: A query has so long.

    Raises:
        CallerError: no such file, another format, or a line that is no triple.
    """
    path = path.expanduser()
    if not path.is_file():
        raise CallerError(f"no such file: {path} [task kg, graph]. Name an N-Triples or tsv file.")
    if not path.name.endswith((".nt", ".nt.gz", ".tsv", ".txt")):
        raise CallerError(f"the graph is {path.suffix or 'of no known kind'} [{path}]. Use .nt, .nt.gz or .tsv.")
    names = reverses or {}

    def fill(store: Any) -> None:
        if path.name.endswith((".nt", ".nt.gz")):
            load_file(store, path)
        else:
            triples = read_table(path, names)
            load_lines(store, (f"<{NAMESPACE}{s}> <{NAMESPACE}{r}> <{NAMESPACE}{o}> ." for s, r, o in triples))

    if on_disk is None:
        on_disk = path.stat().st_size > LARGE_FILE
    if on_disk:
        extra = repr((path.suffix, sorted(names.items())))
        if not path.name.endswith((".nt", ".nt.gz")):  # what this module makes of a table; N-Triples are taken as is
            extra += hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        return OxigraphBackend(kept_folder(path, extra, fill), timeout_s=timeout_s)
    backend = OxigraphBackend(timeout_s=timeout_s)
    backend.load(fill)
    return backend


def read_table(path: Path, reverses: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The triples of a table, each followed by its reverse, in Freebase's spelling.

    `/m/01x` becomes `m.01x`; `/a/b/c` becomes `a.b.c`; a relation through a hidden node, `/a/b/c./d/e/f`, becomes
    `a.b.c..d.e.f`. A relation without a known reverse gets `reverse_of.<relation>`.

    Raises:
        CallerError: a line that is no triple.
    """
    for number, line in enumerate(_lines(path), start=1):
        parts = line.split("\t")
        if len(parts) != 3:
            raise CallerError(f"line {number} has {len(parts)} columns [{path}]. Use subject, relation, object.")
        subject, target = _ID.fullmatch(parts[0]), _ID.fullmatch(parts[2])
        relation = parts[1].lstrip("/").replace("./", "..").replace("/", ".")
        if subject is None or target is None or not _RELATION.fullmatch(relation):
            raise CallerError(f"line {number} is no triple of Freebase names [{path}]. Mend the line.")
        first, last = f"{subject[1]}.{subject[2]}", f"{target[1]}.{target[2]}"
        yield first, relation, last
        yield last, reverses.get(relation, f"reverse_of.{relation}"), first


def read_names(path: Path) -> dict[str, str]:
    """Id -> name, from a table of two columns; ids without a name, and names of two ids, are left out."""
    rows = [line.split("\t") for line in _lines(path)]
    names = {row[0]: row[1].strip() for row in rows if len(row) == 2 and row[1].strip()}
    seen: dict[str, int] = {}
    for name in names.values():
        seen[name.casefold()] = seen.get(name.casefold(), 0) + 1
    return {entity: name for entity, name in names.items() if seen[name.casefold()] == 1}


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        for line in file:
            if text := line.rstrip("\r\n"):
                yield text


def read_faults(folder: Path) -> dict[str, list[str]]:
    """Sample id -> what is wrong with its gold plan, from tasks/kg/known_faults.json."""
    items: dict[str, list[str]] = json.loads((folder / "known_faults.json").read_text(encoding="utf-8"))["items"]
    return items
