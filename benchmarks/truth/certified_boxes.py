"""What the boxes of a proof claim, against the truth about everybody in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from neuronfair.proof.bounds.space import Space
from neuronfair.proof.certificate import CertifiedBoxes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .everybody import Truth

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BoxTruth:
    """Of each box: how many people it holds who are fair and discriminatory as the model computes in float64.

    Of those near a boundary, other orders of the same sums may say otherwise: `near_fair` and `near_discriminatory`.
    """

    fair: Counts
    discriminatory: Counts
    near_fair: Counts
    near_discriminatory: Counts
    covered: bool  # whether the boxes hold every place exactly once

    def wrong(self, boxes: CertifiedBoxes) -> Counts:
        """Return the boxes that claim more than there is, even if rounding decided all near people in their favour."""
        return self._beyond(boxes, self.fair + self.near_discriminatory, self.discriminatory + self.near_fair)

    def rounded(self, boxes: CertifiedBoxes) -> Counts:
        """Return the boxes that claim more than the model's own float64 answers say."""
        return self._beyond(boxes, self.fair, self.discriminatory)

    def _beyond(self, boxes: CertifiedBoxes, fair: Counts, flips: Counts) -> Counts:
        said_fair, said_flips = (np.array(part, dtype=np.int64) for part in (boxes.fair, boxes.discriminatory))
        too_many = said_fair + said_flips > self.fair + self.discriminatory
        return np.flatnonzero((said_fair > fair) | (said_flips > flips) | too_many)


def truth_of(boxes: CertifiedBoxes, space: Space, truth: Truth) -> BoxTruth:
    """Return the truth about every box of a proof about a whole domain."""
    low, high = (torch.from_numpy(np.asarray(end)).long() for end in (boxes.low, boxes.high))
    kinds = (~truth.flips, truth.flips, truth.close & ~truth.flips, truth.close & truth.flips)
    sums = [_in_boxes(_by_place(truth, space, truth.members * kind), low, high) for kind in kinds]
    return BoxTruth(*sums, _covers_once([len(axis) for axis in space.axes], low, high))


def _by_place(truth: Truth, space: Space, people: Tensor) -> Tensor:
    """Return people by family as people by place: (places of the first axis, places of the second, …)."""
    table = people.double().view(truth.shape)  # exact below 2^53
    for axis in space.axes:
        number = truth.columns.index(axis.column)
        group, places = truth.group[number], axis.position_of_code.cpu()
        # A group may be spread over several places, of which each holds some of its codes.
        spread = torch.zeros(len(axis), truth.shape[number], dtype=torch.float64)
        spread.index_put_((places, group), torch.ones(len(group), dtype=torch.float64), accumulate=True)
        table = torch.tensordot(spread, table, ([1], [number])).movedim(0, number)
    return table.permute([truth.columns.index(axis.column) for axis in space.axes]).round().long()


def _corners(low: Tensor, high: Tensor, shape: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield the corners of boxes in a table with one place more on each axis, and the sign with which each counts."""
    for ends in product((False, True), repeat=len(shape)):
        place = torch.zeros(len(low), dtype=torch.int64)
        for axis, upper in enumerate(ends):
            place = place * (shape[axis] + 1) + (high[:, axis] + 1 if upper else low[:, axis])
        yield (-1) ** (len(ends) - sum(ends)), place


def _in_boxes(table: Tensor, low: Tensor, high: Tensor) -> Counts:
    """Return the sum of a table over each box, by sums over everything before a corner."""
    sums = torch.zeros([n + 1 for n in table.shape], dtype=torch.int64)
    sums[tuple(slice(1, None) for _ in table.shape)] = table
    for axis in range(table.dim()):
        sums = sums.cumsum_(axis)
    flat = sums.flatten()
    result = torch.zeros(len(low), dtype=torch.int64)
    for sign, place in _corners(low, high, table.shape):
        result += sign * flat[place]
    return result.numpy()


def _covers_once(shape: Sequence[int], low: Tensor, high: Tensor) -> bool:
    marks = torch.zeros(int(np.prod([n + 1 for n in shape])), dtype=torch.int32)
    for sign, place in _corners(low, high, shape):
        marks.index_add_(0, place, torch.full((len(place),), sign, dtype=torch.int32))
    marks = marks.view([n + 1 for n in shape])
    for axis in range(len(shape)):
        marks = marks.cumsum_(axis)
    return bool((marks[tuple(slice(0, -1) for _ in shape)] * (-1) ** len(shape) == 1).all())
