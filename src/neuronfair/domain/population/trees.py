"""Conditional trees of a population: the columns that each column depends on, and its distribution given those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

COMPARED_RECORDS = 4_000  # records with which pairs of columns are compared
COMPARED_BINS = 1_000  # bins of all columns together in that comparison
MIN_COARSE_BINS = 8  # of a column in that comparison, if it has so many
MAX_COLUMNS_COMPARED = 2_000  # columns; in a wider table no column depends on another
MAX_PARENTS = 12  # earlier columns that a column may depend on

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def coarsen(counts: Floats, ordered: bool, max_groups: int) -> Numbers:
    """Return a group for each bin, given how many records each has: at most `max_groups`.

    Ordered bins are grouped with their neighbours, so that groups have about equally many records; otherwise the
    rarest bins share a group.
    """
    if len(counts) <= max_groups:
        return np.arange(len(counts))
    if ordered:
        middle = (counts.cumsum() - counts / 2) / max(1.0, counts.sum())
        groups = np.unique(np.minimum((max_groups * middle).astype(np.int64), max_groups - 1), return_inverse=True)[1]
        return groups.astype(np.int64)
    groups = np.full(len(counts), max_groups - 1)
    groups[np.argsort(-counts, kind="stable")[: max_groups - 1]] = np.arange(max_groups - 1)
    return groups


def find_information(bins: Numbers, sizes: Sequence[int], ordered: Sequence[bool]) -> Floats:
    """Return the mutual information of each pair of columns in nats, without its expected bias: (d, d).

    Bins are grouped in wide tables, so that all pairs can be counted in products of matrices.
    """
    d, n = len(sizes), len(bins)
    max_groups = max(MIN_COARSE_BINS, COMPARED_BINS // d)
    groups = [
        coarsen(np.bincount(bins[:, c], minlength=size).astype(np.float64), ordered[c], max_groups)[bins[:, c]]
        for c, size in enumerate(sizes)
    ]
    widths = np.array([group.max() + 1 for group in groups])
    starts = widths.cumsum() - widths
    marks = np.zeros((n, widths.sum()), dtype=np.float32)
    for start, group in zip(starts, groups, strict=True):
        marks[np.arange(n), start + group] = 1
    records = marks.sum(0, dtype=np.float64)
    shared = np.zeros((d, d))
    for c, (start, width) in enumerate(zip(starts, widths, strict=True)):
        table = (marks[:, start : start + width].T @ marks).astype(np.float64)  # whole numbers: exact in float32
        expected = records[start : start + width, None] * records / n
        terms = table * np.log(np.divide(table, expected, out=np.ones_like(table), where=table > 0))
        shared[c] = np.add.reduceat(terms.sum(0), starts)
    freedom = np.add.reduceat(records > 0, starts) - 1
    shared = np.maximum(0.0, shared - np.outer(freedom, freedom) / 2) / n
    np.fill_diagonal(shared, 0.0)
    return (shared + shared.T) / 2


def order_columns(
    bins: Numbers, sizes: Sequence[int], ordered: Sequence[bool], first: Sequence[int] = ()
) -> dict[int, Numbers]:
    """Return the columns in the order in which they are drawn, each with its most informative earlier columns.

    The `first` columns lead, or the one with the most information about all others; next is always the column with the
    most information from an earlier one.
    """
    d = len(sizes)
    if d > MAX_COLUMNS_COMPARED:
        return {c: np.zeros(0, dtype=np.int64) for c in (*first, *(c for c in range(d) if c not in first))}
    shared = find_information(bins[:COMPARED_RECORDS], sizes, ordered)
    order = list(first) or [int(shared.sum(0).argmax())]
    strongest = shared[order].max(0)
    strongest[order] = -1
    while len(order) < d:
        order.append(int(strongest.argmax()))
        strongest = np.where(strongest < 0, -1, np.maximum(strongest, shared[order[-1]]))
        strongest[order[-1]] = -1
    after = {}
    for i, c in enumerate(order):
        earlier = np.array(order[:i], dtype=np.int64)
        after[c] = earlier[np.argsort(-shared[c][earlier], kind="stable")][:MAX_PARENTS]
    return after


def parents_from_graph(causes: Mapping[int, Sequence[int]], first: Sequence[int]) -> dict[int, Numbers]:
    """Return the columns of a causal graph in topological order, each with its parents.

    The `first` columns lead and have no parents.
    """
    before = {column: () if column in first else tuple(parents) for column, parents in causes.items()}
    order = list(TopologicalSorter(before).static_order())
    order = [*first, *(column for column in order if column not in first)]
    return {column: np.array(before[column], dtype=np.int64) for column in order}


@dataclass(frozen=True)
class SplitOrder:
    """A score for each bin of an earlier column; splits are thresholds on it."""

    column: int
    scores: Floats  # (bins,)


def find_splits(bins: Numbers, sizes: Sequence[int], column: int, target: int, ordered: bool) -> list[SplitOrder]:
    """Return the orders in which a column's bins may be split to predict a target.

    The bins of a nominal column are ordered by the first two axes of correspondence analysis: bins with similar
    distributions of the target are neighbours.
    """
    if ordered or sizes[column] < 3:
        return [SplitOrder(column, np.arange(sizes[column], dtype=np.float64))]
    shape = sizes[column], sizes[target]
    table = np.bincount(bins[:, column] * shape[1] + bins[:, target], minlength=shape[0] * shape[1])
    table = table.reshape(shape).astype(np.float64)
    total = table.sum()
    row, col = table.sum(1) / total, table.sum(0) / total
    root = np.sqrt(np.outer(row, col))
    gaps = np.divide(table / total - np.outer(row, col), root, out=np.zeros_like(table), where=root > 0)
    axes = np.linalg.svd(gaps, full_matrices=False)[0][:, :2]
    scale = np.sqrt(row)[:, None]
    scores = np.divide(axes, scale, out=np.zeros_like(axes), where=scale > 0)
    return [SplitOrder(column, np.round(scores[:, i], 9)) for i in range(scores.shape[1])]


SHRINKAGES = (1.0, 4.0, 16.0, 64.0)  # records that the parent's distribution counts for in a node
COST_PER_PARAMETER, COST_OF_CHOICE = (
    0.5,
    1.25,
)  # nats that a split must gain per parameter, and per e-fold of possible splits
MAX_DEPTH = 16
MIN_LEAF_RECORDS = 5  # records in a leaf
MAX_TARGET_GROUPS = 16  # of a column's bins while splits are chosen: more are slower and no better


@dataclass(frozen=True)
class ChanceTree:
    """The distribution of a column's bins, given the bins of others. Children come after their parents."""

    column: Numbers  # (nodes,) the column of the split; -1 in a leaf
    children: tuple[Numbers, ...]  # (nodes,): the child for each bin of that column; empty in a leaf
    chances: Floats  # (nodes, bins)


