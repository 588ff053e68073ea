"""Trees over codes as trees over places: one for each kind of sensitive values that a tree tells apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neuronfair.certify.branches import Branches, Layout, Marks, Node, Tree
from neuronfair.certify.space import Axis, Space
from neuronfair.domain.table import TableDomain
from neuronfair.model.forest import Forest

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


class Growing:
    """Makes trees over places of trees over codes, one for each kind of sensitive values that they tell apart."""

    def __init__(self, forest: Forest, space: Space, matrix: Tensor) -> None:
        self._forest, self._matrix = forest, matrix
        self._attribute, self._left, self._right = (t.tolist() for t in (forest.attribute, forest.left, forest.right))
        self._value = (forest.value @ matrix.T).numpy()
        self._axis = {axis.column: number for number, axis in enumerate(space.axes)}
        self._cells = [forest.cells[axis.column][axis.codes] for axis in space.axes]
        self._layout = Layout(space, self._value.shape[1])

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

    def _grown(self, node: int, row: Tensor, inside: dict[int, Marks]) -> Tree:
        """Return a tree for the sensitive values of a row."""
        if self._attribute[node] < 0:
            leaf: Tree = self._value[node]
            return leaf
        children = (self._left[node], self._right[node])
        if self._attribute[node] not in self._axis:
            return self._grown(children[0 if self._goes(node, row) else 1], row, inside)
        axis, left, right = self._parted(node, inside)
        if not (left.any() and right.any()):
            return self._grown(children[0 if left.any() else 1], row, inside)
        grown = [self._grown(c, row, {**inside, axis: s}) for c, s in zip(children, (left, right), strict=True)]
        return Node(axis, (left, right), (grown[0], grown[1]))
