"""Trees over codes: every inner node sends some codes of one attribute to its left child and the others to its right.

Trees of all frameworks become this, whatever stands before them: a feature depends on one attribute, which has finitely
many codes, so a threshold on the feature is a set of codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Link = Literal["none", "sigmoid", "softmax"]


@dataclass(frozen=True)
class Forest:
    """The nodes of all trees in one list. A leaf has attribute -1 and is its own child, so that walks end there."""

    roots: Tensor  # (trees,) the node at which each begins
    attribute: Tensor  # (nodes,)
    side: Tensor  # (nodes,) which of `sides` cuts its codes
    left: Tensor  # (nodes,)
    right: Tensor
    value: Tensor  # (nodes, outputs) what a leaf adds, float64
    sides: Tensor  # (cuts, largest attribute) bool: whether a code goes left
    base: Tensor  # (outputs,)
    link: Link
    depth: int

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of codes: (n, outputs)."""
        node = self.roots.expand(len(rows), -1)
        for _ in range(self.depth):
            code = rows.gather(1, self.attribute[node].clamp(min=0))
            node = torch.where(self.sides[self.side[node], code], self.left[node], self.right[node])
        total = self.value[node].sum(1) + self.base
        return {"none": total, "sigmoid": total.sigmoid(), "softmax": total.softmax(-1)}[self.link]
