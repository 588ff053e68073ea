"""Lines below and above sums of trees, which are laid out level by level for bounding many boxes at once.

A tree is bounded from below by a sum of functions of one axis each, from its leaves to its root. Let a node ask about
axis a, and let its children be bounded by sums l and r. On every other axis i the node's own function is the smaller of
l_i and r_i - s_i, where the shift s_i is given back, on axis a, to those who go right. So neither child is exceeded.
A function has a number for each *part* of its axis: a set of places that the tree does not tell apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable
from neuronfair.model.forest import Forest
from neuronfair.proof.bounds.margins import Lines, Margins
from neuronfair.proof.bounds.space import Axis, Boxes, Space

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


CELLS = 64  # of an attribute, whose effects are computed at a time


def tree_axes(forest: Forest, domain: TableDomain, classes: Sequence[Tensor], weights: Tensor) -> tuple[Axis, ...]:
    """Return every attribute that is not sensitive as places that neither trees nor rules tell apart.

    `classes` are those of the rules, for each code; -1 is outside. `weights` say what of the outputs matters: values of
    a nominal attribute that move it alike stand together, so that a cut between them tells something.
    """
    return tuple(
        _axis(column, forest.cells[column], classes[column], None if a.ordered else _effect(forest, column, weights))
        for column, a in enumerate(domain.attributes)
        if column not in domain.sensitive_columns
    )


def _axis(column: int, cells: Tensor, classes: Tensor, effect: Tensor | None) -> Axis:
    """Return an attribute as places that neither trees nor rules tell apart, in order of their codes or effects."""
    codes = (classes >= 0).nonzero()[:, 0]
    both = cells * (int(classes.max()) + 1) + classes
    _, group, count = torch.unique(both[codes], return_inverse=True, return_counts=True)
    first = torch.full_like(count, len(classes)).scatter_reduce(0, group, codes, "amin")
    order = first.argsort()
    if effect is not None:
        order = order[effect[cells[first[order]]].argsort(stable=True)]
    place = torch.full_like(classes, -1)
    place[codes] = order.argsort()[group]
    return Axis(column, place, first[order], count[order], linear=False)


def _effect(forest: Forest, column: int, weights: Tensor) -> Tensor:
    """Return the mean of the trees for each cell of an attribute, if others send records left and right alike."""
    effects = []
    for cells in torch.split(torch.arange(int(forest.cells[column].max()) + 1), CELLS):
        leaf = (forest.value @ weights)[:, None].expand(-1, len(cells))
        mean, left = leaf, torch.where((forest.attribute == column)[:, None], forest.side[:, cells].double(), 0.5)
        for _ in range(forest.depth):
            below = left * mean[forest.left] + (1 - left) * mean[forest.right]
            mean = torch.where((forest.attribute < 0)[:, None], leaf, below)
        effects.append(mean[forest.roots].sum(0))
    return torch.cat(effects)


class TreeGrower:
    """Makes trees over places of trees over codes, one for each kind of sensitive values that they tell apart."""

    def __init__(self, forest: Forest, space: Space, matrix: Tensor) -> None:
        self._forest, self._matrix = forest, matrix
        self._attribute, self._left, self._right = (t.tolist() for t in (forest.attribute, forest.left, forest.right))
        self._value = (forest.value @ matrix.T).numpy()
        self._axis = {axis.column: number for number, axis in enumerate(space.axes)}
        self._cells = [forest.cells[axis.column][axis.codes] for axis in space.axes]
        self._layout = TreeLayout(space, self._value.shape[1])

    def branches(self, rows: Tensor) -> Branches:
        """Return all trees; `rows` have the sensitive values of each kind."""
        at = (self._forest.base @ self._matrix.T).expand(len(rows), -1).clone()
        for root in self._forest.roots.tolist():
            same: dict[tuple[bool, ...], list[int]] = {}
            telling = self._telling(root, {})
            for kind, row in enumerate(rows):
                sides = tuple(bool(self._goes(node, row)) for node in telling)
                same.setdefault(sides, []).append(kind)
            for kinds in same.values():
                tree = self._grown(root, rows[kinds[0]], {})
                if isinstance(tree, np.ndarray):
                    at[kinds] += torch.from_numpy(tree)
                self._layout.add(tree, [0] if len(same) == 1 else [1 + kind for kind in kinds])
        return self._layout.done(len(rows), at)

    def _goes(self, node: int, row: Tensor) -> bool:
        column = self._attribute[node]
        return bool(self._forest.side[node, self._forest.cells[column][row[column]]])

    def _parted(self, node: int, inside: dict[int, Marks]) -> tuple[int, Marks, Marks]:
        """Return the axis that a node asks about, and which of its places go left and right."""
        axis = self._axis[self._attribute[node]]
        here = inside.get(axis, np.ones(len(self._cells[axis]), dtype=bool))
        side = self._forest.side[node, self._cells[axis]].numpy()
        return axis, here & side, here & ~side

    def _telling(self, node: int, inside: dict[int, Marks]) -> list[int]:
        """Return the nodes of a tree that tell sensitive values apart, and say which places lead there."""
        if self._attribute[node] < 0:
            return []
        children = (self._left[node], self._right[node])
        if self._attribute[node] not in self._axis:
            self._layout.tells(inside)
            return [node, *(found for child in children for found in self._telling(child, inside))]
        axis, *sides = self._parted(node, inside)
        reached = [(child, side) for child, side in zip(children, sides, strict=True) if side.any()]
        return [found for child, side in reached for found in self._telling(child, {**inside, axis: side})]

    def _grown(self, node: int, row: Tensor, inside: dict[int, Marks]) -> SplitTree:
        """Return a tree for the sensitive values of a row."""
        if self._attribute[node] < 0:
            leaf: SplitTree = self._value[node]
            return leaf
        children = (self._left[node], self._right[node])
        if self._attribute[node] not in self._axis:
            return self._grown(children[0 if self._goes(node, row) else 1], row, inside)
        axis, left, right = self._parted(node, inside)
        if not (left.any() and right.any()):
            return self._grown(children[0 if left.any() else 1], row, inside)
        grown = [self._grown(c, row, {**inside, axis: s}) for c, s in zip(children, (left, right), strict=True)]
        return Node(axis, (left, right), (grown[0], grown[1]))


FAST = torch.float32  # functions are merged in it, with room for its rounding, and added up in float64
EPS, COARSE = torch.finfo(torch.float64).eps, torch.finfo(FAST).eps
TIE = 1e-12  # an even cut, where nothing else speaks for one
NUMBERS_PER_PASS = {"cpu": 1 << 22, "cuda": 1 << 29}


@dataclass(frozen=True)
class TreeBounds:
    """An ensemble of trees over the places of a space."""

    space: Space
    margins: Margins
    forest: Forest  # with its sums as scores
    kinds: Tensor  # (kinds, attributes) rows with sensitive values that some tree tells apart, 0 elsewhere
    kind: Tensor  # (values,) of which kind each combination of sensitive values is
    branches: Branches
    strategies: int = 1

    def cost(self, strategy: int) -> float:
        """Return the cost of the only strategy."""
        return 1.0

    @cached_property
    def enumeration_factor(self) -> float:
        """How many times larger boxes are enumerated than of a network, because bounding trees takes longer."""
        bounding = 2 * len(self.margins.matrix) * self.branches.rows
        return min(16.0, max(1.0, bounding / (2 * len(self.kinds) * self.forest.operations)))

    @cached_property
    def slack(self) -> Tensor:
        """How far the margins of rows may be off by rounding: (margins,)."""
        forest, matrix = self.forest, self.margins.matrix.abs().to(self.space.device)
        size = (forest.value.abs().amax(0) * len(forest.roots) + forest.base.abs()) @ matrix.T
        size = size + self.margins.offset.abs().to(size) + 1
        return 4 * EPS * (len(forest.roots) + 8) * size + self.margins.end_error

    def margins_at(self, places: Tensor) -> Tensor:
        """Return the margins of records at places (n, axes), with every sensitive value: (n, values, margins)."""
        kinds = len(self.kinds)
        step = max(1, NUMBERS_PER_PASS[places.device.type] // (len(self.forest.roots) * kinds))
        result = torch.empty(len(places), kinds, len(self.margins.matrix), dtype=torch.float64, device=places.device)
        for start in range(0, len(places), step):
            some = places[start : start + step]
            rows = self.kinds.repeat(len(some), 1, 1)
            for axis, place in zip(self.space.axes, some.T, strict=True):
                rows[:, :, axis.column] = axis.codes.to(place.device)[place][:, None]
            sums = self.forest.scores(rows.flatten(0, 1)).view(len(some), kinds, -1)
            result[start : start + step] = self.margins.of(sums)
        return result[:, self.kind]

    def lines(self, boxes: Boxes, inner: Tensor | None = None, strategy: int = 0) -> Lines:
        """Return lines over boxes, the axis on which each is best cut, and where no sensitive value matters."""
        step = max(1, NUMBERS_PER_PASS[boxes.low.device.type] // (2 * len(self.margins.matrix) * self.branches.rows))
        parts = [self._lines(boxes[slice(i, i + step)]) for i in range(0, len(boxes), step)]
        low, low_at, high, high_at, same, cut = (torch.cat(part) for part in zip(*parts, strict=True))
        return Lines(low, low_at, high, high_at, same=same, cut=cut)

    def _lines(self, boxes: Boxes) -> tuple[Tensor, ...]:
        branches, margins, n = self.branches, len(self.margins.matrix), len(boxes)
        held = torch.cat(
            [
                table[:, boxes.high[:, axis] + 1] - table[:, boxes.low[:, axis]]
                for axis, table in enumerate(branches.sets)
            ]
        ).to(FAST)  # (sets, n) codes of each set in each box
        reached = self._reached(held)
        values = torch.empty(branches.rows, 2, margins, n, dtype=FAST, device=held.device)
        values[0] = 0.0
        loose = torch.zeros(self.space.features, n, dtype=torch.float64, device=held.device)
        for level in branches.levels:
            self._bound(level, held, reached[level.nodes], values, loose)
        sums = (branches.steps @ values.view(branches.rows, -1).double()).view(-1, self.space.features, 2, margins, n)
        for start, axis in zip(self.space.first, self.space.axes, strict=False):
            torch.cumsum(sums[:, start : start + len(axis)], 1, out=sums[:, start : start + len(axis)])
        sums = (sums[1:] + sums[0])[self.kind].permute(2, 4, 0, 3, 1)  # (sign, n, values, margins, features)
        largest = torch.stack(values.aminmax()).abs().max().double()
        room = largest * (COARSE * branches.roundings + 4 * EPS * branches.trees * branches.steps._nnz()) + self.slack
        at = (branches.at + self.margins.offset.to(held.device))[self.kind]
        same = (held[branches.telling] == 0).any(1).all(0)
        cut = self._cut(boxes, loose)
        return sums[0], (at - room).expand(n, -1, -1), -sums[1], (at + room).expand(n, -1, -1), same, cut

    def _cut(self, boxes: Boxes, loose: Tensor) -> Tensor:
        """Return where each box is best cut: its axis, and the last place of the lower half.

        A cut regains what nodes that ask about this place lose, and in one of the halves what those lose that ask about
        others of the axis.
        """
        best, where = list[Tensor](), list[Tensor]()
        for axis, start, count in self.space.tables:
            low, high = boxes.low[:, axis], boxes.high[:, axis]
            before = torch.arange(1, len(count), device=low.device)[:, None]  # the first place above the cut
            inside = (before > low) & (before <= high)
            here = torch.where(inside, loose[start + 1 : start + len(count)], 0.0)
            up_to = here.cumsum(0)
            codes = torch.cat([count.new_zeros(1), count.cumsum(0)])
            lower = (codes[1:-1, None] - codes[low]) / (codes[high + 1] - codes[low])
            gain = here + (1 - lower) * (up_to - here) + lower * (up_to[-1:] - up_to) + TIE * lower * (1 - lower)
            top, place = gain.masked_fill(~inside, -torch.inf).max(0) if len(count) > 1 else (low - torch.inf, low)
            best.append(top)
            where.append(torch.stack([torch.full_like(place, axis), place], 1))
        chosen = torch.stack(best).argmax(0)
        return torch.stack(where)[chosen, torch.arange(len(boxes), device=chosen.device)]

    def _reached(self, held: Tensor) -> Tensor:
        """Return which share of each box reaches each node: (nodes + 1, n)."""
        branches = self.branches
        reached = torch.zeros(branches.nodes + 1, held.shape[1], dtype=FAST, device=held.device)
        reached[branches.roots] = 1.0
        for level in reversed(branches.levels):
            left, right = held[level.sides[0]], held[level.sides[1]]
            here = reached[level.nodes] / (left + right).clamp(min=1.0)
            reached[level.children[0]], reached[level.children[1]] = here * left, here * right
        return reached

    def _bound(self, level: Level, held: Tensor, reached: Tensor, values: Tensor, loose: Tensor) -> None:
        """Bound the nodes of a level by what their children are bounded by, and add up how much that loses, by axis."""
        left, right = held[level.sides[0]], held[level.sides[1]]
        goes_right = right / (left + right).clamp(min=1.0)
        shifts = values.new_zeros(1 + len(goes_right), *values.shape[1:])
        for block in level.blocks:
            shift, lost = _merge(block, held, goes_right[block.node][:, None, None], values)
            shifts.index_add_(0, block.node + 1, shift)
            lost = lost.sum((1, 2)) * reached[block.node]
            loose += block.cuts @ lost.double()
        own = values.flatten(1).index_select(0, level.child).view(-1, *values.shape[1:])
        own += shifts[level.shift]
        own += torch.stack([level.value, -level.value], 1)[..., None].to(FAST)
        values[level.start : level.start + len(own)] = own


def _merge(block: Block, held: Tensor, goes_right: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Write the smaller of the children's functions, the right one less a shift; return the shifts, and what is lost.

    With d the right less the left function, a shift of s loses (s - d)+ on the left and (d - s)+ on the right: the best
    is a quantile of d. Its least, its mean and its greatest value are tried.
    """
    shape = (*block.left.shape, *values.shape[1:])  # (functions, parts, 2, margins, n)
    flat = values.flatten(1)
    left, right = (flat.index_select(0, rows.flatten()).view(shape) for rows in (block.left, block.right))
    weight = held[block.place][:, :, None, None]
    share = weight / weight.sum(1, keepdim=True).clamp(min=1.0)
    outside = torch.where(weight > 0, 0.0, torch.inf)
    gap = right - left
    least, most, mean = (gap + outside).amin(1), (gap - outside).amax(1), (gap * share).sum(1)
    shift, lost = least, goes_right * (mean - least)
    other = (1 - goes_right) * (most - mean)
    better = other < lost
    shift, lost = torch.where(better, most, shift), torch.where(better, other, lost)
    if gap.shape[1] > 2:
        other = ((mean[:, None] - gap).clamp(min=0) * share).sum(1)
        better = other < lost
        shift, lost = torch.where(better, mean, shift), torch.where(better, other, lost)
    shift = torch.where(least <= most, shift, 0.0)  # not where no place of the axis can come here
    result = torch.minimum(left, right - shift[:, None])
    values[block.start : block.start + result.shape[0] * result.shape[1]] = result.flatten(0, 1)
    return shift, torch.where(least <= most, lost, 0.0)


