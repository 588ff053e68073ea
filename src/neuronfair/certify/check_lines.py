"""Lines over boxes, as a checker sees them: their least value, their mean, and how many people lie above 0.

A line is a number for every feature and a constant. A linear axis has one feature, what one place more adds; another
axis has one for each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuronfair.certify.check_decision import EPS
from neuronfair.certify.check_ground import Bools, Floats, Ground, Ints

BINS = 1024  # of the grid on which the terms of a line are added
NUMBERS = 1 << 19  # that are handled together
FFT = 1e-11  # more than the rounding of products of Fourier transforms of shares
ON_GRID = 1e-9  # of a bin: what lies so close below a point of the grid is taken for it


@dataclass(frozen=True)
class Frame:
    """Which features belong to which axis."""

    ground: Ground

    @cached_property
    def linear(self) -> Ints:
        """The axes that are linear."""
        return np.array([i for i, axis in enumerate(self.ground.axes) if axis.linear], dtype=np.int64)

    @cached_property
    def starts(self) -> Ints:
        """The first feature of each axis, and the number of all."""
        widths = [1 if axis.linear else len(axis) for axis in self.ground.axes]
        return np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)

    @property
    def features(self) -> int:
        """How many numbers a line has, but for its constant."""
        return int(self.starts[-1])

    def tables(self) -> Iterator[tuple[int, slice]]:
        """Yield the axes that are not linear, and their features."""
        for number, axis in enumerate(self.ground.axes):
            if not axis.linear:
                yield number, slice(int(self.starts[number]), int(self.starts[number + 1]))

    def outside(self, low: Ints, high: Ints, axis: int) -> Bools:
        """Return which places of an axis do not lie in each box: (n, places)."""
        places = np.arange(len(self.ground.axes[axis]))
        return (places < low[:, axis, None]) | (places > high[:, axis, None])

    def least(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return the least value of lines (n, lines, features), rounded down: (n, lines)."""
        steep = slopes[..., self.starts[self.linear]]
        first, last = (end[:, None, self.linear].astype(np.float64) for end in (low, high))
        terms = np.where(steep > 0, steep * first, steep * last)
        result, size = terms.sum(-1), np.abs(terms).sum(-1)
        for axis, features in self.tables():
            own = np.where(self.outside(low, high, axis)[:, None], np.inf, slopes[..., features]).min(-1)
            result, size = result + own, size + np.abs(own)
        return np.asarray(result - EPS * (len(self.ground.axes) + 4) * size)

    def mean(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the mean of lines (n, lines, features) over each box: (n, lines)."""
        result = (slopes[..., self.starts[self.linear]] * ((low + high) / 2)[:, None, self.linear]).sum(-1)
        for axis, features in self.tables():
            share = self._shares(low, high, axis)
            result = result + (slopes[..., features] * share[:, None]).sum(-1)
        return np.asarray(result)

    def reach(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return how far each axis moves lines (n, lines, features) within a box: (n, lines, axes)."""
        result = np.zeros((*slopes.shape[:2], len(self.ground.axes)))
        steep = slopes[..., self.starts[self.linear]]
        result[..., self.linear] = np.abs(steep) * (high - low)[:, None, self.linear]
        for axis, features in self.tables():
            out, own = self.outside(low, high, axis)[:, None], slopes[..., features]
            result[..., axis] = np.where(out, -np.inf, own).max(-1) - np.where(out, np.inf, own).min(-1)
        return result

    def _shares(self, low: Ints, high: Ints, axis: int) -> Floats:
        weight = np.where(self.outside(low, high, axis), 0, self.ground.counts[axis])
        return np.asarray(weight / weight.sum(-1, keepdims=True))

    def share_above(self, low: Ints, high: Ints, slopes: Floats, at: Floats) -> Floats:
        """Return at least the share of each box's combinations of codes where lines (n, features) are above 0: (n,).

        It is 1 only where the whole box lies above.
        """
        result = np.zeros(len(low))
        least = at + self.least(low, high, slopes[:, None])[:, 0]
        least -= EPS * 4 * (np.abs(at) + np.abs(least))
        reach = self.reach(low, high, slopes[:, None])[:, 0]
        result[least > 0] = 1.0
        asked = np.flatnonzero((least <= 0) & (least + reach.sum(1) > 0))
        step = max(1, NUMBERS // BINS)
        for start in range(0, len(asked), step):
            some = asked[start : start + step]
            result[some] = self._counted(low[some], high[some], slopes[some], -least[some], reach[some])
        return result

    def _counted(self, low: Ints, high: Ints, slopes: Floats, need: Floats, reach: Floats) -> Floats:
        """Return at least the share where terms that are at least 0, rounded down to a grid, exceed `need`.

        The distribution of the sum is the convolution of those of the terms, one for each axis.
        """
        n, axes = len(low), len(self.ground.axes)
        rows = np.arange(n)
        bin_ = reach.sum(1) / (BINS - axes - 4)
        largest = np.zeros(n)  # the steepest linear axis gets a grid on which its terms lie exactly
        if len(self.linear):
            steep = np.abs(slopes[:, self.starts[self.linear]]) * (high > low)[:, self.linear]
            largest = steep.max(1)
        aligned = largest > bin_
        bin_ = np.where(aligned, largest / np.maximum(1, np.floor(largest / bin_)), bin_)
        transform = np.ones((n, BINS // 2 + 1), dtype=np.complex128)
        edges = np.arange(BINS + 1, dtype=np.float64)
        for axis in self.linear:
            some = np.flatnonzero(reach[:, axis] > bin_ * ON_GRID)
            if len(some):
                term = np.abs(slopes[some, self.starts[axis]]) / bin_[some]
                places = (high - low + 1)[some, axis, None].astype(np.float64)
                below = np.clip(np.ceil((edges - ON_GRID) / term[:, None]), 0, places)  # how many lie below each edge
                transform[some] *= np.fft.rfft(np.diff(below, axis=1) / places)
        for axis, features in self.tables():
            some = np.flatnonzero(reach[:, axis] > bin_ * ON_GRID)
            if len(some):
                out = self.outside(low[some], high[some], axis)
                own = np.where(out, np.inf, slopes[some, features])
                term = np.where(out, 0, own - own.min(1, keepdims=True)) / bin_[some, None]
                place = np.floor(term + ON_GRID).astype(np.int64) + BINS * np.arange(len(some))[:, None]
                share = self._shares(low[some], high[some], axis)
                filled = np.bincount(place.ravel(), share.ravel(), BINS * len(some)).reshape(-1, BINS)
                transform[some] *= np.fft.rfft(filled)
        below = np.cumsum(np.fft.irfft(transform, BINS), axis=1)
        last = np.floor(need / bin_ * (1 + 8 * EPS) + 2 * axes * ON_GRID).astype(np.int64)  # sums up to here may be too small
        share = 1 - below[rows, np.minimum(last, BINS - 1)] - FFT
        return np.asarray(np.clip(np.where(last >= BINS, 0, share), 0, 1 - FFT))
