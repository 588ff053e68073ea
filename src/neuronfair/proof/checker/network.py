"""Bounds of a network's signed margins over boxes of records, as a checker finds them.

The numbers that a layer is given are bounded by lines that are carried back through all layers before it, with two
choices of the lines below a ReLU, of which the better counts at every layer. All in float64; what rounding can do to a
line is bounded by the sizes of the numbers that were added, and taken off.

Activation functions are bounded by their values on a grid. Between two points of a grid that lie δ apart a function
whose second derivative is at most C in size stays within C δ² / 8 of its chord. So what holds at the points holds
everywhere, but for that much. A ReLU is bounded exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from neuronfair.domain.attribute import Attribute
from neuronfair.limits import check_size
from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.reader import CheckedCurve, CheckedLayer, ReadNetwork
from neuronfair.proof.checker.region import EPS, Bools, CheckedRegion, FeatureLayout, Floats, Ints, Signed

POINTS = 33  # of the grid
_TINY = 1e-9  # an interval narrower than this has no slope of its own
DEEPEST = -0.2785  # the least value of those that fall before they rise
STEEPEST = 1.2  # no curve but a leaky ReLU rises or falls faster
MAX_SEPARATE_VALUES = 16  # sensitive values up to which each gets lines of its own
NUMBERS_PER_PASS = 1 << 20  # of the largest array


@dataclass(frozen=True)
class _Smooth:
    """A function, the largest second derivative, whether it never falls, and how far others may compute it off."""

    value: Callable[[Floats], Floats]
    bend: float
    rises: bool
    off: float = 0.0


_SMOOTH = {
    "sigmoid": _Smooth(special.expit, 0.0963, True),
    "tanh": _Smooth(np.tanh, 0.7699, True),
    "gelu": _Smooth(lambda x: x * special.ndtr(x), 0.7979, False),
    "silu": _Smooth(lambda x: x * special.expit(x), 0.5, False),
    "elu": _Smooth(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 1.0, True),
    # torch takes the number itself above 20
    "softplus": _Smooth(lambda x: np.logaddexp(0.0, x), 0.25, True, 2.1e-9),
}


def value(curve: CheckedCurve, x: Floats) -> Floats:
    """Return an activation function of numbers."""
    if curve.name in ("relu", "leaky_relu"):
        return np.where(x > 0, x, curve.leak * x)
    return _smooth(curve).value(x)


def inexact(curve: CheckedCurve) -> float:
    """Return how far a function may be off wherever it is computed, beyond rounding."""
    return 0.0 if curve.name in ("relu", "leaky_relu") else _smooth(curve).off


def steepest(curve: CheckedCurve) -> float:
    """Return how fast a function rises or falls at most."""
    return max(1.0, abs(curve.leak)) if curve.name in ("relu", "leaky_relu") else STEEPEST


def extent(curve: CheckedCurve, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the range of a function's values between two numbers."""
    ends = value(curve, low), value(curve, high)
    first, last = np.minimum(*ends), np.maximum(*ends)
    if curve.name not in ("relu", "leaky_relu"):
        smooth = _smooth(curve)
        slack = smooth.off + 16 * EPS * (np.abs(first) + np.abs(last))
        first, last = first - slack, last + slack
        if not smooth.rises:  # below 0 it falls a little before it rises
            first = np.where(low < 0, np.minimum(first, DEEPEST), first)
    elif curve.leak < 0:
        first = np.where((low < 0) & (high > 0), np.minimum(first, 0), first)
    return first, last


def largest(curve: CheckedCurve, low: Floats, high: Floats) -> Floats:
    """Return at least the size of a function's values between two numbers."""
    return np.maximum(np.abs(low), np.abs(high)) * steepest(curve) + 1.0


@dataclass(frozen=True)
class Between:
    """A function lies above low · x + low_at and below high · x + high_at."""

    low: Floats
    low_offset: Floats
    high: Floats
    high_offset: Floats


def between(curve: CheckedCurve, low: Floats, high: Floats, flat: bool) -> Between:
    """Return lines for numbers between low and high; a flat ReLU is bounded by its smaller slope from below."""
    if curve.name in ("relu", "leaky_relu"):
        return _bent(curve.leak, low, high, flat)
    return _grid(_smooth(curve), low, high)