def trees_of(
    forest: Forest, domain: TableDomain, classes: Sequence[Tensor], margins: Margins, device: torch.device
) -> TreeBounds:
    """Return trees ready for a proof; `classes` are those of codes that rules do not tell apart; -1: outside."""
    if margins.squash:
        raise Unprovable("a tolerance on probabilities of trees cannot be proved")
    sensitive = list(domain.sensitive_columns)
    values = torch.zeros(len(domain.sensitive_values), len(domain.attributes), dtype=torch.int64)
    values[:, sensitive] = domain.sensitive_values.cpu()
    forest = replace(forest, link="none")
    axes = tree_axes(forest, domain, classes, margins.matrix[0])
    cells = torch.stack([forest.cells[c][values[:, c]] for c in sensitive], 1)
    kind = torch.unique(cells, dim=0, return_inverse=True)[1]
    example = torch.stack([(kind == k).nonzero()[0, 0] for k in range(int(kind.max()) + 1)])
    branches = TreeGrower(forest, Space(axes), margins.matrix).branches(values[example])
    moved = (_moved(part, device) for part in (forest, values[example], kind, branches))
    return TreeBounds(Space(axes, device), margins, *moved)


def _moved(thing: Any, device: torch.device) -> Any:
    """Return a tensor, or all tensors of a dataclass, on a device."""
    if isinstance(thing, Tensor):
        return thing.to(device)
    if isinstance(thing, tuple):
        return tuple(_moved(part, device) for part in thing)
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    return replace(thing, **{field.name: _moved(getattr(thing, field.name), device) for field in fields(thing)})
