"""Whether people who differ in the sensitive attributes only are decided alike (Definition 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from neuronfair.domain.base import Domain
from neuronfair.errors import ModelError
from neuronfair.network.blackbox import Model
from neuronfair.network.encoding import Encoding

BATCH = 1 << 15  # network rows per forward pass: large enough to be fast, small enough to keep memory flat


DecisionKind = Literal["argmax", "threshold", "tolerance"]


@dataclass(frozen=True)
class Decision:
    """What counts as another decision: another class, the other side of a threshold, or a gap above a tolerance.

    With a tolerance a row is discriminatory if its own score is too far from that of a twin; two twins that are too far
    from each other do not make it so.

    >>> Decision().differ(torch.tensor([[0.2, 0.8]]), torch.tensor([[0.6, 0.4]]))
    tensor([True])
    >>> Decision("tolerance", 0.1).differ(torch.tensor([[1.0]]), torch.tensor([[1.05]]))
    tensor([False])
    """

    kind: DecisionKind = "argmax"
    value: float = 0.0

    def differ(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return whether two score vectors (…, outputs) lead to different decisions: bool, (…)."""
        if self.kind == "argmax":
            return scores.argmax(-1) != others.argmax(-1)
        # The last output is the score: the only one, or that of the positive class.
        score, other = scores[..., -1], others[..., -1]
        if self.kind == "threshold":
            return (score >= self.value) != (other >= self.value)
        return (score - other).abs() > self.value

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


@dataclass(frozen=True)
class Judgement:
    """The scores of rows and of all their twins, and which twins are decided otherwise."""

    twins: Tensor  # (n, k, d)
    scores: Tensor  # (n, outputs)
    twin_scores: Tensor  # (n, k, outputs)
    valid: Tensor  # (n, k): whether such a twin exists
    differs: Tensor  # (n, k): never for a twin that does not exist
    gaps: Tensor  # (n, k): the score gap, negative for a twin that does not exist

    @cached_property
    def discriminates(self) -> Tensor:
        """Whether each row has a twin with another decision: bool, (n,)."""
        return self.differs.any(1)

    @cached_property
    def partner(self) -> Tensor:
        """The twin to compare each row with: one with another decision if there is one, of those the farthest: (n,)."""
        if self.differs.shape[1] == 1:
            return torch.zeros(len(self.scores), dtype=torch.int64, device=self.scores.device)
        gaps = torch.where(self.differs.any(1, keepdim=True) & ~self.differs, -1.0, self.gaps)
        return gaps.argmax(1)

    @cached_property
    def twin(self) -> Tensor:
        """The row of that partner: (n, d)."""
        return self.twins[torch.arange(len(self.twins), device=self.twins.device), self.partner]


def judge(
    network: Model, domain: Domain, rows: Tensor, decision: Decision | None = None, *, checked: bool = True
) -> Judgement:
    """Score rows and all their twins in one forward pass and compare the decisions (Definition 1).

    Scores that are NaN or infinite are an error. The engine looks for them itself (`checked=False`).
    """
    decision = decision or Decision()
    decision.check(network.outputs)
    twins, valid = domain.twins(rows)
    family = torch.cat([rows[:, None], twins], 1)  # (n, 1 + k, d)
    scores = network.scores(family.flatten(0, 1)).view(*family.shape[:2], network.outputs)
    if checked and not bool(scores.isfinite().all()):
        raise not_finite()
    own, others = scores[:, :1], scores[:, 1:]
    differs = decision.differ(own, others) & valid
    gaps = torch.where(valid, decision.gap(own, others), -1.0)
    return Judgement(twins, scores[:, 0], others, valid, differs, gaps)


def not_finite() -> ModelError:
    """Return the error for scores that cannot be compared."""
    return ModelError("the network gives NaN or infinite scores. Check its weights and the scaling of the inputs")


def families(encoding: Encoding, domain: Domain, *tensors: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Split tensors of one length into parts whose rows, twins included, fill one pass of a model each."""
    rows = min(BATCH, encoding.rows_per_pass) // len(domain.sensitive_values)
    return tuple(torch.split(t, max(1, rows)) for t in tensors)
