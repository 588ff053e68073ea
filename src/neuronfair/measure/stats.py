"""Statistics: values with their confidence intervals, and the excess of a rate over its baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float  # lower end
    high: float  # upper end

    def __iter__(self) -> Iterator[float]:
        return iter((self.value, self.low, self.high))


def clopper_pearson(count: int, of: int, confidence: float = 0.95, *, looks: int = 1) -> Estimate:
    """Return a share with the exact interval of Clopper and Pearson (1934), one of `looks` that hold together.

    >>> print("{:.2f} ({:.4f} to {:.4f})".format(*clopper_pearson(3, 100)))
    0.03 (0.0062 to 0.0852)
    """
    from scipy.stats import beta  # here: it takes most of a second to import

    tail = (1 - confidence) / looks / 2
    low = float(beta.ppf(tail, count, of - count + 1)) if count else 0.0
    high = float(beta.isf(tail, count + 1, of - count)) if count < of else 1.0
    return Estimate(count / of, low, high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Return the mean of repeated measurements and the half-width of its interval (Student's t).

    Both are None for no values, and the half-width is None for a single value.

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
    return mean, student(confidence, n) * deviation / math.sqrt(n)


MEAN_ABSOLUTE_NORMAL = sqrt(2 / math.pi)  # the mean size of a standard normal number


def excess(rate: float, baseline: float) -> float:
    """Return the share of different decisions that is not due to estimation error, from `rate - baseline` to `rate`.

    The shift between a record and a twin is known up to an error. Without a shift, the error alone gives the baseline;
    a shift much larger than the error gains as many different decisions from it as it loses. Between the two, a shift s
    with a normal error of standard deviation 1 has the mean size h(s) = s (2 Phi(s) - 1) + 2 phi(s) (folded normal
    distribution); the excess is the s for which h(s) / h(0) = rate / baseline, in shares.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    if rate <= baseline:
        return 0.0
    if baseline <= 0:
        return rate
    size = MEAN_ABSOLUTE_NORMAL * rate / baseline
    shift = brentq(lambda s: s * (2 * norm.cdf(s) - 1) + 2 * norm.pdf(s) - size, 0.0, size + 1)
    return min(rate, float(shift * baseline / MEAN_ABSOLUTE_NORMAL))


def student(confidence: float, tables: int) -> float:
    """Return the half-width of an interval in standard deviations that were estimated from so many tables."""
    from scipy.stats import t

    return float(t.isf((1 - confidence) / 2, tables - 1))
