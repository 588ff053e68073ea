"""Lines over boxes, as a checker sees them: their least value, their mean, and how many people lie above 0.

A line is a number for every feature and a constant. A linear axis has one feature, what one place more adds; another
axis has one for each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from neuronfair.certify.check_decision import EPS
from neuronfair.certify.check_ground import Bools, Floats, Ground, Ints

BINS = 512  # of the grid on which the terms of a line are added
NUMBERS = 1 << 19  # that are handled together
FFT = 1e-11  # more than the rounding of products of Fourier transforms of shares
WORTH = 0.005  # a share that is likely smaller is not counted
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

    def guess(self, low: Ints, high: Ints, slopes: Floats, at: Floats) -> Floats:
        """Return about the share of each box where lines (n, lines, features) are above 0: (n, lines)."""
        variance = self.reach(low, high, slopes) ** 2 / 12
        ahead = self.mean(low, high, slopes) + at
        return np.asarray(ndtr(ahead / np.sqrt(variance.sum(-1) + 1e-300)))

    def share_above(self, low: Ints, high: Ints, slopes: Floats, at: Floats, bins: int = BINS) -> Floats:
        """Return at least the share of each box's combinations of codes where lines (n, features) are above 0: (n,).

        It is 1 only where the whole box lies above, and 0 where counting is not worth it.
        """
        result = np.zeros(len(low))
        least = at + self.least(low, high, slopes[:, None])[:, 0]
        least -= EPS * 4 * (np.abs(at) + np.abs(least))
        reach = self.reach(low, high, slopes[:, None])[:, 0]
        result[least > 0] = 1.0
        asked = np.flatnonzero((least <= 0) & (least + reach.sum(1) > 0))
        likely = self.guess(low[asked], high[asked], slopes[asked, None], at[asked, None])[:, 0]
        asked = asked[likely > WORTH]
        step = max(1, NUMBERS // bins)
        for start in range(0, len(asked), step):
            some = asked[start : start + step]
            result[some] = self._counted(low[some], high[some], slopes[some], -least[some], reach[some], bins)
        return result

    def _counted(self, low: Ints, high: Ints, slopes: Floats, need: Floats, reach: Floats, bins: int) -> Floats:
        """Return at least the share where terms that are at least 0, rounded down to a grid, exceed `need`.

        The distribution of the sum is the convolution of those of the terms, one for each axis.
        """
        n, axes = len(low), len(self.ground.axes)
        size = reach.sum(1) / (bins - axes - 4)  # of a bin
        steep = np.abs(slopes[:, self.starts[self.linear]]) * (high > low)[:, self.linear]
        steepest = steep.max(1, initial=0.0)  # such an axis gets a grid on which its terms lie exactly
        size = np.where(steepest > size, steepest / np.maximum(1, np.floor(steepest / size)), size)
        transform = np.ones((n, bins // 2 + 1), dtype=np.complex128)
        terms, places = steep / size[:, None], (high - low + 1.0)[:, self.linear]
        # The axes by their reach: few bins are needed for most of them.
        order = np.argsort(-terms * (places - 1), axis=1)
        terms, places = np.take_along_axis(terms, order, 1), np.take_along_axis(places, order, 1)
        for term, count in zip(terms.T, places.T, strict=True):
            some = np.flatnonzero(term * (count - 1) > ON_GRID)
            if not len(some):
                break
            term, count = term[some, None], count[some, None]
            edges = np.arange(int((term * (count - 1)).max()) + 3) - ON_GRID
            below = np.minimum(np.ceil(edges / term), count)  # how many places lie below each edge
            below[:, 0] = 0
            transform[some] *= np.fft.rfft(np.diff(below, axis=1) / count, bins)
        for axis, features in self.tables():
            some = np.flatnonzero(reach[:, axis] > size * ON_GRID)
            if len(some):
                out = self.outside(low[some], high[some], axis)
                own = np.where(out, np.inf, slopes[some, features])
                term = np.where(out, 0, own - own.min(1, keepdims=True)) / size[some, None]
                place = np.floor(term + ON_GRID).astype(np.int64) + bins * np.arange(len(some))[:, None]
                share = self._shares(low[some], high[some], axis)
                filled = np.bincount(place.ravel(), share.ravel(), bins * len(some)).reshape(-1, bins)
                transform[some] *= np.fft.rfft(filled)
        # Sums up to this bin may be too small.
        last = np.floor(need / size * (1 + 8 * EPS) + 2 * axes * ON_GRID).astype(np.int64)
        below = np.cumsum(np.fft.irfft(transform, bins), axis=1)[np.arange(n), np.minimum(last, bins - 1)]
        return np.asarray(np.clip(np.where(last >= bins, 0, 1 - below - FFT), 0, 1 - FFT))
