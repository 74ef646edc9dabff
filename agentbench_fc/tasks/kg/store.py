"""A pyoxigraph store and the one question that is asked of it; served by a child process where a query may take long.

A store lies in memory, or in a folder of the cache (RocksDB) that any number of processes open read-only. The folder is
made once per content: it is filled under another name and moved into place whole.

Not here: which queries go to a child (backend.py); the process itself (procs.py).
"""

import gzip
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agentbench_fc.cache import cache_dir
from agentbench_fc.errors import CallerError, InfrastructureError
from agentbench_fc.tasks.kg.expressions import NAMESPACE
from agentbench_fc.tasks.kg.values import plain


class Store:
    """What a child serves: a store of its own.

    Args:
        triples: An N-Triples file to load into memory.
        folder: A folder to open read-only instead.
    """

    def __init__(self, *, triples: str | None = None, folder: str | None = None) -> None:
        if folder is not None:
            self._store = open_folder(Path(folder))
        else:
            self._store = new_store()
            load_file(self._store, Path(triples or ""))

    def ask(self, query: str) -> list[str]:
        """The different values of the variable that a query selects."""
        return sorted(ask(self._store, query))


def new_store(folder: Path | None = None) -> Any:
    """An empty store, in memory or in a folder."""
    import pyoxigraph

    return pyoxigraph.Store() if folder is None else pyoxigraph.Store(str(folder))


def ask(store: Any, query: str) -> frozenset[str]:
    """The different values of the one variable that a query selects; of texts with a language only the English ones.

    The language is looked at here: a filter in each query takes longer to read than most queries to run.

    Raises:
        InfrastructureError: the store broke.
    """
    try:
        terms = [row[0] for row in store.query(query)]  # by name, each row would look the variable up anew
    except (OSError, RuntimeError, SyntaxError, ValueError) as error:
        raise broken(error) from error
    return texts(terms)


def texts(terms: Iterable[Any]) -> frozenset[str]:
    """What stands for terms; of texts with a language only the English ones."""
    return frozenset([_text(term) for term in terms if _is_read(term)])


def broken(error: Exception) -> InfrastructureError:
    """The error that tells of a store's failure."""
    return InfrastructureError(
        f"the graph gave no answer: {type(error).__name__} [backend oxigraph]. Start the task again."
    )


def _is_read(term: Any) -> bool:
    language = getattr(term, "language", None)
    return language is None or language.partition("-")[0].casefold() == "en"


def _text(term: Any) -> str:
    value: str = term.value
    if value.startswith(NAMESPACE):  # nearly all are ids
        return value[len(NAMESPACE) :]
    datatype = getattr(term, "datatype", None)
    return plain(value, None if datatype is None else datatype.value)


def load_file(store: Any, path: Path) -> None:
    """Adds an N-Triples file, `.nt` or `.nt.gz`.

    Raises:
        CallerError: it is not N-Triples.
        InfrastructureError: it cannot be read.
    """
    opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        _bulk_load(store, file, str(path))


def load_lines(store: Any, lines: Iterable[str]) -> None:
    """Adds lines of N-Triples; errors as in `load_file`."""
    _bulk_load(store, io.BytesIO("\n".join(lines).encode()), "lines")


def _bulk_load(store: Any, file: Any, where: str) -> None:
    import pyoxigraph

    try:
        store.bulk_load(file, format=pyoxigraph.RdfFormat.N_TRIPLES)
    except (SyntaxError, ValueError) as error:
        raise CallerError(f"the graph is not N-Triples: {error} [{where}]. Mend or convert the file.") from error
    except OSError as error:
        raise InfrastructureError(f"the graph cannot be read: {error} [{where}]. Check the file.") from error


def kept_folder(source: Path, extra: str, fill: Callable[[Any], None]) -> Path:
    """The folder in the cache that holds a source's triples, filled when it is not there yet.

    Args:
        source: The file that the triples come from; its content names the folder.
        extra: What else shapes the triples.
        fill: Loads them into a store.

    Raises:
        InfrastructureError: the cache cannot be written.
    """
    import pyoxigraph

    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(extra.encode())
    place = cache_dir() / "kg" / f"store-{pyoxigraph.__version__}-{digest.hexdigest()[:16]}"
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
        try:
            store = new_store(making / "db")
            fill(store)
            store.flush()
            (making / "triples").write_text(str(len(store)), encoding="ascii")
            del store  # frees its lock
            _move(making, place)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise InfrastructureError(f"the cache cannot be written: {error} [{place}]. Free space or move it.") from error
    return place


def _move(making: Path, place: Path) -> None:
    try:
        os.rename(making, place)  # atomic: others see no folder, or a whole one
    except OSError:
        if not place.is_dir():  # else another process was first
            raise


def open_folder(place: Path) -> Any:
    """The store of a folder, read-only.

    Raises:
        InfrastructureError: it is not there or damaged.
    """
    import pyoxigraph

    try:
        return pyoxigraph.Store.read_only(str(place / "db"))
    except (OSError, RuntimeError) as error:
        raise InfrastructureError(f"the graph cannot be opened: {error} [{place}]. Delete the folder.") from error


def triples_of(place: Path) -> int:
    """How many triples a folder holds; counted when it was made, because counting reads them all."""
    return int((place / "triples").read_text(encoding="ascii"))
