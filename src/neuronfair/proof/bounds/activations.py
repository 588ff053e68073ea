"""Straight lines below and above an activation function between two numbers.

Any slope will do: the constant of a line is found so that it holds. On a piece where the function bends towards the
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
SLACK = 32 * EPS  # for each number that meets where a constant is computed
DIPS = {"gelu": -0.17, "silu": -0.2785}  # below the least value of functions that have one below 0
FAR, STEP = 40.0, 1 / 128  # outside ±FAR all these functions are straight but for 1e-15; the grid inside
TANGENT_HALVINGS = 12  # that find the tangent from an end
WIDE = 4.0  # from here on the slopes of a bent function are those of its ends


@dataclass(frozen=True)
class Relaxation:
    """Slopes and constants of the lines below and above each neuron: (…, neurons)."""

    low: Tensor
    low_at: Tensor
    high: Tensor
    high_at: Tensor


def relax(curve: Curve, low: Tensor, high: Tensor, policy: str = "adaptive") -> Relaxation:
    """Return lines below and above a function that hold between low and high (float64), rounding included.

    Policy "flat" takes the smaller slope below a function with a kink, "adaptive" the one that leaves less room.
    """
    if curve.name in ("relu", "leaky_relu"):
        return _rectifier(curve.leak, low, high, policy == "flat")
    return _smooth(SMOOTH[curve.name], low, high, policy == "flat")


def values(curve: Curve, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of a function between low and high, but for a rounding.

    All these functions fall first, if they fall at all, and then rise.
    """
    ends = curve(low), curve(high)
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    if curve.name in DIPS or curve.leak < 0:  # their lowest point may lie between
        least = torch.where(low < 0, least.clamp(max=DIPS.get(curve.name, 0.0)), least)
    return least, most


def _rectifier(leak: float, low: Tensor, high: Tensor, flat: bool) -> Relaxation:
    """Return the chord above, and below one of the function's two slopes; the other way round if the leak exceeds 1."""
    below, above = low.clamp(max=0), high.clamp(min=0)
    part = above / (above - below).clamp(min=1e-300)  # 0 where it is below 0 throughout, 1 where it is above
    steep = low >= 0 if flat else above > -below
    own = torch.where(steep, low.new_ones(()), low.new_full((), leak))
    slack = above * (4 * EPS)
    if leak == 0:
        return Relaxation(own, torch.zeros_like(low), part, torch.addcmul(slack, part, below, value=-1))
    chord, at = leak + (1 - leak) * part, (leak - 1) * part * below
    slack = (slack - below * (4 * EPS)) * (1 + abs(leak))
    if leak > 1:
        return Relaxation(chord, at - slack, own, slack)
    return Relaxation(own, -slack, chord, at + slack)


