"""The cuts of a region as a binary tree, by which a record finds its box without a search over all boxes."""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = -1  # the axis of a node that is not cut


class CutTree:
    """A tree of cuts. The two halves of a node follow each other, the lower one first, behind their parent.

    A node is a row of `nodes`: the axis of its cut, the last place of the lower half, and the number of that half.
    """

    def __init__(self, nodes: Tensor) -> None:
        """Continue a tree of nodes, (n, 3) int32."""
        self._nodes, self._size = nodes, len(nodes)

    @staticmethod
    def of_roots(count: int, device: torch.device) -> CutTree:
        """Return a tree of some boxes that are not cut."""
        return CutTree(torch.tensor([[LEAF, 0, 0]], dtype=torch.int32, device=device).repeat(count, 1))

    def __len__(self) -> int:
        return self._size

    @property
    def nodes(self) -> Tensor:
        """All nodes, (n, 3)."""
        return self._nodes[: self._size]

    def cut(self, nodes: Tensor, axis: Tensor, last: Tensor) -> Tensor:
        """Cut some nodes, each behind a place of an axis; return their halves: first all lower, then all upper ones."""
        lower = self._size + 2 * torch.arange(len(nodes), device=nodes.device)
        self._size += 2 * len(nodes)
        if self._size > len(self._nodes):  # twice as large as before, so that few have to be copied
            more = CutTree.of_roots(max(self._size, 2 * len(self._nodes)) - len(self._nodes), nodes.device)
            self._nodes = torch.cat([self._nodes, more.nodes])
        self._nodes[nodes] = torch.stack([axis, last, lower], 1).int()
        return torch.cat([lower, lower + 1])

    def leaves(self, places: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return the leaf in which each record lies, by its places (n, axes); records begin at node 0 or at `roots`."""
        roots = torch.zeros(len(places), device=places.device) if roots is None else roots
        node = roots.to(torch.int64, copy=True)
        moving = torch.arange(len(places), device=places.device)
        while len(moving):
            axis, last, lower = self._nodes[node[moving]].long().unbind(1)
            inner = axis != LEAF
            moving, axis, last, lower = moving[inner], axis[inner], last[inner], lower[inner]
            node[moving] = lower + (places[moving, axis] > last)
        return node

    def graft(self, at: Tensor, other: CutTree) -> Tensor:
        """Let another tree, of as many roots as `at` has nodes, continue these; return the new numbers of its nodes."""
        number = torch.cat([at, self._size + torch.arange(len(other) - len(at), device=at.device)])
        nodes = other.nodes.clone()
        nodes[:, 2] = torch.where(nodes[:, 0] == LEAF, 0, number[nodes[:, 2].long()])
        self._nodes = torch.cat([self.nodes, nodes[len(at) :]])
        self._size = len(self._nodes)
        self._nodes[at] = nodes[: len(at)]
        return number

    def is_sound(self, axes: int) -> bool:
        """Return whether this is a tree over so many axes: every half stands behind its parent and has one parent."""
        axis, _, lower = self.nodes.long().unbind(1)
        inner = axis != LEAF
        parent, lower = inner.nonzero()[:, 0], lower[inner]
        known = bool(((axis >= LEAF) & (axis < axes)).all() & ((lower > parent) & (lower + 1 < len(self))).all())
        return known and len(torch.unique(torch.cat([lower, lower + 1]))) == 2 * len(lower)