@dataclass(frozen=True)
class TreeTarget:
    """The column whose distribution a tree gives."""

    column: int
    size: int  # bins
    ordered: bool


def grow_tree(
    bins: Numbers, target: TreeTarget, orders: Sequence[SplitOrder], sample: Numbers, *, significant_only: bool = False
) -> ChanceTree:
    """Return the tree of a column, with splits from a sample of records, all or the significant ones only."""
    ends = (np.array([-1]), [np.zeros(0, dtype=np.int64)])
    column, children = _learn_splits(bins[sample], target, orders, significant_only) if orders else ends
    return fill_tree(bins, target.column, target.size, column, children)


def fill_tree(bins: Numbers, target: int, size: int, column: Numbers, children: Sequence[Numbers]) -> ChanceTree:
    """Return a pruned tree with the distributions of all records.

    The shrinkage of a node towards its parent and the pruning maximise the leave-one-out likelihood, which counts give
    exactly.
    """
    parent = np.full(len(column), -1)
    for node, child_nodes in enumerate(children):
        parent[child_nodes] = node
    counts = _count_records(bins, target, size, column, children)
    levels = _find_levels(parent)
    for level in levels[:0:-1]:
        np.add.at(counts, parent[level], counts[level])
    fits = [_prune(counts, parent, levels, strength) for strength in SHRINKAGES]
    _, leaf, chances = max(fits, key=lambda fit: fit[0])
    return _cut_tree(column, children, leaf, chances)


