"""In what order the columns are drawn, and which earlier ones each may ask: by how much they tell about each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np
import numpy.typing as npt

PAIRS = 40_000  # of columns that are compared; in a wider table, only with so many columns to the left
WIDEST = 2_000  # columns; in a still wider table none depends on another
MOST = 12  # earlier columns that a column may ask

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def joint_counts(places: Numbers, sizes: Sequence[int], a: int, b: int) -> Floats:
    """Return how many people have each pair of places of two columns: (places of a, places of b)."""
    pairs = places[:, a] * sizes[b] + places[:, b]
    return np.bincount(pairs, minlength=sizes[a] * sizes[b]).reshape(sizes[a], sizes[b]).astype(np.float64)


def information(places: Numbers, sizes: Sequence[int]) -> Floats:
    """Return what each pair of columns tells about each other, in nats, less what chance alone would: (d, d)."""
    d = len(sizes)
    shared = np.zeros((d, d))
    for a in range(d):
        for b in range(max(0, a - max(1, 2 * PAIRS // d)), a):
            table = joint_counts(places, sizes, a, b)
            row, column = table.sum(1, keepdims=True), table.sum(0, keepdims=True)
            expected = row * column / len(places)
            seen = table > 0
            nats = (table[seen] * np.log(table[seen] / expected[seen])).sum()
            chance = ((row > 0).sum() - 1) * ((column > 0).sum() - 1) / 2
            shared[a, b] = shared[b, a] = max(0.0, nats - chance) / len(places)
    return shared


def drawn_after(places: Numbers, sizes: Sequence[int], first: Sequence[int] = ()) -> dict[int, Numbers]:
    """Return the columns in the order in which they are drawn, each with the earlier ones that tell most about it.

    The `first` ones come first, or else the one that tells most about all; then always the one of which the earlier
    ones tell most.
    """
    d = len(sizes)
    if d > WIDEST:
        return {c: np.zeros(0, dtype=np.int64) for c in (*first, *(c for c in range(d) if c not in first))}
    shared = information(places, sizes)
    order = list(first) or [int(shared.sum(0).argmax())]
    told = shared[order].max(0)
    told[order] = -1
    while len(order) < d:
        order.append(int(told.argmax()))
        told = np.where(told < 0, -1, np.maximum(told, shared[order[-1]]))
        told[order[-1]] = -1
    return {c: _most(np.array(order[:i], dtype=np.int64), shared[c]) for i, c in enumerate(order)}


def caused(causes: Mapping[int, Sequence[int]], first: Sequence[int]) -> dict[int, Numbers]:
    """Return the columns of a graph in an order in which causes come before effects, each with its causes.

    The `first` ones come first and have none.
    """
    before = {column: () if column in first else tuple(known) for column, known in causes.items()}
    order = list(TopologicalSorter(before).static_order())
    order = [*first, *(column for column in order if column not in first)]
    return {column: np.array(before[column], dtype=np.int64) for column in order}


def _most(earlier: Numbers, shared: Floats) -> Numbers:
    return earlier[np.argsort(-shared[earlier], kind="stable")][:MOST]


@dataclass(frozen=True)
class Question:
    """A number for each place of an earlier column, by which people can be put in order."""

    column: int
    scores: Floats  # (places,)


def questions(places: Numbers, sizes: Sequence[int], column: int, target: int, ordered: bool) -> list[Question]:
    """Return in which orders a column's places may be cut in two, to tell about a target.

    The places of a nominal column have no order. They are given that of their first two axes of correspondence: near
    to each other are those that have a similar say about the target.
    """
    if ordered or sizes[column] < 3:
        return [Question(column, np.arange(sizes[column], dtype=np.float64))]
    table = joint_counts(places, sizes, column, target)
    total = table.sum()
    row, col = table.sum(1) / total, table.sum(0) / total
    root = np.sqrt(np.outer(row, col))
    rest = np.divide(table / total - np.outer(row, col), root, out=np.zeros_like(table), where=root > 0)
    axes = np.linalg.svd(rest, full_matrices=False)[0][:, :2]
    scale = np.sqrt(row)[:, None]
    scores = np.divide(axes, scale, out=np.zeros_like(axes), where=scale > 0)
    return [Question(column, np.round(scores[:, i], 9)) for i in range(scores.shape[1])]
