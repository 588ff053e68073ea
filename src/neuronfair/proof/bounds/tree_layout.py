"""The trees of a forest laid out for bounding many boxes at once: what each node must know, level by level.

A tree is bounded from below by a sum of functions of one axis each, from its leaves to its root. Let a node ask about
axis a, and let its children be bounded by sums l and r. On every other axis i the node's own function is the smaller of
l_i and r_i - s_i, where the shift s_i is given back, on axis a, to those who go right. So neither child is exceeded.
A function has a number for each *part* of its axis: a set of places that the tree does not tell apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import Unprovable
from neuronfair.proof.boxes.space import Space

Marks = npt.NDArray[np.bool_]
HALF = 0.5  # of what is lost by two parts of another axis comes back when they are parted, about
MOST_PARTS = 2_000_000  # of all functions of all nodes: so many numbers a box takes
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 1 << 30)


@dataclass(frozen=True)
class Block:
    """Functions of the nodes of one height, on axes that these do not ask about, of equally many parts."""

    left: Tensor  # (functions, parts) the row of each part in the left child; 0: it does not depend on the axis
    right: Tensor
    place: Tensor  # (functions, parts) the set of places of each part
    node: Tensor  # (functions,) whose function it is, counted within the level
    cuts: Tensor  # (features, functions) sparse: how much of what a function loses a cut before a place regains
    start: int  # its first row


@dataclass(frozen=True)
class Level:
    """The nodes of one height, and their functions on the axes that they ask about."""

    blocks: tuple[Block, ...]
    nodes: slice  # among all nodes
    sides: Tensor  # (2, nodes) the sets of places that go left, and right
    children: Tensor  # (2, nodes) their numbers among all nodes; the one behind the last for leaves
    child: Tensor  # (parts,) the row of the part in the child it leads to, or 0
    value: Tensor  # (parts, margins) what the child adds if it is a leaf
    shift: Tensor  # (parts,) 1 + the node, within the level, if the part goes right, else 0
    start: int


@dataclass(frozen=True)
class Branches:
    """All trees for each *kind* of sensitive values, those that no tree tells apart."""

    sets: tuple[Tensor, ...]  # per axis (sets, places + 1): how many codes of a set stand before a place
    levels: tuple[Level, ...]
    nodes: int
    rows: int
    roots: Tensor  # the nodes at which trees begin
    steps: Tensor  # (((1 + kinds) · features), rows) sparse: from place to place, of all kinds and of each
    at: Tensor  # (kinds, margins) the sums of trees that are one leaf
    trees: int
    roundings: int  # on the way from the leaves to the roots of a value's trees, at most
    telling: Tensor  # (nodes, most axes) sets: places in all of which lead to a node that tells kinds apart


@dataclass(frozen=True)
class Node:
    """A node of a tree over places."""

    axis: int
    sides: tuple[Marks, Marks]  # places that go left, and right
    children: tuple[SplitTree, SplitTree]


SplitTree = Node | npt.NDArray[np.float64]  # a leaf is what it adds to the margins
_Functions = dict[int, dict[int, int]]  # of a node: by axis and part, the number of the function's value


class TreeLayout:
    """Lays trees out, one after the other."""

    def __init__(self, space: Space, margins: int) -> None:
        self._space, self._margins = space, margins
        self._kept: list[dict[bytes, int]] = [{} for _ in space.axes]
        self._sets: list[tuple[int, Marks]] = []
        self.set_of(0, np.zeros(len(space.axes[0]), dtype=bool))  # number 0: no place
        self._levels: list[_Draft] = []
        self._values = 1  # of functions; number 0 is 0
        self._steps: list[tuple[int, int, float]] = []
        self._roots: list[tuple[int, int]] = []
        self._telling: list[list[int]] = []
        self.trees = 0
        self._roundings = Counter[int]()

    def set_of(self, axis: int, marks: Marks) -> int:
        """Return the number of a set of places."""
        key = marks.tobytes()
        if key not in self._kept[axis]:
            self._kept[axis][key] = len(self._sets)
            self._sets.append((axis, marks))
        return self._kept[axis][key]

    def add(self, tree: SplitTree, kinds: Sequence[int]) -> None:
        """Add a tree that counts for some kinds of sensitive values: 0 for all, else 1 + their numbers."""
        self.trees += 1
        if not isinstance(tree, Node):
            return
        parts = _parts(tree)
        numbers = {a: [self.set_of(a, part == p) for p in range(part.max() + 1)] for a, part in parts.items()}
        height, place, functions = self._lay(tree, parts, numbers)
        others = len(parts) - 1  # a shift is up to twice the largest number, and so many are added up on each level
        for kind in kinds:
            self._roundings[kind] += (height + 1) * (4 + 2 * others + 2 * others**2)
        self._roots.append((height, place))
        for axis, values in functions.items():
            at = np.array([values[p] for p in parts[axis].tolist()])
            changes = [0, *(np.flatnonzero(at[1:] != at[:-1]) + 1).tolist()]
            for kind in kinds:
                first = kind * self._space.features + self._space.first[axis]
                for p in changes:
                    self._steps.append((first + p, int(at[p]), 1.0))
                    if p:
                        self._steps.append((first + p, int(at[p - 1]), -1.0))

    def tells(self, where: dict[int, Marks]) -> None:
        """Add places that lead to a node which tells sensitive values apart."""
        self._telling.append([self.set_of(axis, marks) for axis, marks in where.items()])

    def _lay(
        self, tree: Node, parts: dict[int, npt.NDArray[np.int64]], numbers: dict[int, list[int]]
    ) -> tuple[int, int, _Functions]:
        """Lay a node out behind its children, and return its height, its place in the level, and its functions."""
        below = [self._lay(c, parts, numbers) if isinstance(c, Node) else None for c in tree.children]
        height = max(0 if b is None else b[0] + 1 for b in below)
        while len(self._levels) <= height:
            self._levels.append(_Draft())
        level, node = self._levels[height], len(self._levels[height].sides)
        cuts = self._changes(tree.axis, np.where(tree.sides[0], 0, np.where(tree.sides[1], 1, -1)))
        level.sides.append([self.set_of(tree.axis, side) for side in tree.sides])
        level.children.append([None if b is None else b[:2] for b in below])
        own: dict[int, int] = {}
        functions: _Functions = {tree.axis: own}
        for right, (side, child, b) in enumerate(zip(tree.sides, tree.children, below, strict=True)):
            lower = {} if b is None else b[2].get(tree.axis, {})
            value = np.zeros(self._margins) if isinstance(child, Node) else child
            for part in np.unique(parts[tree.axis][side]).tolist():
                own[part] = self._next()
                level.own.append((own[part], lower.get(part, 0), value, (1 + node) * right))
        left, right_ = ({} if b is None else b[2] for b in below)
        for axis in sorted({*left, *right_} - {tree.axis}):
            mine, other = left.get(axis, {}), right_.get(axis, {})
            functions[axis] = {part: self._next() for part in sorted({*mine, *other})}
            rows = [(n, mine.get(p, 0), other.get(p, 0), numbers[axis][p]) for p, n in functions[axis].items()]
            here = np.where(np.isin(parts[axis], list(functions[axis])), parts[axis], -1)
            level.others.append((node, [*cuts, *((f, HALF * part) for f, part in self._changes(axis, here))], rows))
        return height, node, functions

    def _changes(self, axis: int, part: npt.NDArray[np.int64]) -> list[tuple[int, float]]:
        """Return the features before which the part of a place changes, each with its share; -1 is no part."""
        inside = np.flatnonzero(part >= 0)
        changes = inside[1:][part[inside[1:]] != part[inside[:-1]]] + self._space.first[axis]
        return [(place, 1 / len(changes)) for place in changes.tolist()]

    def _next(self) -> int:
        self._values += 1
        if self._values > MOST_PARTS:
            raise Unprovable("its trees are too large to be bounded")
        return self._values - 1

    def done(self, kinds: int, at: Tensor) -> Branches:
        """Return everything that was added."""
        row_of, first = np.zeros(self._values, dtype=np.int64), [0]
        for level in self._levels:
            first.append(first[-1] + len(level.sides))
        rows, levels = 1, []
        sets, place_of = self._tables()
        for number, level in enumerate(self._levels):
            made, rows = level.done(rows, row_of, first, place_of, self._space.features)
            made = replace(made, nodes=slice(first[number], first[number + 1]))
            levels.append(made)
        steps = sparse([(f, int(row_of[v]), s) for f, v, s in self._steps], ((1 + kinds) * self._space.features, rows))
        most = max(map(len, self._telling), default=0)
        everywhere = place_of[self.set_of(0, np.ones(len(self._space.axes[0]), dtype=bool))] if most else 0
        telling = [[place_of[s] for s in some] + [everywhere] * (most - len(some)) for some in self._telling]
        return Branches(
            sets,
            tuple(levels),
            first[-1],
            rows,
            torch.tensor([first[height] + place for height, place in self._roots], dtype=torch.int64),
            steps,
            at,
            self.trees,
            self._roundings[0] + max(self._roundings[1 + kind] for kind in range(kinds)),
            torch.tensor(telling, dtype=torch.int64).reshape(len(telling), most),
        )

    def _tables(self) -> tuple[tuple[Tensor, ...], list[int]]:
        """Return the sets as counts by axis, and where each set is when those of all axes follow each other."""
        if self._telling:
            self.set_of(0, np.ones(len(self._space.axes[0]), dtype=bool))
        tables, place_of, count = [], [0] * len(self._sets), 0
        for number, axis in enumerate(self._space.axes):
            mine = [i for i, (a, _) in enumerate(self._sets) if a == number]
            marks = np.array([self._sets[i][1] for i in mine]).reshape(len(mine), len(axis))
            before = np.zeros((len(mine), len(axis) + 1))
            before[:, 1:] = (marks * axis.count.cpu().numpy()).cumsum(1)
            tables.append(torch.from_numpy(before))
            for i in mine:
                place_of[i], count = count, count + 1
        return tuple(tables), place_of


class _Draft:
    """A level in the making."""

    def __init__(self) -> None:
        self.sides: list[list[int]] = []
        self.children: list[list[tuple[int, int] | None]] = []
        self.own: list[tuple[int, int, npt.NDArray[np.float64], int]] = []
        self.others: list[tuple[int, list[tuple[int, float]], list[tuple[int, int, int, int]]]] = []

    def done(
        self, rows: int, row_of: npt.NDArray[np.int64], first: Sequence[int], place_of: Sequence[int], features: int
    ) -> tuple[Level, int]:
        """Return the level, and the row behind its last."""
        blocks, start = [], rows
        for width in WIDTHS:
            mine = [o for o in self.others if _width(len(o[2])) == width]
            if not mine:
                continue
            longest = max(len(o[2]) for o in mine)
            table = np.zeros((3, len(mine), longest), dtype=np.int64)
            for i, (_, _, parts) in enumerate(mine):
                for j, (value, left, right, places) in enumerate(parts):
                    row_of[value] = rows + i * longest + j
                    table[:, i, j] = row_of[left], row_of[right], place_of[places]
            sets = torch.from_numpy(table)
            cuts = sparse([(f, i, part) for i, o in enumerate(mine) for f, part in o[1]], (features, len(mine)))
            blocks.append(Block(sets[0], sets[1], sets[2], torch.tensor([o[0] for o in mine]), cuts, rows))
            rows += len(mine) * longest
        start = rows
        for value, *_ in self.own:
            row_of[value], rows = rows, rows + 1
        children = [[first[-1] if c is None else first[c[0]] + c[1] for c in both] for both in self.children]
        level = Level(
            tuple(blocks),
            slice(0),
            torch.tensor([[place_of[s] for s in both] for both in self.sides]).T,
            torch.tensor(children).T,
            torch.tensor([int(row_of[lower]) for _, lower, _, _ in self.own]),
            torch.from_numpy(np.array([value for _, _, value, _ in self.own])),
            torch.tensor([shift for *_, shift in self.own]),
            start,
        )
        return level, rows


def sparse(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix of (row, column, number)."""
    index = torch.tensor([entry[:2] for entry in entries], dtype=torch.int64).reshape(-1, 2).T
    numbers = torch.tensor([entry[2] for entry in entries], dtype=torch.float64)
    return torch.sparse_coo_tensor(index, numbers, shape, check_invariants=True).coalesce()


def _width(parts: int) -> int:
    return next(width for width in WIDTHS if parts <= width)


def _parts(tree: Node) -> dict[int, npt.NDArray[np.int64]]:
    """Return for each axis that a tree asks about the part of each place."""
    cuts: dict[int, list[Marks]] = {}
    todo: list[SplitTree] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Node):
            cuts.setdefault(node.axis, []).extend(node.sides)
            todo.extend(node.children)
    return {axis: np.unique(np.array(marks), axis=1, return_inverse=True)[1].ravel() for axis, marks in cuts.items()}