def _learn_splits(
    bins: Numbers, target: TreeTarget, orders: Sequence[SplitOrder], significant_only: bool
) -> tuple[Numbers, list[Numbers]]:
    """Return a tree without distributions. A split must gain more than its parameters and the choice of it cost.

    The number of parameters is the perplexity of the column, less one. A random split gains half a nat for each; the
    best of many random splits gains the logarithm of their number more. This cost predicts best. If
    `significant_only`, the cost is the gain of the best random split in full, which is larger for many parameters (the
    bound of Laurent and Massart 2000 for half a chi-squared number).
    """
    from sklearn.tree import DecisionTreeClassifier

    codes = bins[:, target.column]
    max_groups = (
        target.size if significant_only else MAX_TARGET_GROUPS
    )  # with few groups random splits would cost too little
    y = coarsen(np.bincount(codes, minlength=target.size).astype(np.float64), target.ordered, max_groups)[codes]
    share = np.bincount(y) / len(y)
    share = share[share > 0]
    x = np.stack([q.scores[bins[:, q.column]] for q in orders], 1).astype(np.float32)
    possible_splits = sum(len(np.unique(q.scores)) - 1 for q in orders)
    learned, choice = np.exp(-(share * np.log(share)).sum()) - 1, np.log1p(possible_splits)
    cost = COST_PER_PARAMETER * learned + (
        np.sqrt(learned * choice) + choice if significant_only else COST_OF_CHOICE * choice
    )
    learner = DecisionTreeClassifier(
        criterion="entropy",  # in bits
        max_depth=MAX_DEPTH,
        min_samples_leaf=MIN_LEAF_RECORDS,
        min_impurity_decrease=cost / np.log(2) / len(y),
        random_state=0,
    )
    tree = learner.fit(x, y, check_input=False).tree_
    column = np.full(tree.node_count, -1)
    children = [np.zeros(0, dtype=np.int64)] * tree.node_count
    for node in np.flatnonzero(tree.children_left >= 0):
        order = orders[tree.feature[node]]
        column[node] = order.column
        left = order.scores.astype(np.float32) <= tree.threshold[node]
        children[node] = np.where(left, tree.children_left[node], tree.children_right[node]).astype(np.int64)
    return column, children


def _count_records(bins: Numbers, target: int, size: int, column: Numbers, children: Sequence[Numbers]) -> Floats:
    """Return how many records of each bin of the target end in each leaf: (nodes, bins)."""
    length = np.array([len(child_nodes) for child_nodes in children])
    base = length.cumsum() - length
    flat = np.concatenate(children)
    leaf = np.zeros(len(bins), dtype=np.int64)
    unfinished = np.arange(len(bins) if column[0] >= 0 else 0)
    while len(unfinished):
        node = leaf[unfinished]
        leaf[unfinished] = node = flat[base[node] + bins[unfinished, column[node]]]
        unfinished = unfinished[column[node] >= 0]
    counts = np.bincount(leaf * size + bins[:, target], minlength=len(column) * size)
    return counts.reshape(-1, size).astype(np.float64)


def _find_levels(parent: Numbers) -> list[Numbers]:
    levels = [np.array([0])]
    while len(below := np.flatnonzero(np.isin(parent, levels[-1]))):
        levels.append(below)
    return levels


def _prune(
    counts: Floats, parent: Numbers, levels: Sequence[Numbers], strength: float
) -> tuple[float, npt.NDArray[np.bool_], Floats]:
    """Return the leave-one-out likelihood of the best pruning, its leaves, and the distributions of all nodes."""
    records = counts.sum(1, keepdims=True)
    chances, without_one = np.empty_like(counts), np.empty_like(counts)
    even = np.full((1, counts.shape[1]), 1 / counts.shape[1])
    for depth, level in enumerate(levels):
        above, parent_without_one = (chances[parent[level]], without_one[parent[level]]) if depth else (even, even)
        chances[level] = (counts[level] + strength * above) / (records[level] + strength)
        # The distribution without one of the node's records, which has this bin.
        parent_without_one = np.maximum(counts[level] - 1, 0) + strength * parent_without_one
        without_one[level] = parent_without_one / (np.maximum(records[level] - 1, 0) + strength)
    value = (counts * np.log(without_one)).sum(1)  # as a leaf
    leaf = np.ones(len(counts), dtype=bool)
    split = np.zeros(len(counts))
    for level in levels[:0:-1]:
        np.add.at(split, parent[level], value[level])
        above = np.unique(parent[level])
        leaf[above] = split[above] <= value[above]
        value[above] = np.maximum(split[above], value[above])
    return float(value[0]), leaf, chances


