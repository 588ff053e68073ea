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

    def splits(self, family: Tensor, valid: Tensor) -> Tensor:
        """Return whether some members of each family are decided otherwise than others: bool, (n,).

        `family` are the scores of each row and its twins, (n, 1 + k, outputs); `valid` says which twins exist, (n, k).
        """
        if self.kind != "tolerance":
            return (self.differ(family[:, :1], family[:, 1:]) & valid).any(1)
        score, exists = family[..., -1], with_row(valid)
        return (
            score.masked_fill(~exists, -torch.inf).amax(1) - score.masked_fill(~exists, torch.inf).amin(1) > self.value
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
    discriminates: Tensor  # (n,): whether some members of the family are decided otherwise than others

    def __getitem__(self, chosen: Tensor | slice) -> Judgement:
        """Return the judgement of some of the rows."""
        names = ("rows", "family", "valid", "discriminates")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

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
    def differs(self) -> Tensor:
        """Which twins are decided otherwise than their row, none where the row does not discriminate: bool, (n, k)."""
        differs = self.decision.differ(self.family[:, :1], self.family[:, 1:])
        return differs & self.valid & self.discriminates[:, None]

    @cached_property
    def partner(self) -> Tensor:
        """The twin to compare each row with: one with another decision if there is one, of those the farthest: (n,)."""
        if self.valid.shape[1] == 1:
            return torch.zeros(len(self.rows), dtype=torch.int64, device=self.rows.device)
        gaps = torch.where(self.differs.any(1, keepdim=True) & ~self.differs, -1.0, self.gaps)
        return gaps.argmax(1)

    @cached_property
    def twin(self) -> Tensor:
        """The row of that partner: (n, d)."""
        return self.domain.member(self.rows, self.partner + 1)

    @cached_property
    def ends(self) -> Ends:
        """How far each family reaches to both sides of the boundary, and which of its members do."""
        exists = with_row(self.valid)
        lean = self.decision.lean(self.family, exists)
        leaning = (self.family * lean[:, None]).sum(2)
        high = leaning.masked_fill(~exists, -torch.inf).max(1)
        low = leaning.masked_fill(~exists, torch.inf).min(1)
        return Ends(lean, high.values, low.values, high.indices, low.indices)

    def pairs(self) -> Pairs:
        """Return for each row two members of its family, decided otherwise if any are: the row itself and its partner.

        With a tolerance they are the two ends of the family where no twin lies too far from the row itself.
        """
        rows, scores, number = self.rows, self.scores, self.partner + 1
        every = torch.arange(len(rows), device=rows.device)
        if self.decision.kind == "tolerance":
            between = self.discriminates & ~self.differs.any(1)
            number = torch.where(between, self.ends.lowest, number)
            own = torch.where(between, self.ends.highest, 0)
            rows, scores = self.domain.member(rows, own), self.family[every, own]
        return Pairs(rows, self.domain.member(self.rows, number), scores, self.family[every, number])


class Ends(NamedTuple):
    """The two members of each family whose leanings lie farthest apart."""

    lean: Tensor  # (n, outputs): see Decision.lean
    high: Tensor  # (n,): the highest leaning
    low: Tensor  # (n,): the lowest
    highest: Tensor  # (n,): the number of the member that has it; 0 is the row itself
    lowest: Tensor  # (n,)


class Pairs(NamedTuple):
    """Two members of a family for each row, and what the model says of them."""

    rows: Tensor  # (n, d)
    twins: Tensor  # (n, d)
    scores: Tensor  # (n, outputs)
    twin_scores: Tensor  # (n, outputs)


def with_row(valid: Tensor) -> Tensor:
    """Return which members of a family exist, given which twins do: the row itself always, (n, 1 + k)."""
    return torch.cat([torch.ones_like(valid[:, :1]), valid], 1)


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
    return Judgement(domain, decision, rows, scores, valid, decision.splits(scores, valid))


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
