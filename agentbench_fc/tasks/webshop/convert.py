"""WebShop's own files -> a catalogue, streaming: 1.18 million products need little more memory than a thousand.

Not here: what a record means (prepare.py, goals.py).
"""

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.webshop.catalogue import write_catalogue
from agentbench_fc.tasks.webshop.goals import human_goals, synthetic_goals
from agentbench_fc.tasks.webshop.nouns import tagger
from agentbench_fc.tasks.webshop.prepare import distinct, prepare_product
from agentbench_fc.tasks.webshop.records import Goal, Product

A = TypeVar("A")
B = TypeVar("B")
GoalKind = Literal["human", "synthetic"]
_CHUNK = 1 << 20
_LARGEST = 64 << 20
"""Characters of one element; beyond, the file is broken, and reading on would only fill the memory."""
_BETWEEN = " \t\r\n,"


def convert(
    items: Path,
    attributes: Path,
    humans: Path | None,
    out: Path,
    *,
    goals: GoalKind = "human",
    seed: int = 0,
    tagger_name: str = "rules",
    limit: int | None = None,
) -> dict[str, Any]:
    """Writes the catalogue of WebShop's files and returns its metadata.

    Args:
        items: items_shuffle*.json, a list of products of any length.
        attributes: items_ins_v2*.json.
        humans: items_human_ins.json; needed for human goals.
        out: The catalogue's folder.
        goals: `human` (AgentBench's) or `synthetic`.
        seed: Of the prices within ranges and of the price limits.
        tagger_name: How the nouns of titles are found, `rules` or `spacy`.
        limit: Only the first so many products of the file.

    Raises:
        CallerError: a file is missing, or human goals without their file.
        TaskError: a file is not what it should be.
    """
    if goals == "human" and humans is None:
        raise CallerError("human goals need items_human_ins.json [webshop convert]. Give it, or use --goals synthetic.")
    for path in (items, attributes, *([humans] if humans else [])):
        if not path.is_file():
            raise CallerError(f"no such file: {path} [webshop convert]. Give WebShop's own files.")
    find_nouns = tagger(tagger_name)
    with _Table(attributes) as about, _Table(humans) as instructions:

        def goals_of(product: Product) -> Iterable[Goal]:
            if goals == "human":
                return human_goals(product, instructions.get(product.asin) or [], seed)
            return synthetic_goals(product, about.get(product.asin) or {}, seed)

        def prepared(record: Mapping[str, Any]) -> Product:
            return prepare_product(record, about.get(record["asin"]) or {}, find_nouns)

        records = distinct(itertools.islice(stream_array(items), limit))
        products = (_well_formed(record["asin"], prepared, record) for record in records)
        meta = {"source": items.name, "seed": seed, "tagger": tagger_name, "goal_kind": goals}
        return write_catalogue(
            out, products, lambda product: _well_formed(product.asin, lambda p: list(goals_of(p)), product), meta=meta
        )


def _well_formed(asin: str, read: Callable[[A], B], source: A) -> B:
    """What `read` makes of a record; one that is not as WebShop's records are is named."""
    try:
        return read(source)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskError(
            f"the records of product {asin} are malformed: {error!r} [webshop convert]. Are these WebShop's files?"
        ) from error


def stream_array(path: Path) -> Iterator[dict[str, Any]]:
    """The elements of a JSON array, one at a time.

    Raises:
        TaskError: the file is no JSON array, or ends in the middle.
    """
    yield from (value for _, value in _stream(path, "["))


def stream_object(path: Path) -> Iterator[tuple[str, Any]]:
    """The members of a JSON object, one at a time.

    Raises:
        TaskError: the file is no JSON object, or ends in the middle.
    """
    yield from _stream(path, "{")


def _stream(path: Path, opening: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from _stream_text(path, opening)
    except UnicodeDecodeError as error:
        raise TaskError(f"the file is no UTF-8 text: {error} [{path}]. Is this WebShop's file?") from error
    except RecursionError as error:
        raise TaskError(f"the file is nested too deeply [{path}]. Is this WebShop's file?") from error


def _stream_text(path: Path, opening: str) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    closing = {"[": "]", "{": "}"}[opening]
    with path.open(encoding="utf-8") as file:
        buffer = file.read(_CHUNK).lstrip(_BETWEEN + "\ufeff")
        if not buffer.startswith(opening):
            raise TaskError(f"the file does not begin with {opening!r} [{path}]. Is this WebShop's file?")
        at = 1
        key = ""
        while True:
            while at < len(buffer) and buffer[at] in _BETWEEN:
                at += 1
            if buffer[at : at + 1] == closing:
                return
            try:
                end = at
                if opening == "{":
                    key, end = decoder.raw_decode(buffer, at)
                    end = buffer.index(":", end) + 1
                    while buffer[end] in _BETWEEN:
                        end += 1
                value, end = decoder.raw_decode(buffer, end)
                if end == len(buffer):  # a number may go on in the next chunk
                    raise ValueError
            except (ValueError, IndexError):
                more = file.read(max(_CHUNK, len(buffer)))  # doubling keeps one huge element linear
                if not more or len(buffer) - at > _LARGEST:
                    raise TaskError(
                        f"the file is broken off or no JSON near {buffer[at : at + 40]!r} [{path}]."
                    ) from None
                buffer, at = buffer[at:] + more, 0
                continue
            at = end
            yield key, value


class _Table:
    """A JSON object of any size, looked up by key: a temporary SQLite file in place of a dictionary."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._file = tempfile.NamedTemporaryFile(suffix=".sqlite")
        self._db = sqlite3.connect(self._file.name, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768;")
        self._db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID")
        if self._path is not None:
            rows = ((key, json.dumps(value)) for key, value in stream_object(self._path))
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()
        self._file.close()

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        row = self._db.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])
