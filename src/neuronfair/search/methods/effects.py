"""What each value of each attribute adds to the scores of a family: an additive model, fitted to judged rows.

A black box has no gradients, but its answers have main effects, and the scores of trees are sums to begin with. The
difference of two effects predicts what a move of one attribute does, as a gradient does for a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Domain
from neuronfair.model.decision import Decision, with_row
from neuronfair.search.judge import Judgement

MOST_PLACES = 32  # per attribute; neighbouring cells share one where there are more
ALL_PLACES = 2048  # of all attributes together, about: a system of so many equations is solved
RIDGE = 3.0  # how many people of its own outweigh the prior that a value adds nothing
FLOOR = 1e-3  # under the logarithm of a probability


class _Grouped(NamedTuple):
    """The codes of all attributes in one line, and the same in the order of their cells."""

    number: Tensor  # the cell of each code
    member: Tensor  # the codes in the order of their cells
    start: Tensor  # (d,) where each attribute begins in both
    first: Tensor  # where each cell begins in `member`; one more than there are cells
    begin: Tensor  # (d,) where each attribute begins in `first`


@dataclass(frozen=True)
class Cells:
    """Codes that the model does not tell apart, attribute by attribute; every code is a cell where that is not known.

    The cells of an ordered attribute are stretches of it, in its order.
    """

    count: Tensor  # (d,) how many cells each attribute has
    grouped: _Grouped | None = None

    @staticmethod
    def of(domain: Domain, cells: Sequence[Tensor] | None) -> Cells:
        """Return the cells of a forest as tables, or every code on its own."""
        if cells is None:
            return Cells(domain.sizes)
        cells = [cell.to(domain.device) for cell in cells]
        count = torch.stack([cell.max() + 1 for cell in cells])
        sizes = torch.cat([torch.bincount(cell) for cell in cells])
        grouped = _Grouped(
            torch.cat(cells),
            torch.cat([torch.argsort(cell, stable=True) for cell in cells]),
            domain.sizes.cumsum(0) - domain.sizes,
            torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
            count.cumsum(0) - count,
        )
        return Cells(count, grouped)

    @property
    def known(self) -> bool:
        """Whether the model shows what it does not tell apart."""
        return self.grouped is not None

    def of_codes(self, columns: Tensor, codes: Tensor) -> Tensor:
        """Return the cells of codes of attributes, which have the same shape."""
        return codes if self.grouped is None else self.grouped.number[self.grouped.start[columns] + codes]

    def draw(self, columns: Tensor, cells: Tensor, u: Tensor) -> Tensor:
        """Return a code of each cell, by numbers u in [0, 1)."""
        if self.grouped is None:
            return cells
        place = self.grouped.begin[columns] + cells
        first, after = self.grouped.first[place], self.grouped.first[place + 1]
        return self.grouped.member[first + (u * (after - first)).long()]


@dataclass(frozen=True)
class Effects:
    """What each place of each attribute adds to the middle of every score of a family, and to its half-width."""

    cells: Cells
    places: Tensor  # (d,) how many places each attribute has
    first: Tensor  # (d,) the first of them
    table: Tensor  # (places, outputs + 1)
    base: Tensor  # (outputs + 1,) what a row of nothing has
    warped: bool = False  # the scores are probabilities, and their logarithms add up better

    @staticmethod
    def blank(domain: Domain, cells: Cells, outputs: int) -> Effects:
        """Return effects of nothing."""
        most = max(2, min(MOST_PLACES, ALL_PLACES // domain.codes_per_row))
        places = torch.where(domain.free, cells.count.clamp(max=most), 1)
        table = torch.zeros(int(places.sum()), outputs + 1, dtype=torch.float64, device=domain.device)
        return Effects(cells, places, places.cumsum(0) - places, table, table.new_zeros(outputs + 1))

    def fitted(self, judgement: Judgement) -> Effects:
        """Return the effects that explain judged scores best, as they are or, once and for all, as logarithms."""
        ways = [self]
        if not self.warped and not bool(self.table.any()) and _probabilities(judgement):
            ways.append(replace(self, warped=True))
        fits = [way._solved(way.read(judgement)) for way in ways]
        return max(fits, key=lambda fit: fit[1])[0]

    def read(self, judgement: Judgement) -> Judgement:
        """Return a judgement with the scores that the effects speak of, decided as before."""
        if not self.warped:
            return judgement
        family = judgement.family.clamp(FLOOR, 1 - FLOOR)
        if judgement.decision.kind == "argmax":  # for two classes, half of the logit each
            family = family.log() - family.log().mean(2, keepdim=True)
        else:
            family = family.logit()
        return replace(judgement, family=family, decision=self.decision(judgement.decision))

    def decision(self, decision: Decision) -> Decision:
        """Return the same decision on the scores that the effects speak of."""
        if not self.warped or decision.kind == "argmax":
            return decision
        value = min(max(decision.value, FLOOR), 1 - FLOOR)
        return replace(decision, value=math.log(value / (1 - value)))

    def of_moves(self, lean: Tensor, rows: Tensor, columns: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return what moves of one attribute each add to both ends of a family's leaning: (n, m) each."""
        there, here = (self.table[self._place(columns, c)] for c in (codes, rows.gather(1, columns)))
        change = there - here
        centre, width = (change[..., :-1] * lean[:, None]).sum(2), change[..., -1]
        return centre + width, centre - width

    def of_rows(self, rows: Tensor, decision: Decision) -> Tensor:
        """Return how far inside the families of rows are, by all their values: (n,)."""
        total = self._total(rows) + self.base
        scores, width = total[:, :-1], total[:, -1]
        if decision.kind == "argmax":  # the first two classes are to be even
            first, second = scores.topk(2, 1).values.unbind(1)
            return width - (first - second)
        centre = scores[:, -1]
        return self.decision(decision).safety(centre + width, centre - width)

    def _total(self, rows: Tensor) -> Tensor:
        columns = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        return self.table[self._place(columns, rows)].sum(1)

    def _place(self, columns: Tensor, codes: Tensor) -> Tensor:
        cell = self.cells.of_codes(columns, codes)
        return self.first[columns] + cell * self.places[columns] // self.cells.count[columns]

    def _solved(self, judgement: Judgement) -> tuple[Effects, float]:
        """Return the effects by ridge regression, and the share of the scores' variance that they explain."""
        rows = judgement.rows
        columns = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        x = torch.zeros(len(rows), len(self.table), dtype=torch.float64, device=rows.device)
        x.scatter_(1, self._place(columns, rows), 1.0)
        y = _targets(judgement)
        middle, mean = x.mean(0), y.mean(0)
        x, y = x - middle, y - mean
        few = x.shape[1] <= len(rows)  # the smaller of two systems with the same solution
        square = x.T @ x if few else x @ x.T
        square.diagonal().add_(RIDGE)
        table = torch.linalg.solve(square, x.T @ y) if few else x.T @ torch.linalg.solve(square, y)
        rest, whole = ((part[:, :-1] ** 2).sum() for part in (y - x @ table, y))
        return replace(self, table=table, base=mean - middle @ table), 1 - float(rest / whole.clamp(min=1e-300))


def _targets(judgement: Judgement) -> Tensor:
    """Return the middle of every score over each family, and half of the width of its leaning: (n, outputs + 1)."""
    exists = with_row(judgement.valid)[..., None]
    high = judgement.family.masked_fill(~exists, -torch.inf).amax(1)
    low = judgement.family.masked_fill(~exists, torch.inf).amin(1)
    ends = judgement.ends
    return torch.cat([(high + low) / 2, ((ends.high - ends.low) / 2)[:, None]], 1).double()


def _probabilities(judgement: Judgement) -> bool:
    decision, family = judgement.decision, judgement.family
    inside = bool(((family >= 0) & (family <= 1)).all())
    return inside and (decision.kind == "argmax" or (decision.kind == "threshold" and 0 < decision.value < 1))
