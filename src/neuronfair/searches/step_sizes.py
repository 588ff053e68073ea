"""How far a step goes: in the scale of the table, where one code of an attribute is too small to be one.

Quantiles of the table are the places between which a step goes, and its length is a log-uniform number of places up or
down: most steps are short where people are dense, some reach across the whole table, and heaped values (no capital
gain) are left at once and met again. Between two places every code can be reached. Beyond the ends of the table, up to
the bounds, there are a few more, ever farther apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain

SMALL = 128  # up to so many values in order, one code is a step
QUANTILES = 1024  # places at most
BEYOND = 8  # places beyond each end of the table


@dataclass(frozen=True)
class Pace:
    """Quantiles of the attributes with many values in order; all others go as the domain goes."""

    columns: Tensor  # which attributes: (m,)
    values: Tensor  # the codes of their places, from the lowest bound to the highest: (m, k), float64

    @staticmethod
    def of(domain: TableDomain, rows: Tensor) -> Pace | None:
        """Return the pace of a table; None in the `paper` encoding, where a step is a code, and if no step is long."""
        wide = (domain.ordered & domain.free & (domain.points > SMALL)).nonzero()[:, 0]
        if domain.encoding == "paper" or not len(rows) or not len(wide):
            return None
        codes = rows[:, wide].double().clamp(min=0)
        last = (domain.points[wide] - 1).double()
        middle = codes.masked_fill(codes > last, torch.nan).nanmedian(0).values.nan_to_num()
        codes = torch.where(codes > last, middle, codes)  # an empty cell has no place in the order
        places = torch.linspace(0, len(rows) - 1, min(QUANTILES, len(rows)), device=rows.device).round().long()
        places = places.clamp(max=len(rows) - 1)  # rounding may lead beyond the last of very many
        inside = codes.sort(0).values[places].T
        rungs = torch.arange(1, BEYOND + 1, dtype=torch.float64, device=rows.device) / BEYOND
        low, high = inside[:, :1], inside[:, -1:]
        above = high + (last[:, None] - high + 1) ** rungs - 1
        below = low - (low + 1) ** rungs.flip(0) + 1
        return Pace(wide, torch.cat([below, inside, above], 1).round())

    def stretched(self, base: Tensor, codes: Tensor, u: Tensor) -> Tensor:
        """Return the codes with steps of one code made as long as numbers u in [0, 1) say, each in its direction."""
        old, near = base[:, self.columns], codes[:, self.columns]
        new = self._stepped(old.T.double(), (near - old).T.sign(), u[:, self.columns].T).T
        single = (near - old).abs() == 1  # not to or from an empty cell, which has no place in the order
        return codes.index_copy(1, self.columns, torch.where(single, new.long(), near))

    def _stepped(self, old: Tensor, way: Tensor, u: Tensor) -> Tensor:
        """Return where steps lead, (m, n): at least one code away, and beyond no bound but by one code."""
        last = self.values.shape[1] - 1
        up = way > 0
        place = torch.where(up, self._place(old, right=True), self._place(old, right=False))
        room = torch.where(up, last - place, place)
        goal = (place + way * ((room + 1) ** u - 1)).clamp(0, last)
        below = goal.long().clamp(max=last - 1)
        low, high = self.values.gather(1, below), self.values.gather(1, below + 1)
        there = (low + (goal - below) * (high - low)).round()
        return torch.where(up, torch.maximum(there, old + 1), torch.minimum(there, old - 1))

    def _place(self, codes: Tensor, *, right: bool) -> Tensor:
        """Return the places of codes among the values, between two of them in proportion; of a heap its end."""
        after = torch.searchsorted(self.values, codes.contiguous(), right=right).clamp(1, self.values.shape[1] - 1)
        low, high = self.values.gather(1, after - 1), self.values.gather(1, after)
        share = torch.where(high > low, (codes - low) / (high - low).clamp(min=1e-9), 1.0 if not right else 0.0)
        return after - 1 + share.clamp(0, 1)

    def reach(self, width: int) -> Tensor:
        """Return how many codes a step of each attribute goes, about: one, or the mean over the table: (width,)."""
        old, last = self.values[:, 1:-1], self.values[:, -1:]
        sizes = []
        for u in torch.arange(0.5, 8) / 8:  # evenly spread
            for way in (1.0, -1.0):
                there = self._stepped(old, torch.full_like(old, way), torch.full_like(old, float(u)))
                sizes.append((torch.minimum(there.clamp(min=0), last) - old).abs())
        reach = torch.ones(width, dtype=torch.float64, device=old.device)
        return reach.index_copy(0, self.columns, torch.stack(sizes).mean((0, 2)).clamp(min=1))
