"""The places of a column: its values, or, where it has many, neighbouring values taken together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.trees import branch_taken

MOST = 64  # places of a column, if no rule cuts it further
PEOPLE = 30  # at least so many in a place, on average

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """A column's codes in places, and how likely each code is within its place.

    A *run* is a stretch of codes that are in one place and equally likely there. Every code has a positive chance: a
    place holds the values that were seen, as often as they were, and beside them all of its codes alike, as often as
    a new person is expected to bring a new value (Good and Turing: the share of the values that were seen once).
    """

    starts: Tensor  # (runs,) the first code of each
    lengths: Tensor  # (runs,)
    place: Tensor  # (runs,) where its codes are
    chance: Tensor  # (runs,) float64: the logarithm of the chance of one of its codes, given the place
    classes: Tensor  # (places,) what the rules tell apart: no place has codes of two classes

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> int:
        """How many codes the column has."""
        return int(self.starts[-1] + self.lengths[-1])

    def to(self, device: str | torch.device) -> Bins:
        """Return these places on another device."""
        return Bins(*(getattr(self, field.name).to(device) for field in fields(self)))

    def runs_of(self, codes: Tensor) -> Tensor:
        """Return the run of each code: (n,). Codes must lie within the bounds."""
        if len(self.starts) == self.size:  # each code is one
            return codes
        return torch.searchsorted(self.starts, codes.contiguous(), right=True) - 1

    def place_of(self, codes: Tensor) -> Tensor:
        """Return the place of each code: (n,)."""
        return branch_taken(self.place, self.runs_of(codes))

    def code_at(self, place: Tensor, u: Tensor) -> Tensor:
        """Return the codes that stand at u, numbers in [0, 1), of their places: (n,)."""
        by_place, ends, before = self._mass
        run = torch.searchsorted(ends, place + u, right=True).clamp(max=len(ends) - 1)
        first, last = branch_taken(self._span, place).unbind(1)
        run = torch.minimum(torch.maximum(run, first), last)  # rounding may lead to the next place
        begin = branch_taken(before, run)
        share = (place + u - begin) / (branch_taken(ends, run) - begin).clamp(min=1e-300)
        run = branch_taken(by_place, run)
        length = branch_taken(self.lengths, run)
        return branch_taken(self.starts, run) + torch.minimum((share.clamp(0, 1) * length).long(), length - 1)

    def share_of(self, codes: Tensor, u: Tensor) -> Tensor:
        """Return where in its place a code stands, u of the way from its begin to its end: the inverse of `code_at`."""
        run = self.runs_of(codes)
        before, mass = branch_taken(self._within, run).unbind(1)
        return (before + (codes - branch_taken(self.starts, run) + u) / branch_taken(self.lengths, run) * mass).clamp(
            0, 1
        )

    @cached_property
    def _within(self) -> Tensor:
        """What lies before each run in its place, and what lies in it: (runs, 2)."""
        by_place, ends, before = self._mass
        within = torch.stack([before - self.place[by_place], ends - before], 1)
        return torch.empty_like(within).index_copy_(0, by_place, within)

    @cached_property
    def _mass(self) -> tuple[Tensor, Tensor, Tensor]:
        """The runs by place, and where each ends and begins if every place were one unit long."""
        by_place = torch.argsort(self.place, stable=True)
        mass = (self.chance.exp() * self.lengths)[by_place]
        ends = mass.cumsum(0)
        first, last = self._span[self.place[by_place]].unbind(1)
        base = ends[first] - mass[first]
        ends = self.place[by_place] + (ends - base) / (ends[last] - base)
        before = torch.cat([ends.new_zeros(1), ends[:-1]])
        return by_place, ends, before

    @cached_property
    def _span(self) -> Tensor:
        """The first and the last run of each place, of the runs by place: (places, 2)."""
        ends = torch.bincount(self.place, minlength=len(self)).cumsum(0)
        return torch.stack([torch.cat([ends.new_zeros(1), ends[:-1]]), ends - 1], 1)

    @classmethod
    def of(cls, attribute: Attribute, codes: Numbers, class_of: Numbers | None, most: int) -> Bins:
        """Return the places of a column in which these codes were seen."""
        values, counts = np.unique(codes, return_counts=True)
        if attribute.ordered:
            first = _reaching(_bins(values, counts, most), values[-1] + 1, attribute.points)
            cuts = [np.array([0, attribute.points]), first, values, values + 1]
            if class_of is not None:
                cuts.append(np.flatnonzero(np.diff(class_of)) + 1)
            starts = np.unique(np.concatenate(cuts))
            starts = starts[starts < attribute.size]
            bins = np.searchsorted(first, starts, side="right")
            bins[starts == attribute.empty] = -1
        else:
            starts = np.arange(attribute.size)
            bins = starts.copy()
            if attribute.size > most:
                bins[:] = -1  # the rare ones together
                bins[values[np.argsort(-counts, kind="stable")[: most - 1]]] = np.arange(min(most - 1, len(values)))
        lengths = np.diff(np.append(starts, attribute.size))
        classes = np.zeros(len(starts), dtype=np.int64) if class_of is None else class_of[starts]
        _, where, place = np.unique(np.stack([classes, bins]), axis=1, return_index=True, return_inverse=True)
        number = np.empty(len(where), dtype=np.int64)
        number[np.argsort(where)] = np.arange(len(where))  # in the order of their first codes
        place = number[place.ravel()]
        seen = np.zeros(len(starts))
        seen[np.searchsorted(starts, values)] = counts
        chance = _within(place, seen, lengths)
        parts = (starts, lengths, place, chance, classes[np.sort(where)])
        return cls(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def _bins(values: Numbers, counts: Numbers, most: int) -> Numbers:
    """Return the first values of bins with about equally many people; a value that many have is a bin of its own."""
    total = counts.sum()
    quantile = (most * (counts.cumsum() - counts / 2) / total).astype(np.int64)
    heavy = counts * most >= total
    new = np.ones(len(values), dtype=bool)
    new[1:] = (np.diff(quantile) > 0) | heavy[1:] | heavy[:-1]
    return values[new]


def _reaching(first: Numbers, end: int, points: int) -> Numbers:
    """Return the bins with two more on either side: what lies a bin beyond all values seen, and what lies farther.

    Within a bin new values are as likely as between those seen; nobody was seen beyond.
    """
    ends = np.append(first, end)
    near = [2 * ends[0] - ends[1], 2 * end - ends[-2]]
    return np.unique(np.clip(np.concatenate([ends, near]), 0, points))


def _within(place: Numbers, seen: npt.NDArray[np.float64], lengths: Numbers) -> npt.NDArray[np.float64]:
    """Return the logarithm of the chance of a code of each run, given its place."""
    people, codes = np.bincount(place, seen), np.bincount(place, lengths)
    once = np.bincount(place, seen == 1)
    new = np.where(people == 0, 1.0, (once + 0.5) / (people + 1))
    new = np.where(codes == 1, 1.0, new)
    return np.log((new / codes)[place] + ((1 - new) / np.maximum(people, 1))[place] * seen)


def most_bins(people: int) -> int:
    """Return how many places a column of a table with so many people may have."""
    return max(2, min(MOST, people // PEOPLE))
