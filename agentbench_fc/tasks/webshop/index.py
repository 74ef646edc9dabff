"""BM25 with Lucene's ranking over memory-mapped arrays.

A folder of plain arrays, written once and mapped read-only, so that every process of a host shares one copy:
`terms.bin`/`terms.npy` (sorted terms and their offsets), `starts.npy`, `docs.npy`, `weights.npy` (postings by term) and
`ranks.npy` (a document's place in id order, which breaks ties).

The weight of term t in document d is idf(t) * (1 - 1 / (1 + tf / (k1 * (1 - b + b * L(d) / avg)))), in float32, with
Lucene's one-byte length L; a query adds the weights of its terms, repeats counted, in float64, and compares in float32.

Not here: text -> terms (analyzer.py). Source: Lucene 8 `BM25Similarity`, `SmallFloat.intToByte4`; k1 and b are
Anserini's defaults; skipping after Turtle & Flood, "Query evaluation: strategies and optimizations", 1995 (MaxScore).
"""

import bisect
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentbench_fc.tasks.webshop.analyzer import analyze

K1 = 0.9
B = 0.4
TOP = 50
"""Results of a query, as in the original."""


class Index:
    """An opened index. Reads only, so threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._starts = np.load(folder / "starts.npy", mmap_mode="r")
        self._docs = np.load(folder / "docs.npy", mmap_mode="r")
        self._weights = np.load(folder / "weights.npy", mmap_mode="r")
        self._maxima = np.load(folder / "maxima.npy", mmap_mode="r")
        self._ranks = np.load(folder / "ranks.npy", mmap_mode="r")
        self._terms = _Terms(folder)

    def search(self, query: str, top: int = TOP) -> list[int]:
        """Document numbers of the best `top` matches, best first, ties in id order."""
        counts = Counter(analyze(query))
        terms = [(number, count) for term, count in counts.items() if (number := self._terms.find(term)) >= 0]
        if not terms:
            return []
        terms.sort(key=lambda term: int(self._starts[term[0] + 1] - self._starts[term[0]]))  # rare terms first
        candidates = self._candidates(terms, top)
        scores = self._score(candidates, terms)
        order = np.lexsort((self._ranks[candidates], -scores))[:top]
        return [int(doc) for doc in candidates[order]]

    def _postings(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        start, end = int(self._starts[number]), int(self._starts[number + 1])
        return self._docs[start:end], self._weights[start:end]

    def _candidates(self, terms: Sequence[tuple[int, int]], top: int) -> NDArray[np.int32]:
        """Every document that can be among the best: what is left out cannot reach the score of the `top`-th."""
        bounds = [float(self._maxima[number]) * count for number, count in terms]
        totals = np.zeros(len(self._ranks), np.float64)  # pages that are never touched cost nothing
        docs = np.empty(0, np.int32)
        for position, (number, count) in enumerate(terms):
            rest = sum(bounds[position:])
            if len(docs) >= top and rest < _reached(totals[docs], top):  # an unseen document cannot reach it any more
                return self._narrowed(docs, totals[docs], terms[position:], bounds[position:], top)
            found, weights = self._postings(number)
            before = totals[found]
            docs = np.concatenate([docs, found[before == 0]])
            before += weights.astype(np.float64) * count
            totals[found] = before
        return _best(docs, totals[docs], top)

    def _narrowed(
        self,
        docs: NDArray[np.int32],
        scores: NDArray[np.float64],
        terms: Sequence[tuple[int, int]],
        bounds: Sequence[float],
        top: int,
    ) -> NDArray[np.int32]:
        """Looks the common terms up for the documents that can still be among the best."""
        for position, (number, count) in enumerate(terms):
            kept = scores + sum(bounds[position:]) >= _reached(scores, top)
            docs, scores = docs[kept], scores[kept]
            scores += self._lookup(docs, number, count)
        return _best(docs, scores, top)

    def _score(self, docs: NDArray[np.int32], terms: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
        total = np.zeros(len(docs), np.float64)
        for number, count in sorted(terms):  # one fixed order, so that equal documents get equal sums
            total += self._lookup(docs, number, count)
        return total.astype(np.float32)

    def _lookup(self, docs: NDArray[np.int32], number: int, count: int) -> NDArray[np.float64]:
        found, weights = self._postings(number)
        places = np.searchsorted(found, docs)
        places[places == len(found)] = 0
        hits = found[places] == docs
        return np.where(hits, weights[places].astype(np.float64) * count, 0.0)


def _reached(scores: NDArray[np.float64], top: int) -> float:
    """A little less than the `top`-th best score: sums in another order differ in their last digits."""
    return float(np.partition(scores, -top)[-top]) * (1 - 1e-6)


def _best(docs: NDArray[np.int32], scores: NDArray[np.float64], top: int) -> NDArray[np.int32]:
    return docs if len(docs) <= top else docs[scores >= _reached(scores, top)]


class _Terms:
    """Term -> number, by binary search in the mapped file: no dictionary of a million strings in every process."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / "terms.npy", mmap_mode="r")
        self._bytes = (
            np.memmap(folder / "terms.bin", np.uint8, "r") if len(self._offsets) > 1 else np.empty(0, np.uint8)
        )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        return self._bytes[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def find(self, term: str) -> int:
        """The number of a term, or -1."""
        wanted = term.encode()
        number = bisect.bisect_left(self, wanted)
        return number if number < len(self) and self[number] == wanted else -1


def write_index(folder: Path, texts: Iterable[str], ids: Sequence[str], *, chunk: int = 2_000_000) -> None:
    """Builds an index of `texts` (one a document, in the order of `ids`) in bounded memory.

    Args:
        folder: Where the arrays go; made if absent.
        texts: Indexed texts, read once, in order.
        ids: Document ids; their order breaks ties.
        chunk: Postings that are sorted at once, about 40 bytes each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary: dict[str, int] = {}
    lengths, per_doc = array("q"), array("q")
    spill_terms, spill_counts = folder / "spill.terms", folder / "spill.counts"
    with spill_terms.open("wb") as terms_file, spill_counts.open("wb") as counts_file:
        for text in texts:
            words = analyze(text)
            counts = Counter(words)
            lengths.append(len(words))
            per_doc.append(len(counts))
            numbers = [vocabulary.setdefault(term, len(vocabulary)) for term in counts]
            terms_file.write(np.array(numbers, np.int32).tobytes())
            counts_file.write(np.array(list(counts.values()), np.float32).tobytes())
    if len(lengths) != len(ids):
        raise ValueError(f"{len(lengths)} texts for {len(ids)} ids [write_index]. Give one text an id.")
    _write_terms(folder, vocabulary)
    _write_postings(folder, _numbers(lengths), _numbers(per_doc), vocabulary, chunk)
    ranks = np.empty(len(ids), np.int32)
    ranks[np.argsort(np.array(ids), kind="stable")] = np.arange(len(ids), dtype=np.int32)
    np.save(folder / "ranks.npy", ranks)
    spill_terms.unlink()
    spill_counts.unlink()


def _write_terms(folder: Path, vocabulary: dict[str, int]) -> None:
    encoded = sorted(term.encode() for term in vocabulary)
    (folder / "terms.bin").write_bytes(b"".join(encoded))
    np.save(folder / "terms.npy", np.cumsum([0, *map(len, encoded)]))


def _write_postings(
    folder: Path, lengths: NDArray[np.int64], per_doc: NDArray[np.int64], vocabulary: dict[str, int], chunk: int
) -> None:
    size = int(per_doc.sum())
    by_text = sorted(vocabulary, key=lambda term: term.encode())
    number_of = np.empty(len(vocabulary), np.int32)  # order of first sight -> order of the text
    number_of[[vocabulary[term] for term in by_text]] = np.arange(len(vocabulary), dtype=np.int32)
    seen = np.memmap(folder / "spill.terms", np.int32, "r") if size else np.empty(0, np.int32)
    tf = np.memmap(folder / "spill.counts", np.float32, "r") if size else np.empty(0, np.float32)
    frequencies = np.zeros(len(vocabulary), np.int64)
    for begin in range(0, size, chunk):
        frequencies += np.bincount(number_of[seen[begin : begin + chunk]], minlength=len(vocabulary))
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    np.save(folder / "starts.npy", starts)
    idf = np.log(1 + (len(lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    average = np.float32(lengths.sum() / len(lengths)) if lengths.any() else np.float32(1)
    norm = (np.float32(1) / (K1 * ((1 - B) + B * _one_byte(lengths) / average))).astype(np.float32)
    docs_out = np.lib.format.open_memmap(folder / "docs.npy", "w+", np.int32, (size,))
    weights_out = np.lib.format.open_memmap(folder / "weights.npy", "w+", np.float32, (size,))
    maxima = np.zeros(len(vocabulary), np.float32)
    doc_of = np.cumsum(per_doc)
    free = starts[:-1].copy()
    for begin in range(0, size, chunk):
        terms = number_of[seen[begin : begin + chunk]]
        docs = np.searchsorted(doc_of, np.arange(begin, begin + len(terms)), side="right").astype(np.int32)
        weight = idf[terms] - idf[terms] / (np.float32(1) + tf[begin : begin + chunk] * norm[docs])
        order = np.argsort(terms, kind="stable")  # documents stay in order within a term
        terms, docs, weight = terms[order], docs[order], weight[order]
        first = np.flatnonzero(np.concatenate([[True], terms[1:] != terms[:-1]]))
        within = np.arange(len(terms)) - np.repeat(first, np.diff([*first, len(terms)]))
        places = free[terms] + within
        docs_out[places], weights_out[places] = docs, weight
        np.maximum.at(maxima, terms, weight)
        free[terms[first]] += np.diff([*first, len(terms)])
    docs_out.flush()
    weights_out.flush()
    np.save(folder / "maxima.npy", maxima)


def _numbers(values: "array[int]") -> NDArray[np.int64]:
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)


def _one_byte(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lengths as Lucene stores them in one byte: exact up to 40, four significant bits above."""
    rest = np.maximum(lengths - 24, 0)
    bits = np.floor(np.log2(np.maximum(rest, 1))).astype(np.int64) + 1
    shift = np.maximum(bits - 4, 0)
    return np.where(lengths < 24, lengths, 24 + ((rest >> shift) << shift)).astype(np.float64)
