"""In what order the columns are drawn, and which earlier ones each may ask: by how much they tell about each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np
import numpy.typing as npt

PEOPLE = 4_000  # whose places are enough to compare pairs of columns
PLACES = 1_000  # of all columns together while they are compared: in a wide table, each has fewer
FEWEST = 8  # places of a column while it is compared, where it has so many
WIDEST = 2_000  # columns; in a still wider table none depends on another
MOST = 12  # earlier columns that a column may ask

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def joint_counts(places: Numbers, sizes: Sequence[int], a: int, b: int) -> Floats:
    """Return how many people have each pair of places of two columns: (places of a, places of b)."""
    pairs = places[:, a] * sizes[b] + places[:, b]
    return np.bincount(pairs, minlength=sizes[a] * sizes[b]).reshape(sizes[a], sizes[b]).astype(np.float64)


def coarse(counts: Floats, ordered: bool, most: int) -> Numbers:
    """Return a group for each place, given how many people each has: at most `most` groups.

    Neighbouring places are taken together where they are ordered, so that groups have about equally many people; else
    the rarest ones are.
    """
    if len(counts) <= most:
        return np.arange(len(counts))
    if ordered:
        middle = (counts.cumsum() - counts / 2) / max(1.0, counts.sum())
        groups = np.unique(np.minimum((most * middle).astype(np.int64), most - 1), return_inverse=True)[1]
        return groups.astype(np.int64)
    groups = np.full(len(counts), most - 1)
    groups[np.argsort(-counts, kind="stable")[: most - 1]] = np.arange(most - 1)
    return groups


def information(places: Numbers, sizes: Sequence[int], ordered: Sequence[bool]) -> Floats:
    """Return what each pair of columns tells about each other, in nats, less what chance alone would: (d, d).

    All pairs are counted in one product of matrices, in wide tables with the places of a column in a few groups.
    """
    d, n = len(sizes), len(places)
    most = max(FEWEST, PLACES // d)
    groups = [
        coarse(np.bincount(places[:, c], minlength=size).astype(np.float64), ordered[c], most)[places[:, c]]
        for c, size in enumerate(sizes)
    ]
    widths = np.array([group.max() + 1 for group in groups])
    starts = widths.cumsum() - widths
    marks = np.zeros((n, widths.sum()), dtype=np.float32)
    for start, group in zip(starts, groups, strict=True):
        marks[np.arange(n), start + group] = 1
    people = marks.sum(0, dtype=np.float64)
    shared = np.zeros((d, d))
    for c, (start, width) in enumerate(zip(starts, widths, strict=True)):
        table = (marks[:, start : start + width].T @ marks).astype(np.float64)  # whole numbers: exact in float32
        expected = people[start : start + width, None] * people / n
        terms = table * np.log(np.divide(table, expected, out=np.ones_like(table), where=table > 0))
        shared[c] = np.add.reduceat(terms.sum(0), starts)
    seen = np.add.reduceat(people > 0, starts) - 1
    shared = np.maximum(0.0, shared - np.outer(seen, seen) / 2) / n
    np.fill_diagonal(shared, 0.0)
    return (shared + shared.T) / 2


def drawn_after(
    places: Numbers, sizes: Sequence[int], ordered: Sequence[bool], first: Sequence[int] = ()
) -> dict[int, Numbers]:
    """Return the columns in the order in which they are drawn, each with the earlier ones that tell most about it.

    The `first` ones come first, or else the one that tells most about all; then always the one of which the earlier
    ones tell most.
    """
    d = len(sizes)
    if d > WIDEST:
        return {c: np.zeros(0, dtype=np.int64) for c in (*first, *(c for c in range(d) if c not in first))}
    shared = information(places[:PEOPLE], sizes, ordered)
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
