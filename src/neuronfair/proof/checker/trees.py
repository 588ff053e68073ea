"""Bounds of trees' signed margins over boxes of records, as a checker finds them.

The least value of a tree over a box is the least over the leaves that can be reached. Follow a tree to the first node
of which both sides can be reached. If it cuts an attribute, the tree lies above a line: the least value on one side for
some positions, and that on the other side for the rest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from neuronfair.limits import check_size
from neuronfair.model.forest import Forest
from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.network import CheckedLines
from neuronfair.proof.checker.region import EPS, Bools, CheckedRegion, FeatureLayout, Floats, Ints, SignedMargins

NUMBERS_PER_PASS = 1 << 22  # of the largest array
WORD_BITS = 64  # leaves, a bit each


class _Leaves(NamedTuple):
    """The leaves of all trees as bits of words: what a record reaches is what its positions have in common."""

    below: npt.NDArray[np.uint64]  # (features + values, words)
    value: Floats  # (words · (1 + WORD), rows) what a leaf adds; the first of a word is for none
    first: Ints  # (words,) the number of that first one


@dataclass(frozen=True)
class CheckedTrees:
    """The nodes of all trees over the positions of a certificate. A leaf is its own child."""

    layout: FeatureLayout
    rows: SignedMargins
    roots: Ints
    axis: Ints  # (nodes,) the axis that a node cuts; -1: a leaf, -2: it cuts sensitive values
    left: Ints
    right: Ints
    value: Floats  # (nodes, rows) what a leaf adds to signed margins
    base: Floats  # (rows,)
    size: Floats  # (rows,) how large the numbers are that are added, together
    by_place: Bools  # (nodes, features) which positions of its axis a node sends left
    by_value: Bools  # (nodes, values) which sensitive values it sends left
    depth: int
    tries_each_value: bool = False  # its lines are of each value anyway
    quick_lines: bool = False  # whether its lines are found before many records are enumerated

    @cached_property
    def _slack(self) -> Floats:
        """How far sums may be off by rounding: (rows,)."""
        return np.asarray(4 * EPS * (len(self.roots) + 16) * self.size)

    @cached_property
    def _levels(self) -> list[Ints]:
        """The inner nodes, the lowest first: each after its children."""
        levels, nodes = list[Ints](), self.roots
        for _ in range(self.depth):
            nodes = np.unique(nodes[self.left[nodes] != nodes])
            levels.append(nodes)
            nodes = np.concatenate([self.left[nodes], self.right[nodes]])
        return levels[::-1]

    def find_lines(self, low: Ints, high: Ints, joint: bool) -> CheckedLines:
        """Return lines below the signed margins over boxes."""
        value_count = len(self.layout.region.values)
        widest = max(len(self.axis) * len(self.base), len(self.roots) * self.layout.features)
        step, values = max(1, NUMBERS_PER_PASS // (value_count * widest)), max(1, NUMBERS_PER_PASS // widest)
        value_slices = [slice(i, i + values) for i in range(0, value_count, values)]
        parts = [slice(i, i + step) for i in range(0, len(low), step)]
        return CheckedLines.concatenate([self._find_all_lines(low[p], high[p], value_slices) for p in parts])

    def _find_all_lines(self, low: Ints, high: Ints, value_slices: list[slice]) -> CheckedLines:
        """Return the lines of all sensitive values, some at a time."""
        parts = [self._find_lines(low, high, values) for values in value_slices]
        return CheckedLines(*(np.concatenate(part, 1) for part in zip(*parts, strict=True)))

    @property
    def numbers_per_point(self) -> int:
        """How many numbers one person with one sensitive value takes, at most."""
        return len(self._leaves.first) * max(4, len(self.base))

    @property
    def line_numbers(self) -> int:
        """How many numbers the lines of a box take."""
        return len(self.layout.region.values) * len(self.base) * (self.layout.features + 2)

    def mark_same_margins(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where no tree can tell the valid sensitive values apart."""
        result = np.zeros(len(low), bool)
        step = max(1, NUMBERS_PER_PASS // len(self.axis))
        for i in range(0, len(low), step):
            sides_reached = self._mark_sides(low[i : i + step], high[i : i + step])
            cuts = self.axis == -2
            kinds = valid[i : i + step].astype(np.float64)
            sides = self.by_value[cuts].T.astype(np.float64)
            for side, weights in zip(sides_reached, (sides, 1 - sides), strict=True):
                side[:, cuts] = kinds @ weights > 0
            tells = sides_reached[0] & sides_reached[1] & cuts
            for level in self._levels:
                for side, child in zip(sides_reached, (self.left, self.right), strict=True):
                    tells[:, level] |= side[:, level] & tells[:, child[level]]
            result[i : i + step] = ~tells[:, self.roots].any(1)
        return result

    def compute_margins(self, points: Ints) -> Floats:
        """Return signed margins of records at positions, rounded down: (n, values, rows)."""
        features = self.layout.features
        common = self._leaves.below[features:][None].repeat(len(points), 0)  # (n, values, words)
        for start, positions in zip(self.layout.starts[:-1], points.T, strict=True):
            common &= self._leaves.below[start + positions][:, None]
        # The only leaf left, or 0: it is elsewhere.
        leaf_index = np.frexp(common.astype(np.float64))[1] + self._leaves.first
        return np.asarray(self._leaves.value[leaf_index].sum(2) + self.base - self._slack)

    @cached_property
    def _leaves(self) -> _Leaves:
        """Which leaves each position and each sensitive value can reach."""
        reach = np.concatenate([self.by_place, self.by_value], 1)
        axis_of_feature = np.repeat(np.arange(len(self.layout.starts) - 1), np.diff(self.layout.starts))
        cut = self.axis[:, None] == np.append(axis_of_feature, np.full(self.by_value.shape[1], -2))
        directions = (self.left, reach | ~cut), (self.right, ~reach | ~cut)
        allowed = np.ones_like(reach)
        tree = np.full(len(self.axis), -1)
        tree[self.roots] = np.arange(len(self.roots))
        for level in self._levels[::-1]:
            for child, mask in directions:
                allowed[child[level]] = allowed[level] & mask[level]
                tree[child[level]] = tree[level]
        leaves = np.flatnonzero((self.left == np.arange(len(self.left))) & (tree >= 0))
        leaves = leaves[np.argsort(tree[leaves], kind="stable")]
        count = np.bincount(tree[leaves], minlength=len(self.roots))
        words = -(-count // WORD_BITS)
        bit = np.arange(len(leaves)) + np.repeat(WORD_BITS * (words.cumsum() - words) - (count.cumsum() - count), count)
        table = np.zeros((reach.shape[1], WORD_BITS * words.sum()), bool)
        table[:, bit] = allowed[leaves].T
        first = np.arange(words.sum()) * (1 + WORD_BITS)
        value = np.zeros((len(first) * (1 + WORD_BITS), len(self.base)))
        value[first[bit // WORD_BITS] + 1 + bit % WORD_BITS] = self.value[leaves]
        return _Leaves(np.packbits(table, axis=1, bitorder="little").view("<u8"), value, first)

    def _mark_sides(self, low: Ints, high: Ints) -> tuple[Bools, Bools]:
        """Return whether some positions of each box are sent left by each node, and whether some right: (n, nodes)."""
        reached = np.zeros((len(low), len(self.axis)), bool), np.zeros((len(low), len(self.axis)), bool)
        for axis, features in self.layout.tables():
            nodes = np.flatnonzero(self.axis == axis)
            sent = self.by_place[nodes, features]
            before = np.concatenate([np.zeros((len(nodes), 1), int), np.cumsum(sent, 1)], 1).T
            first, last = low[:, axis], high[:, axis]
            count = before[last + 1] - before[first]
            reached[0][:, nodes], reached[1][:, nodes] = count > 0, count < (last - first + 1)[:, None]
        return reached

    def _find_lines(self, low: Ints, high: Ints, values: slice) -> CheckedLines:
        by_value = self.by_value[:, values]
        n, k, rows = len(low), by_value.shape[1], len(self.base)
        # (n, values, nodes)
        goes_left, goes_right = (side[:, None].repeat(k, 1) for side in self._mark_sides(low, high))
        cuts = self.axis == -2
        goes_left[..., cuts], goes_right[..., cuts] = by_value[cuts].T, ~by_value[cuts].T
        lowest = np.broadcast_to(self.value.T, (n, k, *self.value.T.shape)).copy()  # (n, values, rows, nodes)
        for level in self._levels:
            left_lowest = np.where(goes_left[:, :, None, level], lowest[..., self.left[level]], np.inf)
            right_lowest = np.where(goes_right[:, :, None, level], lowest[..., self.right[level]], np.inf)
            lowest[..., level] = np.minimum(left_lowest, right_lowest)
        at = np.broadcast_to(self.base - self._slack, (n, k, rows)).copy()
        minimum = lowest[..., self.roots].sum(-1) + at
        node = np.broadcast_to(self.roots, (n, k, len(self.roots)))
        for _ in range(self.depth):  # down to the first node that both sides of the box reach
            left, right = (np.take_along_axis(side_reached, node, 2) for side_reached in (goes_left, goes_right))
            node = np.where(left & right, node, np.where(left, self.left[node], self.right[node]))
        ends = [np.take_along_axis(lowest, child[node][:, :, None], 3) for child in (self.left, self.right)]
        slopes = (ends[0] - ends[1]) @ self.by_place[node].astype(np.float64)
        at += ends[1].sum(-1)
        return CheckedLines(slopes, at, minimum)


def fingerprint_trees(forest: Forest) -> str:
    """Return a digest of all numbers that trees hold, for trees that come from no file."""
    digest = hashlib.sha256()
    for field in fields(forest):
        value = getattr(forest, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            digest.update(part.numpy().tobytes() if isinstance(part, Tensor) else f"{part!r};".encode())
    return digest.hexdigest()


def build_checked_trees(forest: Forest, region: CheckedRegion, rows: SignedMargins) -> CheckedTrees:
    """Return a forest over the positions of a certificate; positions that a tree tells apart are refused."""
    layout = FeatureLayout(region)
    nodes = len(forest.attribute) + WORD_BITS * len(forest.roots)
    check_size(nodes * (layout.features + len(region.values)), "the positions of its axes", times=4)
    attribute, side = forest.attribute.numpy(), forest.side.numpy()
    axis = np.full(len(attribute), -1)
    by_place = np.zeros((len(attribute), layout.features), bool)
    by_value = np.zeros((len(attribute), len(region.values)), bool)
    inner = forest.left.numpy() != np.arange(len(attribute))
    for number, (column, position_of_code) in enumerate(zip(region.columns, region.position_of_code, strict=True)):
        name, cell = region.axes[number].column, forest.cells[column].numpy()
        if region.axes[number].linear:
            raise CertificateError(f"trees do not read '{name}' as a number, as the certificate says")
        codes = np.flatnonzero(position_of_code >= 0)
        cell_at = np.zeros(len(region.axes[number]), dtype=np.int64)
        cell_at[position_of_code[codes]] = cell[codes]
        if not np.array_equal(cell_at[position_of_code[codes]], cell[codes]):
            raise CertificateError(f"a position of '{name}' holds values that a tree tells apart")
        nodes_of_axis = inner & (attribute == column)
        axis[nodes_of_axis] = number
        by_place[nodes_of_axis, layout.starts[number] : layout.starts[number + 1]] = side[nodes_of_axis][:, cell_at]
    for j, column in enumerate(region.sensitive):
        nodes_of_axis = inner & (attribute == column)
        axis[nodes_of_axis] = -2
        by_value[nodes_of_axis] = side[nodes_of_axis][:, forest.cells[column].numpy()[region.values[:, j]]]
    if rows.squash:
        raise CertificateError("a tolerance on probabilities of trees cannot be checked")
    value, base = forest.value.numpy(), forest.base.numpy()
    size = (np.abs(value).max(0) * len(forest.roots) + np.abs(base)) @ np.abs(rows.matrix.T) + np.abs(rows.offset)
    value, base = value @ rows.matrix.T, base @ rows.matrix.T + rows.offset
    roots, left, right = (tensor.numpy() for tensor in (forest.roots, forest.left, forest.right))
    return CheckedTrees(layout, rows, roots, axis, left, right, value, base, size, by_place, by_value, forest.depth)
