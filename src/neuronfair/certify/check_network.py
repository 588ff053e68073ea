"""Bounds of a network's signed margins over boxes of people, as a checker finds them.

The numbers that a layer is given are bounded by lines that are carried back through all layers before it, with two
choices of the lines below a ReLU, of which the better counts at every layer. All in float64; what rounding can do to a
line is bounded by the sizes of the numbers that were added, and taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuronfair.certify.certificate import CertificateError
from neuronfair.certify.check_curves import Between, between, extent, inexact, largest, steepest, value
from neuronfair.certify.check_decision import EPS, Signed
from neuronfair.certify.check_ground import Bools, Floats, Ground, Ints
from neuronfair.certify.check_lines import Frame
from neuronfair.model.chain import Chain, Curve
from neuronfair.model.encoding import Encoding, TableEncoding, middle_of

MOST_SINGLE = 16  # sensitive values up to which each gets lines of its own
NUMBERS = 1 << 20  # of the largest array of a pass


class Lines(NamedTuple):
    """Lines below signed margins: slopes (n, values or 1, rows, features) and constants (n, values, rows).

    `least` is below the margins everywhere in the box; it may be better than what the lines say: (n, values, rows).
    """

    slopes: Floats
    at: Floats
    least: Floats

    def chosen(self, some: Ints) -> Lines:
        """Return the lines of some boxes."""
        return Lines(*(part[some] for part in self))

    @staticmethod
    def joined(parts: Sequence[Lines]) -> Lines:
        """Return the lines of several lists of boxes."""
        return Lines(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Layers:
    """A network over the features of a frame."""

    frame: Frame
    rows: Signed
    first: Floats  # (features, neurons) what each feature adds to the first layer
    start: Floats  # (values, neurons) what the sensitive values and all else add
    size: Floats  # (neurons,) how large the numbers are that are added there
    weights: tuple[Floats, ...]  # of the layers after the first; the last gives the signed margins
    biases: tuple[Floats, ...]
    curves: tuple[Curve, ...]

    def lines(self, low: Ints, high: Ints, joint: bool) -> Lines:
        """Return lines below the signed margins over boxes; joint ones have the same slopes for all values."""
        copies = 1 if joint else len(self.start)
        widest = max(w.size for w in (*self.weights, self.first))
        step = max(1, NUMBERS // (2 * widest * copies))
        parts = [self._lines(low[i : i + step], high[i : i + step], copies) for i in range(0, len(low), step)]
        return Lines.joined(parts)

    @property
    def single(self) -> bool:
        """Whether lines for each sensitive value are worth their time."""
        return bool(self.curves) and len(self.start) <= MOST_SINGLE

    def same(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where all valid sensitive values surely lead to the same numbers."""
        alike = (self.start[None] == self.start[:, None]).all(-1)  # (values, values)
        first = valid.argmax(1)
        return np.asarray((alike[first] | ~valid).all(1))

    def points(self, places: Ints) -> Floats:
        """Return signed margins of people at places, rounded down: (n, values, rows)."""
        x = np.zeros((len(places), self.first.shape[1]))
        for axis, start in enumerate(self.frame.starts[:-1]):
            linear = self.frame.ground.axes[axis].linear
            x += places[:, axis, None] * self.first[start] if linear else self.first[start + places[:, axis]]
        x = x[:, None] + self.start
        off = np.broadcast_to(self._rounding * self.size, x.shape)
        for curve, weight, bias in zip(self.curves, self.weights, self.biases, strict=True):
            y = value(curve, x)
            off = (steepest(curve) * off + inexact(curve) + 16 * EPS * np.abs(y)) @ np.abs(weight.T)
            off = off + self._rounding * (np.abs(y) @ np.abs(weight.T) + np.abs(bias))
            x = y @ weight.T + bias
        return np.asarray(x - off * (1 + 1e-6))

    @property
    def _rounding(self) -> float:
        """How much of the sizes of numbers a sum of their products may be off."""
        widest = max(self.first.shape[0], *(w.shape[1] for w in (*self.weights, self.first.T)))
        return 2 * EPS * float(widest + 16)

    def _lines(self, low: Ints, high: Ints, copies: int) -> Lines:
        n = len(low)
        if not self.curves:
            slopes = np.broadcast_to(self.first.T, (n, 1, *self.first.T.shape))
            at = np.broadcast_to(self.start - self._rounding * self.size, (n, *self.start.shape))
            return Lines(slopes, at, self.frame.least(low, high, slopes[:, 0])[:, None] + at)
        repeated = low.repeat(copies, 0), high.repeat(copies, 0)
        ways: list[list[Between]] = [[], []] if any("relu" in curve.name for curve in self.curves) else [[]]
        both = np.concatenate([self.first.T, -self.first.T])
        least = self.frame.least(low, high, np.broadcast_to(both, (n, *both.shape)))
        half = len(self.size)
        error = self._rounding * self.size
        ends = (self.start, self.start) if copies > 1 else (self.start.min(0), self.start.max(0))
        lowest = (least[:, None, :half] + ends[0] - error).reshape(n * copies, -1)
        highest = (-least[:, None, half:] + ends[1] + error).reshape(n * copies, -1)
        sizes = [np.broadcast_to(self.size, lowest.shape)]
        found: list[tuple[Floats, Floats]] = []
        for number, curve in enumerate(self.curves):
            weight, bias = self.weights[number], self.biases[number]
            sizes.append(largest(curve, lowest, highest) @ np.abs(weight.T) + np.abs(bias))
            last = number == len(self.curves) - 1
            asked, added = (weight, bias) if last else (np.concatenate([weight, -weight]), np.append(bias, -bias))
            found = []
            for flat, relaxed in enumerate(ways):
                relaxed.append(between(curve, lowest, highest, bool(flat)))
                found.append(self._carried(relaxed, asked, added, sizes, copies == 1))
            # The better of both ways, and of what the activations themselves allow.
            least = np.max([self.frame.least(*repeated, slopes)[..., None] + at for slopes, at in found], 0)
            least = np.maximum(least, self._plain(curve, lowest, highest, asked, added)[..., None])
            if not last:
                bounds, half = least.min(-1), len(weight)
                lowest, highest = bounds[:, :half], np.maximum(-bounds[:, half:], bounds[:, :half])
        slopes, at = found[0]
        for others, other in found[1:]:
            better = (self.frame.mean(*repeated, others - slopes) + (other - at).mean(-1) > 0)[..., None]
            slopes, at = np.where(better, others, slopes), np.where(better, other, at)
        # The last axis are all values, or the only one of a copy.
        at, least = (a.transpose(0, 2, 1) if copies == 1 else a.reshape(n, copies, -1) for a in (at, least))
        return Lines(slopes.reshape(n, copies, *slopes.shape[1:]), at, least)

    def _plain(self, curve: Curve, low: Floats, high: Floats, asked: Floats, added: Floats) -> Floats:
        """Return the least that combinations of activations can be, by the range of each: (n, lines)."""
        first, last = extent(curve, low, high)
        up, down = np.maximum(asked, 0).T, np.minimum(asked, 0).T
        error = np.maximum(np.abs(first), np.abs(last)) @ np.abs(asked.T) + np.abs(added)
        return np.asarray(first @ up + last @ down + added - self._rounding * error)

    def _carried(
        self, relaxed: Sequence[Between], asked: Floats, added: Floats, sizes: Sequence[Floats], joint: bool
    ) -> tuple[Floats, Floats]:
        """Return lines below combinations of the last layer's activations (lines, neurons), plus what is added.

        There is a constant for every value, or for the one of each copy. `sizes` says for each layer how large the
        numbers are that its neurons add up.
        """
        n = len(sizes[-1])
        at = np.broadcast_to(added, (n, len(asked)))
        error = np.abs(at)
        slopes = np.broadcast_to(asked, (n, *asked.shape))
        for number in reversed(range(len(relaxed))):
            r = relaxed[number]
            up, down = np.maximum(slopes, 0), np.minimum(slopes, 0)
            at = at + _dot(up, r.low_at) + _dot(down, r.high_at)
            error = error + _dot(up, np.abs(r.low_at)) - _dot(down, np.abs(r.high_at))
            slopes = up * r.low[:, None] + down * r.high[:, None]
            error = error + _dot(np.abs(slopes), sizes[number])
            if number:
                at = at + slopes @ self.biases[number - 1]
                slopes = slopes @ self.weights[number - 1]
        if joint:
            started = slopes @ self.start.T
        else:
            started = (slopes.reshape(-1, len(self.start), *slopes.shape[1:]) @ self.start[:, :, None]).reshape(
                *at.shape, 1
            )
        return slopes @ self.first.T, at[..., None] + started - self._rounding * error[..., None]


