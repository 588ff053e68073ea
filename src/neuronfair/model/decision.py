"""What counts as another decision: another class, the other side of a threshold, or a gap above a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import ModelError

DecisionKind = Literal["argmax", "threshold", "tolerance"]


@dataclass(frozen=True)
class Decision:
    """What counts as another decision: another class, the other side of a threshold, or a gap above a tolerance.

    With a tolerance a person is discriminated if any two members of the family lie too far apart, whichever of them is
    the row at hand: its own score may lie between those of two twins, near enough to both.

    >>> Decision().differ(torch.tensor([[0.2, 0.8]]), torch.tensor([[0.6, 0.4]]))
    tensor([True])
    >>> Decision("tolerance", 0.1).differ(torch.tensor([[1.0]]), torch.tensor([[1.05]]))
    tensor([False])
    """

    kind: DecisionKind = "argmax"
    value: float = 0.0

    def differ(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return whether two score vectors (…, outputs) lead to different decisions: bool, (…)."""
        if self.kind == "tolerance":
            return (scores[..., -1] - others[..., -1]).abs() > self.value
        return self.chosen(scores) != self.chosen(others)

    def classes(self, outputs: int) -> int:
        """Return how many classes it tells apart: none for a tolerance, which compares two scores and chooses none."""
        return {"argmax": outputs, "threshold": 2, "tolerance": 0}[self.kind]

    def chosen(self, scores: Tensor) -> Tensor:
        """Return the number of the class that scores (…, outputs) are decided for: (…)."""
        # With a threshold the last output is the score: the only one, or that of the positive class.
        return scores.argmax(-1) if self.kind == "argmax" else (scores[..., -1] >= self.value).long()

    def apart(self, family: Tensor) -> Tensor:
        """Return which twins are decided otherwise than their row: bool, (n, k).

        `family` are the scores of each row and its twins, (n, 1 + k, outputs).
        """
        if self.kind == "tolerance":
            return self.differ(family[:, :1], family[:, 1:])
        chosen = self.chosen(family)
        return chosen[:, 1:] != chosen[:, :1]

    def splits(self, family: Tensor, valid: Tensor) -> Tensor:
        """Return whether some members of each family are decided otherwise than others: bool, (n,).

        `family` are the scores of each row and its twins, (n, 1 + k, outputs); `valid` says which twins exist, (n, k).
        """
        if self.kind != "tolerance":
            return (self.apart(family) & valid).any(1)
        score, exists = family[..., -1], with_row(valid)
        return (
            torch.where(exists, score, -torch.inf).amax(1) - torch.where(exists, score, torch.inf).amin(1) > self.value
        )

    def alike(self, scores: Tensor) -> bool:
        """Return whether all rows of scores, (n, outputs), lead to one decision."""
        if self.kind == "tolerance":
            return bool(scores[:, -1].max() - scores[:, -1].min() <= self.value)
        return not bool(self.differ(scores, scores[:1]).any())

    def gap(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return how far two score vectors (…, outputs) lie apart, unmoved by a shift common to all classes: (…)."""
        difference = scores - others
        if self.kind == "argmax":
            return difference.amax(-1) - difference.amin(-1)
        return difference[..., -1].abs()

    def lean(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Return the combination of outputs whose sign decides whether a family is split: (n, outputs).

        `scores` are those of each row and its twins, (n, 1 + k, outputs). For classes it is the strongest rival of the
        row's own class, among all members of the family, minus that class.
        """
        if self.kind != "argmax":
            lean = torch.zeros_like(scores[:, 0])
            lean[:, -1] = 1.0
            return lean
        own = scores[:, 0].argmax(1, keepdim=True)
        if scores.shape[2] == 2:  # the only rival
            return torch.ones_like(scores[:, 0]).scatter(1, own, -1.0)
        lead = scores - scores.gather(2, own[:, None].expand(-1, scores.shape[1], -1))
        lead = lead.masked_fill(~valid[..., None], -torch.inf).amax(1).scatter(1, own, -torch.inf)
        rival = lead.argmax(1, keepdim=True)
        return torch.zeros_like(scores[:, 0]).scatter(1, rival, 1.0).scatter(1, own, -1.0)

    def safety(self, highest: Tensor, lowest: Tensor) -> Tensor:
        """Return how far inside the discriminatory region a family lies whose leaning runs from lowest to highest.

        It is positive exactly where some twins are decided otherwise. With centre c and half-width w of the leaning
        it is w - |c| about the boundary, and 2 w less the tolerance for a tolerance.
        """
        if self.kind == "tolerance":
            return highest - lowest - self.value
        return torch.minimum(highest - self.boundary, self.boundary - lowest)

    @property
    def boundary(self) -> float:
        """The leaning at which a decision changes."""
        return self.value if self.kind == "threshold" else 0.0

    def check(self, outputs: int) -> None:
        """Refuse a network whose outputs cannot be decided this way."""
        if self.kind == "argmax" and outputs < 2:
            raise ModelError(
                "the network has one output, so there is no class to choose. Decide by a threshold instead"
            )


def with_row(valid: Tensor) -> Tensor:
    """Return which members of a family exist, given which twins do: the row itself always, (n, 1 + k)."""
    return torch.cat([torch.ones_like(valid[:, :1]), valid], 1)


def leaning(family: Tensor, lean: Tensor) -> Tensor:
    """Return how far each member of families leans, (n, 1 + k), by combinations of outputs (n, outputs)."""
    parts = family * lean[:, None]
    # To sum two numbers as one sums many is four times slower on a CPU.
    return parts[..., 0] + parts[..., 1] if parts.shape[2] == 2 else parts.sum(2)