def _cut_tree(column: Numbers, children: Sequence[Numbers], leaf: npt.NDArray[np.bool_], chances: Floats) -> ChanceTree:
    """Return the tree without the nodes below these leaves."""
    nodes, unvisited = [], [0]
    while unvisited:
        node = unvisited.pop()
        nodes.append(node)
        unvisited += [] if leaf[node] else sorted(set(children[node].tolist()), reverse=True)
    number = np.zeros(len(column), dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    kept_children = tuple(np.zeros(0, dtype=np.int64) if leaf[node] else number[children[node]] for node in nodes)
    return ChanceTree(np.where(leaf, -1, column)[nodes], kept_children, chances[nodes])


@dataclass(frozen=True)
class ChanceForest:
    """The trees of all columns. Nodes are numbered through all trees; the child of a leaf is the leaf itself."""

    roots: Tensor  # (d,) the first node of each column's tree
    widths: Tensor  # (d,) bins of each column
    split_column: Tensor  # (nodes,) the column of the split; d in a leaf
    base: Tensor  # (nodes,) the position of its first child in `children`
    children: Tensor  # a node for each bin of the column of the split; in a leaf one, itself
    chances: Tensor  # distributions of all nodes, one after the other: each as wide as its column

    @classmethod
    def of(cls, trees: Sequence[ChanceTree]) -> ChanceForest:
        """Join the trees of all columns."""
        d, count = len(trees), np.array([len(tree.column) for tree in trees])
        roots = count.cumsum() - count
        split_column = np.concatenate([np.where(tree.column < 0, d, tree.column) for tree in trees])
        child_nodes = [
            root + (np.array([node]) if tree.column[node] < 0 else tree.children[node])
            for root, tree in zip(roots, trees, strict=True)
            for node in range(len(tree.column))
        ]
        length = np.array([len(children) for children in child_nodes])
        widths = np.array([tree.chances.shape[1] for tree in trees])
        chances = np.concatenate([tree.chances.ravel() for tree in trees])
        parts = (roots, widths, split_column, length.cumsum() - length, np.concatenate(child_nodes), chances)
        return cls(*map(torch.from_numpy, parts))

    def leaves(self, bins: Tensor) -> Tensor:
        """Return the leaf of each column's tree for rows, numbered within the tree: (d, n).

        `bins` are (d + 1, n), the last of them 0, which a leaf reads.
        """
        deepest = self._by_depth
        nodes = self.roots[deepest, None].repeat(1, bins.shape[1])
        for unfinished in self._unfinished:
            nodes[:unfinished] = self._below(nodes[:unfinished], bins)
        leaves = torch.empty_like(nodes)
        leaves[deepest] = nodes
        return leaves - self.roots[:, None]

    def log_chances(self, leaves: Tensor, bins: Tensor) -> Tensor:
        """Return the log probability of each column's bin in its leaf: (d, n)."""
        return take_rows(self._logs, self._starts[:, None] + leaves * self.widths[:, None] + bins[:-1])

    def leaves_of(self, column: int, bins: Tensor) -> Tensor:
        """Return the leaf of a column's tree for rows, numbered within the tree: (n,)."""
        nodes = self.roots[column].repeat(bins.shape[1])
        for _ in range(self._depths[column]):
            nodes = self._below(nodes, bins)
        return nodes - self.roots[column]

    def _below(self, nodes: Tensor, bins: Tensor) -> Tensor:
        n = bins.shape[1]
        bins = take_rows(bins.view(-1), take_rows(self.split_column, nodes) * n + torch.arange(n, device=nodes.device))
        return take_rows(self.children, take_rows(self.base, nodes) + bins)

    def table(self, column: int) -> Tensor:
        """Return the distributions of all nodes of a column's tree: (nodes, bins)."""
        start, width = int(self._starts[column]), int(self.widths[column])
        return self.chances[start : start + self._counts[column] * width].view(-1, width)

    def split_columns(self, column: int) -> set[int]:
        """Return the columns on which a column's tree splits."""
        root = int(self.roots[column])
        return set(self.split_column[root : root + self._counts[column]].tolist()) - {len(self.roots)}

    @cached_property
    def _counts(self) -> list[int]:
        return torch.diff(self.roots, append=self.roots.new_tensor([len(self.split_column)])).tolist()

    @cached_property
    def _starts(self) -> Tensor:
        cells = self.roots.new_tensor(self._counts) * self.widths
        return cells.cumsum(0) - cells

    @cached_property
    def _logs(self) -> Tensor:
        return self.chances.log()

    @cached_property
    def _by_depth(self) -> Tensor:
        """The columns, those with the deepest trees first: (d,)."""
        return torch.argsort(self.roots.new_tensor(self._depths), descending=True, stable=True)

    @cached_property
    def _unfinished(self) -> list[int]:
        """How many trees are deeper than 0, 1, … splits."""
        return [sum(depth > splits for depth in self._depths) for splits in range(max(self._depths))]

    @cached_property
    def _depths(self) -> list[int]:
        children, base = self.children.tolist(), [*self.base.tolist(), len(self.children)]
        depths = [0] * len(self.split_column)
        for node in range(len(depths) - 1, -1, -1):  # children come after their parents
            child_nodes = set(children[base[node] : base[node + 1]]) - {node}
            depths[node] = max((depths[child] + 1 for child in child_nodes), default=0)
        return [depths[root] for root in self.roots.tolist()]


def to_device(part: Any, device: str | torch.device) -> Any:
    """Return tensors in dataclasses, dictionaries and tuples on another device; other values stay as they are."""
    if isinstance(part, Tensor):
        return part.to(device)
    if isinstance(part, dict):
        return {key: to_device(value, device) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(to_device(value, device) for value in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: to_device(getattr(part, field.name), device) for field in fields(part)})
    return part


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index]; more than twice as fast."""
    return table.index_select(0, index.reshape(-1)).view(*index.shape, *table.shape[1:])
