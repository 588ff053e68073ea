"""Lines below and above activation functions, as a checker finds them: from their values on a grid.

Between two points of a grid that lie δ apart a function whose second derivative is at most C in size stays within
C δ² / 8 of its chord. So what holds at the points holds everywhere, but for that much. A ReLU is bounded exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.decision import EPS
from neuronfair.proof.checker.ground import Floats

POINTS = 33  # of the grid
_TINY = 1e-9  # an interval narrower than this has no slope of its own


@dataclass(frozen=True)
class CheckedCurve:
    """An activation function by its name; a leaky ReLU by its slope below 0."""

    name: str
    leak: float = 0.0


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
DEEPEST = -0.2785  # the least value of those that fall before they rise
STEEPEST = 1.2  # no curve but a leaky ReLU rises or falls faster


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
    low_at: Floats
    high: Floats
    high_at: Floats


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
            np.where(better, least, best.low_at),
            np.where(higher, slope, best.high),
            np.where(higher, most, best.high_at),
        )
    return best
