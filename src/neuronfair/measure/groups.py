"""How a network treats the groups of a table: what it decides for them, and how often it is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, ModelError
from neuronfair.measure.stats import check_rows
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS


@dataclass(frozen=True)
class Group:
    """The people of a table who share their sensitive values, and what is decided for them."""

    codes: tuple[int, ...]  # the sensitive values, in the order of the domain's sensitive attributes
    rows: int
    selection: tuple[float, ...]  # the share that each class is decided for; they add up to 1
    accuracy: float | None  # the share decided as labelled; None without labels
    labelled: tuple[tuple[int, ...], ...] = ()  # rows by label and the class decided for; empty without labels


def groups(
    network: Model,
    domain: TableDomain,
    rows: Tensor,
    labels: Tensor | None = None,
    *,
    decision: Decision | None = None,
) -> tuple[Group, ...]:
    """Return the selection rates and the accuracy for each combination of sensitive values that the rows hold.

    With a threshold there are two classes, below it and from it on. These are figures about groups: equal rates do not
    mean that no single person is discriminated, nor the other way round.
    """
    decision = decision or Decision()
    decision.check(network.outputs)
    classes = decision.classes(network.outputs)
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
    decided = torch.cat([_decided(network, domain, part, decision) for part in torch.split(rows, ROWS_PER_PASS)])
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
    """Return a group from its rows by label and class decided for: (labels, classes), one line where none are known."""
    rows = int(counts.sum())
    return Group(
        codes=tuple(codes.tolist()),
        rows=rows,
        selection=tuple((counts.sum(0).double() / rows).tolist()),
        accuracy=int(counts.diagonal().sum()) / rows if known else None,
        labelled=tuple(map(tuple, counts.tolist())) if known else (),
    )


def _decided(network: Model, domain: TableDomain, rows: Tensor, decision: Decision) -> Tensor:
    """Return the class decided for each row, on the CPU: (n,)."""
    return decision.chosen(network.scores(rows.long())).cpu()
