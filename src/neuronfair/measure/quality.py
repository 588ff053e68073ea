"""Whether findings could be real people, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.measure.rows import check_rows
from neuronfair.model.encoding import ROWS_PER_PASS


@dataclass(frozen=True)
class Quality:
    """Shares of findings that nobody may recognise, from 0 (none) to 1 (all); 0 where nothing was found."""

    invalid: float  # break a rule, or lie outside the bounds of the domain
    outside: float  # have a value that the data do not reach: a number beyond their range, a label never seen
    doubtful: float  # either


def quality(domain: TableDomain, rows: Tensor, table: Tensor) -> Quality:
    """Return which share of the rows breaks the domain's rules, or lies outside the range of a table's rows.

    The range of an ordered attribute runs from the smallest to the largest value in the table; a label must occur in
    it. Each attribute counts for itself: a new combination of known values is inside.
    """
    check_rows(domain, rows, "findings")
    check_rows(domain, table, "table")
    if len(table) == 0:
        raise DomainError("the table has no rows, so it has no range to compare with")
    if len(rows) == 0:
        return Quality(0.0, 0.0, 0.0)
    low, high = table.amin(0).to(rows.device), table.amax(0).to(rows.device)
    labels = [(c, torch.unique(table[:, c]).to(rows.device)) for c in (~domain.ordered).nonzero()[:, 0].tolist()]
    invalid = outside = doubtful = 0
    for packed in torch.split(rows, ROWS_PER_PASS):
        part = packed.long()
        broken = ~domain.valid(part)
        beyond = ((part < low) | (part > high)).any(1)
        for column, seen in labels:
            beyond |= ~torch.isin(part[:, column], seen)
        invalid += int(broken.sum())
        outside += int(beyond.sum())
        doubtful += int((broken | beyond).sum())
    return Quality(invalid / len(rows), outside / len(rows), doubtful / len(rows))
