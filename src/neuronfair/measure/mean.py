"""What repeated runs say: the mean, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Return the mean of repeated measurements and the half-width of its interval (Student's t).

    Both are None for no values, and the half-width is None for a single one, which says nothing about the spread.

    >>> mean, half = mean_interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    from scipy.stats import t

    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))
    return mean, float(t.ppf((1 + confidence) / 2, n - 1)) * deviation / math.sqrt(n)
