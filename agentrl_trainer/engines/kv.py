"""Keys and values of running sequences, one row each, and a store of prefixes that later sequences may start from.

Rows are ragged: row r holds its tokens in columns 0 … len-1 whatever the others do, so a sequence joins or leaves
without touching its neighbours; positions are applied before caching, and a mask hides what lies behind a row's end.

Not here: which rows run and when (decoder.py, transformers.py).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache

Ids = NDArray[np.int32]
_GRAIN = 128
"""Rows grow by so many columns at least: growing copies everything."""


@dataclass(slots=True)
class Prefix:
    """A computed prefix: its ids and, per layer, keys and values (heads, T, dim)."""

    ids: Ids
    layers: list[tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


class KeyValueRows(Cache):  # type: ignore[misc]  # transformers is untyped
    """The cache that a model writes to and reads from; `place` says where, before each forward pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: slice | Tensor = slice(0, 0)
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._row_list: list[int] = []
        self._width = 0
        self._index: tuple[Tensor, Tensor] | None = None

    def place(self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int], device: torch.device) -> int:
        """Says that the next pass brings `counts[i]` tokens for row `rows[i]`, to stand from column `starts[i]` on.

        Returns:
            The width W of the keys that the pass will see.
        """
        self._row_list, self._starts, self._counts = list(rows), list(starts), list(counts)
        self._width = max(start + count for start, count in zip(starts, counts, strict=True))
        first = self._row_list[0]
        if self._row_list == list(range(first, first + len(self._row_list))):
            self._rows = slice(first, first + len(self._row_list))  # a view: decoding copies nothing
        else:
            self._rows = torch.tensor(self._row_list, device=device)
        single = all(count == 1 for count in counts)
        self._index = (
            (torch.tensor(self._row_list, device=device), torch.tensor(self._starts, device=device)) if single else None
        )
        return self._width

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Writes a layer's new keys and values (B, heads, Q, dim); returns all of its rows (B, heads, W, dim)."""
        if layer_idx == len(self._keys):
            self._keys.append(key_states.new_zeros((0, key_states.shape[1], 0, key_states.shape[3])))
            self._values.append(value_states.new_zeros((0, value_states.shape[1], 0, value_states.shape[3])))
        out = []
        for held, new in ((self._keys, key_states), (self._values, value_states)):
            held[layer_idx] = layer = _grown(held[layer_idx], max(self._row_list) + 1, self._width)
            if self._index is not None:
                layer[self._index[0], :, self._index[1]] = new[:, :, 0]
            else:
                for i, (row, start, count) in enumerate(zip(self._row_list, self._starts, self._counts, strict=True)):
                    layer[row, :, start : start + count] = new[i, :, :count]
            out.append(layer[self._rows][:, :, : self._width])
        return out[0], out[1]

    def get_seq_length(self, layer_idx: int = 0, cache_position: Any = None) -> int:
        """Never used for positions: they are always given."""
        return self._width

    def save(self, row: int, ids: Ids) -> Prefix:
        """A copy of the first len(ids) columns of a row."""
        layers = [
            (k[row, :, : len(ids)].clone(), v[row, :, : len(ids)].clone())
            for k, v in zip(self._keys, self._values, strict=True)
        ]
        return Prefix(ids, layers)

    def load(self, row: int, prefix: Prefix, length: int) -> None:
        """Copies the first `length` columns of a prefix to a row."""
        for layer, pair in enumerate(prefix.layers):
            for held, new in ((self._keys, pair[0]), (self._values, pair[1])):
                held[layer] = tensor = _grown(held[layer], row + 1, length)
                tensor[row, :, :length] = new[:, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` columns of one row to another."""
        for held in (self._keys, self._values):
            for layer, tensor in enumerate(held):
                held[layer] = grown = _grown(tensor, target + 1, length)
                grown[target, :, :length] = grown[source, :, :length]


def _grown(tensor: Tensor, rows: int, width: int) -> Tensor:
    """The tensor with room for `rows` and `width`; zeros, since a masked NaN would still poison a product."""
    have_rows, heads, have_width, dim = tensor.shape
    if rows <= have_rows and width <= have_width:
        return tensor
    rows = max(have_rows, -(-rows // 8) * 8)
    width = max(have_width, -(-width // _GRAIN) * _GRAIN)
    grown = tensor.new_zeros((rows, heads, width, dim))
    grown[:have_rows, :, :have_width] = tensor
    return grown


class PrefixStore:
    """Prefixes computed with the present weights, least recently used ones dropped beyond `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[int, Prefix] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, prefix: Prefix, *, instead_of: int | None = None) -> None:
        """Keeps a prefix; `instead_of` is the key of the entry that it continues."""
        if instead_of is not None and instead_of in self._entries:
            self._bytes -= self._entries.pop(instead_of).nbytes
        self._next += 1
        self._entries[self._next] = prefix
        self._bytes += prefix.nbytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._entries.popitem(last=False)[1].nbytes

    def longest(self, ids: Ids, above: int) -> tuple[int, int] | None:
        """Key and shared length of the entry that shares most with `ids`, if that is more than `above`."""
        best: tuple[int, int] | None = None
        for key, entry in self._entries.items():
            shared = shared_prefix(entry.ids, ids, above)
            if shared > above:
                best, above = (key, shared), shared
        return best

    def get(self, key: int) -> Prefix:
        """The entry, which counts as a use."""
        self._entries.move_to_end(key)
        return self._entries[key]

    def clear(self) -> None:
        """Forgets everything: the weights have changed."""
        self._entries.clear()
        self._bytes = 0


def shared_prefix(a: Ids, b: Ids, above: int = 0) -> int:
    """Length of the common prefix; 0 without a full look where it cannot exceed `above`."""
    n = min(len(a), len(b))
    if n <= above or a[above] != b[above]:
        return 0
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
