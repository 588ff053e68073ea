"""Group metrics: selection rates, accuracy, and the ratio and difference between demographic groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.errors import DataError, ModelError
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model, batched_scores
from neuronfair.model.decision import Decision


@dataclass(frozen=True)
class Group:
    """A demographic group of a data set, and the decisions for it."""

    codes: tuple[int, ...]  # the sensitive values, in the order of the domain's sensitive attributes
    rows: int
    selection: tuple[float, ...]  # selection rate of each class; they add up to 1
    accuracy: float | None  # None without labels
    labelled: tuple[tuple[int, ...], ...] = ()  # confusion matrix: rows by label and decision; empty without labels


def groups(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    labels: Tensor | None = None,
    *,
    decision: Decision | None = None,
) -> tuple[Group, ...]:
    """Return the selection rates and the accuracy of each demographic group in the rows.

    With a threshold there are two classes, below it and from it on. These are group metrics: equal rates do not exclude
    individual discrimination, nor the other way round.
    """
    decision = decision or Decision()
    decision.check(model.outputs)
    classes = decision.classes(model.outputs)
    if not classes:
        raise ModelError("a tolerance compares two scores and decides nothing by itself. Use argmax or a threshold")
    check_rows(domain, rows, "groups")
    if labels is not None and (len(labels) != len(rows) or bool(((labels < 0) | (labels >= classes)).any())):
        raise DataError(
            f"expected one label from 0 to {classes - 1} for each of {len(rows)} rows. Leave the labels out where they "
            "are not known"
        )
    if len(rows) == 0:
        return ()
    decided = decision.chosen(batched_scores(model, rows.long())).cpu()
    sensitive = rows[:, list(domain.sensitive_columns)]
    if domain.has_bands:
        sensitive = domain.sensitive_values[domain.combinations.number(rows.long())]
    codes, group = torch.unique(sensitive.cpu(), dim=0, return_inverse=True)
    parts = classes if labels is not None else 1  # of a group: by label
    place = group * parts + (labels.cpu() if labels is not None else 0)
    counts = torch.bincount(place * classes + decided, minlength=len(codes) * parts * classes)
    return tuple(
        _group(*one, known=labels is not None) for one in zip(codes, counts.view(-1, parts, classes), strict=True)
    )


def _group(codes: Tensor, counts: Tensor, *, known: bool) -> Group:
    """Return a group from its rows by label and decision: (labels, classes), one line without labels."""
    rows = int(counts.sum())
    return Group(
        codes=tuple(codes.tolist()),
        rows=rows,
        selection=tuple((counts.sum(0).double() / rows).tolist()),
        accuracy=int(counts.diagonal().sum()) / rows if known else None,
        labelled=tuple(map(tuple, counts.tolist())) if known else (),
    )


@dataclass(frozen=True)
class Spread:
    """A ratio or a difference of the smallest and the largest rate, with its confidence interval.

    The interval combines those of the rates: the worst and the best case of any two. It is conservative, and holds with
    at least their confidence where they hold together (`Rate.looks`).
    """

    value: float
    low: float
    high: float
    least: int  # which rate is the smallest
    most: int


def ratio(rates: Sequence[Rate]) -> Spread | None:
    """Return the ratio of the smallest to the largest of two rates or more; None where all are 0.

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
    """Return the difference of the largest and the smallest of two rates or more.

    >>> round(difference([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value, 3)
    0.3
    """
    least, most = _places(rates)
    one, other = _pairs(rates)
    low, high = float((one[:, 0] - other[:, 1]).max()), float((one[:, 1] - other[:, 0]).max())
    return Spread(rates[most].rate - rates[least].rate, max(0.0, low), high, least, most)


def _places(rates: Sequence[Rate]) -> tuple[int, int]:
    """Return which rate is the smallest and which the largest: two different ones even if all are equal."""
    order = sorted(range(len(rates)), key=lambda i: rates[i].rate)
    return order[0], order[-1]


def _pairs(rates: Sequence[Rate]) -> tuple[Tensor, Tensor]:
    """Return the intervals of every two different rates, (k (k - 1), 2) each."""
    ends = torch.tensor([rate.interval for rate in rates], dtype=torch.float64)
    one, other = (~torch.eye(len(rates), dtype=torch.bool)).nonzero().T
    return ends[one], ends[other]
