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
from neuronfair.proof.checker.region import EPS, Bools, CheckedRegion, FeatureLayout, Floats, Ints, SignedMargins

GRID_POINTS = 33  # of the grid
_MIN_WIDTH = 1e-9  # an interval narrower than this has no slope of its own
LOWEST_VALUE = -0.2785  # the least value of those that fall before they rise
MAX_SLOPE = 1.2  # no curve but a leaky ReLU rises or falls faster
MAX_SEPARATE_VALUES = 16  # sensitive values up to which each gets lines of its own
NUMBERS_PER_PASS = 1 << 20  # of the largest array


@dataclass(frozen=True)
class _SmoothCurve:
    """A function, the largest second derivative, whether it never falls, and how far others may compute it off."""

    value: Callable[[Floats], Floats]
    bend: float
    rises: bool
    error: float = 0.0


_SMOOTH = {
    "sigmoid": _SmoothCurve(special.expit, 0.0963, True),
    "tanh": _SmoothCurve(np.tanh, 0.7699, True),
    "gelu": _SmoothCurve(lambda x: x * special.ndtr(x), 0.7979, False),
    "silu": _SmoothCurve(lambda x: x * special.expit(x), 0.5, False),
    "elu": _SmoothCurve(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 1.0, True),
    # torch takes the number itself above 20
    "softplus": _SmoothCurve(lambda x: np.logaddexp(0.0, x), 0.25, True, 2.1e-9),
}


def evaluate_curve(curve: CheckedCurve, x: Floats) -> Floats:
    """Return an activation function of numbers."""
    if curve.name in ("relu", "leaky_relu"):
        return np.where(x > 0, x, curve.leak * x)
    return _find_smooth(curve).value(x)


def bound_error(curve: CheckedCurve) -> float:
    """Return how far a function may be off wherever it is computed, beyond rounding."""
    return 0.0 if curve.name in ("relu", "leaky_relu") else _find_smooth(curve).error


def bound_slope(curve: CheckedCurve) -> float:
    """Return how fast a function rises or falls at most."""
    return max(1.0, abs(curve.leak)) if curve.name in ("relu", "leaky_relu") else MAX_SLOPE


