"""Whether people who differ in the sensitive attributes only are decided alike (Definition 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Domain
from neuronfair.errors import ModelError
from neuronfair.network.blackbox import Model
from neuronfair.network.encoding import Encoding

BATCH = 1 << 15  # network rows per forward pass: large enough to be fast, small enough to keep memory flat
NUMBERS = 1 << 27  # … and numbers that such a pass holds at most, where rows are very wide


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
    """The scores of rows and of all their twins, and which twins are decided otherwise.

    The twins' own codes are made when they are asked for: there may be thousands for each row.
    """

    domain: Domain
    decision: Decision
    rows: Tensor  # (n, d)
    family: Tensor  # (n, 1 + k, outputs): the scores of each row, then those of its twins
    valid: Tensor  # (n, k): whether such a twin exists
    differs: Tensor  # (n, k): never for a twin that does not exist

    def __getitem__(self, chosen: Tensor | slice) -> Judgement:
        """Return the judgement of some of the rows."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in ("rows", "family", "valid", "differs")})

    @property
    def scores(self) -> Tensor:
        """The scores of the rows: (n, outputs)."""
        return self.family[:, 0]

    @property
    def twin_scores(self) -> Tensor:
        """The scores of the twins: (n, k, outputs)."""
        return self.family[:, 1:]

    @property
    def twins(self) -> Tensor:
        """The twins themselves: (n, k, d)."""
        return self.domain.twins(self.rows).rows

    @cached_property
    def gaps(self) -> Tensor:
        """How far each twin's scores lie from those of its row, negative for a twin that does not exist: (n, k)."""
        return torch.where(self.valid, self.decision.gap(self.family[:, :1], self.family[:, 1:]), -1.0)

    @cached_property
    def discriminates(self) -> Tensor:
        """Whether each row has a twin with another decision: bool, (n,)."""
        return self.differs.any(1)

    @cached_property
    def partner(self) -> Tensor:
        """The twin to compare each row with: one with another decision if there is one, of those the farthest: (n,)."""
        if self.differs.shape[1] == 1:
            return torch.zeros(len(self.rows), dtype=torch.int64, device=self.rows.device)
        gaps = torch.where(self.differs.any(1, keepdim=True) & ~self.differs, -1.0, self.gaps)
        return gaps.argmax(1)

    @cached_property
    def twin(self) -> Tensor:
        """The row of that partner: (n, d)."""
        return self.domain.member(self.rows, self.partner + 1)

    def ends(self) -> Ends:
        """Return how far each family reaches to both sides of the boundary, and its members there."""
        exists = torch.cat([torch.ones_like(self.valid[:, :1]), self.valid], 1)
        lean = self.decision.lean(self.family, exists)
        leaning = (self.family * lean[:, None]).sum(2)
        high = leaning.masked_fill(~exists, -torch.inf).max(1)
        low = leaning.masked_fill(~exists, torch.inf).min(1)
        rows = self.domain.member(self.rows.repeat(2, 1), torch.cat([high.indices, low.indices]))
        return Ends(lean, high.values, low.values, rows)


class Ends(NamedTuple):
    """The two members of each family whose leanings lie farthest apart."""

    lean: Tensor  # (n, outputs): see Decision.lean
    high: Tensor  # (n,): the highest leaning
    low: Tensor  # (n,): the lowest
    rows: Tensor  # (2 n, d): who has the highest, then who has the lowest


def judge(
    network: Model, domain: Domain, rows: Tensor, decision: Decision | None = None, *, checked: bool = True
) -> Judgement:
    """Score rows and all their twins and compare the decisions (Definition 1).

    All go through the network in one forward pass, or in several where they are many: memory does not grow with the
    twins' columns. Scores that are NaN or infinite are an error; the engine looks for them itself (`checked=False`).
    """
    decision = decision or Decision()
    decision.check(network.outputs)
    size = min(BATCH, NUMBERS // math.prod(network.encoding.shape)) // len(domain.sensitive_values)
    parts = [_family(network, domain, part) for part in torch.split(rows, max(1, size))]
    scores, valid = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    if checked and not bool(scores.isfinite().all()):
        raise not_finite()
    differs = decision.differ(scores[:, :1], scores[:, 1:]) & valid
    return Judgement(domain, decision, rows, scores, valid, differs)


def _family(network: Model, domain: Domain, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of rows and their twins, and which twins exist: (n, 1 + k, outputs) and (n, k)."""
    twins, valid = domain.twins(rows)
    family = torch.cat([rows[:, None], twins], 1)  # (n, 1 + k, d)
    return network.scores(family.flatten(0, 1)).view(*family.shape[:2], network.outputs), valid


def not_finite() -> ModelError:
    """Return the error for scores that cannot be compared."""
    return ModelError("the network gives NaN or infinite scores. Check its weights and the scaling of the inputs")


def families(encoding: Encoding, domain: Domain, *tensors: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Split tensors of one length into parts whose rows, twins included, fill one pass of a model each."""
    rows = min(BATCH, encoding.rows_per_pass) // len(domain.sensitive_values)
    return tuple(torch.split(t, max(1, rows)) for t in tensors)
