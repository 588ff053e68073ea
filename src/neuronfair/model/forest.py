"""Trees over codes: an inner node sends some codes of one attribute to its left child and the others to its right.

Trees of all frameworks become this, with their preprocessing: a feature depends on one attribute, which has finitely
many codes, so a threshold on the feature is a set of codes. Codes that no node separates are one *cell*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.limits import check_size

MOST_NODES, DEEPEST = 200_000, 500  # of all trees
Link = Literal["none", "sigmoid", "softmax"]
Floats = npt.NDArray[np.float64]
Features = Callable[[Tensor], Floats]  # from rows of codes to the features of the trees
GoesLeft = Callable[[int, Floats], npt.NDArray[np.bool_]]  # which values of its feature go left at a node


@dataclass(frozen=True)
class Tree:
    """One tree of a framework. A leaf has feature -1; children are indices of its own nodes."""

    feature: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    value: Floats  # (nodes, outputs): what a leaf adds
    goes_left: GoesLeft


class FittedTrees(NamedTuple):
    """The trees of a fitted model, the base of their sum, and the link from the sum to scores."""

    trees: list[Tree]
    base: list[float]
    link: Link


def below_limit(
    limit: Floats, missing: npt.NDArray[np.bool_], *, strict: bool = False, single: bool = False
) -> GoesLeft:
    """Return what sends numbers left: those up to, or below, the limit of a node, and empty ones by its flag."""

    def goes(node: int, numbers: Floats) -> npt.NDArray[np.bool_]:
        numbers = numbers.astype(np.float32).astype(np.float64) if single else numbers
        below = numbers < limit[node] if strict else numbers <= limit[node]
        return np.asarray(np.where(np.isnan(numbers), missing[node], below), dtype=bool)

    return goes


@dataclass(frozen=True)
class Forest:
    """The nodes of all trees in one list. A leaf has attribute -1 and is its own child."""

    roots: Tensor  # (trees,) the node at which each begins
    attribute: Tensor  # (nodes,)
    left: Tensor  # (nodes,)
    right: Tensor
    value: Tensor  # (nodes, outputs) what a leaf adds, float64
    side: Tensor  # (nodes, most cells) whether a cell of the node's attribute goes left
    cells: tuple[Tensor, ...]  # per attribute: (size,) the cell of each code
    base: Tensor  # (outputs,)
    link: Link
    depth: int

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of codes: (n, outputs)."""
        cells = torch.stack([cell[rows[:, column]] for column, cell in enumerate(self.cells)], 1)
        node = self.roots.expand(len(rows), -1)
        for _ in range(self.depth):
            cell = cells.gather(1, self.attribute[node].clamp(min=0))
            node = torch.where(self.side[node, cell], self.left[node], self.right[node])
        total = self.value[node].sum(1) + self.base
        return {"none": total, "sigmoid": total.sigmoid(), "softmax": total.softmax(-1)}[self.link]


def forest(fitted: FittedTrees, features: Features, domain: TableDomain, row: Tensor) -> Forest:
    """Return trees over features as trees over codes; features that mix attributes are refused.

    `row` is a row of the table, in which one attribute at a time is varied.
    """
    trees, base, link = fitted
    if sum(len(tree.feature) for tree in trees) > MOST_NODES:
        raise ModelError(f"its trees have more than {MOST_NODES:,} nodes")
    domain = domain.to("cpu")
    known = _features_by_code(features, domain, domain.clip(row.cpu()[None]))
    compared = np.concatenate([tree.feature[tree.feature >= 0] for tree in trees])
    sizes = {feature: domain.attributes[column].size for feature, column in known.column_of.items()}
    check_size(
        sum(int((compared == feature).sum()) * size for feature, size in sizes.items()),
        "the cuts of the trees",
        times=2,
    )
    cuts, places = _cuts(trees, known, len(domain.attributes))
    starts = [0, *accumulate(len(tree.feature) for tree in trees[:-1])]
    cells, sides = _cells(cuts, domain)
    most = max(len(side[0]) if side else 1 for side in sides.values())
    count = len(places)
    check_size(count * most, "the nodes of the trees")
    side = torch.zeros(count, most, dtype=torch.bool)
    attribute, left, right = torch.full((count,), -1), torch.arange(count), torch.arange(count)
    value = torch.zeros(count, len(base), dtype=torch.float64)
    for start, tree in zip(starts, trees, strict=True):
        for node, feature in enumerate(tree.feature.tolist()):
            at = start + node
            column, number = places[at]
            if column < 0:
                value[at] = torch.from_numpy(tree.value[node])
                continue
            attribute[at], left[at], right[at] = column, start + int(tree.left[node]), start + int(tree.right[node])
            if number < 0:
                side[at] = bool(tree.goes_left(node, known.of_row[:, feature])[0])
            else:
                marks = torch.from_numpy(sides[column][number])
                side[at, : len(marks)] = marks
    roots = torch.tensor(starts)
    return Forest(
        roots,
        attribute,
        left,
        right,
        value,
        side,
        cells,
        torch.tensor(base, dtype=torch.float64),
        link,
        _depth(roots, left, right),
    )


