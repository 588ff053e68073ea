"""Means and excesses with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.optimize import brentq
from scipy.stats import norm, t


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Return the mean of repeated measurements and the half-width of its interval (Student's t).

    Both are None for no values, and the half-width is None for a single one, which says nothing about the spread.

    >>> mean, half = mean_interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))
    return mean, float(t.ppf((1 + confidence) / 2, n - 1)) * deviation / math.sqrt(n)


ZERO = float(2 * norm.pdf(0))  # the mean size of a standard normal number


class Estimate(NamedTuple):
    """A share and its interval."""

    rate: float
    low: float
    high: float


def excess(rate: float, baseline: float) -> float:
    """Return the share of different decisions that is not due to estimation error, from `rate - baseline` to `rate`.

    How far twins are moved is known up to an error. Where nothing moves them, the error alone gives the baseline; where
    they are moved much farther than the error, it adds as many different decisions as it takes away. Between the two, a
    shift s with a normal error of standard deviation 1 has the mean size h(s) = s (2 Phi(s) - 1) + 2 phi(s) (folded
    normal distribution); the excess is the s for which h(s) / h(0) = rate / baseline, in shares.
    """
    if rate <= baseline:
        return 0.0
    if baseline <= 0:
        return rate
    size = ZERO * rate / baseline
    shift = brentq(lambda s: s * (2 * norm.cdf(s) - 1) + 2 * norm.pdf(s) - size, 0.0, size + 1)
    return min(rate, float(shift * baseline / ZERO))


def student(confidence: float, tables: int) -> float:
    """Return how many standard deviations, known from so many tables, an interval reaches to either side."""
    return float(t.isf((1 - confidence) / 2, tables - 1))