def _dot(rows: Floats, numbers: Floats) -> Floats:
    return np.asarray((rows @ numbers[..., None])[..., 0])


def layers_of(chain: Chain, encoding: Encoding, ground: Ground, rows: Signed) -> Layers:
    """Return a chain over the places of a certificate; places that it tells apart are refused."""
    if not isinstance(encoding, TableEncoding):
        raise CertificateError("the network does not read rows of a table")
    affines = [(a.weight.detach().cpu().numpy(), a.bias.detach().cpu().numpy()) for a in chain.affines]
    curves = list(chain.curves)
    weight, bias = affines.pop()
    matrix, offset = (rows.matrix[:1], np.zeros(1)) if rows.squash else (rows.matrix, rows.offset)
    slack = 4 * EPS * (np.abs(matrix) @ np.abs(bias) + np.abs(offset))
    affines.append((matrix @ weight, matrix @ bias + offset - slack))
    if rows.squash:
        curves.append(Curve("sigmoid"))
        affines.append((np.array([[1.0], [-1.0]]), np.zeros(2)))
    read = _Read(encoding, affines[0][0])
    frame = Frame(ground)
    start, size, features = affines[0][1], np.abs(affines[0][1]), list[Floats]()
    for axis, column, place in zip(ground.axes, ground.columns, ground.place_of, strict=True):
        codes = np.flatnonzero(place >= 0)
        if axis.linear:
            step, first, large = read.line(column, codes)
            start = start + first
            features.append(step[None])
        else:
            table, large = read.table(column, codes, place[codes])
            features.append(table)
        size = size + large
    values = np.broadcast_to(start, (len(ground.values), len(start)))
    for j, column in enumerate(ground.domain.sensitive_columns):
        codes = np.arange(ground.domain.attributes[column].size)
        table, large = read.table(column, codes, codes)
        values, size = values + table[ground.values[:, j]], size + large
    weights, biases = zip(*affines[1:], strict=True) if len(affines) > 1 else ((), ())
    return Layers(frame, rows, np.concatenate(features), values, size, weights, biases, tuple(curves))


