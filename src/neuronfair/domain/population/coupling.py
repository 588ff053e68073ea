"""How a value goes from one distribution of a column to another: a number by its rank, others stay where they can."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.domain.population.bins import Bins
from neuronfair.domain.population.trees import branch_taken

MIDDLE = 0.5  # where somebody typical stands


@dataclass(frozen=True)
class Coupling:
    """The distributions of a column's places, and who somebody of one of them is in another.

    Numbers keep their rank. What has no order, and whether a cell is empty, stays as it is as often as the other
    distribution allows (maximal coupling); who cannot stay goes where the other has more.
    """

    places: Bins
    ordered: bool
    empty: int | None  # the place of an empty cell that is a value of its own: the last
    chances: Tensor  # (distributions, places)

    def carried(self, codes: Tensor, own: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        """Return the codes that some codes of their own distributions become in the new ones: (n,).

        `u` are numbers in [0, 1) that say where among people of the same value somebody stands; without them
        everybody is typical.
        """
        carry = self._ranked if self.ordered else self._kept
        return carry(codes, own, new, u)

    def rank(self, codes: Tensor, at: float) -> Tensor:
        """Return the share of the first distribution that lies before codes, so far from their begin to their end."""
        cells, where = torch.zeros_like(codes), torch.full_like(codes, at, dtype=torch.float64)
        return self._rank(codes, self.places.place_of(codes), cells, where)

    def code(self, rank: Tensor) -> Tensor:
        """Return the codes at ranks of the first distribution."""
        return self._at_rank(torch.zeros_like(rank, dtype=torch.int64), rank)

    def _kept(self, codes: Tensor, own: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        place = self.places.place_of(codes)
        leaves, at = _coupled(_cell(self.chances, own, place), _cell(self.chances, new, place), u)
        leaves = leaves.nonzero()[:, 0]
        more = (branch_taken(self.chances, new[leaves]) - branch_taken(self.chances, own[leaves])).clamp(min=0)
        if u is None:
            goal = more.argmax(1)
        else:
            ends = more.cumsum(1)
            at = (at[leaves] * ends[:, -1])[:, None]
            last = (ends < ends[:, -1:]).sum(1, keepdim=True)  # rounding may reach the end
            goal = torch.minimum(torch.searchsorted(ends, at, right=True), last)
            had = more.gather(1, goal)
            at, goal = ((at - ends.gather(1, goal) + had) / had)[:, 0].clamp(0, 1), goal[:, 0]
        at = torch.full_like(goal, MIDDLE, dtype=torch.float64) if u is None else at
        return codes.index_copy(0, leaves, self.places.code_at(goal, at))

    def _ranked(self, codes: Tensor, own: Tensor, new: Tensor, u: Tensor | None) -> Tensor:
        place = self.places.place_of(codes)
        if self.empty is None:
            at = torch.full_like(codes, MIDDLE, dtype=torch.float64) if u is None else u
            return self._at_rank(new, self._rank(codes, place, own, at))
        full, (had, has) = place != self.empty, self.chances[:, self.empty][torch.stack([own, new])]
        leaves, at = _coupled(torch.where(full, 1 - had, had), torch.where(full, 1 - has, has), u)
        rank = torch.where(full, self._rank(codes, place.clamp(max=self.empty - 1), own, at), at)
        number = self._at_rank(new, rank)
        return torch.where(full != leaves, number, self.places.size - 1)

    def _rank(self, codes: Tensor, place: Tensor, cells: Tensor, at: Tensor) -> Tensor:
        """Return the share of a distribution's numbers that lie before somebody."""
        before, had = (_cell(table, cells, place) for table in self._numbers[:2])
        return before + had * self.places.share_of(codes, at)

    def _at_rank(self, cells: Tensor, rank: Tensor) -> Tensor:
        """Return the number that stands at a rank of a distribution."""
        before, had, stacked, span = self._numbers
        first, last = branch_taken(span, cells).unbind(1)
        place = torch.searchsorted(stacked, cells + rank, right=True) - cells * before.shape[1]
        place = torch.minimum(torch.maximum(place, first), last)  # rounding may lead to the next distribution
        share = (rank - _cell(before, cells, place)) / _cell(had, cells, place).clamp(min=1e-300)
        return self.places.code_at(place, share.clamp(0, 1))

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The distributions of the numbers alone.

        What lies before each place and what lies in it, (distributions, places); where the places end if every
        distribution were one unit long; and the first and the last place of each that have a chance.
        """
        chances = self.chances if self.empty is None else self.chances[:, : self.empty]
        chances = chances / chances.sum(1, keepdim=True).clamp(min=1e-300)
        ends = chances.cumsum(1)
        stacked = ends + torch.arange(len(ends), device=ends.device)[:, None]
        span = torch.stack([(ends == 0).sum(1), (ends < ends[:, -1:]).sum(1)], 1)
        return ends - chances, chances, stacked.view(-1), span


def _cell(table: Tensor, line: Tensor, place: Tensor) -> Tensor:
    """Return table[line, place], faster."""
    return branch_taken(table.view(-1), line * table.shape[1] + place)


def _coupled(had: Tensor, has: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return who leaves a value whose chance was one number and is another, and where they stand among their like."""
    stay = (has / had).clamp(max=1)
    if u is None:
        return stay <= MIDDLE, torch.full_like(stay, MIDDLE)
    leaves = u >= stay
    return leaves, torch.where(leaves, (u - stay) / (1 - stay), u / stay)
