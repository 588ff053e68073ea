"""Where things lie in the charts; templates/charts.html draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from neuronfair.audits.report.attribute import Interpretation
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport
from neuronfair.audits.report.rates import RateOf


def at(value: float, high: float, low: float = 0.0) -> str:
    """Return where a value lies on the way from low to high.

    >>> at(1, 4), at(2, 3, 1), at(9, 3)
    ('25.00%', '50.00%', '100.00%')
    """
    return f"{min(100.0, max(0.0, 100 * (value - low) / (high - low))):.2f}%"


def top_of(rates: Sequence[RateOf | Interval | CounterfactualReport], reference: float | None = None) -> float:
    """Return a round share that holds all intervals, and the share that they are compared with."""
    return _round(max([*(rate.high for rate in rates), reference or 0.0]))


def widest(moves: Sequence[MoveReport]) -> float:
    """Return a round share that holds what any group loses or gains, and the placebo of it."""
    shares = ((move.lost, move.gained, move.placebo_lost, move.placebo_gained) for move in moves)
    return _round(max(share or 0.0 for each in shares for share in each))


def _round(largest: float) -> float:
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return min(1.0, next(step for step in steps if largest <= step * (1 + 1e-9)))


def reach(inside: Interpretation) -> float:
    """Return the threshold that the AS curves are drawn to."""
    return max(0.1, math.ceil(10 * max(point[0] for layer in inside.layers for point in layer.curve) - 1e-9) / 10)


def ticks(low: float, high: float, *, whole: bool = False) -> list[tuple[float, float]]:
    """Return three to six round numbers from low to high, each with its place in percent of the way.

    >>> ticks(0, 0.3)
    [(0.0, 0.0), (33.33, 0.1), (66.67, 0.2), (100.0, 0.3)]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(round(100 * (i * step - low) / (high - low), 2), round(i * step, 12)) for i in range(first, last + 1)]
