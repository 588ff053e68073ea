"""Whether two measures of discrimination agree on which network is worse, and how clearly each tells them apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from neuronfair.errors import NeuronFairError


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of two measures of the same networks, from -1 to 1 (ρ_s).

    Equal values share their mean rank; without any the formula is the paper's, 1 - 6 Σ d² / (n (n² - 1)). None where
    one measure is the same for all networks, or there are fewer than two: then there is no order to agree on.
    """
    if len(first) != len(second):
        raise NeuronFairError(
            f"two measures of the same networks are as many: got {len(first)} values and {len(second)}"
        )
    if not all(map(math.isfinite, (*first, *second))):
        raise NeuronFairError("a measure holds NaN or infinity, which has no rank. Leave that network out of both")
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a measure over networks (σ), with n - 1 in the denominator as in the paper.

    Large means that the measure tells the networks apart clearly. None for fewer than two values.
    """
    return statistics.stdev(map(float, values)) if len(values) > 1 else None
