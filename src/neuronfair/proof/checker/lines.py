"""Lines over boxes, as a checker sees them: their least value, their mean, and how many people lie above 0.

A line is a number for every feature and a constant. A linear axis has one feature, what one place more adds; another
axis has one for each place.

People above 0 are counted by waves. Over a box a line is T - need, where T is a sum of independent terms, one for each
axis, all at least 0. With y = (T - need) / P, where P is so large that |y| < 1,

    [T > need] = y + 1/2 + ψ(-y),    ψ(y) = y - floor(y) - 1/2,

and Vaaler's polynomial of M - 1 waves is nowhere farther from ψ than Fejér's kernel divided by 2M (H. L. Montgomery,
Ten Lectures, 1994, chapter 1, theorem 6). All waves are computed, each as the product of what it is for every axis;
nothing is left out or estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from neuronfair.proof.checker.ground import EPS, Bools, CheckedRegion, Floats, Ints

WAVES = 256  # M
NUMBERS = 1 << 19  # that are handled together
ROUNDING = 1e-8  # more than what rounding can do to a sum of waves, for each axis
APART = 0.01  # of a period, by which its end lies beyond all sums: there a wave jumps, too
STILL = 1e-3  # of codes · sin a: below this it is a whole turn
WORTH = 0.005  # a share that is likely smaller is not counted


@dataclass(frozen=True)
class Frame:
    """Which features belong to which axis."""

    ground: CheckedRegion

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
        return np.asarray(ndtr((self.mean(low, high, slopes) + at) / self.spread(low, high, slopes)))

    def spread(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the standard deviation of lines (n, lines, features) over each box: (n, lines)."""
        return np.asarray(np.sqrt((self.reach(low, high, slopes) ** 2 / 12).sum(-1) + 1e-300))

    def share_above(self, low: Ints, high: Ints, slopes: Floats, at: Floats, waves: int = WAVES) -> Floats:
        """Return at least the share of each box's combinations of codes where lines (n, features) are above 0: (n,).

        It is 1 only where the whole box lies above, and 0 where counting is not worth it.
        """
        result = np.zeros(len(low))
        least = at + self.least(low, high, slopes[:, None])[:, 0]
        least -= EPS * 4 * (np.abs(at) + np.abs(least))
        reach = self.reach(low, high, slopes[:, None])[:, 0]
        result[least > 0] = 1.0
        crossed = np.flatnonzero((least <= 0) & (least + reach.sum(1) > 0))
        likely = self.guess(low[crossed], high[crossed], slopes[crossed, None], at[crossed, None])[:, 0]
        crossed = crossed[likely > WORTH]
        step = max(1, NUMBERS // (waves * max(1, len(self.linear))))
        for start in range(0, len(crossed), step):
            some = crossed[start : start + step]
            result[some] = self._counted(low[some], high[some], slopes[some], -least[some], reach[some], waves)
        return result

    def _counted(self, low: Ints, high: Ints, slopes: Floats, need: Floats, reach: Floats, waves: int) -> Floats:
        """Return at least the share where terms that are at least 0 exceed `need`, which is at least 0."""
        most = reach.sum(1)
        need = need + 8 * EPS * (len(self.ground.axes) + 4) * (need + most)
        codes = (high - low + 1.0)[:, self.linear]
        steep = np.where(codes > 1, np.abs(slopes[:, self.starts[self.linear]]), 0.0)
        period = np.maximum(np.maximum(need, most - need), 1e-280) * (1 + APART)
        # A wave of an axis with the terms 0, s, 2s, … is sin(codes · a) / (codes · sin a), a = π s k / period.
        flat = steep == 0
        codes = np.where(flat, 1.0, codes)
        angle = np.where(flat, 1.0, math.pi * steep / period[:, None])  # of one code it is 1 whatever the angle
        below = codes[..., None] * _sines(angle, waves)
        above = _sines(angle * codes, waves)
        still = np.nonzero(np.abs(below) < STILL)  # whole turns, where a series is exact and the quotient is not
        turns = (angle[still[:2]] * (still[2] + 1), codes[still[:2]], below[still])
        below[still] = 1.0
        above /= below
        above[still] = np.sign(np.cos(turns[0]) * np.cos(turns[0] * turns[1])) * (
            1 - turns[2] ** 2 * (1 - turns[1] ** -2.0) / 6
        )
        wave = above.prod(1)
        middle = (steep * (codes - 1)).sum(1) / 2 - need
        turned = wave * _powers(2 * math.pi * middle / period, waves)
        mean = middle
        for axis, features in self.tables():
            out = self.outside(low, high, axis)
            own = np.where(out, np.inf, slopes[:, features])
            term = np.where(out, 0, own - own.min(1, keepdims=True))
            share = self._shares(low, high, axis)
            angle, step = 2 * math.pi * term / period[:, None], max(1, NUMBERS // (waves * len(low)))
            parts = (slice(i, i + step) for i in range(0, term.shape[1], step))
            turned *= sum((share[:, part, None] * _powers(angle[:, part], waves)).sum(1) for part in parts)
            mean = mean + (share * term).sum(1)
        sines, cosines = _weights(waves)
        rounding = ROUNDING * (len(self.ground.axes) + 10)
        found = mean / period + 0.5 + turned.imag @ sines - turned.real @ cosines - 0.5 / waves - rounding
        found[~np.isfinite(found)] = 0.0
        return np.asarray(np.clip(found, 0, 1 - rounding))


def _weights(waves: int) -> tuple[Floats, Floats]:
    """Return by what sines and cosines of the waves k = 1, …, M - 1 are multiplied."""
    k = np.arange(1, waves)
    part = k / waves
    vaaler = (math.pi * part * (1 - part) / np.tan(math.pi * part) + part) / (math.pi * k)
    return vaaler, (1 - part) / waves


def _sines(angle: Floats, waves: int) -> Floats:
    """Return sin(k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near, far = (angle[..., None] * np.arange(*ends) for ends in ((side,), (0, waves, side)))
    whole = np.sin(far)[..., :, None] * np.cos(near)[..., None, :]
    whole += np.cos(far)[..., :, None] * np.sin(near)[..., None, :]
    return np.asarray(whole.reshape(*angle.shape, far.shape[-1] * side)[..., 1:waves])


def _powers(angle: Floats, waves: int) -> npt.NDArray[np.complex128]:
    """Return exp(i k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near = np.exp(1j * angle[..., None] * np.arange(side))
    far = np.exp(1j * angle[..., None] * np.arange(0, waves, side))
    whole = far[..., :, None] * near[..., None, :]
    return np.asarray(whole.reshape(*angle.shape, whole.shape[-2] * side)[..., 1:waves])
