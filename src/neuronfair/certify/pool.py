"""The open boxes of a proof, the one with the most open people first."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

NONE = -1.0  # the priority of an empty slot
UNKNOWN = (-math.inf, math.inf)  # bounds of which nothing is known
LISTED = 32  # times as many boxes are listed in front as are taken, about
SAMPLED = 1 << 14  # boxes by which it is guessed what priority these have
LEAST = 1e-6  # of a box is taken for open at least, so that none is forgotten


class Pool:
    """Columns of equal length that grow; the slot of a box that was taken is filled by one that comes.

    The slots of all boxes with at least a certain priority are listed in front, so that the first ones are found
    without a look at all others; where the list has become too short or too long, it is made anew.
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Begin with columns without rows, which say of what types they are."""
        self._columns = dict(columns)
        device = next(iter(columns.values())).device
        self._share = torch.empty(0, dtype=torch.float64, device=device)
        self._priority = torch.empty(0, dtype=torch.float64, device=device)
        self._free = torch.empty(0, dtype=torch.int64, device=device)
        self._front = torch.empty(0, dtype=torch.int64, device=device)
        self._least = -math.inf  # the priority of those in front; a box in no list has a lower one
        self._proved = torch.zeros(2, dtype=torch.float64, device=device)
        self._size = self._boxes = 0

    def __len__(self) -> int:
        return self._boxes

    def take(self, most: int) -> dict[str, Tensor]:
        """Remove the boxes with the most open people, at most so many, and return their columns."""
        count = min(most, self._boxes)
        if not count <= len(self._front) <= 4 * LISTED * count:
            self._list(count)
        first = torch.topk(self._priority[self._front], count, sorted=False).indices
        top = self._front[first]
        stays = torch.ones(len(self._front), dtype=torch.bool, device=top.device)
        stays[first] = False
        self._front = self._front[stays]
        taken = {name: column[top] for name, column in self._columns.items()}
        self._proved = self._proved - self._shares(taken, self._share[top])
        self._priority[top], self._share[top] = NONE, 0.0
        self._free = torch.cat([self._free, top])
        self._boxes -= count
        return taken

    def _list(self, count: int) -> None:
        """List the boxes with the most open people in front, many times as many as are taken now."""
        known = self._priority[: self._size]
        share = LISTED * count / self._size
        # About so many of all have a higher priority; how many exactly does not matter, if there are enough.
        some = known[:: max(1, self._size // SAMPLED)]
        self._least = float(some.kthvalue(max(1, round(len(some) * (1 - share)))).values) if share < 1 else -math.inf
        self._front = (known >= max(self._least, 0.0)).nonzero()[:, 0]
        if len(self._front) < count:
            self._least, self._front = -math.inf, (known > NONE).nonzero()[:, 0]

    @staticmethod
    def _shares(columns: Mapping[str, Tensor], share: Tensor) -> Tensor:
        return torch.stack([(share * columns[name]).sum() for name in ("fair", "flips")])

    def put(self, columns: Mapping[str, Tensor], share: Tensor) -> None:
        """Add boxes with their shares of all people; a column that these do not have is forgotten.

        Of a column that only these have nothing is known of the others: it holds bounds, (…, 2), and theirs are none.
        """
        count = len(share)
        more = max(0, count - len(self._free))
        self._match(columns)
        if self._size + more > len(self._priority):
            self._grow(self._size + more)
        new = torch.arange(self._size, self._size + more, device=share.device)
        slots = torch.cat([self._free[: count - more], new])
        self._free = self._free[count - more :]
        self._size += more
        self._boxes += count
        self._share[slots] = share
        self._priority[slots] = share * (1 - columns["fair"] - columns["flips"]).clamp(min=LEAST)
        for name, column in self._columns.items():
            column[slots] = columns[name].to(column.dtype)
        self._front = torch.cat([self._front, slots[self._priority[slots] >= self._least]])
        self._proved = self._proved + self._shares(columns, share)

    def everything(self) -> dict[str, Tensor]:
        """Return the columns of all boxes."""
        kept = (self._priority[: self._size] > NONE).nonzero()[:, 0]
        return {name: column[kept] for name, column in self._columns.items()}

    @property
    def proved(self) -> Tensor:
        """The shares of all people that half-spaces in the boxes prove fair and discriminatory, about: (2,)."""
        return self._proved if self._boxes else torch.zeros_like(self._proved)

    def _match(self, columns: Mapping[str, Tensor]) -> None:
        for name in [name for name in self._columns if name not in columns]:
            del self._columns[name]
        for name in [name for name in columns if name not in self._columns]:
            shape = len(self._priority), *columns[name].shape[1:]
            self._columns[name] = columns[name].new_tensor(UNKNOWN).repeat(*shape[:-1], 1)

    def _grow(self, size: int) -> None:
        length = max(size, 2 * len(self._priority))

        def longer(column: Tensor, fill: float) -> Tensor:
            result = column.new_full((length, *column.shape[1:]), fill)
            result[: len(column)] = column
            return result

        self._share, self._priority = longer(self._share, 0.0), longer(self._priority, NONE)
        self._columns = {name: longer(column, 0) for name, column in self._columns.items()}