def _smooth(curve: CheckedCurve) -> _Smooth:
    if curve.name not in _SMOOTH:
        raise CertificateError(f"the activation function '{curve.name}' cannot be checked")
    return _SMOOTH[curve.name]


def _bent(leak: float, low: Floats, high: Floats, flat: bool) -> Between:
    """Return lines for a function with the slope `leak` below 0 and 1 above."""
    crossing = (low < 0) & (high > 0)
    width = np.where(crossing, high - low, 1.0)
    side = np.where(high <= 0, leak, 1.0)
    chord = np.where(crossing, (high - leak * low) / width, side)
    # The line with the computed slope through both ends: the higher one, so that rounding does not matter.
    ends = np.maximum(high - chord * high, leak * low - chord * low)
    lift = np.where(crossing, ends, 0.0)
    steep = np.where(crossing, leak if flat else np.where(high > -low, 1.0, leak), side)
    nothing = np.zeros_like(low)
    size = 4 * EPS * np.where(crossing, np.abs(low) + np.abs(high), 0.0) * (1 + abs(leak))
    if leak <= 1:
        return Between(steep, nothing, chord, lift + size)
    ends = np.minimum(high - chord * high, leak * low - chord * low)
    return Between(chord, np.where(crossing, ends, 0.0) - size, steep, nothing)  # such a one bends the other way


def _grid(smooth: _Smooth, low: Floats, high: Floats) -> Between:
    width = np.maximum(high - low, 0.0)
    x = low + np.linspace(0.0, 1.0, POINTS).reshape(-1, *[1] * low.ndim) * width
    y = smooth.value(x)
    middle = POINTS // 2
    narrow = width < _TINY
    safe = np.where(narrow, 1.0, width)
    slopes = [
        np.where(narrow, 0.0, (y[-1] - y[0]) / safe),
        np.where(narrow, 0.0, (y[middle + 1] - y[middle - 1]) / (2 * safe / (POINTS - 1))),
        np.zeros_like(low),
    ]
    best = Between(*(np.full_like(low, fill) for fill in (0.0, -np.inf, 0.0, np.inf)))
    sag = smooth.bend * (width / (POINTS - 1)) ** 2 / 8
    gap_low, gap_high = np.full_like(low, np.inf), np.full_like(low, np.inf)
    for slope in slopes:
        line = slope * x
        rest = y - line
        slack = 16 * EPS * (np.abs(y).max(0) + np.abs(line).max(0)) + smooth.off
        least, most = rest.min(0) - sag, rest.max(0) + sag
        if smooth.rises:  # between two points it also lies between its values there, which is better where they are far
            least = np.maximum(least, (y[:-1] - np.maximum(line[:-1], line[1:])).min(0))
            most = np.minimum(most, (y[1:] - np.minimum(line[:-1], line[1:])).max(0))
        least, most, centre = least - slack, most + slack, rest.mean(0)
        better = centre - least < gap_low
        higher = most - centre < gap_high
        gap_low, gap_high = np.where(better, centre - least, gap_low), np.where(higher, most - centre, gap_high)
        best = Between(
            np.where(better, slope, best.low),
            np.where(better, least, best.low_offset),
            np.where(higher, slope, best.high),
            np.where(higher, most, best.high_offset),
        )
    return best


