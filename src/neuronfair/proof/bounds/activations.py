"""Straight lines below and above an activation function between two numbers.

Any slope will do: the offset of a line is found so that it holds. On a piece where the function bends towards the
line, the point where it comes nearest lies between two points of a fixed grid, whose tangents bound it; on the other
pieces it is an end. So a slope may be chosen by what it gains, and the lines are sound whatever it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from neuronfair.model.operators import Curve

EPS = torch.finfo(torch.float64).eps
ROUNDING_PER_TERM = 32 * EPS  # for each number that meets where an offset is computed
MINIMA = {"gelu": -0.17, "silu": -0.2785}  # below the least value of functions that have one below 0
GRID_END, GRID_STEP = 40.0, 1 / 128  # outside ±FAR all these functions are straight but for 1e-15; the grid inside
TANGENT_HALVINGS = 12  # halvings that find the tangent from an end
WIDE_INTERVAL = 4.0  # from here on the slopes of a bent function are those of its ends


@dataclass(frozen=True)
class Relaxation:
    """Slopes and offsets of the lines below and above each neuron: (…, neurons)."""

    low_slope: Tensor
    low_offset: Tensor
    high_slope: Tensor
    high_offset: Tensor


def relax(curve: Curve, low: Tensor, high: Tensor, policy: str = "adaptive") -> Relaxation:
    """Return lines below and above a function that hold between low and high (float64), rounding included.

    Policy "flat" takes the smaller slope below a function with a kink, "adaptive" the one that leaves less room.
    """
    if curve.name in ("relu", "leaky_relu"):
        return _relax_rectifier(curve.leak, low, high, policy == "flat")
    return _relax_smooth(SMOOTH_CURVES[curve.name], low, high, policy == "flat")


def bound_values(curve: Curve, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of a function between low and high, but for a rounding.

    All these functions fall first, if they fall at all, and then rise.
    """
    ends = curve(low), curve(high)
    lowest, highest = torch.minimum(*ends), torch.maximum(*ends)
    if curve.name in MINIMA or curve.leak < 0:  # their lowest point may lie between
        lowest = torch.where(low < 0, lowest.clamp(max=MINIMA.get(curve.name, 0.0)), lowest)
    return lowest, highest


def _relax_rectifier(leak: float, low: Tensor, high: Tensor, flat: bool) -> Relaxation:
    """Return the chord above, and below one of the function's two slopes; the other way round if the leak exceeds 1."""
    below, above = low.clamp(max=0), high.clamp(min=0)
    rise = above / (above - below).clamp(min=1e-300)  # 0 where it is below 0 throughout, 1 where it is above
    is_steep = low >= 0 if flat else above > -below
    other_slope = torch.where(is_steep, low.new_ones(()), low.new_full((), leak))
    rounding = above * (4 * EPS)
    if leak == 0:
        return Relaxation(other_slope, torch.zeros_like(low), rise, torch.addcmul(rounding, rise, below, value=-1))
    chord, chord_offset = leak + (1 - leak) * rise, (leak - 1) * rise * below
    rounding = (rounding - below * (4 * EPS)) * (1 + abs(leak))
    if leak > 1:
        return Relaxation(chord, chord_offset - rounding, other_slope, rounding)
    return Relaxation(other_slope, -rounding, chord, chord_offset + rounding)


