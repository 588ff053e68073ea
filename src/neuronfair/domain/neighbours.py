"""The values next to a value: one step up or down where they have an order, any other one where they have none."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Neighbours(NamedTuple):
    """Which values are next to which, attribute by attribute; made once, so that a step makes nothing anew."""

    last: Tensor  # (d,) the last value that one can step to
    others: Tensor  # the attributes that have values without a neighbour: no order, an empty cell, or one value only
    sizes: Tensor  # of these, how many values each has
    points: Tensor  # how many of them one can step to; 0: none has a neighbour

    @staticmethod
    def of(sizes: Tensor, points: Tensor, ordered: Tensor) -> Neighbours:
        """Return the neighbours of attributes with so many values, so many of them in order: (d,) each."""
        points = torch.where(ordered & (points > 1), points, 0)
        others = (points < sizes).nonzero()[:, 0]
        return Neighbours(points - 1, others, sizes[others], points[others])

    def drawn(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return for each attribute a random other value, from numbers u in [0, 1): (n, d) each.

        An ordered one goes one step up or down, at a bound inwards; a nominal one, or an empty cell, anywhere else.
        """
        up = ((u >= 0.5) & (rows < self.last)) | (rows <= 0)
        near = rows.add(up, alpha=2).sub_(1)
        if not len(self.others):
            return near
        codes, v = rows.index_select(1, self.others), u.index_select(1, self.others)
        anywhere = (codes + 1 + (v * (self.sizes - 1)).long()) % self.sizes
        stepped = torch.where(codes < self.points, near.index_select(1, self.others), anywhere)
        return near.index_copy_(1, self.others, stepped)