def _cuts(
    trees: list[Tree], known: _Features, columns: int
) -> tuple[dict[int, list[npt.NDArray[np.bool_]]], list[tuple[int, int]]]:
    """Return the cuts of each column, and for each node its column, or -1 in a leaf, and the number of its cut there.

    A node without a cut, -1, splits on a feature that never changes and sends all rows one way.
    """
    cuts: dict[int, list[npt.NDArray[np.bool_]]] = {column: [] for column in range(columns)}
    places = list[tuple[int, int]]()
    for tree in trees:
        for node, feature in enumerate(tree.feature.tolist()):
            if feature < 0 or feature not in known.column_of:
                places.append((-1 if feature < 0 else 0, -1))
                continue
            column = known.column_of[feature]
            cuts[column].append(tree.goes_left(node, known.of_codes[column][:, feature]))
            places.append((column, len(cuts[column]) - 1))
    return cuts, places


class _Features(NamedTuple):
    """The features of every code, and the attribute that each feature depends on."""

    of_codes: list[Floats]  # for each attribute (size, features): its codes in one row of the table
    of_row: Floats  # (1, features): of that row itself
    column_of: dict[int, int]  # without features that never change


def _features_by_code(features: Features, domain: TableDomain, row: Tensor) -> _Features:
    """Return the features if one attribute at a time is varied in a row (1, d)."""
    start = features(row)
    tables, column_of = list[Floats](), dict[int, int]()
    for column, attribute in enumerate(domain.attributes):
        check_size(attribute.size * start.shape[1], f"the features of '{attribute.name}'", times=16)
        rows = row.repeat(attribute.size, 1)
        rows[:, column] = torch.arange(attribute.size)
        table = features(rows)
        tables.append(table)
        moved = ~((table == start) | (np.isnan(table) & np.isnan(start))).all(0)
        for feature in np.flatnonzero(moved).tolist():
            if feature in column_of:
                raise ModelError(
                    "a preprocessing step combines several attributes into one feature, which is not supported"
                )
            column_of[feature] = column
    return _Features(tables, start, column_of)


def _cells(
    cuts: dict[int, list[npt.NDArray[np.bool_]]], domain: TableDomain
) -> tuple[tuple[Tensor, ...], dict[int, list[npt.NDArray[np.bool_]]]]:
    """Return the cell of every code, and every cut as a set of cells."""
    cells, sides = list[Tensor](), dict[int, list[npt.NDArray[np.bool_]]]()
    for column, marks in cuts.items():
        begins = np.zeros(domain.attributes[column].size, dtype=np.bool_)  # of ranges of codes that no cut separates
        begins[0] = True
        for mark in marks:
            begins[1:] |= mark[1:] != mark[:-1]
        starts = np.flatnonzero(begins)
        table = np.stack([np.zeros(len(starts), dtype=np.bool_), *(mark[starts] for mark in marks)])
        _, first, cell = np.unique(table, axis=1, return_index=True, return_inverse=True)
        # Numbered in the order of appearance, so that the cells of a number are ranges of it.
        rank = np.argsort(np.argsort(first))
        cells.append(torch.from_numpy(rank[cell.ravel()][begins.cumsum() - 1]))
        example = starts[np.sort(first)]
        sides[column] = [mark[example] for mark in marks]
    return tuple(cells), sides


def _depth(roots: Tensor, left: Tensor, right: Tensor) -> int:
    node, depth = roots, 0
    while bool((left[node] != node).any()):
        node = torch.unique(torch.cat([left[node], right[node]]))
        depth += 1
        if depth > DEEPEST:  # or a branch leads back
            raise ModelError(f"its trees are deeper than {DEEPEST}")
    return depth