@dataclass(frozen=True)
class _SmoothCurve:
    """A function, its derivative, and where it turns from bending one way to the other."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    turning_points: tuple[float, ...]
    convex: bool  # before the first turn
    error_below: float = 0.0  # how far below the function, at most, the one that is run may lie

    @cached_property
    def pieces(self) -> tuple[tuple[float, float, bool], ...]:
        """Start, end, and whether it is convex there."""
        ends = (-math.inf, *self.turning_points, math.inf)
        return tuple((a, b, self.convex == (i % 2 == 0)) for i, (a, b) in enumerate(pairwise(ends)))


def _relax_smooth(smooth: _SmoothCurve, low: Tensor, high: Tensor, flat: bool) -> Relaxation:
    middle, width = (low + high) / 2, high - low
    rise = smooth.function(high) - smooth.function(low)
    tangent = smooth.derivative(middle)
    chord = torch.where(width > 1e-6 * (1 + middle.abs()), rise / width.clamp(min=1e-300), tangent)
    if len(smooth.turning_points) == 1:
        above = [_find_tangent_slope(smooth, low, high, chord)]
        below = [_find_tangent_slope(smooth, -high, -low, chord)]  # both functions are odd but for a constant
    elif smooth.turning_points:
        gentle = torch.where(width > WIDE_INTERVAL, 0 if flat else tangent.clamp(0, 1), tangent)
        above, below = [chord, tangent], [chord, gentle]
    else:
        above, below = [chord], [smooth.derivative(low) if flat else tangent]
    slope, offset = _choose_line(smooth, below, low, high, -1)
    high_slope, high_offset = _choose_line(smooth, above, low, high, 1)
    return Relaxation(slope, offset - (high > 20) * smooth.error_below, high_slope, high_offset)


def _choose_line(
    smooth: _SmoothCurve, slopes: list[Tensor], low: Tensor, high: Tensor, sign: int
) -> tuple[Tensor, Tensor]:
    """Return the slope and offset of the line nearest to the function in the middle, among several slopes."""
    middle = (low + high) / 2
    slope, offset = slopes[0], _find_offset(smooth, slopes[0], low, high, sign)
    for candidate in slopes[1:]:
        candidate_offset = _find_offset(smooth, candidate, low, high, sign)
        nearer = sign * (candidate_offset + candidate * middle) < sign * (offset + slope * middle)
        slope, offset = torch.where(nearer, candidate, slope), torch.where(nearer, candidate_offset, offset)
    return slope, offset


def _find_offset(smooth: _SmoothCurve, slope: Tensor, low: Tensor, high: Tensor, sign: int) -> Tensor:
    """Return the offset with which a line of this slope lies above the function (sign 1) or below it (-1)."""

    def gap(x: Tensor) -> Tensor:
        return sign * (smooth.function(x) - slope * x)

    largest_gap = torch.maximum(gap(low), gap(high))
    for start, end, convex in smooth.pieces:
        if convex == (sign > 0):
            continue  # largest at an end of the piece, which is one of the interval or of the next piece
        first, last = low.clamp(start, end), high.clamp(start, end)
        middle = (first + last) / 2
        gap_slope = sign * (smooth.derivative(middle) - slope)
        near_bound = gap(middle) + gap_slope * torch.where(gap_slope > 0, last - middle, first - middle)
        x, derivative = _make_grid(smooth, start, end, low.device)
        behind = torch.searchsorted(-sign * derivative, -sign * slope)  # the first point past the nearest one
        i, j = (behind - 1).clamp(min=0), behind.clamp(max=len(x) - 1)
        a, b = x[i], x[j]
        rise, fall = (sign * (derivative[i] - slope)).clamp(min=0), (sign * (derivative[j] - slope)).clamp(max=0)
        inner_bound = torch.minimum(gap(a) + rise * (b - a), gap(b) - fall * (b - a))
        grid_bound = torch.where((behind == 0) | (b <= first), gap(first), inner_bound)
        grid_bound = torch.where((behind == len(x)) | (a >= last), gap(last), grid_bound)
        meets = (high >= start) & (low <= end)
        largest_gap = torch.where(meets, torch.maximum(largest_gap, torch.minimum(near_bound, grid_bound)), largest_gap)
    size = torch.maximum(low.abs(), high.abs())
    return sign * (largest_gap + ROUNDING_PER_TERM * (1 + size) * (1 + slope.abs()))


@lru_cache(maxsize=64)
def _make_grid(smooth: _SmoothCurve, start: float, end: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return points of a piece, its finite ends included, and the derivatives there."""
    first, last = max(start, -GRID_END), min(end, GRID_END)
    x = torch.arange(first, last + GRID_STEP, GRID_STEP, dtype=torch.float64).clamp(max=end)
    return x.to(device), smooth.derivative(x).to(device)


def _find_tangent_slope(smooth: _SmoothCurve, low: Tensor, high: Tensor, chord: Tensor) -> Tensor:
    """Return the slope of a line above a function that is convex below 0 and concave above.

    The line is the tangent through the low end, or the one in the middle if that touches further right.
    """
    a, b = low.clamp(min=0), high.clamp(0, GRID_END / 2)
    start = smooth.function(low)
    for _ in range(TANGENT_HALVINGS):  # where the tangent passes below the low end, it touches too early
        touch = (a + b) / 2
        too_early = smooth.function(touch) - smooth.derivative(touch) * (touch - low) < start
        a, b = torch.where(too_early, touch, a), torch.where(too_early, b, touch)
    return torch.where(b >= high, chord, smooth.derivative(torch.maximum(b, (low + high) / 2)))


def _differentiate_sigmoid(x: Tensor) -> Tensor:
    y = torch.sigmoid(-x.abs())
    return y * (1 - y)


def _differentiate_silu(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return y * (1 + x * torch.sigmoid(-x))


def _differentiate_gelu(x: Tensor) -> Tensor:
    below: Tensor = torch.special.ndtr(x)
    return below + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


SMOOTH_CURVES = {
    "sigmoid": _SmoothCurve(torch.sigmoid, _differentiate_sigmoid, (0.0,), convex=True),
    "tanh": _SmoothCurve(torch.tanh, lambda x: 4 * _differentiate_sigmoid(2 * x), (0.0,), convex=True),
    "gelu": _SmoothCurve(functional.gelu, _differentiate_gelu, (-math.sqrt(2), math.sqrt(2)), convex=False),
    "silu": _SmoothCurve(functional.silu, _differentiate_silu, (-2.3993572805154, 2.3993572805154), convex=False),
    "elu": _SmoothCurve(functional.elu, lambda x: torch.exp(x.clamp(max=0)), (), convex=True),
    "softplus": _SmoothCurve(lambda x: torch.logaddexp(x, torch.zeros_like(x)), torch.sigmoid, (), True, 2.1e-9),
}
