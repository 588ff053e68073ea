"""What was proved: boxes that cover a region once, and how many records of each are certified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Leaves:
    """Boxes of places, both ends included, that cover the region without overlap, and what is proved in each."""

    low: npt.NDArray[np.int32]  # (n, axes)
    high: npt.NDArray[np.int32]
    fair: list[int]  # people of whom it is proved that no twin is decided otherwise, at least
    discriminatory: list[int]  # people of whom it is proved that some twin is decided otherwise, at least

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class Proof:
    """How many people of a region are decided alike whatever their sensitive values, how many not; the rest is open."""

    people: int  # valid rows of the region, exactly
    fair: int
    discriminatory: int
    boxes: int  # that were bounded
    seconds: float
    leaves: Leaves
    interrupted: bool = False  # by Ctrl-C

    @property
    def open(self) -> int:
        """How many people nothing is proved of."""
        return self.people - self.fair - self.discriminatory

    @property
    def complete(self) -> bool:
        """Whether everybody is decided."""
        return self.open == 0
