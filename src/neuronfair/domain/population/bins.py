"""Bins of a column, and the transport of a value from one distribution over them to another.

A bin is a value or, where a column has many, several neighbouring values. Between two distributions a number keeps its
rank; other values stay as often as possible (maximal coupling).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.trees import take_rows

MAX_BINS = 64  # bins of a column, before rules split them
MIN_RECORDS_PER_BIN = 30  # on average

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """The bins of a column's codes, and the probability of each code within its bin.

    A *run* is a stretch of codes in one bin with equal probability. Every code has a positive probability: the values
    that were seen have their frequencies, and a part is spread evenly over all codes of the bin. That part is the
    probability of a new value (Good and Turing: the share of the values that were seen once).
    """

    starts: Tensor  # (runs,) the first code of each
    lengths: Tensor  # (runs,)
    bin_of_run: Tensor  # (runs,)
    chance: Tensor  # (runs,) float64: log probability of one of its codes, given the bin
    classes: Tensor  # (bins,) class of its codes under the rules: no bin has codes of two classes

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> int:
        """How many codes the column has."""
        return int(self.starts[-1] + self.lengths[-1])

    def runs_of(self, codes: Tensor) -> Tensor:
        """Return the run of each code: (n,). Codes must lie within the bounds."""
        if len(self.starts) == self.size:  # each code is a run
            return codes
        return torch.searchsorted(self.starts, codes.contiguous(), right=True) - 1

    def bins_of(self, codes: Tensor) -> Tensor:
        """Return the bin of each code: (n,)."""
        return take_rows(self.bin_of_run, self.runs_of(codes))

    def code_at(self, bins: Tensor, u: Tensor) -> Tensor:
        """Return the codes at quantiles u of their bins, numbers in [0, 1): (n,)."""
        by_bin, ends, before = self._mass
        run = torch.searchsorted(ends, bins + u, right=True).clamp(max=len(ends) - 1)
        first, last = take_rows(self._span, bins).unbind(1)
        run = torch.minimum(torch.maximum(run, first), last)  # rounding may lead to the next bin
        begin = take_rows(before, run)
        share = (bins + u - begin) / (take_rows(ends, run) - begin).clamp(min=1e-300)
        run = take_rows(by_bin, run)
        length = take_rows(self.lengths, run)
        return take_rows(self.starts, run) + torch.minimum((share.clamp(0, 1) * length).long(), length - 1)

    def share_of(self, codes: Tensor, u: Tensor) -> Tensor:
        """Return the quantile of a code in its bin, u of the way from its begin to its end: inverse of `code_at`."""
        run = self.runs_of(codes)
        before, mass = take_rows(self._within, run).unbind(1)
        return (before + (codes - take_rows(self.starts, run) + u) / take_rows(self.lengths, run) * mass).clamp(0, 1)

    @cached_property
    def _within(self) -> Tensor:
        """The probability before each run in its bin, and that of the run: (runs, 2)."""
        by_bin, ends, before = self._mass
        within = torch.stack([before - self.bin_of_run[by_bin], ends - before], 1)
        return torch.empty_like(within).index_copy_(0, by_bin, within)

    @cached_property
    def _mass(self) -> tuple[Tensor, Tensor, Tensor]:
        """The runs by bin, and the end and the begin of each if every bin were one unit long."""
        by_bin = torch.argsort(self.bin_of_run, stable=True)
        mass = (self.chance.exp() * self.lengths)[by_bin]
        ends = mass.cumsum(0)
        first, last = self._span[self.bin_of_run[by_bin]].unbind(1)
        base = ends[first] - mass[first]
        ends = self.bin_of_run[by_bin] + (ends - base) / (ends[last] - base)
        before = torch.cat([ends.new_zeros(1), ends[:-1]])
        return by_bin, ends, before

    @cached_property
    def _span(self) -> Tensor:
        """The first and the last run of each bin, of the runs by bin: (bins, 2)."""
        ends = torch.bincount(self.bin_of_run, minlength=len(self)).cumsum(0)
        return torch.stack([torch.cat([ends.new_zeros(1), ends[:-1]]), ends - 1], 1)

    @classmethod
    def of(cls, attribute: Attribute, codes: Numbers, class_of: Numbers | None, max_bins: int) -> Bins:
        """Return the bins of a column with these codes."""
        values, counts = np.unique(codes, return_counts=True)
        if attribute.is_ordered:
            first = _extend_bins(_find_first_values(values, counts, max_bins), values[-1] + 1, attribute.grid_size)
            cuts = [np.array([0, attribute.grid_size]), first, values, values + 1]
            if class_of is not None:
                cuts.append(np.flatnonzero(np.diff(class_of)) + 1)
            starts = np.unique(np.concatenate(cuts))
            starts = starts[starts < attribute.size]
            groups = np.searchsorted(first, starts, side="right")
            groups[starts == attribute.empty] = -1
        else:
            starts = np.arange(attribute.size)
            groups = starts.copy()
            if attribute.size > max_bins:
                groups[:] = -1  # rare values share a bin
                groups[values[np.argsort(-counts, kind="stable")[: max_bins - 1]]] = np.arange(
                    min(max_bins - 1, len(values))
                )
        lengths = np.diff(np.append(starts, attribute.size))
        classes = np.zeros(len(starts), dtype=np.int64) if class_of is None else class_of[starts]
        _, first_runs, bins = np.unique(np.stack([classes, groups]), axis=1, return_index=True, return_inverse=True)
        number = np.empty(len(first_runs), dtype=np.int64)
        number[np.argsort(first_runs)] = np.arange(len(first_runs))  # in the order of their first codes
        bins = number[bins.ravel()]
        records = np.zeros(len(starts))
        records[np.searchsorted(starts, values)] = counts
        chance = _fit_chances(bins, records, lengths)
        parts = (starts, lengths, bins, chance, classes[np.sort(first_runs)])
        return cls(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def _find_first_values(values: Numbers, counts: Numbers, max_bins: int) -> Numbers:
    """Return the first values of bins with about equally many records; a frequent value has its own bin."""
    total = counts.sum()
    quantile = (max_bins * (counts.cumsum() - counts / 2) / total).astype(np.int64)
    is_frequent = counts * max_bins >= total
    is_first = np.ones(len(values), dtype=bool)
    is_first[1:] = (np.diff(quantile) > 0) | is_frequent[1:] | is_frequent[:-1]
    return values[is_first]


def _extend_bins(first: Numbers, end: int, points: int) -> Numbers:
    """Return the bins with two more on either side of the values seen: one as wide as its neighbour, and the rest."""
    ends = np.append(first, end)
    outer_ends = [2 * ends[0] - ends[1], 2 * end - ends[-2]]
    return np.unique(np.clip(np.concatenate([ends, outer_ends]), 0, points))


def _fit_chances(bins: Numbers, records_of_run: npt.NDArray[np.float64], lengths: Numbers) -> npt.NDArray[np.float64]:
    """Return the log probability of a code of each run, given its bin."""
    records, codes = np.bincount(bins, records_of_run), np.bincount(bins, lengths)
    seen_once = np.bincount(bins, records_of_run == 1)
    new_share = np.where(records == 0, 1.0, (seen_once + 0.5) / (records + 1))
    new_share = np.where(codes == 1, 1.0, new_share)
    return np.log((new_share / codes)[bins] + ((1 - new_share) / np.maximum(records, 1))[bins] * records_of_run)


def find_max_bins(records: int) -> int:
    """Return how many bins a column may have in a table with so many records."""
    return max(2, min(MAX_BINS, records // MIN_RECORDS_PER_BIN))


MIDDLE = 0.5  # the quantile of a typical record


def draw_bin(chances: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bins at quantiles u of distributions, and the quantiles within them: (n,) each.

    `chances` (n, bins) need not sum to one.
    """
    ends = chances.cumsum(1)
    mass = u[:, None] * ends[:, -1:]
    last_bin = (ends < ends[:, -1:]).sum(1, keepdim=True)  # rounding may reach the end
    bin_index = torch.minimum(torch.searchsorted(ends, mass, right=True), last_bin)
    chance = chances.gather(1, bin_index)
    return bin_index[:, 0], ((mass - ends.gather(1, bin_index) + chance) / chance)[:, 0].clamp(0, 1)


