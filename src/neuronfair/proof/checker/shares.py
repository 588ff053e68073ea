"""Which part of a box lines decide: at least so many of its people are decided alike, so many are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from neuronfair.proof.checker.conditions import Bools
from neuronfair.proof.checker.decision import Signed
from neuronfair.proof.checker.ground import Floats, Ints
from neuronfair.proof.checker.lines import WORTH, Frame
from neuronfair.proof.checker.network import CheckedLines

STEEP = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
FEW, MANY = 128, 512  # waves by which shares are counted, at first and then


class Bounds(Protocol):
    """A model over the places of a certificate."""

    @property
    def frame(self) -> Frame:
        """The features over which its lines are written."""

    @property
    def rows(self) -> Signed:
        """What is asked of it."""

    @property
    def width(self) -> int:
        """How many numbers one person with one sensitive value takes, at most."""

    @property
    def numbers(self) -> int:
        """How many numbers the lines of a box take."""

    @property
    def single(self) -> bool:
        """Whether lines for each sensitive value can be better than joint ones."""

    def lines(self, low: Ints, high: Ints, joint: bool) -> CheckedLines:
        """Return lines below the signed margins over boxes; joint ones have the same slopes for all values."""

    def same(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where all valid sensitive values surely lead to the same numbers."""

    def points(self, places: Ints) -> Floats:
        """Return signed margins of people at places, rounded down: (n, values, rows)."""


def bounded(bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats]) -> tuple[Floats, Floats, Ints]:
    """Return at least the shares of boxes that are decided alike and not, and an axis to cut.

    Where less than is needed is proved, it is tried with more effort.
    """
    joint = bounds.lines(low, high, True)
    shares = _shares(bounds, low, high, valid, needed, joint, FEW)
    axis = _axis(bounds.frame, low, high, valid, joint)
    for single in (False, True):
        short = np.flatnonzero(((shares[0] < needed[0]) | (shares[1] < needed[1])) & (shares.max(0) < 1))
        if not len(short) or (single and not bounds.single):
            break
        box = low[short], high[short], valid[short]
        lines = bounds.lines(*box[:2], False) if single else joint.chosen(short)
        again = _shares(bounds, *box, [need[short] for need in needed], lines, MANY)
        shares[:, short] = np.maximum(shares[:, short], again)
    return shares[0], shares[1], axis


def _axis(frame: Frame, low: Ints, high: Ints, valid: Bools, lines: CheckedLines) -> Ints:
    """Return the axis that makes lines loosest within each box, to be cut: (n,)."""
    exists = valid[..., None] if lines.slopes.shape[1] > 1 else np.ones((len(low), 1, 1), bool)
    loose = np.where(exists, lines.slopes.sum(2), 0).sum(1)[:, None]  # both signs of a margin: what is between them
    steep = np.where(exists, np.abs(lines.slopes).sum(2), 0).sum(1)[:, None]
    score = frame.reach(low, high, loose)[:, 0] + STEEP * frame.reach(low, high, steep)[:, 0]
    return np.asarray(np.where(high > low, score + 1e-300 * (high - low), -1.0).argmax(1))


def _shares(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats], lines: CheckedLines, waves: int
) -> Floats:
    """Return at least the shares of boxes that are decided alike and not, by some lines: (2, n)."""
    frame, rows = bounds.frame, bounds.rows
    whole = rows.decided(lines.least, valid)
    shares = np.array(whole, dtype=np.float64)
    for share, need, counted in zip(shares, needed, (_alike, _flips), strict=True):
        some = np.flatnonzero(~(whole[0] | whole[1]) & (need > 0))
        if len(some):
            box = _Box(frame, low[some], high[some], valid[some], waves)
            share[some] = counted(box, rows, lines.chosen(some))
    return shares


def _over(what: Callable[[Ints, Ints, Floats], Floats], low: Ints, high: Ints, lines: CheckedLines) -> Floats:
    """Return what can be said of lines, and of joint ones once for all values, plus their constants: as these."""
    n, k, r, features = lines.slopes.shape
    return what(low, high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r) + lines.at