class CheckedLines(NamedTuple):
    """Lines below signed margins: slopes (n, values or 1, rows, features) and constants (n, values, rows).

    `least` is below the margins everywhere in the box; it may be better than what the lines say: (n, values, rows).
    """

    slopes: Floats
    at: Floats
    least: Floats

    def chosen(self, some: Ints) -> CheckedLines:
        """Return the lines of some boxes."""
        return CheckedLines(*(part[some] for part in self))

    @staticmethod
    def joined(parts: Sequence[CheckedLines]) -> CheckedLines:
        """Return the lines of several lists of boxes."""
        return CheckedLines(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Layers:
    """A network over the features of a layout."""

    layout: FeatureLayout
    rows: Signed
    first: Floats  # (features, neurons) what each feature adds to the first layer
    start: Floats  # (values, neurons) what the sensitive values and all else add
    size: Floats  # (neurons,) how large the numbers are that are added there
    after: tuple[CheckedLayer, ...]  # the layers after the first; the last gives the signed margins
    curves: tuple[CheckedCurve, ...]
    rounding: float  # how much of the sizes of numbers a sum of their products may be off

    def lines(self, low: Ints, high: Ints, joint: bool) -> CheckedLines:
        """Return lines below the signed margins over boxes; joint ones have the same slopes for all values."""
        copies = 1 if joint else len(self.start)
        widest = max(w.size * copies + len(w) * len(self.start) for w in self._matrices)
        step = max(1, NUMBERS_PER_PASS // (2 * widest))
        parts = [self._lines(low[i : i + step], high[i : i + step], copies) for i in range(0, len(low), step)]
        return CheckedLines.joined(parts)

    @property
    def _matrices(self) -> list[Floats]:
        return [self.first.T, *(layer.weight for layer in self.after)]

    @property
    def width(self) -> int:
        """How many numbers one person with one sensitive value takes, at most."""
        return max(len(weight) for weight in self._matrices)

    @property
    def numbers(self) -> int:
        """How many numbers the lines of a box take."""
        values = len(self.start)
        copies = values if self.single else 1
        return len(self.rows.matrix) * (copies * self.layout.features + 2 * values)

    quick_lines = True  # before many records are enumerated

    @property
    def single(self) -> bool:
        """Whether lines for each sensitive value are worth their time."""
        return bool(self.curves) and len(self.start) <= MAX_SEPARATE_VALUES

    def same(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where all valid sensitive values surely lead to the same numbers."""
        _, kind = np.unique(self.start, axis=0, return_inverse=True)  # values that add the same are of one kind
        mine = kind.reshape(-1)[valid.argmax(1)]
        return np.asarray(((kind.reshape(1, -1) == mine[:, None]) | ~valid).all(1))

    def points(self, places: Ints) -> Floats:
        """Return signed margins of records at places, rounded down: (n, values, rows)."""
        x = np.zeros((len(places), self.first.shape[1]))
        for axis, start in enumerate(self.layout.starts[:-1]):
            linear = self.layout.region.axes[axis].linear
            x += places[:, axis, None] * self.first[start] if linear else self.first[start + places[:, axis]]
        x = x[:, None] + self.start
        off = np.broadcast_to(self.rounding * self.size, x.shape)
        for curve, layer in zip(self.curves, self.after, strict=True):
            y = value(curve, x)
            off = (steepest(curve) * off + inexact(curve) + 16 * EPS * np.abs(y)) @ np.abs(layer.weight.T)
            off = off + self.rounding * (np.abs(y) @ layer.weight_size.T + layer.bias_size)
            x = y @ layer.weight.T + layer.bias
        return np.asarray(x - off * (1 + 1e-6))

    def _lines(self, low: Ints, high: Ints, copies: int) -> CheckedLines:
        n = len(low)
        if not self.curves:
            slopes = np.broadcast_to(self.first.T, (n, 1, *self.first.T.shape))
            at = np.broadcast_to(self.start - self.rounding * self.size, (n, *self.start.shape))
            return CheckedLines(slopes, at, self.layout.least(low, high, slopes[:, 0])[:, None] + at)
        repeated = low.repeat(copies, 0), high.repeat(copies, 0)
        relaxations: list[list[Between]] = [[], []] if any("relu" in curve.name for curve in self.curves) else [[]]
        both = np.concatenate([self.first.T, -self.first.T])
        least = self.layout.least(low, high, np.broadcast_to(both, (n, *both.shape)))
        half = len(self.size)
        error = self.rounding * self.size
        ends = (self.start, self.start) if copies > 1 else (self.start.min(0), self.start.max(0))
        lowest = (least[:, None, :half] + ends[0] - error).reshape(n * copies, -1)
        highest = (-least[:, None, half:] + ends[1] + error).reshape(n * copies, -1)
        sizes = [np.broadcast_to(self.size, lowest.shape)]
        found: list[tuple[Floats, Floats]] = []
        for number, curve in enumerate(self.curves):
            weight, bias, weight_size, bias_size = self.after[number]
            sizes.append(largest(curve, lowest, highest) @ weight_size.T + bias_size)
            last = number == len(self.curves) - 1
            weights, biases, size = weight, bias, sizes[-1]
            if not last:
                weights, biases = np.concatenate([weight, -weight]), np.append(bias, -bias)
                size = np.concatenate([size, size], 1)
            found = []
            for flat, relaxed in enumerate(relaxations):
                relaxed.append(between(curve, lowest, highest, bool(flat)))
                found.append(self._carried(relaxed, weights, biases, size, sizes, copies == 1))
            # The better of both, and of what the activations themselves allow.
            least = np.max([self.layout.least(*repeated, slopes)[..., None] + at for slopes, at in found], 0)
            least = np.maximum(least, self._plain(curve, lowest, highest, weights, biases, size)[..., None])
            if not last:
                bounds, half = least.min(-1), len(weight)
                lowest, highest = bounds[:, :half], np.maximum(-bounds[:, half:], bounds[:, :half])
        slopes, at = found[0]
        for others, other in found[1:]:
            better = (self.layout.mean(*repeated, others - slopes) + (other - at).mean(-1) > 0)[..., None]
            slopes, at = np.where(better, others, slopes), np.where(better, other, at)
        # The last axis are all values, or the only one of a copy.
        at, least = (a.transpose(0, 2, 1) if copies == 1 else a.reshape(n, copies, -1) for a in (at, least))
        return CheckedLines(slopes.reshape(n, copies, *slopes.shape[1:]), at, least)

    def _plain(
        self, curve: CheckedCurve, low: Floats, high: Floats, weights: Floats, biases: Floats, size: Floats
    ) -> Floats:
        """Return the least that combinations of activations of such a size can be, by the range of each: (n, lines)."""
        first, last = extent(curve, low, high)
        up, down = np.maximum(weights, 0).T, np.minimum(weights, 0).T
        return np.asarray(first @ up + last @ down + biases - self.rounding * size)

    def _carried(
        self,
        relaxed: Sequence[Between],
        weights: Floats,
        biases: Floats,
        size: Floats,
        sizes: Sequence[Floats],
        joint: bool,
    ) -> tuple[Floats, Floats]:
        """Return lines below combinations of the last layer's activations (lines, neurons), plus biases.

        There is a constant for every value, or for the one of each copy. `size` says how large the numbers are that
        the lines add up, and `sizes` for each layer those that its neurons do.
        """
        n, error = len(size), size
        at = np.broadcast_to(biases, (n, len(weights)))
        slopes = np.broadcast_to(weights, (n, *weights.shape))
        for number in reversed(range(len(relaxed))):
            r = relaxed[number]
            up, down = np.maximum(slopes, 0), np.minimum(slopes, 0)
            at = at + _dot(up, r.low_offset) + _dot(down, r.high_offset)
            error = error + _dot(up, np.abs(r.low_offset)) - _dot(down, np.abs(r.high_offset))
            slopes = up * r.low[:, None] + down * r.high[:, None]
            error = error + _dot(np.abs(slopes), sizes[number])
            if number:
                at = at + slopes @ self.after[number - 1].bias
                slopes = slopes @ self.after[number - 1].weight
        if joint:
            started = slopes @ self.start.T
        else:
            started = (slopes.reshape(-1, len(self.start), *slopes.shape[1:]) @ self.start[:, :, None]).reshape(
                *at.shape, 1
            )
        return slopes @ self.first.T, at[..., None] + started - self.rounding * error[..., None]


def _dot(rows: Floats, numbers: Floats) -> Floats:
    return np.asarray((rows @ numbers[..., None])[..., 0])


def layers_of(network: ReadNetwork, attributes: Sequence[Attribute], region: CheckedRegion, rows: Signed) -> Layers:
    """Return a network over the places of a certificate; places that it tells apart are refused.

    `attributes` say how a row of codes becomes the numbers that the network takes.
    """
    *layers, end = network.layers
    curves = list(network.curves)
    matrix, offset = (rows.matrix[:1], np.zeros(1)) if rows.squash else (rows.matrix, rows.offset)
    size = np.abs(matrix) @ end.weight_size, np.abs(matrix) @ end.bias_size + np.abs(offset)
    layers.append(CheckedLayer(matrix @ end.weight, matrix @ end.bias + offset - 4 * EPS * size[1], *size))
    if rows.squash:
        curves.append(CheckedCurve("sigmoid"))
        signs, nothing = np.array([[1.0], [-1.0]]), np.zeros(2)
        layers.append(CheckedLayer(signs, nothing, np.abs(signs), nothing))
    layout = FeatureLayout(region)
    check_size(layout.features * len(layers[0].bias), "the places of its axes", times=64)
    read = _Inputs(tuple(attributes), layers[0])
    start, size_at, features = layers[0].bias, layers[0].bias_size, list[Floats]()
    for axis, column, place in zip(region.axes, region.columns, region.place_of, strict=True):
        codes = np.flatnonzero(place >= 0)
        if axis.linear:
            step, first, large = read.line(column, codes)
            start = start + first
            features.append(step[None])
        else:
            table, large = read.table(column, codes, place[codes])
            features.append(table)
        size_at = size_at + large
    values = np.broadcast_to(start, (len(region.values), len(start)))
    for j, column in enumerate(region.sensitive):
        codes = np.arange(region.domain.attributes[column].size)
        table, large = read.table(column, codes, codes)
        values, size_at = values + table[region.values[:, j]], size_at + large
    widths = [network.widest, *(layer.weight.shape[1] for layer in layers)]
    rounding = EPS * max(2, network.steps) * float(max(layout.features, *widths) + 16)
    return Layers(layout, rows, np.concatenate(features), values, size_at, tuple(layers[1:]), tuple(curves), rounding)


@dataclass(frozen=True)
class _Inputs:
    """How the codes of an attribute become numbers, and what those add to the first layer."""

    attributes: tuple[Attribute, ...]
    layer: CheckedLayer

    def _own(self, column: int) -> tuple[Floats, Floats]:
        """Return what the layer multiplies an attribute's numbers by, and how large that is: (neurons, numbers)."""
        start = sum(map(numbers_of, self.attributes[:column]))
        mine = slice(start, start + numbers_of(self.attributes[column]))
        return self.layer.weight[:, mine], self.layer.weight_size[:, mine]

    def _straight(self, column: int) -> tuple[Floats, Floats, float, float]:
        """Return weights and their size for an attribute of one number, and what a code and none make of it."""
        attribute = self.attributes[column]
        own, large = self._own(column)
        if not attribute.is_input:
            nothing = np.zeros(len(self.layer.bias))
            return nothing, nothing, 0.0, 0.0
        low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
        if attribute.encode == "scaled":
            return own[:, 0], large[:, 0], step / attribute.scale, (low - attribute.center) / attribute.scale
        return own[:, 0], large[:, 0], step, low

    def line(self, column: int, codes: Ints) -> tuple[Floats, Floats, Floats]:
        """Return what one place more adds, what the first place does, and how large it all is: (neurons,) each."""
        attribute = self.attributes[column]
        if len(codes) == 2:  # which always lie on a line
            added, large = self.table(column, codes, np.arange(2))
            return added[1] - added[0], added[0], large
        if attribute.encode == "onehot" or attribute.empty in (codes[0], codes[-1]):
            raise CertificateError(f"the network does not read '{attribute.name}' as a number, as the certificate says")
        own, large, factor, shift = self._straight(column)
        return own * factor, own * (factor * codes[0] + shift), large * (abs(factor) * codes[-1] + abs(shift))

    def table(self, column: int, codes: Ints, place: Ints) -> tuple[Floats, Floats]:
        """Return what each place adds, (places, neurons), and how large it is; its codes must add the same."""
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        attribute = self.attributes[column]
        if attribute.encode == "onehot":
            block, size = self._own(column)
            added = block.T[codes[order]]
            low, high = np.minimum.reduceat(added, starts), np.maximum.reduceat(added, starts)
            large = size.max(1)
        else:
            own, size, factor, shift = self._straight(column)
            spot = codes[order].astype(np.float64)
            if attribute.empty is not None:
                spot = np.where(spot == attribute.empty, _middle(attribute), spot)
            numbers = factor * spot + shift
            low, high = (f.reduceat(numbers, starts)[:, None] * np.abs(own) for f in (np.minimum, np.maximum))
            large = size * (abs(factor) * np.abs(spot).max() + abs(shift))
        if ((high - low) > 8 * EPS * large).any():
            raise CertificateError(f"a place of '{attribute.name}' holds values that the network tells apart")
        if attribute.encode != "onehot":
            low = low * np.sign(own)
        return low, large


def numbers_of(attribute: Attribute) -> int:
    """Return how many numbers a network is given for an attribute."""
    return attribute.size if attribute.encode == "onehot" else int(attribute.encode != "none")


def _middle(attribute: Attribute) -> float:
    """Return the place among an attribute's numbers at which a network sees an empty cell."""
    center = (attribute.center - attribute.low) / attribute.step
    return center if 0 <= center <= attribute.grid_size - 1 else (attribute.grid_size - 1) / 2
