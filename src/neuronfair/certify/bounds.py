"""What a prover asks of a model: lines below and above its margins, over boxes of people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from neuronfair.certify.space import Boxes, Space
from neuronfair.errors import ModelError


class Unprovable(ModelError):
    """Nothing can be proved about such a model."""


@dataclass(frozen=True)
class Lines:
    """Lines that hold everywhere in a box, rounding included: slopes (n, values, margins, features), constants without.

    `values` are all combinations of the sensitive attributes; the slopes may be the same for all (expanded).
    """

    low: Tensor
    low_at: Tensor
    high: Tensor
    high_at: Tensor
    inner: Tensor | None = None  # (n, …) what the halves of a box may be told of it


class Bounder(Protocol):
    """A model whose margins can be bounded."""

    space: Space

    def lines(self, boxes: Boxes, known: Tensor | None = None) -> Lines:
        """Return lines over boxes; `known` is what `inner` was for boxes that hold them."""