@dataclass(frozen=True)
class _Box:
    """Boxes whose shares are counted by so many waves."""

    frame: Frame
    low: Ints
    high: Ints
    valid: Bools
    waves: int

    def above(self, slopes: Floats, at: Floats, some: Ints | slice = slice(None)) -> Floats:
        """Return at least the share of some boxes where lines are above 0."""
        return self.frame.share_above(self.low[some], self.high[some], slopes, at, self.waves)


def _alike(box: _Box, rows: Signed, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one line below those of all values says that they are decided alike."""
    if not rows.classes:
        (slopes, at), (others, other) = (_common(box, lines, row, box.valid) for row in (0, 1))
        return box.above(slopes + others, at + other + rows.tolerance)
    shares = []
    for row in range(len(rows.matrix)):
        matter = box.valid & (lines.least[..., row] <= 0)  # those that are positive anyway do not
        matter[~matter.any(1)] = box.valid[~matter.any(1)]
        shares.append(box.above(*_common(box, lines, row, matter)))
    total = np.zeros(len(box.low))
    for own in rows.classes:
        total += np.clip(1 - sum(1 - shares[row] for row in own), 0, 1)
    return np.minimum(total, 1 - 2.0**-52)


def _common(box: _Box, lines: CheckedLines, row: int, matter: Bools) -> tuple[Floats, Floats]:
    """Return one line below those of the values that matter: (n, features) and (n,)."""
    slopes, at = lines.slopes[:, :, row], lines.at[:, :, row]
    if slopes.shape[1] == 1:
        return slopes[:, 0], np.where(matter, at, np.inf).min(1)
    mean = (slopes * (matter / matter.sum(1, keepdims=True))[..., None]).sum(1)
    rest = box.frame.least(box.low, box.high, slopes - mean[:, None]) + at
    return mean, np.where(matter, rest, np.inf).min(1)


def _likely(frame: Frame, box: _Box, lines: CheckedLines) -> Floats:
    """Return about the share of boxes where each line is above 0: (n, values, rows)."""
    n, k, r, features = lines.slopes.shape
    spread = frame.spread(box.low, box.high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r)
    return np.asarray(ndtr(_over(frame.mean, box.low, box.high, lines) / spread))


def _flips(box: _Box, rows: Signed, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one value surely has a class and another surely has not."""
    n, frame, exists = len(box.low), box.frame, box.valid[..., None]
    every, last = np.arange(n), lines.slopes.shape[1] - 1
    mean = np.where(exists, _over(frame.mean, box.low, box.high, lines), -np.inf)

    def line(some: Ints, value: Ints, row: int | Ints) -> tuple[Floats, Floats]:
        return lines.slopes[some, np.minimum(value, last)[some], row], lines.at[some, value[some], row]

    if not rows.classes:
        (slopes, at), (others, other) = (line(every, mean[..., row].argmax(1), row) for row in (0, 1))
        return box.above(slopes + others, at + other - rows.tolerance)
    likely = _likely(frame, box, lines)
    best = np.zeros(n)
    for own, against in zip(rows.classes, rows.against, strict=True):
        v = mean[..., own].min(-1).argmax(1)
        other = mean[..., against].reshape(n, -1).argmax(1)
        w, row = other // len(against), np.asarray(against)[other % len(against)]
        total = np.zeros(n)
        # Where there are two classes, the two values may flip either way.
        for one, two in ((v, w), (w, v)) if len(rows.classes) == 2 else ((v, w),):
            chance = likely[every, two, row] - (1 - likely[every, one][:, own]).sum(1)
            some = np.flatnonzero(chance > WORTH)
            sure = sum(1 - box.above(*line(some, one, c), some) for c in own)
            total[some] += np.maximum(0, box.above(*line(some, two, row[some]), some) - sure)
        best = np.maximum(best, total)
        if len(rows.classes) == 2:
            break
    return np.minimum(best, 1 - 2.0**-52)
