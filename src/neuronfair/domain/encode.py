"""From rows of codes to what the network eats, and from an input gradient back to moves of attributes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.limits import check_size


class Encoder:
    """The fixed map from codes to network inputs: raw numbers, scaled numbers, one-hot blocks.

    It is linear in every number and a table lookup in every block, so the first-order effect of moving one attribute
    to another value is exact in the gradient: `effects`.
    """

    def __init__(self, attributes: Sequence[Attribute], device: torch.device) -> None:
        blocks = [a.encode == "onehot" for a in attributes]
        widths = [a.size if block else 1 for a, block in zip(attributes, blocks, strict=True)]
        factor, shift = zip(*(_line(a) for a in attributes), strict=True)
        self.width = sum(widths)
        self.is_block = torch.tensor(blocks, device=device)
        self.offset = torch.tensor([0, *accumulate(widths[:-1])], device=device)
        self.size = torch.tensor([a.size for a in attributes], device=device)
        self._factor = torch.tensor(factor, dtype=torch.float64, device=device)
        self._shift = torch.tensor(shift, dtype=torch.float64, device=device)
        self._numbers = (~self.is_block).nonzero()[:, 0]
        self._blocks = self.is_block.nonzero()[:, 0]
        # For every block the inputs of its values, and which of these exist: (blocks, values of the largest block).
        largest = max([1, *(a.size for a, b in zip(attributes, blocks, strict=True) if b)])
        check_size(largest * sum(blocks), "the one-hot blocks of the domain", times=32)
        values = torch.arange(largest, device=device)
        self._exists = values < self.size[self._blocks][:, None]
        self._inputs = self.offset[self._blocks][:, None] + torch.where(self._exists, values, 0)

    def encode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the network input of rows, (…, d) codes to (…, width) numbers.

        A code outside a one-hot block leaves the block empty.
        """
        factor, shift = self._factor.to(dtype), self._shift.to(dtype)
        if len(self._blocks) == 0:
            return rows.to(dtype) * factor + shift
        x = torch.zeros(*rows.shape[:-1], self.width, dtype=dtype, device=rows.device)
        numbers, blocks = self._numbers, self._blocks
        x[..., self.offset[numbers]] = rows[..., numbers].to(dtype) * factor[numbers] + shift[numbers]
        code = rows[..., blocks]
        inside = (code >= 0) & (code < self.size[blocks])
        place = self.offset[blocks] + torch.where(inside, code, 0)
        return x.scatter_add_(-1, place, inside.to(dtype))

    def decode(self, x: Tensor) -> Tensor:
        """Return the rows of network inputs: the inverse of `encode` for codes inside the bounds."""
        rows = torch.empty(*x.shape[:-1], len(self.size), dtype=torch.int64, device=x.device)
        numbers = self._numbers
        value = x[..., self.offset[numbers]].to(torch.float64)
        rows[..., numbers] = ((value - self._shift[numbers]) / self._factor[numbers]).round().long()
        for column in self._blocks.tolist():
            start = int(self.offset[column])
            rows[..., column] = x[..., start : start + int(self.size[column])].argmax(-1)
        return rows

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor, codes: Tensor) -> Tensor:
        """Return what each single move would add, to first order, to the quantity whose gradient this is.

        Move m of row i takes the attribute `columns[i, m]` to the code `codes[i, m]`; all are (n, m), the gradient is
        (n, width) and the result is (n, m).
        """
        now = rows.gather(1, columns)
        block = self.is_block[columns]
        offset = self.offset[columns]
        there = gradient.gather(1, offset + torch.where(block, codes, 0))
        here = gradient.gather(1, offset + torch.where(block, now, 0))
        line = here * self._factor.to(gradient.dtype)[columns] * (codes - now)
        return torch.where(block, there - here, line)

    def uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the code that the smallest step uphill leads each attribute to: (n, d).

        A number goes one step up or down, perhaps out of its bounds; a block goes to the value with the largest effect.
        Where no step gains anything the code stays.
        """
        codes = rows + (gradient[:, self.offset] * self._factor.to(gradient.dtype)).sign().long()
        if len(self._blocks):
            effects = self._block_effects(gradient, rows)
            best = effects.max(2)
            codes[:, self._blocks] = torch.where(best.values > 0, best.indices, rows[:, self._blocks])
        return codes

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return how much one step of each attribute changes at most, to first order and without sign: (n, d)."""
        size = (gradient[:, self.offset] * self._factor.to(gradient.dtype)).abs()
        if len(self._blocks):
            effects = self._block_effects(gradient, rows)
            size[:, self._blocks] = effects.masked_fill(~self._exists, 0.0).abs().amax(2)
        return size

    def _block_effects(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the effect of moving each block to each of its values: (n, blocks, values of the largest block)."""
        per_value = gradient[:, self._inputs]
        here = per_value.gather(2, rows[:, self._blocks, None])
        return (per_value - here).masked_fill(~self._exists, -torch.inf)


def _line(attribute: Attribute) -> tuple[float, float]:
    """Return factor and shift of the straight line from a code to the network's number."""
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    if attribute.encode == "scaled":
        return step / attribute.scale, (low - attribute.center) / attribute.scale
    return step, low
