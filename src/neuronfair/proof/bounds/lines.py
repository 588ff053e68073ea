"""What a prover asks of a model: lines below and above its margins, over boxes of people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from neuronfair.errors import ModelError
from neuronfair.proof.boxes.space import Boxes, Space


class Unprovable(ModelError):  # noqa: N818
    """Nothing can be proved about such a model."""


@dataclass(frozen=True)
class Lines:
    """Lines that hold everywhere in a box, with room for all rounding, also for a few more operations on them.

    `values` are all combinations of the sensitive attributes. The slopes may be the same for all of them: then they are
    given once, (n, 1, margins, features).
    """

    low: Tensor  # (n, values or 1, margins, features)
    low_at: Tensor  # (n, values, margins)
    high: Tensor
    high_at: Tensor
    inner: Tensor | None = None  # (n, …, 2) bounds that the halves of a box may be told: they hold for these, too
    same: Tensor | None = None  # (n,) where all values surely have the same margins, whatever these are
    cut: Tensor | None = None  # (n, 2) how to cut, where the model knows best: the axis, and the last place below


class Bounder(Protocol):
    """A model whose margins can be bounded, in one or several ways; which is best, is found by trying."""

    @property
    def space(self) -> Space:
        """What the lines are written over."""

    @property
    def ways(self) -> int:
        """How many ways there are."""

    def lines(self, boxes: Boxes, known: Tensor | None = None, way: int = 0) -> Lines:
        """Return lines over boxes; `known` is what `inner` was for boxes that hold them."""

    def margins(self, places: Tensor) -> Tensor:
        """Return the margins of people at places (n, axes), with every sensitive value: (n, values, margins)."""

    def cost(self, way: int) -> float:
        """Return about how long a way takes, compared with the others."""

    @property
    def slack(self) -> Tensor:
        """How far the margins of rows may be off by rounding: (margins,)."""
