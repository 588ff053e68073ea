"""Measures of the paper that only its tables and figures need: GD (Figure 5), rank correlation and spread (Table 9)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.errors import NeuronFairError
from neuronfair.measure.diversity import DISTANCE_TOLERANCE
from neuronfair.model.encoding import TableEncoding

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 1 << 22  # cosines held at a time: 32 MiB


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


def coverage_rates(domain: TableDomain, centres: Tensor, rows: Tensor, radii: Sequence[float]) -> tuple[float, ...]:
    """Return the share of `rows` that lie within each radius of the nearest of `centres`: CR(centres - rows).

    In the paper's words, below its equation of GD, CR_{NF-bl} is the share of the baseline's findings that fall into
    the area with NeuronFair's findings as centres and a cosine distance as radius: `centres` are NeuronFair's then,
    `rows` the baseline's. The cosine distance, from 0 to 2, is that of whole rows as the network sees them, sensitive
    attributes included, since the paper says no more. It ignores the length of a row, and it depends on the encoding.
    All pairs are compared. 0 where there are no rows or no centres.
    """
    check_rows(domain, centres, "centres")
    check_rows(domain, rows, "rows")
    _check_radii(radii)
    if len(rows) == 0 or len(centres) == 0:
        return (0.0,) * len(radii)
    towards = _directions(domain, centres).T
    parts = torch.split(_directions(domain, rows), max(1, BLOCK // len(centres)))
    nearest = 1 - torch.cat([(part @ towards).amax(1) for part in parts])
    return tuple(float((nearest <= radius + DISTANCE_TOLERANCE).double().mean()) for radius in radii)


def generation_diversity(
    domain: TableDomain, ours: Tensor, baseline: Tensor, radii: Sequence[float]
) -> tuple[float | None, ...]:
    """Return how much better our findings cover those of a baseline than the other way round, for each radius (GD).

    GD = CR(ours - baseline) / CR(baseline - ours), Eq. GD of the paper. Above 1 ours are the more diverse; with a large
    radius each covers the other and it is 1. None where the baseline covers none of ours, so that there is no ratio.
    It favours the larger set of findings: compare equally many.
    """
    over = coverage_rates(domain, ours, baseline, radii)
    under = coverage_rates(domain, baseline, ours, radii)
    return tuple(a / b if b else None for a, b in zip(over, under, strict=True))


def _directions(domain: TableDomain, rows: Tensor) -> Tensor:
    """Return the network inputs scaled to length 1, in float64: (n, width + 1)."""
    x = TableEncoding.of(domain).encode(rows.long(), torch.float64)
    # A row of zeros has no direction: it gets one of its own, at a right angle to all others.
    return normalize(torch.cat([x, (x == 0).all(1, keepdim=True)], 1), dim=1)


def _check_radii(radii: Sequence[float]) -> None:
    if not all(radius >= 0 for radius in radii):
        raise NeuronFairError(f"a radius must be 0 or more, got {', '.join(map(str, radii))}")
