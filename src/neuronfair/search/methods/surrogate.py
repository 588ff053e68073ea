"""The decision path of a row through a CART tree that imitates a network around it.

Only the row's own path is ever read, so only that path is grown, for all rows at once: at every level each row finds
the best Gini split of the samples still in its node and keeps those on its side. The whole tree would have this path.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Domain

MAX_BINS = 128  # an attribute with more codes is split between so many bins of codes only, about equally wide


class Path(NamedTuple):
    """The constraints on each row's way from the root, level by level: (n, depth) each."""

    column: Tensor  # the attribute that is tested
    threshold: Tensor  # codes up to this one go left, larger ones right
    left: Tensor  # whether the row goes left
    confidence: Tensor  # the share of the node's samples that go the row's way: float64
    exists: Tensor  # False from the level on where there is nothing to tell apart

    def negated_in_turn(self) -> Path:
        """Return the path once for each of its constraints, with that one negated: (n, depth, depth) each."""
        depth = self.column.shape[1]
        turned = torch.eye(depth, dtype=torch.bool, device=self.column.device)
        copies = Path(*(x[:, None].expand(-1, depth, -1) for x in self))
        confidence = torch.where(turned, 1 - copies.confidence, copies.confidence)
        return copies._replace(left=copies.left ^ turned, confidence=confidence)

    def intervals(self, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest code that each constraint allows, given the sizes of the attributes."""
        low = torch.where(self.left, 0, self.threshold + 1)
        return low, torch.where(self.left, self.threshold, sizes[self.column] - 1)


class Bins:
    """The codes of all attributes in one line of cells: one per code, or per bin of codes where these are many."""

    def __init__(self, domain: Domain) -> None:
        self._sizes, self._bins = domain.sizes, domain.sizes.clamp(max=MAX_BINS)
        self._first = self._bins.cumsum(0) - self._bins
        self._coarse = bool((self._bins < self._sizes).any())
        self.column = torch.repeat_interleave(self._bins)  # the attribute of each cell
        place = torch.arange(len(self.column), device=domain.device) - self._first[self.column]
        self.lowest, self.highest = self._start(place), self._start(place + 1) - 1  # the codes of each cell

    def _start(self, place: Tensor) -> Tensor:
        return -(-place * self._sizes[self.column] // self._bins[self.column])  # rounded up

    def cells(self, rows: Tensor) -> Tensor:
        """Return the cells of codes: (…, d)."""
        return (rows * self._bins // self._sizes if self._coarse else rows) + self._first


def grow(bins: Bins, rows: Tensor, samples: Tensor, labels: Tensor, depth: int) -> Path:
    """Return the path of each row (n, d) through the tree of its own samples (n, s, d) with two classes: bool, (n, s).

    As in scikit-learn a node is split until it is pure, halfway between two codes that its samples have. Of equally
    good splits the first attribute's is taken, and of these the lowest.
    """
    n, s, d = samples.shape
    every, width = torch.arange(n, device=rows.device), len(bins.column)
    node = every.repeat_interleave(s)  # whose node each sample is in
    cells, labels = bins.cells(samples).view(-1, d), labels.flatten()
    levels = []
    for _ in range(depth):
        place = ((node * 2 + labels) * width)[:, None] + cells
        counts = torch.bincount(place.flatten(), minlength=2 * n * width).view(n, 2, width)
        passed = counts.cumsum(2)
        total = passed[..., -1:] // d  # every sample stands in one cell of each attribute
        left = passed - total * bins.column  # the attributes before this one have passed every sample once
        best, exists = _best_split(counts, left, total - left)
        column, passed = bins.column[best], passed.sum(1)
        # The next code that samples have is where more of them have passed.
        after = torch.searchsorted(passed, passed[every, best][:, None], right=True)[:, 0].clamp(max=width - 1)
        threshold = (bins.highest[best] + bins.lowest[after]) // 2
        goes_left = rows[every, column] <= threshold
        share = left.sum(1)[every, best].double() / total.sum((1, 2)).clamp(min=1)
        levels.append(Path(column, threshold, goes_left, torch.where(goes_left, share, 1 - share), exists))
        stands = cells.gather(1, column[node][:, None])[:, 0]
        stays = ((stands <= best[node]) == goes_left[node]) & exists[node]
        node, cells, labels = node[stays], cells[stays], labels[stays]
    return Path(*(torch.stack(parts, 1) for parts in zip(*levels, strict=True)))


def _best_split(counts: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell after which to split, and whether there is anything to tell apart: (n,) each.

    All counts are (n, 2, cells): how many samples of each class stand in a cell, up to it, and after it. The Gini
    impurity that is left is least where Σ nₖ² / Σ nₖ, added over both sides, is largest.
    """
    possible = (counts.sum(1) > 0) & (right.sum(1) > 0)
    merit = (left.double() ** 2).sum(1) / left.sum(1) + (right.double() ** 2).sum(1) / right.sum(1)
    merit, best = torch.where(possible, merit, -torch.inf).max(1)
    mixed = (left + right)[..., 0].amin(1) > 0
    return best, mixed & torch.isfinite(merit)
