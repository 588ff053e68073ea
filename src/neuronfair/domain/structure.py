"""In what order the columns are drawn, and which earlier ones each may ask: by how much they tell about each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
        for b in range(a):
            table = joint_counts(places, sizes, a, b)
            row, column = table.sum(1, keepdims=True), table.sum(0, keepdims=True)
            expected = row * column / len(places)
            seen = table > 0
            nats = (table[seen] * np.log(table[seen] / expected[seen])).sum()
            chance = ((row > 0).sum() - 1) * ((column > 0).sum() - 1) / 2
            shared[a, b] = shared[b, a] = max(0.0, nats - chance) / len(places)
    return shared


def ordering(shared: Floats, first: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the columns, `first` ones first, then always the one of which the earlier ones tell most."""
    order = list(first)
    if not order:
        order.append(int(shared.sum(0).argmax()))
    left = [c for c in range(len(shared)) if c not in order]
    while left:
        best = max(left, key=lambda c: shared[order, c].max())
        order.append(best)
        left.remove(best)
    return tuple(order)


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
