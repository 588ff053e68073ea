"""Lines below and above sums of trees, which are laid out level by level for bounding many boxes at once.

A tree is bounded from below by a sum of functions of one axis each, from its leaves to its root. Let a node ask about
axis a, and let its children be bounded by sums l and r. On every other axis i the node's own function is the smaller of
l_i and r_i - s_i, where the shift s_i is given back, on axis a, to records that go right. So neither child is exceeded.
A function has a number for each *part* of its axis: a set of positions that the tree does not tell apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple

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
LOSS_REGAINED = 0.5  # of what two parts of another axis lose, about, when a cut separates them
MAX_PARTS = 2_000_000  # of all functions of all nodes: so many numbers a box takes
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 1 << 30)


@dataclass(frozen=True)
class Block:
    """Functions of the nodes of one height, on axes that these do not ask about, of equally many parts."""

    left: Tensor  # (functions, parts) the row of each part in the left child; 0: it does not depend on the axis
    right: Tensor
    sets: Tensor  # (functions, parts) the set of positions of each part
    node: Tensor  # (functions,) whose function it is, counted within the level
    cuts: Tensor  # (features, functions) sparse: how much of what a function loses a cut before a position regains
    first_row: int


@dataclass(frozen=True)
class Level:
    """The nodes of one height, and their functions on the axes that they ask about."""

    blocks: tuple[Block, ...]
    nodes: slice  # among all nodes
    sides: Tensor  # (2, nodes) the sets of positions that go left, and right
    children: Tensor  # (2, nodes) their numbers among all nodes; the one behind the last for leaves
    child_row: Tensor  # (parts,) the row of the part in the child it leads to, or 0
    leaf: Tensor  # (parts, margins) what the child adds if it is a leaf
    shift: Tensor  # (parts,) 1 + the node, within the level, if the part goes right, else 0
    first_row: int


@dataclass(frozen=True)
class Branches:
    """All trees for each *kind* of sensitive values, those that no tree tells apart."""

    codes_before: tuple[Tensor, ...]  # per axis (sets, positions + 1): how many codes of a set stand before a position
    levels: tuple[Level, ...]
    node_count: int
    row_count: int
    roots: Tensor  # the nodes at which trees begin
    steps: Tensor  # (((1 + kinds) · features), rows) sparse: from position to position, of all kinds and of each
    offset: Tensor  # (kinds, margins) the sums of trees that are one leaf
    tree_count: int
    roundings: int  # on the way from the leaves to the roots of a value's trees, at most
    telling_sets: Tensor  # (nodes, most axes) sets: positions in all of which lead to a node that tells kinds apart


@dataclass(frozen=True)
class Node:
    """A node of a tree over positions."""

    axis: int
    sides: tuple[Marks, Marks]  # positions that go left, and right
    children: tuple[SplitTree, SplitTree]


SplitTree = Node | npt.NDArray[np.float64]  # a leaf is what it adds to the margins
SetKey = tuple[int, int]  # a set of positions: its axis, and its number among the sets of this axis
NodeKey = tuple[int, int]  # a node: its height, and its number among the nodes of this height
FunctionRows = dict[int, dict[int, int]]  # the rows of a node's functions: by axis and part
TreeParts = dict[int, npt.NDArray[np.int64]]  # by axis of a tree: the part of each position


class _DraftNode(NamedTuple):
    """A node before the rows of its functions are numbered."""

    node: Node
    sides: list[SetKey]
    children: list[NodeKey | None]
    parts: TreeParts  # of its tree
    sets: dict[int, list[SetKey]]  # by axis of its tree: the positions of each part


class _Function(NamedTuple):
    """A function of a node on an axis that it does not ask about, and the rows of its children's functions by part."""

    node: int
    axis: int
    left: dict[int, int]
    right: dict[int, int]
    parts: list[int]


def _find_width(function: _Function) -> int:
    return next(width for width in WIDTHS if len(function.parts) <= width)


