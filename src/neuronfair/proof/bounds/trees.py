"""Lines below and above sums of trees: every tree lies above a sum of functions of one axis each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable
from neuronfair.model.forest import Forest
from neuronfair.proof.bounds.margins import Lines, Margins
from neuronfair.proof.bounds.tree_layout import Block, Branches, Level, Marks, Node, SplitTree, TreeLayout
from neuronfair.proof.boxes.space import Axis, Boxes, Space

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
    """Return the mean of the trees for each cell of an attribute, if others send people left and right alike."""
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
        ways = [(child, side) for child, side in zip(children, sides, strict=True) if side.any()]
        return [found for child, side in ways for found in self._telling(child, {**inside, axis: side})]

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
NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 29}  # that are handled at a time


@dataclass(frozen=True)
class TreeBounds:
    """An ensemble of trees as a prover asks it."""

    space: Space
    margins: Margins
    forest: Forest  # with its sums as scores
    kinds: Tensor  # (kinds, attributes) rows with sensitive values that some tree tells apart, 0 elsewhere
    kind: Tensor  # (values,) of which kind each combination of sensitive values is
    branches: Branches
    ways: int = 1

    def cost(self, way: int) -> float:
        """Return about how long a way takes: there is one."""
        return 1.0

    @cached_property
    def slack(self) -> Tensor:
        """How far the margins of rows may be off by rounding: (margins,)."""
        forest, matrix = self.forest, self.margins.matrix.abs().to(self.space.device)
        size = (forest.value.abs().amax(0) * len(forest.roots) + forest.base.abs()) @ matrix.T
        return 4 * EPS * (len(forest.roots) + 8) * (size + self.margins.offset.abs().to(size) + 1)

    def margins_at(self, places: Tensor) -> Tensor:
        """Return the margins of people at places (n, axes), with every sensitive value: (n, values, margins)."""
        kinds = len(self.kinds)
        step = max(1, NUMBERS[places.device.type] // (len(self.forest.roots) * kinds))
        result = torch.empty(len(places), kinds, len(self.margins.matrix), dtype=torch.float64, device=places.device)
        for start in range(0, len(places), step):
            some = places[start : start + step]
            rows = self.kinds.repeat(len(some), 1, 1)
            for axis, place in zip(self.space.axes, some.T, strict=True):
                rows[:, :, axis.column] = axis.codes.to(place.device)[place][:, None]
            sums = self.forest.scores(rows.flatten(0, 1)).view(len(some), kinds, -1)
            result[start : start + step] = self.margins.of(sums)
        return result[:, self.kind]

    def lines(self, boxes: Boxes, inner: Tensor | None = None, way: int = 0) -> Lines:
        """Return lines over boxes, the axis on which each is best cut, and where no sensitive value matters."""
        step = max(1, NUMBERS[boxes.low.device.type] // (2 * len(self.margins.matrix) * self.branches.rows))
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
