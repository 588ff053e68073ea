"""Trees over codes: an inner node sends some codes of one attribute to its left child and the others to its right.

Trees of all frameworks become this, with their preprocessing: a feature depends on one attribute, which has finitely
many codes, so a threshold on the feature is a set of codes. Codes that no node separates are one *cell*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.limits import check_size

MAX_NODES = 200_000  # of all trees
MAX_DEPTH = 300  # of a tree; the bounds of a proof need two of Python's 1,000 calls for each level
WORD_BITS = 63  # leaves, a bit each
WORDS_PER_PASS = 1 << 16  # words that are handled at a time: they stay in the cache
MANTISSA, LOWEST_EXPONENT = 52, 1022  # the bits of a float64 below its exponent, and the exponent one below that of 1
Link = Literal["none", "sigmoid", "softmax"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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


def split_by_threshold(
    limit: Floats, missing: npt.NDArray[np.bool_], *, strict: bool = False, single: bool = False
) -> GoesLeft:
    """Return what sends numbers left: those up to, or below, the limit of a node, and empty ones by its flag."""

    def goes_left(node: int, numbers: Floats) -> npt.NDArray[np.bool_]:
        numbers = numbers.astype(np.float32).astype(np.float64) if single else numbers
        below = numbers < limit[node] if strict else numbers <= limit[node]
        return np.asarray(np.where(np.isnan(numbers), missing[node], below), dtype=bool)

    return goes_left


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
        pass_rows = max(1, WORDS_PER_PASS // len(self._leaf_bits.no_leaf_rows))
        parts = [self._leaf_bits.add_leaves(self.cells, part) for part in torch.split(rows, pass_rows)]
        total = torch.cat(parts) + self.base
        return {"none": total, "sigmoid": total.sigmoid(), "softmax": total.softmax(-1)}[self.link]

    @property
    def operations(self) -> int:
        """How many numbers the scores of a row take, about."""
        return len(self._leaf_bits.no_leaf_rows) * (len(self._leaf_bits.reached) + 6)

    @cached_property
    def _leaf_bits(self) -> _LeafBits:
        return _leaf_bits(self)


@dataclass(frozen=True)
class _LeafBits:
    """The leaves that each cell can reach, as bits of words: the cells of a row have one leaf of each tree in common.

    So a row takes a few operations on whole words, whatever the depth of the trees.
    """

    reached: dict[int, Tensor]  # by attribute: (cells, words)
    value: Tensor  # (words · (1 + WORD_BITS), outputs) what each leaf adds; the first of a word is for no leaf
    no_leaf_rows: Tensor  # (words,) the row of that first one
    all_leaves: Tensor  # (words,) all leaves

    def add_leaves(self, cells: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Return what the leaves of rows add up to: (n, outputs)."""
        common_leaves = self.all_leaves.repeat(len(rows), 1)
        for column, reached in self.reached.items():
            common_leaves &= reached.index_select(0, cells[column][rows[:, column]])
        bit = common_leaves.double().view(torch.int64) >> MANTISSA  # of the only one; 0 if the leaf is in another word
        value_rows = (bit.clamp_(min=LOWEST_EXPONENT) + (self.no_leaf_rows - LOWEST_EXPONENT)).flatten()
        return torch.stack([value.index_select(0, value_rows).view_as(common_leaves).sum(1) for value in self.value], 1)


