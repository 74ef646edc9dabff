"""Products on disk: compressed records in one mapped file, found by id. Written once, shared by all processes.

Not here: the folder around it and its checksums (catalogue.py).
"""

import hashlib
import json
import zlib
from array import array
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from agentbench_fc.errors import NotFound, TaskError
from agentbench_fc.tasks.webshop.records import Product

CACHED = 2048
"""Decoded products that a process keeps: about a page of results for every open session of a busy worker."""
_DICTIONARY_BYTES = 32_768
_ID_BYTES = 10


class StoreWriter:
    """Appends products; `close` writes the arrays that find them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / "products.bin").open("wb")
        self._offsets = array("q", [0])
        self.asins: list[str] = []
        self.digest = hashlib.sha256()
        """Of the records as they went in: the compressed bytes depend on the zlib at hand."""
        self._waiting: list[bytes] = []
        self._dictionary: bytes | None = None

    def append(self, product: Product) -> None:
        """Adds one product."""
        record = json.dumps(product.to_dict(), ensure_ascii=False, separators=(",", ":")).encode()
        self.asins.append(product.asin)
        self.digest.update(record)
        if self._dictionary is not None:
            self._write(record)
            return
        self._waiting.append(record)  # the first records become the dictionary of all
        if sum(map(len, self._waiting)) >= _DICTIONARY_BYTES:
            self._flush_waiting()

    def close(self) -> None:
        """Writes what is left."""
        if self._dictionary is None:
            self._flush_waiting()
        self._file.close()
        (self._folder / "dictionary.bin").write_bytes(self._dictionary or b"")
        np.save(self._folder / "offsets.npy", np.frombuffer(self._offsets, np.int64))
        ids = np.array(self.asins, dtype=f"S{_ID_BYTES}")
        order = np.argsort(ids, kind="stable").astype(np.int32)
        np.save(self._folder / "ids.npy", ids[order])
        np.save(self._folder / "positions.npy", order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _flush_waiting(self) -> None:
        self._dictionary = b"".join(self._waiting)[-_DICTIONARY_BYTES:]
        for record in self._waiting:
            self._write(record)
        self._waiting = []

    def _write(self, record: bytes) -> None:
        compressor = zlib.compressobj(9, zdict=self._dictionary) if self._dictionary else zlib.compressobj(9)
        packed = compressor.compress(record) + compressor.flush()
        self._file.write(packed)
        self._offsets.append(self._offsets[-1] + len(packed))


class ProductStore:
    """The products of a catalogue. Reads only, so threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "products.bin"
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._positions = np.load(folder / "positions.npy", mmap_mode="r")
        self._dictionary = (folder / "dictionary.bin").read_bytes()
        self._bytes = np.memmap(self._path, np.uint8, "r") if len(self) else np.empty(0, np.uint8)
        self.at = lru_cache(maxsize=CACHED)(self._read)
        """Position -> product."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __contains__(self, asin: str) -> bool:
        return self._find(asin) >= 0

    def get(self, asin: str) -> Product:
        """The product of that id.

        Raises:
            NotFound: there is none.
        """
        position = self._find(asin)
        if position < 0:
            raise NotFound(f"there is no product {asin[:20]!r} [webshop catalogue]. Search for one.")
        return self.at(position)

    def _find(self, asin: str) -> int:
        wanted = np.bytes_(asin.encode())
        place = int(np.searchsorted(self._ids, wanted)) if len(asin) <= _ID_BYTES else len(self._ids)
        return int(self._positions[place]) if place < len(self._ids) and self._ids[place] == wanted else -1

    def _read(self, position: int) -> Product:
        packed = self._bytes[self._offsets[position] : self._offsets[position + 1]].tobytes()
        decompressor = zlib.decompressobj(zdict=self._dictionary) if self._dictionary else zlib.decompressobj()
        try:
            return Product.from_dict(json.loads(decompressor.decompress(packed)))
        except (zlib.error, ValueError) as error:
            raise TaskError(
                f"product {position} cannot be read: {error} [{self._path}]. The file is damaged: build it again."
            ) from error