@dataclass(frozen=True)
class Coupling:
    """The distributions of a column's bins, and the transport of values from one to another.

    Numbers keep their rank. Labels, and whether a cell is empty, stay as often as the other distribution allows
    (maximal coupling); values that cannot stay move to bins where the other distribution has more probability.
    """

    bins: Bins
    ordered: bool
    empty: int | None  # the bin of an empty cell that is a value of its own: the last
    chances: Tensor  # (distributions, bins)

    def transport(self, codes: Tensor, old: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        """Return the codes in the new distributions for codes in their own ones: (n,).

        `u` are the quantiles of the records among those with the same value, in [0, 1); without them every record is
        typical.
        """
        move = self._transport_numbers if self.ordered else self._transport_labels
        return move(codes, old, new, u)

    def rank(self, codes: Tensor, at: float) -> Tensor:
        """Return the ranks of codes in the first distribution, `at` of the way from their begin to their end."""
        cells, shares = torch.zeros_like(codes), torch.full_like(codes, at, dtype=torch.float64)
        return self._rank(codes, self.bins.bins_of(codes), cells, shares)

    def code(self, rank: Tensor) -> Tensor:
        """Return the codes at ranks of the first distribution."""
        return self._at_rank(torch.zeros_like(rank, dtype=torch.int64), rank)

    def _transport_labels(self, codes: Tensor, old: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        bins = self.bins.bins_of(codes)
        leaves, at = _find_leavers(_take_cells(self.chances, old, bins), _take_cells(self.chances, new, bins), u)
        leaves = leaves.nonzero()[:, 0]
        gains = (take_rows(self.chances, new[leaves]) - take_rows(self.chances, old[leaves])).clamp(min=0)
        if u is None:
            target = gains.argmax(1)
        else:
            target, at = draw_bin(gains, at[leaves])
        at = torch.full_like(target, MIDDLE, dtype=torch.float64) if u is None else at
        return codes.index_copy(0, leaves, self.bins.code_at(target, at))

    def _transport_numbers(self, codes: Tensor, old: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        bins = self.bins.bins_of(codes)
        if self.empty is None:
            at = torch.full_like(codes, MIDDLE, dtype=torch.float64) if u is None else u
            return self._at_rank(new, self._rank(codes, bins, old, at))
        full, (old_chance, new_chance) = bins != self.empty, self.chances[:, self.empty][torch.stack([old, new])]
        leaves, at = _find_leavers(
            torch.where(full, 1 - old_chance, old_chance), torch.where(full, 1 - new_chance, new_chance), u
        )
        rank = torch.where(full, self._rank(codes, bins.clamp(max=self.empty - 1), old, at), at)
        number = self._at_rank(new, rank)
        return torch.where(full != leaves, number, self.bins.size - 1)

    def _rank(self, codes: Tensor, bins: Tensor, cells: Tensor, at: Tensor) -> Tensor:
        before, chance = (_take_cells(table, cells, bins) for table in self._numbers[:2])
        return before + chance * self.bins.share_of(codes, at)

    def _at_rank(self, cells: Tensor, rank: Tensor) -> Tensor:
        """Return the number at a rank of a distribution."""
        before, chance, stacked, span = self._numbers
        first, last = take_rows(span, cells).unbind(1)
        bins = torch.searchsorted(stacked, cells + rank, right=True) - cells * before.shape[1]
        bins = torch.minimum(torch.maximum(bins, first), last)  # rounding may lead to the next distribution
        share = (rank - _take_cells(before, cells, bins)) / _take_cells(chance, cells, bins).clamp(min=1e-300)
        return self.bins.code_at(bins, share.clamp(0, 1))

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The distributions of the numbers alone.

        The probability before each bin and in it, (distributions, bins); the ends of the bins if every
        distribution were one unit long; and the first and the last bin of each with a positive probability.
        """
        chances = self.chances if self.empty is None else self.chances[:, : self.empty]
        chances = chances / chances.sum(1, keepdim=True).clamp(min=1e-300)
        ends = chances.cumsum(1)
        stacked = ends + torch.arange(len(ends), device=ends.device)[:, None]
        span = torch.stack([(ends == 0).sum(1), (ends < ends[:, -1:]).sum(1)], 1)
        return ends - chances, chances, stacked.view(-1), span


def _take_cells(table: Tensor, line: Tensor, bins: Tensor) -> Tensor:
    """Return table[line, bin], faster."""
    return take_rows(table.view(-1), line * table.shape[1] + bins)


def _find_leavers(old_chance: Tensor, new_chance: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return which records leave a value whose probability changes, and their quantiles among those that do or stay."""
    stay = (new_chance / old_chance).clamp(max=1)
    if u is None:
        return stay <= MIDDLE, torch.full_like(stay, MIDDLE)
    leaves = u >= stay
    return leaves, torch.where(leaves, (u - stay) / (1 - stay), u / stay)