class TreeLayout:
    """Lays trees out: collects their nodes by height, then numbers the rows of their functions, the lowest first."""

    def __init__(self, space: Space, margins: int) -> None:
        self._space, self._margins = space, margins
        self._sets: list[dict[bytes, tuple[int, Marks]]] = [{} for _ in space.axes]
        self.find_set(0, np.zeros(len(space.axes[0]), dtype=bool))  # number 0: no position
        self._nodes: list[list[_DraftNode]] = []  # by height
        self._roots: list[tuple[NodeKey, Sequence[int]]] = []  # the root of each tree, and the kinds that it counts for
        self._telling_sets: list[list[SetKey]] = []
        self._rows: dict[NodeKey | None, FunctionRows] = {None: {}}
        self._tree_count, self._part_count, self._roundings = 0, 0, Counter[int]()

    def find_set(self, axis: int, marks: Marks) -> SetKey:
        """Return the key of a set of positions."""
        sets = self._sets[axis]
        return axis, sets.setdefault(marks.tobytes(), (len(sets), marks))[0]

    def add(self, tree: SplitTree, kinds: Sequence[int]) -> None:
        """Add a tree that counts for some kinds of sensitive values: 0 for all, else 1 + their numbers."""
        self._tree_count += 1
        if not isinstance(tree, Node):
            return
        parts = _find_parts(tree)
        sets = {a: [self.find_set(a, part == p) for p in range(part.max() + 1)] for a, part in parts.items()}
        root = self._add_node(tree, parts, sets)
        self._roots.append((root, kinds))
        others = len(parts) - 1  # a shift is up to twice the largest number, and so many are added up on each level
        for kind in kinds:
            self._roundings[kind] += (root[0] + 1) * (4 + 2 * others + 2 * others**2)

    def add_telling_node(self, marks_by_axis: dict[int, Marks]) -> None:
        """Add positions that lead to a node which tells sensitive values apart."""
        marks_by_axis = marks_by_axis or {0: np.ones(len(self._space.axes[0]), dtype=bool)}
        self._telling_sets.append([self.find_set(axis, marks) for axis, marks in marks_by_axis.items()])

    def _add_node(self, node: Node, parts: TreeParts, sets: dict[int, list[SetKey]]) -> NodeKey:
        """Put a node behind its children among those of its height, and return its key."""
        children = [self._add_node(child, parts, sets) if isinstance(child, Node) else None for child in node.children]
        height = max(0 if child is None else child[0] + 1 for child in children)
        if len(self._nodes) == height:
            self._nodes.append([])
        self._count_parts(sum(len(np.unique(parts[node.axis][side])) for side in node.sides))
        sides = [self.find_set(node.axis, side) for side in node.sides]
        self._nodes[height].append(_DraftNode(node, sides, children, parts, sets))
        return height, len(self._nodes[height]) - 1

    def _count_parts(self, parts: int) -> None:
        self._part_count += parts
        if self._part_count >= MAX_PARTS:
            raise Unprovable("its trees are too large to be bounded")

    def build_branches(self, kinds: int, offset: Tensor) -> Branches:
        """Return everything that was added."""
        keys = [(axis, number) for axis, sets in enumerate(self._sets) for number in range(len(sets))]
        set_numbers = {key: number for number, key in enumerate(keys)}
        first_node = [0, *accumulate(map(len, self._nodes))]
        levels, rows = list[Level](), 1  # row 0 is 0
        for height in range(len(self._nodes)):
            level, rows = self._build_level(height, rows, first_node, set_numbers)
            levels.append(level)
        most_axes = max(map(len, self._telling_sets), default=0)
        padded = ([*sets, *sets[:1] * (most_axes - len(sets))] for sets in self._telling_sets)
        telling_sets = [[set_numbers[key] for key in sets] for sets in padded]
        return Branches(
            tuple(self._count_codes_before(axis) for axis in range(len(self._sets))),
            tuple(levels),
            first_node[-1],
            rows,
            torch.tensor([first_node[height] + number for (height, number), _ in self._roots], dtype=torch.int64),
            sparse(self._find_steps(), ((1 + kinds) * self._space.features, rows)),
            offset,
            self._tree_count,
            self._roundings[0] + max(self._roundings[1 + kind] for kind in range(kinds)),
            torch.tensor(telling_sets, dtype=torch.int64).reshape(len(telling_sets), most_axes),
        )

    def _build_level(
        self, height: int, row: int, first_node: Sequence[int], set_numbers: dict[SetKey, int]
    ) -> tuple[Level, int]:
        """Return the nodes of a height, whose functions have the rows from `row` on, and the row behind the last."""
        drafts, functions, blocks = self._nodes[height], list[_Function](), list[Block]()
        for node, draft in enumerate(drafts):
            left, right = (self._rows[child] for child in draft.children)
            for axis in sorted({*left, *right} - {draft.node.axis}):
                rows = left.get(axis, {}), right.get(axis, {})
                functions.append(_Function(node, axis, *rows, sorted({*rows[0], *rows[1]})))
            self._rows[height, node] = {draft.node.axis: {}}
        for _, group in groupby(sorted(functions, key=_find_width), _find_width):
            blocks.append(self._build_block(height, row, list(group), set_numbers))
            row += blocks[-1].left.numel()
        child_rows, leaves, shifts = list[int](), list[npt.NDArray[np.float64]](), list[int]()
        for node, draft in enumerate(drafts):
            axis = draft.node.axis
            children = zip(draft.node.sides, draft.node.children, draft.children, strict=True)
            for goes_right, (side, child, key) in enumerate(children):
                for part in np.unique(draft.parts[axis][side]).tolist():
                    self._rows[height, node][axis][part] = row + len(child_rows)
                    child_rows.append(self._rows[key].get(axis, {}).get(part, 0))
                    leaves.append(np.zeros(self._margins) if isinstance(child, Node) else child)
                    shifts.append((1 + node) * goes_right)
        numbers = [[first_node[-1] if c is None else first_node[c[0]] + c[1] for c in d.children] for d in drafts]
        level = Level(
            tuple(blocks),
            slice(*first_node[height : height + 2]),
            torch.tensor([[set_numbers[side] for side in draft.sides] for draft in drafts]).T,
            torch.tensor(numbers).T,
            torch.tensor(child_rows),
            torch.from_numpy(np.array(leaves)),
            torch.tensor(shifts),
            row,
        )
        return level, row + len(child_rows)

    def _build_block(
        self, height: int, first_row: int, functions: Sequence[_Function], set_numbers: dict[SetKey, int]
    ) -> Block:
        """Return functions of nodes of a height, whose parts have the rows from `first_row` on."""
        shape = len(functions), max(len(function.parts) for function in functions)
        table, cuts = np.zeros((3, *shape), dtype=np.int64), list[tuple[int, int, float]]()
        for i, (node, axis, left, right, parts) in enumerate(functions):
            draft = self._nodes[height][node]
            self._count_parts(len(parts))
            self._rows[height, node][axis] = {part: first_row + i * shape[1] + j for j, part in enumerate(parts)}
            for j, part in enumerate(parts):
                table[:, i, j] = left.get(part, 0), right.get(part, 0), set_numbers[draft.sets[axis][part]]
            sides = np.select(draft.node.sides, [0, 1], -1)
            reached_parts = np.where(np.isin(draft.parts[axis], parts), draft.parts[axis], -1)
            cuts += [(feature, i, share) for feature, share in self._find_cuts(draft.node.axis, sides)]
            cuts += [(feature, i, LOSS_REGAINED * share) for feature, share in self._find_cuts(axis, reached_parts)]
        lefts, rights, sets, nodes = *torch.from_numpy(table), torch.tensor([function.node for function in functions])
        return Block(lefts, rights, sets, nodes, sparse(cuts, (self._space.features, len(functions))), first_row)

    def _find_cuts(self, axis: int, part: npt.NDArray[np.int64]) -> list[tuple[int, float]]:
        """Return the features before which the part of a position changes, each with its share; -1 is no part."""
        reached = np.flatnonzero(part >= 0)
        changes = reached[1:][part[reached[1:]] != part[reached[:-1]]] + self._space.first_features[axis]
        return [(feature, 1 / len(changes)) for feature in changes.tolist()]

    def _find_steps(self) -> list[tuple[int, int, float]]:
        """Return where the functions of roots change: the feature, the row that begins or ends there, and 1 or -1."""
        steps = []
        for (height, number), kinds in self._roots:
            for axis, rows in self._rows[height, number].items():
                row_at = np.array([rows[part] for part in self._nodes[height][number].parts[axis].tolist()])
                changes = [0, *(np.flatnonzero(row_at[1:] != row_at[:-1]) + 1).tolist()]
                for kind in kinds:
                    first = kind * self._space.features + self._space.first_features[axis]
                    steps += [(first + position, int(row_at[position]), 1.0) for position in changes]
                    steps += [(first + position, int(row_at[position - 1]), -1.0) for position in changes[1:]]
        return steps

    def _count_codes_before(self, axis: int) -> Tensor:
        """Return how many codes of each set of an axis stand before each position: (sets, positions + 1)."""
        sets, counts = self._sets[axis], self._space.axes[axis].count.cpu().numpy()
        before = np.zeros((len(sets), len(counts) + 1))
        for number, marks in sets.values():
            before[number, 1:] = (marks * counts).cumsum()
        return torch.from_numpy(before)