@dataclass(frozen=True)
class _Smooth:
    """A function, its derivative, and where it turns from bending one way to the other."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    turns: tuple[float, ...]
    convex: bool  # before the first turn
    off: float = 0.0  # how far below the function, at most, the one that is run may lie

    @cached_property
    def pieces(self) -> tuple[tuple[float, float, bool], ...]:
        """Start, end, and whether it is convex there."""
        ends = (-math.inf, *self.turns, math.inf)
        return tuple((a, b, self.convex == (i % 2 == 0)) for i, (a, b) in enumerate(pairwise(ends)))


def _smooth(shape: _Smooth, low: Tensor, high: Tensor, flat: bool) -> Relaxation:
    middle, width = (low + high) / 2, high - low
    ends = shape.function(high) - shape.function(low)
    tangent = shape.derivative(middle)
    chord = torch.where(width > 1e-6 * (1 + middle.abs()), ends / width.clamp(min=1e-300), tangent)
    if len(shape.turns) == 1:
        above = [_from_an_end(shape, low, high, chord)]
        below = [_from_an_end(shape, -high, -low, chord)]  # both functions are odd but for a constant
    elif shape.turns:
        straight = torch.where(width > WIDE, 0 if flat else tangent.clamp(0, 1), tangent)
        above, below = [chord, tangent], [chord, straight]
    else:
        above, below = [chord], [shape.derivative(low) if flat else tangent]
    slope, at = _best(shape, below, low, high, -1)
    top, top_at = _best(shape, above, low, high, 1)
    return Relaxation(slope, at - (high > 20) * shape.off, top, top_at)


def _best(shape: _Smooth, slopes: list[Tensor], low: Tensor, high: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """Return the slope and constant of the line nearest to the function in the middle, among several slopes."""
    middle = (low + high) / 2
    slope, at = slopes[0], _constant(shape, slopes[0], low, high, sign)
    for other in slopes[1:]:
        other_at = _constant(shape, other, low, high, sign)
        nearer = sign * (other_at + other * middle) < sign * (at + slope * middle)
        slope, at = torch.where(nearer, other, slope), torch.where(nearer, other_at, at)
    return slope, at


def _constant(shape: _Smooth, slope: Tensor, low: Tensor, high: Tensor, sign: int) -> Tensor:
    """Return the constant with which a line of this slope lies above the function (sign 1) or below it (-1)."""

    def apart(x: Tensor) -> Tensor:
        return sign * (shape.function(x) - slope * x)

    most = torch.maximum(apart(low), apart(high))
    for start, end, convex in shape.pieces:
        if convex == (sign > 0):
            continue  # largest at an end of the piece, which is one of the interval or of the next piece
        p, q = low.clamp(start, end), high.clamp(start, end)
        c = (p + q) / 2
        steep = sign * (shape.derivative(c) - slope)
        near = apart(c) + steep * torch.where(steep > 0, q - c, p - c)
        x, derivative = _grid(shape, start, end, low.device)
        behind = torch.searchsorted(-sign * derivative, -sign * slope)  # the first point past the nearest one
        i, j = (behind - 1).clamp(min=0), behind.clamp(max=len(x) - 1)
        a, b = x[i], x[j]
        rise, fall = (sign * (derivative[i] - slope)).clamp(min=0), (sign * (derivative[j] - slope)).clamp(max=0)
        inner = torch.minimum(apart(a) + rise * (b - a), apart(b) - fall * (b - a))
        far = torch.where((behind == 0) | (b <= p), apart(p), inner)
        far = torch.where((behind == len(x)) | (a >= q), apart(q), far)
        meets = (high >= start) & (low <= end)
        most = torch.where(meets, torch.maximum(most, torch.minimum(near, far)), most)
    size = torch.maximum(low.abs(), high.abs())
    return sign * (most + SLACK * (1 + size) * (1 + slope.abs()))


@lru_cache(maxsize=64)
def _grid(shape: _Smooth, start: float, end: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return points of a piece, its finite ends included, and the derivatives there."""
    x = torch.arange(max(start, -FAR), min(end, FAR) + STEP, STEP, dtype=torch.float64).clamp(max=end)
    return x.to(device), shape.derivative(x).to(device)


def _from_an_end(shape: _Smooth, low: Tensor, high: Tensor, chord: Tensor) -> Tensor:
    """Return the slope of a line above a function that is convex below 0 and concave above.

    The line is the tangent through the low end, or the one in the middle if that touches further right.
    """
    a, b = low.clamp(min=0), high.clamp(0, FAR / 2)
    start = shape.function(low)
    for _ in range(TANGENT_HALVINGS):  # where the tangent passes below the low end, it touches too early
        d = (a + b) / 2
        early = shape.function(d) - shape.derivative(d) * (d - low) < start
        a, b = torch.where(early, d, a), torch.where(early, b, d)
    return torch.where(b >= high, chord, shape.derivative(torch.maximum(b, (low + high) / 2)))


def _sigmoid_slope(x: Tensor) -> Tensor:
    y = torch.sigmoid(-x.abs())
    return y * (1 - y)


def _silu_slope(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return y * (1 + x * torch.sigmoid(-x))


def _gelu_slope(x: Tensor) -> Tensor:
    below: Tensor = torch.special.ndtr(x)
    return below + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


SMOOTH = {
    "sigmoid": _Smooth(torch.sigmoid, _sigmoid_slope, (0.0,), convex=True),
    "tanh": _Smooth(torch.tanh, lambda x: 4 * _sigmoid_slope(2 * x), (0.0,), convex=True),
    "gelu": _Smooth(functional.gelu, _gelu_slope, (-math.sqrt(2), math.sqrt(2)), convex=False),
    "silu": _Smooth(functional.silu, _silu_slope, (-2.3993572805154, 2.3993572805154), convex=False),
    "elu": _Smooth(functional.elu, lambda x: torch.exp(x.clamp(max=0)), (), convex=True),
    "softplus": _Smooth(lambda x: torch.logaddexp(x, torch.zeros_like(x)), torch.sigmoid, (), convex=True, off=2.1e-9),
}
