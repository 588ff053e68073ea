"""What an image under test may be, how a network reads it, shifted where its flag is set, and how it is searched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.domain.twins import CONTENT, GROUP, SAMPLE, SampleDomain
from neuronfair.errors import DomainError

PIXELS = CONTENT  # the first column of the pixels
LEVELS = 256  # of an 8-bit pixel


@dataclass(frozen=True, eq=False)
class ImageDomain(SampleDomain):
    """Pictures that are walked from seed pictures, each with a shift that flips its sensitive attribute (Δ_senatt).

    A row is whole numbers: the number of the seed picture, a flag, and all pixels, 0 to 255. The flag is the sensitive
    attribute: with flag 1 the network sees the pixels plus the shift held for the seed picture. The shift is in whole
    grey levels too, so that both pictures of a finding are true 8-bit pictures. Codes are int16 (int32 for more than
    32,767 seed pictures).
    """

    name: str
    pictures: Tensor  # (images, channels, height, width), uint8: the seeds
    shift: Tensor  # the same shape, int8: grey levels
    sensitive: tuple[str, ...] = ("attribute",)

    def __post_init__(self) -> None:
        if self.pictures.dim() != 4 or len(self.pictures) == 0 or self.pictures.dtype != torch.uint8:
            raise DomainError(
                f"{self.name}: expected 8-bit pictures (n, channels, height, width), got "
                f"{tuple(self.pictures.shape)} of {self.pictures.dtype}"
            )
        if self.shift.shape != self.pictures.shape or self.shift.dtype != torch.int8:
            raise DomainError(
                f"{self.name}: expected one int8 shift per picture, got {tuple(self.shift.shape)} of {self.shift.dtype}"
            )

    # What the codes are

    @property
    def device(self) -> torch.device:
        """Where the pictures live."""
        return self.pictures.device

    @property
    def shape(self) -> torch.Size:
        """Channels, height and width of a picture."""
        return self.pictures.shape[1:]

    @property
    def is_restricted(self) -> bool:
        """Whether rows must keep more than the bounds of their codes: every combination of pixels is a picture."""
        return False

    @cached_property
    def compact(self) -> torch.dtype:
        """The smallest type that holds every code."""
        return torch.int16 if len(self.pictures) <= torch.iinfo(torch.int16).max else torch.int32

    @cached_property
    def sizes(self) -> Tensor:
        """How many values each code may take: (d,)."""
        sizes = torch.full((PIXELS + self.shape.numel(),), LEVELS, device=self.device)
        sizes[SAMPLE], sizes[GROUP] = len(self.pictures), 2
        return sizes

    @property
    def is_ordered(self) -> Tensor:
        """Which codes have an order: the pixels, bool (d,)."""
        return self.changeable

    @property
    def seeds(self) -> Tensor:
        """The seed pictures as rows: (images, d)."""
        return self.rows(torch.arange(len(self.pictures), device=self.device))

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the seed pictures with these numbers as rows: (n, d)."""
        head = torch.stack([numbers, torch.zeros_like(numbers)], 1).to(self.compact)
        return torch.cat([head, self.pictures[numbers].flatten(1).to(self.compact)], 1)

    # Which rows exist

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether all codes lie within their bounds: bool, (n,)."""
        return ((rows >= 0) & (rows < self.sizes)).all(-1)

    def clip(self, rows: Tensor) -> Tensor:
        """Return the nearest valid rows: every code is moved into its bounds."""
        return torch.minimum(rows.clamp(min=0), self.sizes - 1).to(self.compact)

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the rows that stand at random places u, pictures of noise: numbers in [0, 1), (n, d)."""
        return (u * self.sizes).to(self.compact)

    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return every pixel one level up or down, at a bound inwards, from numbers u in [0, 1): (n, d) each."""
        step = torch.where(u < 0.5, -1, 1).to(rows.dtype)
        outside = (rows + step < 0) | (rows + step >= self.sizes)
        return torch.where(outside, rows - step, rows + step)

    # What the network is shown

    def levels(self, rows: Tensor) -> Tensor:
        """Return the pictures as shown to the network, shifted where the flag is set: int16, (…, c, h, w)."""
        shift = self.shift[rows[..., SAMPLE].long()].to(torch.int16)
        pixels = rows[..., PIXELS:].to(torch.int16).reshape(shift.shape)
        return (pixels + rows[..., GROUP, None, None, None].to(torch.int16) * shift).clamp(0, LEVELS - 1)


STEP_SHARE = 0.15  # step_size_g of the paper for pictures, as a share of the range of a pixel
IMAGES_PER_PASS = 256  # pictures per forward pass


class ImageEncoding:
    """The rows of a domain of pictures as numbers in [0, 1], and gradients as steps of pixels."""

    def __init__(self, domain: ImageDomain, rows_per_pass: int = IMAGES_PER_PASS) -> None:
        self.domain, self.device, self.shape = domain, domain.device, tuple(domain.shape)
        self.rows_per_pass = rows_per_pass

    @property
    def example(self) -> Tensor:
        """The first seed picture, twice."""
        return self.domain.rows(torch.zeros(2, dtype=torch.int64, device=self.device))

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the pictures as numbers in [0, 1]: (…, c, h, w)."""
        return self.domain.levels(rows).to(dtype) / (LEVELS - 1)

    def step_uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the pictures after a step along the gradient, without sign; pixels may leave their bounds: (n, d).

        The gradient is divided by its largest value in each picture, so that the pixel that matters most moves by
        `STEP` of the range, 38 levels, and the others in proportion.
        """
        largest = gradient.abs().amax(1, keepdim=True)
        direction = gradient / torch.where(largest > 0, largest, 1.0)
        step = (direction * (STEP_SHARE * (LEVELS - 1))).round().to(rows.dtype)
        return torch.cat([rows[:, :PIXELS], rows[:, PIXELS:] + step], 1)

    def step_where_agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the pictures after a step along the sum of two gradients, in the pixels where their signs agree."""
        return self.step_uphill(torch.where(gradient.sign() == other.sign(), gradient + other, 0.0), rows)

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor | None, codes: Tensor) -> Tensor:
        """Return the first-order effect of moving single pixels to other levels, or each of them: (n, m)."""
        if columns is None:
            return gradient * ((codes - rows)[:, PIXELS:].to(gradient.dtype) / (LEVELS - 1))
        change = (codes - rows.gather(1, columns)).to(gradient.dtype) / (LEVELS - 1)
        return gradient.gather(1, columns - PIXELS) * change

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return how much one level of each pixel changes, without sign, and 0 for the other codes: (n, d)."""
        size = gradient.abs() / (LEVELS - 1)
        return torch.cat([torch.zeros_like(size[:, :PIXELS]), size], 1)
