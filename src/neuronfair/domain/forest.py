"""All columns' trees in a few tensors, so that many people go down all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.conditionals import Tree


@dataclass(frozen=True)
class Forest:
    """A tree of chances for each column. Nodes are numbered through all trees; a leaf leads to itself."""

    roots: Tensor  # (d,) the first node of each column's tree
    widths: Tensor  # (d,) places of each column
    asks: Tensor  # (nodes,) which column is asked; d in a leaf
    base: Tensor  # (nodes,) where its children begin in `children`
    children: Tensor  # a node for each place of the asked column; in a leaf one, itself
    chances: Tensor  # of all nodes, one after the other: each as wide as its column

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Forest:
        """Join the trees of all columns."""
        d, count = len(trees), np.array([len(tree.column) for tree in trees])
        roots = count.cumsum() - count
        asks = np.concatenate([np.where(tree.column < 0, d, tree.column) for tree in trees])
        goes = [
            root + (np.array([node]) if tree.column[node] < 0 else tree.children[node])
            for root, tree in zip(roots, trees, strict=True)
            for node in range(len(tree.column))
        ]
        length = np.array([len(children) for children in goes])
        widths = np.array([tree.chances.shape[1] for tree in trees])
        chances = np.concatenate([tree.chances.ravel() for tree in trees])
        parts = (roots, widths, asks, length.cumsum() - length, np.concatenate(goes), chances)
        return cls(*map(torch.from_numpy, parts))

    def to(self, device: str | torch.device) -> Forest:
        """Return these trees on another device."""
        return Forest(*(getattr(self, field.name).to(device) for field in fields(self)))

    def leaves(self, places: Tensor) -> Tensor:
        """Return in which leaf of each column's tree rows end, numbered within the tree: (d, n).

        `places` are (d + 1, n), the last of them 0: what a leaf asks for.
        """
        deepest = self._by_depth
        nodes = self.roots[deepest, None].repeat(1, places.shape[1])
        for going in self._going:
            nodes[:going] = self._below(nodes[:going], places)
        leaves = torch.empty_like(nodes)
        leaves[deepest] = nodes
        return leaves - self.roots[:, None]

    def log_chances(self, leaves: Tensor, places: Tensor) -> Tensor:
        """Return the logarithm of the chance of each column's place in its leaf: (d, n)."""
        return taken(self._logs, self._starts[:, None] + leaves * self.widths[:, None] + places[:-1])

    def chances_of(self, column: int, places: Tensor) -> Tensor:
        """Return the chances of a column's places, given the places (d + 1, n) of those it asks: (n, places)."""
        return taken(self.table(column), self.leaves_of(column, places))

    def leaves_of(self, column: int, places: Tensor) -> Tensor:
        """Return in which leaf of a column's tree rows end, numbered within the tree: (n,)."""
        nodes = self.roots[column].repeat(places.shape[1])
        for _ in range(self._depths[column]):
            nodes = self._below(nodes, places)
        return nodes - self.roots[column]

    def _below(self, nodes: Tensor, places: Tensor) -> Tensor:
        n = places.shape[1]
        asked = taken(places.view(-1), taken(self.asks, nodes) * n + torch.arange(n, device=nodes.device))
        return taken(self.children, taken(self.base, nodes) + asked)

    def table(self, column: int) -> Tensor:
        """Return the chances in all nodes of a column's tree: (nodes, places)."""
        start, width = int(self._starts[column]), int(self.widths[column])
        return self.chances[start : start + self._counts[column] * width].view(-1, width)

    def asked(self, column: int) -> set[int]:
        """Return the columns that a column's tree asks for."""
        root = int(self.roots[column])
        return set(self.asks[root : root + self._counts[column]].tolist()) - {len(self.roots)}

    @cached_property
    def _counts(self) -> list[int]:
        """How many nodes each tree has."""
        return torch.diff(self.roots, append=self.roots.new_tensor([len(self.asks)])).tolist()

    @cached_property
    def _starts(self) -> Tensor:
        """Where each column's chances begin: (d,)."""
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
    def _going(self) -> list[int]:
        """How many trees go on after 0, 1, … questions."""
        return [sum(depth > asked for depth in self._depths) for asked in range(max(self._depths))]

    @cached_property
    def _depths(self) -> list[int]:
        """How many questions each tree asks at most."""
        children, base = self.children.tolist(), [*self.base.tolist(), len(self.children)]
        below = [0] * len(self.asks)
        for node in range(len(below) - 1, -1, -1):  # children come after their parents
            goes = set(children[base[node] : base[node + 1]]) - {node}
            below[node] = max((below[child] + 1 for child in goes), default=0)
        return [below[root] for root in self.roots.tolist()]


def taken(table: Tensor, index: Tensor) -> Tensor:
    """Return the entries of a table at some places; more than twice as fast as table[index]."""
    return table.index_select(0, index.reshape(-1)).view(*index.shape, *table.shape[1:])
