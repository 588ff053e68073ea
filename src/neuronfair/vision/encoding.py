"""How a network reads the pictures of a domain: shifted where their flag is set."""

from __future__ import annotations

import torch
from torch import Tensor

from neuronfair.vision.domain import LEVELS, PIXELS, ImageDomain

STEP = 0.15  # step_size_g of the paper for pictures, as a share of the range of a pixel
PASS = 256  # pictures per forward pass


class PictureEncoding:
    """The rows of a domain of pictures as numbers in [0, 1], and gradients as steps of pixels."""

    def __init__(self, domain: ImageDomain, rows_per_pass: int = PASS) -> None:
        self.domain, self.device, self.shape = domain, domain.device, tuple(domain.shape)
        self.rows_per_pass = rows_per_pass

    @property
    def example(self) -> Tensor:
        """The first seed picture, twice."""
        return self.domain.rows(torch.zeros(2, dtype=torch.int64, device=self.device))

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the pictures as numbers in [0, 1]: (…, c, h, w)."""
        return self.domain.levels(rows).to(dtype) / (LEVELS - 1)

    def uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the pictures after a step along the gradient, without sign; pixels may leave their bounds: (n, d).

        The gradient is divided by its largest value in each picture, so that the pixel that matters most moves by
        `STEP` of the range, 38 levels, and the others in proportion.
        """
        largest = gradient.abs().amax(1, keepdim=True)
        way = gradient / torch.where(largest > 0, largest, 1.0)
        step = (way * (STEP * (LEVELS - 1))).round().to(rows.dtype)
        return torch.cat([rows[:, :PIXELS], rows[:, PIXELS:] + step], 1)

    def agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the pictures after a step along the sum of two gradients, in the pixels where their signs agree."""
        return self.uphill(torch.where(gradient.sign() == other.sign(), gradient + other, 0.0), rows)

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor | None, codes: Tensor) -> Tensor:
        """Return the first-order effect of moving single pixels to other levels, or each of them: (n, m)."""
        if columns is None:
            return gradient * ((codes - rows)[:, PIXELS:].to(gradient.dtype) / (LEVELS - 1))
        ahead = (codes - rows.gather(1, columns)).to(gradient.dtype) / (LEVELS - 1)
        return gradient.gather(1, columns - PIXELS) * ahead

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return how much one level of each pixel changes, without sign, and 0 for the other codes: (n, d)."""
        size = gradient.abs() / (LEVELS - 1)
        return torch.cat([torch.zeros_like(size[:, :PIXELS]), size], 1)
