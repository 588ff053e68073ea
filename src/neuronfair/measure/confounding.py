"""E-values: how strong a hidden confounder must be to explain a difference away (VanderWeele and Ding, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import torch

from neuronfair.domain.table import TableDomain
from neuronfair.measure.stats import student
from neuronfair.measure.twin_decisions import TwinTally


class Sensitivity(NamedTuple):
    """How much likelier a decision is for the same people in one group than in another, and the E-value of that."""

    more: tuple[int, ...]  # sensitive codes of the group in which the decision is likelier
    less: tuple[int, ...]
    outcome: int  # the class
    ratio: float  # of the two shares of people who get it
    e_value: float
    e_value_low: float  # of the lower end of the ratio's interval; 1: nothing is needed


def e_value(ratio: float) -> float:
    """Return how strongly, as a risk ratio, something hidden must go with both group and decision to give a ratio.

    A confounder U with risk ratios a (group and U) and b (U and decision) can raise a ratio of 1 to a b / (a + b - 1)
    at most; the E-value is the smallest value of the larger of the two. 1 means that nothing is needed.
    """
    ratio = max(ratio, 1 / ratio) if ratio > 0 else float("inf")
    return ratio + sqrt(ratio * (ratio - 1))


def sensitivity(
    tally: TwinTally, halves: Sequence[TwinTally], domain: TableDomain, outcome: int | None, confidence: float
) -> Sensitivity | None:
    """Return the E-value of the two groups between which most decisions differ on balance; None: there is no ratio."""
    values, risks = [tuple(codes) for codes in domain.sensitive_values.tolist()], as_groups(tally)
    if outcome is None or not risks:
        return None
    pair = max(risks, key=lambda pair: abs(risks[pair][0] - risks[pair][1]) * risks[pair][2])
    first, second, _ = risks[pair]
    if first < second:
        pair, first, second = pair[::-1], second, first
    if second <= 0:
        return None
    found = [as_groups(half).get((min(pair), max(pair))) for half in halves]
    order = 1 if pair[0] < pair[1] else -1
    logs = [order * log(one[0] / one[1]) for one in found if one is not None and min(one[:2]) > 0]
    if len(logs) < 2:
        return None
    reach = student(confidence, len(logs)) * float(torch.tensor(logs, dtype=torch.float64).std())
    ratio = first / second
    low = max(1.0, exp(log(ratio) - reach))
    return Sensitivity(values[pair[0]], values[pair[1]], outcome, ratio, e_value(ratio), e_value(low))


def as_groups(tally: TwinTally) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Return for each two groups how many of their people get a class if all are in the one, or in the other.

    Of the people of one group it is their own decision that counts, of those of the other that of their twins.
    """
    size, has = tally.count.shape[1] + 1, tally.has.double()
    share = (tally.count > 0).double()
    as_other = has[:, None] + (tally.gained - tally.lost) / tally.count.clamp(min=1)
    found = {}
    for first in range(size):
        for second in range(first + 1, size):
            sums, people = [0.0, 0.0], 0.0
            for own, ahead, place in ((first, second - first, 0), (second, size - second + first, 1)):
                there = (tally.group == own).double() * share[:, ahead - 1]
                sums[place] += float((there * has).sum())
                sums[1 - place] += float((there * as_other[:, ahead - 1]).sum())
                people += float(there.sum())
            if people:
                found[first, second] = (sums[0] / people, sums[1] / people, round(people))
    return found