def sparse(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix of (row, column, number)."""
    index = torch.tensor([entry[:2] for entry in entries], dtype=torch.int64).reshape(-1, 2).T
    numbers = torch.tensor([entry[2] for entry in entries], dtype=torch.float64)
    return torch.sparse_coo_tensor(index, numbers, shape, check_invariants=True).coalesce()


def _find_parts(tree: Node) -> dict[int, npt.NDArray[np.int64]]:
    """Return for each axis that a tree asks about the part of each position."""
    sides: dict[int, list[Marks]] = {}
    pending: list[SplitTree] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, Node):
            sides.setdefault(node.axis, []).extend(node.sides)
            pending.extend(node.children)
    return {axis: np.unique(np.array(marks), axis=1, return_inverse=True)[1].ravel() for axis, marks in sides.items()}


CELLS_PER_PASS = 64  # of an attribute, whose effects are computed at a time


def build_axes(forest: Forest, domain: TableDomain, classes: Sequence[Tensor], weights: Tensor) -> tuple[Axis, ...]:
    """Return every attribute that is not sensitive as positions that neither trees nor rules tell apart.

    `classes` are those of the rules, for each code; -1 is outside. `weights` say what of the outputs matters: values of
    a nominal attribute that move it alike stand together, so that a cut between them tells something.
    """
    return tuple(
        _build_axis(c, forest.cells[c], classes[c], None if attribute.is_ordered else _find_effects(forest, c, weights))
        for c, attribute in enumerate(domain.attributes)
        if c not in domain.sensitive_columns
    )


def _build_axis(column: int, cells: Tensor, classes: Tensor, effect: Tensor | None) -> Axis:
    """Return an attribute as positions that neither trees nor rules tell apart, in order of their codes or effects."""
    codes = (classes >= 0).nonzero()[:, 0]
    classes_and_cells = cells * (int(classes.max()) + 1) + classes
    _, position, count = torch.unique(classes_and_cells[codes], return_inverse=True, return_counts=True)
    first_code = torch.full_like(count, len(classes)).scatter_reduce(0, position, codes, "amin")
    order = first_code.argsort()
    if effect is not None:
        order = order[effect[cells[first_code[order]]].argsort(stable=True)]
    position_of_code = torch.full_like(classes, -1)
    position_of_code[codes] = order.argsort()[position]
    return Axis(column, position_of_code, first_code[order], count[order], linear=False)


def _find_effects(forest: Forest, column: int, weights: Tensor) -> Tensor:
    """Return the mean of the trees for each cell of an attribute, if others send records left and right alike."""
    effects = []
    for cells in torch.split(torch.arange(int(forest.cells[column].max()) + 1), CELLS_PER_PASS):
        leaf = (forest.value @ weights)[:, None].expand(-1, len(cells))
        mean, left_share = leaf, torch.where((forest.attribute == column)[:, None], forest.side[:, cells].double(), 0.5)
        for _ in range(forest.depth):
            child_mean = left_share * mean[forest.left] + (1 - left_share) * mean[forest.right]
            mean = torch.where((forest.attribute < 0)[:, None], leaf, child_mean)
        effects.append(mean[forest.roots].sum(0))
    return torch.cat(effects)


class TreeGrower:
    """Makes trees over positions of trees over codes, one for each kind of sensitive values that they tell apart."""

    def __init__(self, forest: Forest, space: Space, matrix: Tensor) -> None:
        self._forest, self._matrix = forest, matrix
        self._attribute, self._left, self._right = (t.tolist() for t in (forest.attribute, forest.left, forest.right))
        self._value = (forest.value @ matrix.T).numpy()
        self._axis_of_column = {axis.column: number for number, axis in enumerate(space.axes)}
        self._cells = [forest.cells[axis.column][axis.codes] for axis in space.axes]
        self._layout = TreeLayout(space, self._value.shape[1])

    def build_branches(self, rows: Tensor) -> Branches:
        """Return all trees; `rows` have the sensitive values of each kind."""
        offset = (self._forest.base @ self._matrix.T).expand(len(rows), -1).clone()
        for root in self._forest.roots.tolist():
            kinds_by_sides: dict[tuple[bool, ...], list[int]] = {}
            telling_nodes = self._find_telling_nodes(root, {})
            for kind, row in enumerate(rows):
                sides = tuple(bool(self._goes_left(node, row)) for node in telling_nodes)
                kinds_by_sides.setdefault(sides, []).append(kind)
            for kinds in kinds_by_sides.values():
                tree = self._restrict_tree(root, rows[kinds[0]], {})
                if isinstance(tree, np.ndarray):
                    offset[kinds] += torch.from_numpy(tree)
                self._layout.add(tree, [0] if len(kinds_by_sides) == 1 else [1 + kind for kind in kinds])
        return self._layout.build_branches(len(rows), offset)

    def _goes_left(self, node: int, row: Tensor) -> bool:
        column = self._attribute[node]
        return bool(self._forest.side[node, self._forest.cells[column][row[column]]])

    def _split_positions(self, node: int, marks_by_axis: dict[int, Marks]) -> tuple[int, Marks, Marks]:
        """Return the axis that a node asks about, and which of its positions go left and right."""
        axis = self._axis_of_column[self._attribute[node]]
        reached = marks_by_axis.get(axis, np.ones(len(self._cells[axis]), dtype=bool))
        side = self._forest.side[node, self._cells[axis]].numpy()
        return axis, reached & side, reached & ~side

    def _find_telling_nodes(self, node: int, marks_by_axis: dict[int, Marks]) -> list[int]:
        """Return the nodes of a tree that tell sensitive values apart, and say which positions lead there."""
        if self._attribute[node] < 0:
            return []
        children = (self._left[node], self._right[node])
        if self._attribute[node] not in self._axis_of_column:
            self._layout.add_telling_node(marks_by_axis)
            return [node, *(n for child in children for n in self._find_telling_nodes(child, marks_by_axis))]
        axis, *sides = self._split_positions(node, marks_by_axis)
        reached = [(child, side) for child, side in zip(children, sides, strict=True) if side.any()]
        return [n for child, side in reached for n in self._find_telling_nodes(child, {**marks_by_axis, axis: side})]

    def _restrict_tree(self, node: int, row: Tensor, marks_by_axis: dict[int, Marks]) -> SplitTree:
        """Return a tree for the sensitive values of a row."""
        if self._attribute[node] < 0:
            leaf: SplitTree = self._value[node]
            return leaf
        children = (self._left[node], self._right[node])
        if self._attribute[node] not in self._axis_of_column:
            return self._restrict_tree(children[0 if self._goes_left(node, row) else 1], row, marks_by_axis)
        axis, left, right = self._split_positions(node, marks_by_axis)
        if not (left.any() and right.any()):
            return self._restrict_tree(children[0 if left.any() else 1], row, marks_by_axis)
        sides = zip(children, (left, right), strict=True)
        lower, upper = (self._restrict_tree(child, row, {**marks_by_axis, axis: side}) for child, side in sides)
        return Node(axis, (left, right), (lower, upper))


MERGE_TYPE = torch.float32  # functions are merged in it, with room for its rounding, and added up in float64
EPS, MERGE_EPS = torch.finfo(torch.float64).eps, torch.finfo(MERGE_TYPE).eps
EVEN_CUT_BONUS = 1e-12  # an even cut, where nothing else speaks for one
NUMBERS_PER_PASS = {"cpu": 1 << 22, "cuda": 1 << 29}


@dataclass(frozen=True)
class TreeBounds:
    """An ensemble of trees over the positions of a space."""

    space: Space
    margins: Margins
    forest: Forest  # with its sums as scores
    kind_rows: Tensor  # (kinds, attributes) rows with sensitive values that some tree tells apart, 0 elsewhere
    kind_of_value: Tensor  # (values,) of which kind each combination of sensitive values is
    branches: Branches
    strategy_count: int = 1

    def estimate_cost(self, strategy: int) -> float:
        """Return the cost of the only strategy."""
        return 1.0

    @cached_property
    def enumeration_factor(self) -> float:
        """How many times larger boxes are enumerated than of a network, because bounding trees takes longer."""
        bounding = 2 * len(self.margins.matrix) * self.branches.row_count
        return min(16.0, max(1.0, bounding / (2 * len(self.kind_rows) * self.forest.operations)))

    @cached_property
    def slack(self) -> Tensor:
        """How far the margins of rows may be off by rounding: (margins,)."""
        forest, matrix = self.forest, self.margins.matrix.abs().to(self.space.device)
        size = (forest.value.abs().amax(0) * len(forest.roots) + forest.base.abs()) @ matrix.T
        size = size + self.margins.offset.abs().to(size) + 1
        return 4 * EPS * (len(forest.roots) + 8) * size + self.margins.end_error

    def compute_margins(self, points: Tensor) -> Tensor:
        """Return the margins of records at points (n, axes), with every sensitive value: (n, values, margins)."""
        kinds = len(self.kind_rows)
        step = max(1, NUMBERS_PER_PASS[points.device.type] // (len(self.forest.roots) * kinds))
        result = torch.empty(len(points), kinds, len(self.margins.matrix), dtype=torch.float64, device=points.device)
        for start in range(0, len(points), step):
            part = points[start : start + step]
            rows = self.kind_rows.repeat(len(part), 1, 1)
            for axis, positions in zip(self.space.axes, part.T, strict=True):
                rows[:, :, axis.column] = axis.codes.to(positions.device)[positions][:, None]
            sums = self.forest.scores(rows.flatten(0, 1)).view(len(part), kinds, -1)
            result[start : start + step] = self.margins.compute(sums)
        return result[:, self.kind_of_value]

    def find_lines(self, boxes: Boxes, inner: Tensor | None = None, strategy: int = 0) -> Lines:
        """Return lines over boxes, the axis on which each is best cut, and where no sensitive value matters."""
        numbers = 2 * len(self.margins.matrix) * self.branches.row_count
        step = max(1, NUMBERS_PER_PASS[boxes.low.device.type] // numbers)
        parts = [self._find_lines(boxes[slice(i, i + step)]) for i in range(0, len(boxes), step)]
        low, low_offset, high, high_offset, same_margins, cut = (torch.cat(part) for part in zip(*parts, strict=True))
        return Lines(low, low_offset, high, high_offset, same_margins=same_margins, best_cut=cut)

    def _find_lines(self, boxes: Boxes) -> tuple[Tensor, ...]:
        branches, margins, n = self.branches, len(self.margins.matrix), len(boxes)
        before, low, high = branches.codes_before, boxes.low.T, boxes.high.T + 1
        codes_inside = torch.cat([b[:, high[axis]] - b[:, low[axis]] for axis, b in enumerate(before)]).to(MERGE_TYPE)
        reached_shares = self._find_reached_shares(codes_inside)
        values = torch.empty(branches.row_count, 2, margins, n, dtype=MERGE_TYPE, device=codes_inside.device)
        values[0] = 0.0
        losses = torch.zeros(self.space.features, n, dtype=torch.float64, device=codes_inside.device)
        for level in branches.levels:
            self._bound_level(level, codes_inside, reached_shares[level.nodes], values, losses)
        sums = (branches.steps @ values.view(branches.row_count, -1).double()).view(
            -1, self.space.features, 2, margins, n
        )
        for start, axis in zip(self.space.first_features, self.space.axes, strict=False):
            torch.cumsum(sums[:, start : start + len(axis)], 1, out=sums[:, start : start + len(axis)])
        sums = (sums[1:] + sums[0])[self.kind_of_value].permute(2, 4, 0, 3, 1)  # (sign, n, values, margins, features)
        largest = torch.stack(values.aminmax()).abs().max().double()
        additions = branches.tree_count * branches.steps._nnz()
        rounding = largest * (MERGE_EPS * branches.roundings + 4 * EPS * additions) + self.slack
        offset = (branches.offset + self.margins.offset.to(codes_inside.device))[self.kind_of_value]
        same_margins = (codes_inside[branches.telling_sets] == 0).any(1).all(0)
        low_offset, high_offset = ((offset + sign * rounding).expand(n, -1, -1) for sign in (-1, 1))
        return sums[0], low_offset, -sums[1], high_offset, same_margins, self._choose_cut(boxes, losses)

    def _choose_cut(self, boxes: Boxes, losses: Tensor) -> Tensor:
        """Return where each box is best cut: its axis, and the last position of the lower half.

        A cut regains what nodes that ask about this position lose, and in one of the halves what those lose that ask
        about others of the axis.
        """
        best_gains, best_cuts = list[Tensor](), list[Tensor]()
        for axis, start, count in self.space.tables:
            low, high = boxes.low[:, axis], boxes.high[:, axis]
            upper_start = torch.arange(1, len(count), device=low.device)[:, None]  # the first position above the cut
            is_inside = (upper_start > low) & (upper_start <= high)
            loss = torch.where(is_inside, losses[start + 1 : start + len(count)], 0.0)
            loss_below = loss.cumsum(0)
            codes = torch.cat([count.new_zeros(1), count.cumsum(0)])
            lower = (codes[1:-1, None] - codes[low]) / (codes[high + 1] - codes[low])
            gain = loss + (1 - lower) * (loss_below - loss) + lower * (loss_below[-1:] - loss_below)
            gain = (gain + EVEN_CUT_BONUS * lower * (1 - lower)).masked_fill(~is_inside, -torch.inf)
            best_gain, position = gain.max(0) if len(count) > 1 else (low - torch.inf, low)
            best_gains.append(best_gain)
            best_cuts.append(torch.stack([torch.full_like(position, axis), position], 1))
        best_axis = torch.stack(best_gains).argmax(0)
        return torch.stack(best_cuts)[best_axis, torch.arange(len(boxes), device=best_axis.device)]

    def _find_reached_shares(self, codes_inside: Tensor) -> Tensor:
        """Return which share of each box reaches each node: (nodes + 1, n)."""
        branches = self.branches
        reached = torch.zeros(
            branches.node_count + 1, codes_inside.shape[1], dtype=MERGE_TYPE, device=codes_inside.device
        )
        reached[branches.roots] = 1.0
        for level in reversed(branches.levels):
            left, right = codes_inside[level.sides[0]], codes_inside[level.sides[1]]
            share = reached[level.nodes] / (left + right).clamp(min=1.0)
            reached[level.children[0]], reached[level.children[1]] = share * left, share * right
        return reached

    def _bound_level(self, level: Level, codes_inside: Tensor, reached: Tensor, values: Tensor, losses: Tensor) -> None:
        """Bound the nodes of a level by what their children are bounded by, and add up how much that loses, by axis."""
        left, right = codes_inside[level.sides[0]], codes_inside[level.sides[1]]
        goes_right = right / (left + right).clamp(min=1.0)
        shifts = values.new_zeros(1 + len(goes_right), *values.shape[1:])
        for block in level.blocks:
            shift, loss = _merge_children(block, codes_inside, goes_right[block.node][:, None, None], values)
            shifts.index_add_(0, block.node + 1, shift)
            loss = loss.sum((1, 2)) * reached[block.node]
            losses += block.cuts @ loss.double()
        asked_values = values.flatten(1).index_select(0, level.child_row).view(-1, *values.shape[1:])
        asked_values += shifts[level.shift]
        asked_values += torch.stack([level.leaf, -level.leaf], 1)[..., None].to(MERGE_TYPE)
        values[level.first_row : level.first_row + len(asked_values)] = asked_values


def _merge_children(block: Block, codes_inside: Tensor, goes_right: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Write the smaller of the children's functions, the right one less a shift; return the shifts, and what is lost.

    With d the right less the left function, a shift of s loses (s - d)+ on the left and (d - s)+ on the right: the best
    is a quantile of d. Its least, its mean and its greatest value are tried.
    """
    shape = (*block.left.shape, *values.shape[1:])  # (functions, parts, 2, margins, n)
    flat = values.flatten(1)
    left, right = (flat.index_select(0, rows.flatten()).view(shape) for rows in (block.left, block.right))
    weight = codes_inside[block.sets][:, :, None, None]
    share = weight / weight.sum(1, keepdim=True).clamp(min=1.0)
    outside = torch.where(weight > 0, 0.0, torch.inf)
    gap = right - left
    low, high, mean = (gap + outside).amin(1), (gap - outside).amax(1), (gap * share).sum(1)
    shift, loss = low, goes_right * (mean - low)
    candidates = [(high, (1 - goes_right) * (high - mean))]
    if gap.shape[1] > 2:
        candidates.append((mean, ((mean[:, None] - gap).clamp(min=0) * share).sum(1)))
    for candidate, candidate_loss in candidates:
        better = candidate_loss < loss
        shift, loss = torch.where(better, candidate, shift), torch.where(better, candidate_loss, loss)
    shift = torch.where(low <= high, shift, 0.0)  # not where no position of the axis can come here
    merged = torch.minimum(left, right - shift[:, None]).flatten(0, 1)
    values[block.first_row : block.first_row + len(merged)] = merged
    return shift, torch.where(low <= high, loss, 0.0)


def build_tree_bounds(
    forest: Forest, domain: TableDomain, classes: Sequence[Tensor], margins: Margins, device: torch.device
) -> TreeBounds:
    """Return trees ready for a proof; `classes` are those of codes that rules do not tell apart; -1: outside."""
    if margins.squash:
        raise Unprovable("a tolerance on probabilities of trees cannot be proved")
    sensitive = list(domain.sensitive_columns)
    values = torch.zeros(len(domain.sensitive_values), len(domain.attributes), dtype=torch.int64)
    values[:, sensitive] = domain.sensitive_values.cpu()
    forest = replace(forest, link="none")
    axes = build_axes(forest, domain, classes, margins.matrix[0])
    cells = torch.stack([forest.cells[column][values[:, column]] for column in sensitive], 1)
    kind_of_value = torch.unique(cells, dim=0, return_inverse=True)[1]
    examples = torch.stack([(kind_of_value == kind).nonzero()[0, 0] for kind in range(int(kind_of_value.max()) + 1)])
    branches = TreeGrower(forest, Space(axes), margins.matrix).build_branches(values[examples])
    parts = (_move_to_device(part, device) for part in (forest, values[examples], kind_of_value, branches))
    return TreeBounds(Space(axes, device), margins, *parts)


def _move_to_device(value: Any, device: torch.device) -> Any:
    """Return a tensor, or all tensors of a tuple or dataclass, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_move_to_device(element, device) for element in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{f.name: _move_to_device(getattr(value, f.name), device) for f in fields(value)})