def _leaf_bits(forest: Forest) -> _LeafBits:
    """Return the leaves of a forest as bits. Those below a node follow each other, those of a tree begin a word."""
    device, side = forest.value.device, forest.side.cpu().numpy()
    numbers = forest.roots, forest.left, forest.right, forest.attribute
    roots, left, right, attribute = (tensor.cpu().numpy() for tensor in numbers)
    levels = _list_levels(roots, left, right)
    count, start = np.ones(len(left), dtype=np.int64), np.zeros(len(left), dtype=np.int64)
    for level in reversed(levels):
        count[level] = count[left[level]] + count[right[level]]
    tree_words = -(-count[roots] // WORD_BITS)
    start[roots] = WORD_BITS * (tree_words.cumsum() - tree_words)
    for level in levels:
        start[left[level]], start[right[level]] = start[level], start[level] + count[left[level]]
    inner = np.concatenate([*levels, roots[:0]])
    leaves = np.setdiff1d(np.concatenate([roots, left[inner], right[inner]]), inner)
    word, bit = start[leaves] // WORD_BITS, start[leaves] % WORD_BITS
    first = np.arange(tree_words.sum()) * (1 + WORD_BITS)
    value = torch.zeros(forest.value.shape[1], len(first) * (1 + WORD_BITS), dtype=forest.value.dtype, device=device)
    value[:, first[word] + 1 + bit] = forest.value[leaves].T
    all_leaves = np.zeros(len(first), dtype=np.int64)
    np.bitwise_or.at(all_leaves, word, np.int64(1) << bit)
    reached = {}
    for column in np.unique(attribute[inner]).tolist():
        nodes = np.repeat(inner[attribute[inner] == column], 2)
        reaching_cells = side[nodes, : int(forest.cells[column].max()) + 1]
        reaching_cells[::2] ^= True  # who goes right reaches no leaf on the left, and the reverse
        child = np.where(np.arange(len(nodes)) % 2, right[nodes], left[nodes])
        reached[column] = _clear_ranges(reaching_cells, start[child], count[child], len(first)).to(device)
    return _LeafBits(reached, value, *(torch.from_numpy(array).to(device) for array in (first, all_leaves)))


def _clear_ranges(cells: npt.NDArray[np.bool_], start: Ints, count: Ints, words: int) -> Tensor:
    """Return all bits of words but ranges, each for some cells, (ranges, cells): (cells, words)."""
    begin = start // WORD_BITS
    spans = (start + count - 1) // WORD_BITS - begin + 1
    check_size(spans.sum() * cells.shape[1], "the leaves of the trees", times=WORD_BITS // 4)
    owner = np.repeat(np.arange(len(start)), spans)
    word = begin[owner] + np.arange(len(owner)) - np.repeat(spans.cumsum() - spans, spans)
    low, high = (ends[owner] - WORD_BITS * word for ends in (start, start + count))
    low, high = np.maximum(low, 0), np.minimum(high, WORD_BITS)
    one_bit, all_bits = np.uint64(1), ~np.uint64(0)
    bits = (one_bit << high.astype(np.uint64)) - (one_bit << low.astype(np.uint64))
    order = np.argsort(word, kind="stable")
    touched_words, first_ranges = np.unique(word[order], return_index=True)
    masks = np.where(cells[owner[order]], ~bits[order, None], all_bits)
    result = np.full((words, cells.shape[1]), all_bits)
    result[touched_words] = np.bitwise_and.reduceat(masks, first_ranges, axis=0)
    return torch.from_numpy(result.view(np.int64).T.copy())


def build_forest(fitted_trees: FittedTrees, features: Features, domain: TableDomain, row: Tensor) -> Forest:
    """Return trees over features as trees over codes; features that mix attributes are refused.

    `row` is a row of the table, in which one attribute at a time is varied.
    """
    trees, base, link = fitted_trees
    if sum(len(tree.feature) for tree in trees) > MAX_NODES:
        raise ModelError(f"its trees have more than {MAX_NODES:,} nodes")
    domain = domain.to("cpu")
    code_features = _compute_features_by_code(features, domain, domain.clip(row.cpu()[None]))
    compared = np.concatenate([tree.feature[tree.feature >= 0] for tree in trees])
    sizes = {feature: domain.attributes[column].size for feature, column in code_features.column_of.items()}
    check_size(
        sum(int((compared == feature).sum()) * size for feature, size in sizes.items()),
        "the cuts of the trees",
        times=2,
    )
    cuts, splits = _find_cuts(trees, code_features, len(domain.attributes))
    first_nodes = [0, *accumulate(len(tree.feature) for tree in trees[:-1])]
    cells, sides = _group_codes(cuts, domain)
    max_cells = max(len(side[0]) if side else 1 for side in sides.values())
    count = len(splits)
    check_size(count * max_cells, "the nodes of the trees")
    side = torch.zeros(count, max_cells, dtype=torch.bool)
    attribute, left, right = torch.full((count,), -1), torch.arange(count), torch.arange(count)
    value = torch.zeros(count, len(base), dtype=torch.float64)
    for start, tree in zip(first_nodes, trees, strict=True):
        for node, feature in enumerate(tree.feature.tolist()):
            index = start + node
            column, cut_index = splits[index]
            if column < 0:
                value[index] = torch.from_numpy(tree.value[node])
                continue
            attribute[index] = column
            left[index], right[index] = start + int(tree.left[node]), start + int(tree.right[node])
            if cut_index < 0:
                side[index] = bool(tree.goes_left(node, code_features.of_row[:, feature])[0])
            else:
                marks = torch.from_numpy(sides[column][cut_index])
                side[index, : len(marks)] = marks
    roots = torch.tensor(first_nodes)
    depth = len(_list_levels(roots.numpy(), left.numpy(), right.numpy()))
    sums = torch.tensor(base, dtype=torch.float64)
    return Forest(roots, attribute, left, right, value, side, cells, sums, link, depth)


def _find_cuts(
    trees: list[Tree], code_features: _Features, column_count: int
) -> tuple[dict[int, list[npt.NDArray[np.bool_]]], list[tuple[int, int]]]:
    """Return the cuts of each column, and for each node its column, or -1 in a leaf, and the number of its cut there.

    A node without a cut, -1, splits on a feature that never changes and sends all rows one way.
    """
    cuts: dict[int, list[npt.NDArray[np.bool_]]] = {column: [] for column in range(column_count)}
    splits = list[tuple[int, int]]()
    for tree in trees:
        for node, feature in enumerate(tree.feature.tolist()):
            if feature < 0 or feature not in code_features.column_of:
                splits.append((-1 if feature < 0 else 0, -1))
                continue
            column = code_features.column_of[feature]
            cuts[column].append(tree.goes_left(node, code_features.of_codes[column][:, feature]))
            splits.append((column, len(cuts[column]) - 1))
    return cuts, splits


class _Features(NamedTuple):
    """The features of every code, and the attribute that each feature depends on."""

    of_codes: list[Floats]  # for each attribute (size, features): its codes in one row of the table
    of_row: Floats  # (1, features): of that row itself
    column_of: dict[int, int]  # without features that never change


def _compute_features_by_code(features: Features, domain: TableDomain, row: Tensor) -> _Features:
    """Return the features if one attribute at a time is varied in a row (1, d)."""
    start = features(row)
    tables, column_of = list[Floats](), dict[int, int]()
    for column, attribute in enumerate(domain.attributes):
        check_size(attribute.size * start.shape[1], f"the features of '{attribute.name}'", times=16)
        rows = row.repeat(attribute.size, 1)
        rows[:, column] = torch.arange(attribute.size)
        table = features(rows)
        tables.append(table)
        varies = ~((table == start) | (np.isnan(table) & np.isnan(start))).all(0)
        for feature in np.flatnonzero(varies).tolist():
            if feature in column_of:
                raise ModelError(
                    "a preprocessing step combines several attributes into one feature, which is not supported"
                )
            column_of[feature] = column
    return _Features(tables, start, column_of)


def _group_codes(
    cuts: dict[int, list[npt.NDArray[np.bool_]]], domain: TableDomain
) -> tuple[tuple[Tensor, ...], dict[int, list[npt.NDArray[np.bool_]]]]:
    """Return the cell of every code, and every cut as a set of cells."""
    cells, sides = list[Tensor](), dict[int, list[npt.NDArray[np.bool_]]]()
    for column, marks in cuts.items():
        is_start = np.zeros(domain.attributes[column].size, dtype=np.bool_)  # of ranges of codes that no cut separates
        is_start[0] = True
        for mark in marks:
            is_start[1:] |= mark[1:] != mark[:-1]
        starts = np.flatnonzero(is_start)
        table = np.stack([np.zeros(len(starts), dtype=np.bool_), *(mark[starts] for mark in marks)])
        _, first, cell = np.unique(table, axis=1, return_index=True, return_inverse=True)
        # Numbered in the order of appearance, so that the cells of a number are ranges of it.
        rank = np.argsort(np.argsort(first))
        cells.append(torch.from_numpy(rank[cell.ravel()][is_start.cumsum() - 1]))
        examples = starts[np.sort(first)]
        sides[column] = [mark[examples] for mark in marks]
    return tuple(cells), sides


def _list_levels(roots: Ints, left: Ints, right: Ints) -> list[Ints]:
    """Return the inner nodes by their distance from the roots."""
    levels, nodes = list[Ints](), roots
    while len(nodes := nodes[left[nodes] != nodes]):
        levels.append(nodes)
        nodes = np.concatenate([left[nodes], right[nodes]])
        if len(levels) > MAX_DEPTH:
            raise ModelError(f"its trees are deeper than {MAX_DEPTH}")
        if len(nodes) > len(left):
            raise ModelError("a node of its trees has several parents")
    all_nodes = np.concatenate([roots, *(side[level] for level in levels for side in (left, right))])
    if len(np.unique(all_nodes)) < len(all_nodes):
        raise ModelError("a node of its trees has several parents")
    return levels