def bound_values(curve: CheckedCurve, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the range of a function's values between two numbers."""
    ends = evaluate_curve(curve, low), evaluate_curve(curve, high)
    first, last = np.minimum(*ends), np.maximum(*ends)
    if curve.name not in ("relu", "leaky_relu"):
        smooth = _find_smooth(curve)
        slack = smooth.error + 16 * EPS * (np.abs(first) + np.abs(last))
        first, last = first - slack, last + slack
        if not smooth.rises:  # below 0 it falls a little before it rises
            first = np.where(low < 0, np.minimum(first, LOWEST_VALUE), first)
    elif curve.leak < 0:
        first = np.where((low < 0) & (high > 0), np.minimum(first, 0), first)
    return first, last


def bound_size(curve: CheckedCurve, low: Floats, high: Floats) -> Floats:
    """Return at least the size of a function's values between two numbers."""
    return np.maximum(np.abs(low), np.abs(high)) * bound_slope(curve) + 1.0


@dataclass(frozen=True)
class CurveLines:
    """A function lies above low · x + low_at and below high · x + high_at."""

    low: Floats
    low_offset: Floats
    high: Floats
    high_offset: Floats


def relax_curve(curve: CheckedCurve, low: Floats, high: Floats, flat: bool) -> CurveLines:
    """Return lines for numbers between low and high; a flat ReLU is bounded by its smaller slope from below."""
    if curve.name in ("relu", "leaky_relu"):
        return _relax_rectifier(curve.leak, low, high, flat)
    return _relax_on_grid(_find_smooth(curve), low, high)


def _find_smooth(curve: CheckedCurve) -> _SmoothCurve:
    if curve.name not in _SMOOTH:
        raise CertificateError(f"the activation function '{curve.name}' cannot be checked")
    return _SMOOTH[curve.name]


def _relax_rectifier(leak: float, low: Floats, high: Floats, flat: bool) -> CurveLines:
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
        return CurveLines(steep, nothing, chord, lift + size)
    ends = np.minimum(high - chord * high, leak * low - chord * low)
    return CurveLines(chord, np.where(crossing, ends, 0.0) - size, steep, nothing)  # such a one bends the other way


def _relax_on_grid(smooth: _SmoothCurve, low: Floats, high: Floats) -> CurveLines:
    width = np.maximum(high - low, 0.0)
    x = low + np.linspace(0.0, 1.0, GRID_POINTS).reshape(-1, *[1] * low.ndim) * width
    y = smooth.value(x)
    middle = GRID_POINTS // 2
    narrow = width < _MIN_WIDTH
    safe = np.where(narrow, 1.0, width)
    slopes = [
        np.where(narrow, 0.0, (y[-1] - y[0]) / safe),
        np.where(narrow, 0.0, (y[middle + 1] - y[middle - 1]) / (2 * safe / (GRID_POINTS - 1))),
        np.zeros_like(low),
    ]
    best = CurveLines(*(np.full_like(low, fill) for fill in (0.0, -np.inf, 0.0, np.inf)))
    sag = smooth.bend * (width / (GRID_POINTS - 1)) ** 2 / 8
    gap_low, gap_high = np.full_like(low, np.inf), np.full_like(low, np.inf)
    for slope in slopes:
        line = slope * x
        gaps = y - line
        slack = 16 * EPS * (np.abs(y).max(0) + np.abs(line).max(0)) + smooth.error
        lowest, highest = gaps.min(0) - sag, gaps.max(0) + sag
        if smooth.rises:  # between two points it also lies between its values there, which is better where they are far
            lowest = np.maximum(lowest, (y[:-1] - np.maximum(line[:-1], line[1:])).min(0))
            highest = np.minimum(highest, (y[1:] - np.minimum(line[:-1], line[1:])).max(0))
        lowest, highest, centre = lowest - slack, highest + slack, gaps.mean(0)
        better = centre - lowest < gap_low
        higher = highest - centre < gap_high
        gap_low, gap_high = np.where(better, centre - lowest, gap_low), np.where(higher, highest - centre, gap_high)
        best = CurveLines(
            np.where(better, slope, best.low),
            np.where(better, lowest, best.low_offset),
            np.where(higher, slope, best.high),
            np.where(higher, highest, best.high_offset),
        )
    return best


class CheckedLines(NamedTuple):
    """Lines below signed margins: slopes (n, values or 1, rows, features) and constants (n, values, rows).

    `minimum` is below the margins everywhere in the box; it may be better than what the lines say: (n, values, rows).
    """

    slopes: Floats
    at: Floats
    minimum: Floats

    def select(self, indices: Ints) -> CheckedLines:
        """Return the lines of some boxes."""
        return CheckedLines(*(part[indices] for part in self))

    @staticmethod
    def concatenate(parts: Sequence[CheckedLines]) -> CheckedLines:
        """Return the lines of several lists of boxes."""
        return CheckedLines(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Layers:
    """A network over the features of a layout."""

    layout: FeatureLayout
    rows: SignedMargins
    first: Floats  # (features, neurons) what each feature adds to the first layer
    start: Floats  # (values, neurons) what the sensitive values and all else add
    size: Floats  # (neurons,) how large the numbers are that are added there
    after: tuple[CheckedLayer, ...]  # the layers after the first; the last gives the signed margins
    curves: tuple[CheckedCurve, ...]
    rounding: float  # how much of the sizes of numbers a sum of their products may be off

    def find_lines(self, low: Ints, high: Ints, joint: bool) -> CheckedLines:
        """Return lines below the signed margins over boxes; joint ones have the same slopes for all values."""
        copies = 1 if joint else len(self.start)
        widest = max(w.size * copies + len(w) * len(self.start) for w in self._matrices)
        step = max(1, NUMBERS_PER_PASS // (2 * widest))
        parts = [self._find_lines(low[i : i + step], high[i : i + step], copies) for i in range(0, len(low), step)]
        return CheckedLines.concatenate(parts)

    @property
    def _matrices(self) -> list[Floats]:
        return [self.first.T, *(layer.weight for layer in self.after)]

    @property
    def numbers_per_point(self) -> int:
        """How many numbers one person with one sensitive value takes, at most."""
        return max(len(weight) for weight in self._matrices)

    @property
    def line_numbers(self) -> int:
        """How many numbers the lines of a box take."""
        values = len(self.start)
        copies = values if self.tries_each_value else 1
        return len(self.rows.matrix) * (copies * self.layout.features + 2 * values)

    quick_lines = True  # before many records are enumerated

    @property
    def tries_each_value(self) -> bool:
        """Whether lines for each sensitive value are worth their time."""
        return bool(self.curves) and len(self.start) <= MAX_SEPARATE_VALUES

    def mark_same_margins(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where all valid sensitive values surely lead to the same numbers."""
        _, kind = np.unique(self.start, axis=0, return_inverse=True)  # values that add the same are of one kind
        first_kind = kind.reshape(-1)[valid.argmax(1)]
        return np.asarray(((kind.reshape(1, -1) == first_kind[:, None]) | ~valid).all(1))

    def compute_margins(self, points: Ints) -> Floats:
        """Return signed margins of records at positions, rounded down: (n, values, rows)."""
        x = np.zeros((len(points), self.first.shape[1]))
        for axis, start in enumerate(self.layout.starts[:-1]):
            linear = self.layout.region.axes[axis].linear
            x += points[:, axis, None] * self.first[start] if linear else self.first[start + points[:, axis]]
        x = x[:, None] + self.start
        error = np.broadcast_to(self.rounding * self.size, x.shape)
        for curve, layer in zip(self.curves, self.after, strict=True):
            y = evaluate_curve(curve, x)
            error = (bound_slope(curve) * error + bound_error(curve) + 16 * EPS * np.abs(y)) @ np.abs(layer.weight.T)
            error = error + self.rounding * (np.abs(y) @ layer.weight_size.T + layer.bias_size)
            x = y @ layer.weight.T + layer.bias
        return np.asarray(x - error * (1 + 1e-6))

    def _find_lines(self, low: Ints, high: Ints, copies: int) -> CheckedLines:
        n = len(low)
        if not self.curves:
            slopes = np.broadcast_to(self.first.T, (n, 1, *self.first.T.shape))
            at = np.broadcast_to(self.start - self.rounding * self.size, (n, *self.start.shape))
            return CheckedLines(slopes, at, self.layout.find_minimum(low, high, slopes[:, 0])[:, None] + at)
        repeated = low.repeat(copies, 0), high.repeat(copies, 0)
        by_policy: list[list[CurveLines]] = [[], []] if any("relu" in curve.name for curve in self.curves) else [[]]
        signed_first = np.concatenate([self.first.T, -self.first.T])
        lower = self.layout.find_minimum(low, high, np.broadcast_to(signed_first, (n, *signed_first.shape)))
        neurons = len(self.size)
        error = self.rounding * self.size
        value_ends = (self.start, self.start) if copies > 1 else (self.start.min(0), self.start.max(0))
        lowest = (lower[:, None, :neurons] + value_ends[0] - error).reshape(n * copies, -1)
        highest = (-lower[:, None, neurons:] + value_ends[1] + error).reshape(n * copies, -1)
        sizes = [np.broadcast_to(self.size, lowest.shape)]
        candidates: list[tuple[Floats, Floats]] = []
        for layer_index, curve in enumerate(self.curves):
            weight, bias, weight_size, bias_size = self.after[layer_index]
            sizes.append(bound_size(curve, lowest, highest) @ weight_size.T + bias_size)
            is_last = layer_index == len(self.curves) - 1
            weights, biases, size = weight, bias, sizes[-1]
            if not is_last:
                weights, biases = np.concatenate([weight, -weight]), np.append(bias, -bias)
                size = np.concatenate([size, size], 1)
            candidates = []
            for flat, relaxations in enumerate(by_policy):
                relaxations.append(relax_curve(curve, lowest, highest, bool(flat)))
                candidates.append(self._carry_back(relaxations, weights, biases, size, sizes, copies == 1))
            # The better of both, and of what the activations themselves allow.
            lower = np.max(
                [self.layout.find_minimum(*repeated, slopes)[..., None] + at for slopes, at in candidates], 0
            )
            lower = np.maximum(lower, self._bound_by_ranges(curve, lowest, highest, weights, biases, size)[..., None])
            if not is_last:
                bounds, neurons = lower.min(-1), len(weight)
                lowest, highest = bounds[:, :neurons], np.maximum(-bounds[:, neurons:], bounds[:, :neurons])
        slopes, at = candidates[0]
        for other_slopes, other_at in candidates[1:]:
            better = (self.layout.mean(*repeated, other_slopes - slopes) + (other_at - at).mean(-1) > 0)[..., None]
            slopes, at = np.where(better, other_slopes, slopes), np.where(better, other_at, at)
        # The last axis are all values, or the only one of a copy.
        at, lower = (a.transpose(0, 2, 1) if copies == 1 else a.reshape(n, copies, -1) for a in (at, lower))
        return CheckedLines(slopes.reshape(n, copies, *slopes.shape[1:]), at, lower)

    def _bound_by_ranges(
        self, curve: CheckedCurve, low: Floats, high: Floats, weights: Floats, biases: Floats, size: Floats
    ) -> Floats:
        """Return the least that combinations of activations of such a size can be, by the range of each: (n, lines)."""
        first, last = bound_values(curve, low, high)
        up, down = np.maximum(weights, 0).T, np.minimum(weights, 0).T
        return np.asarray(first @ up + last @ down + biases - self.rounding * size)

    def _carry_back(
        self,
        relaxed: Sequence[CurveLines],
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


def build_layers(
    network: ReadNetwork, attributes: Sequence[Attribute], region: CheckedRegion, rows: SignedMargins
) -> Layers:
    """Return a network over the positions of a certificate; positions that it tells apart are refused.

    `attributes` say how a row of codes becomes the numbers that the network takes.
    """
    *layers, last_layer = network.layers
    curves = list(network.curves)
    matrix, offset = (rows.matrix[:1], np.zeros(1)) if rows.squash else (rows.matrix, rows.offset)
    size = np.abs(matrix) @ last_layer.weight_size, np.abs(matrix) @ last_layer.bias_size + np.abs(offset)
    layers.append(
        CheckedLayer(matrix @ last_layer.weight, matrix @ last_layer.bias + offset - 4 * EPS * size[1], *size)
    )
    if rows.squash:
        curves.append(CheckedCurve("sigmoid"))
        signs, nothing = np.array([[1.0], [-1.0]]), np.zeros(2)
        layers.append(CheckedLayer(signs, nothing, np.abs(signs), nothing))
    layout = FeatureLayout(region)
    check_size(layout.features * len(layers[0].bias), "the positions of its axes", times=64)
    read = _Inputs(tuple(attributes), layers[0])
    start, size_at, features = layers[0].bias, layers[0].bias_size, list[Floats]()
    for axis, column, position_of_code in zip(region.axes, region.columns, region.position_of_code, strict=True):
        codes = np.flatnonzero(position_of_code >= 0)
        if axis.linear:
            step, first, large = read.read_linear(column, codes)
            start = start + first
            features.append(step[None])
        else:
            table, large = read.read_by_position(column, codes, position_of_code[codes])
            features.append(table)
        size_at = size_at + large
    values = np.broadcast_to(start, (len(region.values), len(start)))
    for j, column in enumerate(region.sensitive):
        codes = np.arange(region.domain.attributes[column].size)
        table, large = read.read_by_position(column, codes, codes)
        values, size_at = values + table[region.values[:, j]], size_at + large
    widths = [network.widest, *(layer.weight.shape[1] for layer in layers)]
    rounding = EPS * max(2, network.steps) * float(max(layout.features, *widths) + 16)
    return Layers(layout, rows, np.concatenate(features), values, size_at, tuple(layers[1:]), tuple(curves), rounding)


@dataclass(frozen=True)
class _Inputs:
    """How the codes of an attribute become numbers, and what those add to the first layer."""

    attributes: tuple[Attribute, ...]
    layer: CheckedLayer

    def _slice_weights(self, column: int) -> tuple[Floats, Floats]:
        """Return what the layer multiplies an attribute's numbers by, and how large that is: (neurons, numbers)."""
        start = sum(map(count_inputs, self.attributes[:column]))
        columns = slice(start, start + count_inputs(self.attributes[column]))
        return self.layer.weight[:, columns], self.layer.weight_size[:, columns]

    def _find_linear_reading(self, column: int) -> tuple[Floats, Floats, float, float]:
        """Return weights and their size for an attribute of one number, and what a code and none make of it."""
        attribute = self.attributes[column]
        weight, size = self._slice_weights(column)
        if not attribute.is_input:
            zeros = np.zeros(len(self.layer.bias))
            return zeros, zeros, 0.0, 0.0
        low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
        if attribute.encode == "scaled":
            return weight[:, 0], size[:, 0], step / attribute.scale, (low - attribute.center) / attribute.scale
        return weight[:, 0], size[:, 0], step, low

    def read_linear(self, column: int, codes: Ints) -> tuple[Floats, Floats, Floats]:
        """Return what one position more adds, what the first one does, and how large it all is: (neurons,) each."""
        attribute = self.attributes[column]
        if len(codes) == 2:  # which always lie on a line
            added, size = self.read_by_position(column, codes, np.arange(2))
            return added[1] - added[0], added[0], size
        if attribute.encode == "onehot" or attribute.empty in (codes[0], codes[-1]):
            raise CertificateError(f"the network does not read '{attribute.name}' as a number, as the certificate says")
        weight, size, factor, shift = self._find_linear_reading(column)
        return weight * factor, weight * (factor * codes[0] + shift), size * (abs(factor) * codes[-1] + abs(shift))

    def read_by_position(self, column: int, codes: Ints, positions: Ints) -> tuple[Floats, Floats]:
        """Return what each position adds, (positions, neurons), and how large it is; its codes must add the same."""
        order = np.argsort(positions, kind="stable")
        starts = np.flatnonzero(np.diff(positions[order], prepend=-1))
        attribute = self.attributes[column]
        if attribute.encode == "onehot":
            block, size = self._slice_weights(column)
            added = block.T[codes[order]]
            low, high = np.minimum.reduceat(added, starts), np.maximum.reduceat(added, starts)
            size_of_all = size.max(1)
        else:
            weight, size, factor, shift = self._find_linear_reading(column)
            numbers_of_codes = codes[order].astype(np.float64)
            if attribute.empty is not None:
                numbers_of_codes = np.where(
                    numbers_of_codes == attribute.empty, _find_empty_position(attribute), numbers_of_codes
                )
            numbers = factor * numbers_of_codes + shift
            low, high = (f.reduceat(numbers, starts)[:, None] * np.abs(weight) for f in (np.minimum, np.maximum))
            size_of_all = size * (abs(factor) * np.abs(numbers_of_codes).max() + abs(shift))
        if ((high - low) > 8 * EPS * size_of_all).any():
            raise CertificateError(f"a position of '{attribute.name}' holds values that the network tells apart")
        if attribute.encode != "onehot":
            low = low * np.sign(weight)
        return low, size_of_all


def count_inputs(attribute: Attribute) -> int:
    """Return how many numbers a network is given for an attribute."""
    return attribute.size if attribute.encode == "onehot" else int(attribute.encode != "none")


def _find_empty_position(attribute: Attribute) -> float:
    """Return the position among an attribute's numbers at which a network sees an empty cell."""
    center = (attribute.center - attribute.low) / attribute.step
    return center if 0 <= center <= attribute.grid_size - 1 else (attribute.grid_size - 1) / 2
