"""How far the smallest and the largest of several rates lie apart, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.measure.rate import Rate


@dataclass(frozen=True)
class Spread:
    """A ratio or a difference of the smallest and the largest rate, the ends of its interval, and which two those are.

    The interval is made of those of the rates: what is worst and what is best for any two of them. Where these hold
    together (`Rate.looks`), so does it, with at least their confidence: it is wider than need be.
    """

    value: float
    low: float
    high: float
    least: int
    most: int


def ratio(rates: Sequence[Rate]) -> Spread | None:
    """Return the smallest rate as a share of the largest, of two rates or more; None where all are 0.

    >>> ratio([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value
    0.5
    """
    least, most = _places(rates)
    if rates[most].found == 0:
        return None
    one, other = _pairs(rates)
    low, high = float((one[:, 0] / other[:, 1]).min()), float((one[:, 1] / other[:, 0]).min())
    return Spread(rates[least].rate / rates[most].rate, low, min(1.0, high), least, most)


def difference(rates: Sequence[Rate]) -> Spread:
    """Return how much larger the largest rate is than the smallest, of two rates or more.

    >>> round(difference([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value, 3)
    0.3
    """
    least, most = _places(rates)
    one, other = _pairs(rates)
    low, high = float((one[:, 0] - other[:, 1]).max()), float((one[:, 1] - other[:, 0]).max())
    return Spread(rates[most].rate - rates[least].rate, max(0.0, low), high, least, most)


def _places(rates: Sequence[Rate]) -> tuple[int, int]:
    """Return which rate is the smallest and which the largest; not the same one where all are alike."""
    order = sorted(range(len(rates)), key=lambda i: rates[i].rate)
    return order[0], order[-1]


def _pairs(rates: Sequence[Rate]) -> tuple[Tensor, Tensor]:
    """Return the intervals of every two different rates, (k (k - 1), 2) each."""
    ends = torch.tensor([rate.interval for rate in rates], dtype=torch.float64)
    one, other = (~torch.eye(len(rates), dtype=torch.bool)).nonzero().T
    return ends[one], ends[other]