@dataclass(frozen=True)
class _Read:
    """How the codes of an attribute become numbers, and what those add to the first layer."""

    encoding: TableEncoding
    weight: Floats  # (neurons, width)

    def line(self, column: int, codes: Ints) -> tuple[Floats, Floats, Floats]:
        """Return what one place more adds, what the first place does, and how large it all is: (neurons,) each."""
        attribute = self.encoding.attributes[column]
        if len(codes) == 2:  # which always lie on a line
            added, large = self.table(column, codes, np.arange(2))
            return added[1] - added[0], added[0], large
        if bool(self.encoding.is_block[column]) or attribute.empty in (codes[0], codes[-1]):
            raise CertificateError(f"the network does not read '{attribute.name}' as a number, as the certificate says")
        own = self.weight[:, int(self.encoding.offset[column])]
        factor, shift = self.encoding.lines[column]
        return own * factor, own * (factor * codes[0] + shift), np.abs(own) * (abs(factor) * codes[-1] + abs(shift))

    def table(self, column: int, codes: Ints, place: Ints) -> tuple[Floats, Floats]:
        """Return what each place adds, (places, neurons), and how large it is; its codes must add the same."""
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        offset, attribute = int(self.encoding.offset[column]), self.encoding.attributes[column]
        if bool(self.encoding.is_block[column]):
            added = self.weight.T[offset + codes[order]]
            low, high = np.minimum.reduceat(added, starts), np.maximum.reduceat(added, starts)
            large = np.abs(added).max(0)
        else:
            factor, shift = self.encoding.lines[column]
            spot = codes[order].astype(np.float64)
            if attribute.empty is not None:
                spot = np.where(spot == attribute.empty, middle_of(attribute), spot)
            numbers, own = factor * spot + shift, self.weight[:, offset]
            low, high = (f.reduceat(numbers, starts)[:, None] * np.abs(own) for f in (np.minimum, np.maximum))
            large = np.abs(own) * (abs(factor) * np.abs(spot).max() + abs(shift))
        if ((high - low) > 8 * EPS * large).any():
            raise CertificateError(f"a place of '{attribute.name}' holds values that the network tells apart")
        if not bool(self.encoding.is_block[column]):
            low = low * np.sign(own)
        return low, large
