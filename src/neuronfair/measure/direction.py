"""Whom discrimination hurts: which sensitive values get the favourable decision, and which lose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision, with_row
from neuronfair.searches.evaluate import Evaluation, Pairs


class Side(NamedTuple):
    """How one combination of sensitive values fares against the others."""

    codes: tuple[int, ...]  # in the order of the domain's sensitive attributes
    gets: int  # people for whom these values get the favourable decision, and others do not
    loses: int  # people for whom these values do not get it, and others do


@dataclass(frozen=True)
class Direction:
    """Of how many people the favourable decision hangs on the sensitive attributes, and who gets it then."""

    people: int
    sides: tuple[Side, ...]  # those who get or lose it at all, the clearest first


def favourable_class(domain: TableDomain, decision: Decision, outputs: int) -> int | None:
    """Return the number of the class that people hope for; None where none is named, or the model decides others."""
    classes = domain.target.classes if domain.target is not None else ()
    if domain.favourable is None or len(classes) != decision.classes(outputs):
        return None
    return classes.index(domain.favourable)


class DirectionTally:
    """A count of who gets the favourable class, batch by batch."""

    def __init__(self, domain: TableDomain, favourable: int) -> None:
        self.domain, self.favourable, self.people = domain, favourable, 0
        self._counts = torch.zeros(2, len(domain.sensitive_values), dtype=torch.int64)

    def add(self, judged: Evaluation) -> None:
        """Count the families of rows that were judged."""
        combinations, rows = self.domain.combinations, judged.rows
        exists = with_row(judged.valid)
        columns = list(self.domain.sensitive_columns)
        # A row outside the bounds has values that no one else has.
        exists[:, 0] &= ((rows >= 0) & (rows < self.domain.sizes))[:, columns].all(1)
        places = torch.arange(exists.shape[1], device=rows.device)
        numbers = (combinations.number(rows)[:, None] + places) % len(combinations.values)
        self._add(numbers, judged.decision.chosen(judged.family) == self.favourable, exists)

    def add_pairs(self, pairs: Pairs, decision: Decision) -> None:
        """Count pairs: two people each."""
        numbers = torch.stack([self.domain.combinations.number(rows) for rows in pairs[:2]], 1)
        gets = torch.stack([decision.chosen(scores) == self.favourable for scores in pairs[2:]], 1)
        self._add(numbers, gets, torch.ones_like(gets))

    def _add(self, numbers: Tensor, gets: Tensor, exists: Tensor) -> None:
        split = (gets & exists).any(1) & (~gets & exists).any(1)
        self.people += int(split.sum())
        for count, members in zip(self._counts, (gets, ~gets), strict=True):
            count += torch.bincount(numbers[members & exists & split[:, None]], minlength=len(count)).cpu()

    def direction(self) -> Direction:
        """Return what was counted so far."""
        values, counts = self.domain.sensitive_values.tolist(), self._counts.T.tolist()
        sides = [Side(tuple(codes), *both) for codes, both in zip(values, counts, strict=True) if any(both)]
        sides.sort(key=lambda side: (-abs(side.gets - side.loses), side.gets))  # of two alike, first who loses
        return Direction(self.people, tuple(sides))
