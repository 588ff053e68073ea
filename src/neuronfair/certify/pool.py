"""The open boxes of a proof, the one with the most open people first."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

NONE = -1.0  # the priority of an empty slot
UNKNOWN = (-math.inf, math.inf)  # bounds of which nothing is known
LEAST = 1e-6  # of a box is taken for open at least, so that none is forgotten


class Pool:
    """Columns of equal length that grow; the slot of a box that was taken is filled by one that comes."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Begin with columns without rows, which say of what types they are."""
        self._columns = dict(columns)
        device = next(iter(columns.values())).device
        self._share = torch.empty(0, dtype=torch.float64, device=device)
        self._priority = torch.empty(0, dtype=torch.float64, device=device)
        self._free = torch.empty(0, dtype=torch.int64, device=device)
        self._size = self._boxes = 0

    def __len__(self) -> int:
        return self._boxes

    def take(self, most: int) -> dict[str, Tensor]:
        """Remove the boxes with the most open people, at most so many, and return their columns."""
        count = min(most, self._boxes)
        top = torch.topk(self._priority[: self._size], count, sorted=False).indices
        taken = {name: column[top] for name, column in self._columns.items()}
        self._priority[top], self._share[top] = NONE, 0.0
        self._free = torch.cat([self._free, top])
        self._boxes -= count
        return taken

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

    def everything(self) -> dict[str, Tensor]:
        """Return the columns of all boxes."""
        kept = (self._priority[: self._size] > NONE).nonzero()[:, 0]
        return {name: column[kept] for name, column in self._columns.items()}

    @property
    def proved(self) -> Tensor:
        """The shares of all people that half-spaces in the boxes prove fair and discriminatory: (2,)."""
        share = self._share[: self._size]
        return torch.stack([(share * self._columns[name][: self._size]).sum() for name in ("fair", "flips")])

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
