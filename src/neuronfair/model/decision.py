"""Decisions: how scores become decisions, when two decisions differ, and scores as probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.errors import ModelError

DecisionKind = Literal["argmax", "threshold", "tolerance"]


@dataclass(frozen=True)
class Decision:
    """When two scores are different decisions: by class, by the side of a threshold, or by a gap above a tolerance.

    With a tolerance, a family is split if any two of its members are too far apart: the score of the row itself may lie
    between those of two twins, close to both.

    >>> Decision().differ(torch.tensor([[0.2, 0.8]]), torch.tensor([[0.6, 0.4]]))
    tensor([True])
    >>> Decision("tolerance", 0.1).differ(torch.tensor([[1.0]]), torch.tensor([[1.05]]))
    tensor([False])
    """

    kind: DecisionKind = "argmax"  # class of the highest score, side of a threshold, or gap above a tolerance
    value: float = 0.0  # the threshold, or the tolerance

    def differ(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return whether two score vectors (…, outputs) lead to different decisions: bool, (…)."""
        if self.kind == "tolerance":
            return (scores[..., -1] - others[..., -1]).abs() > self.value
        return self.decide(scores) != self.decide(others)

    def classes(self, outputs: int) -> int:
        """Return the number of classes; 0 for a tolerance, which compares two scores and chooses none."""
        return {"argmax": outputs, "threshold": 2, "tolerance": 0}[self.kind]

    def decide(self, scores: Tensor) -> Tensor:
        """Return the class that scores (…, outputs) decide for: (…)."""
        # With a threshold the last output is the score: the only one, or that of the positive class.
        return scores.argmax(-1) if self.kind == "argmax" else (scores[..., -1] >= self.value).long()

    chosen = decide  # its name until 0.3

    def twins_differ(self, family: Tensor) -> Tensor:
        """Return which twins get a different decision than their row: bool, (n, k).

        `family` are the scores of each row and its twins, (n, 1 + k, outputs).
        """
        if self.kind == "tolerance":
            return self.differ(family[:, :1], family[:, 1:])
        classes = self.decide(family)
        return classes[:, 1:] != classes[:, :1]

    def splits(self, family: Tensor, valid: Tensor) -> Tensor:
        """Return whether some members of each family get a different decision than others: bool, (n,).

        `family` are the scores of each row and its twins, (n, 1 + k, outputs); `valid` says which twins exist, (n, k).
        """
        if self.kind != "tolerance":
            return (self.twins_differ(family) & valid).any(1)
        score, exists = family[..., -1], include_row(valid)
        highest, lowest = torch.where(exists, score, -torch.inf).amax(1), torch.where(exists, score, torch.inf).amin(1)
        return highest - lowest > self.value

    def is_unanimous(self, scores: Tensor) -> bool:
        """Return whether all rows of scores, (n, outputs), lead to one decision."""
        if self.kind == "tolerance":
            return bool(scores[:, -1].max() - scores[:, -1].min() <= self.value)
        return not bool(self.differ(scores, scores[:1]).any())

    def gap(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the distance of two score vectors (…, outputs), which ignores a shift common to all classes: (…)."""
        difference = scores - others
        if self.kind == "argmax":
            return difference.amax(-1) - difference.amin(-1)
        return difference[..., -1].abs()

    def find_margin_weights(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Return the combination of outputs whose sign decides whether a family is split: (n, outputs).

        `scores` are those of each row and its twins, (n, 1 + k, outputs). For classes it is the strongest rival of the
        row's own class, among all members of the family, minus that class.
        """
        if self.kind != "argmax":
            weights = torch.zeros_like(scores[:, 0])
            weights[:, -1] = 1.0
            return weights
        own_class = scores[:, 0].argmax(1, keepdim=True)
        if scores.shape[2] == 2:  # the only rival
            return torch.ones_like(scores[:, 0]).scatter(1, own_class, -1.0)
        lead = scores - scores.gather(2, own_class[:, None].expand(-1, scores.shape[1], -1))
        lead = lead.masked_fill(~valid[..., None], -torch.inf).amax(1).scatter(1, own_class, -torch.inf)
        rival = lead.argmax(1, keepdim=True)
        return torch.zeros_like(scores[:, 0]).scatter(1, rival, 1.0).scatter(1, own_class, -1.0)

    def measure_split_depth(self, highest: Tensor, lowest: Tensor) -> Tensor:
        """Return how far inside the discriminatory region a family is, given the range of its margins.

        It is positive exactly where some twins get a different decision. With centre c and half-width w of the margin
        it is w - |c| about the boundary, and 2 w less the tolerance for a tolerance.
        """
        if self.kind == "tolerance":
            return highest - lowest - self.value
        return torch.minimum(highest - self.boundary, self.boundary - lowest)

    @property
    def boundary(self) -> float:
        """The margin at which a decision changes."""
        return self.value if self.kind == "threshold" else 0.0

    def check(self, outputs: int) -> None:
        """Refuse outputs that this decision cannot use."""
        if self.kind == "argmax" and outputs < 2:
            raise ModelError(
                "the network has one output, so there is no class to choose. Decide by a threshold instead"
            )


def include_row(valid: Tensor) -> Tensor:
    """Return which members of a family exist, given which twins do: the row itself always, (n, 1 + k)."""
    return torch.cat([torch.ones_like(valid[:, :1]), valid], 1)


def compute_margins(family: Tensor, weights: Tensor) -> Tensor:
    """Return the margin of each member of families, (n, 1 + k), by weights of outputs (n, outputs)."""
    parts = family * weights[:, None]
    # A sum over a dimension of two is four times slower on a CPU.
    return parts[..., 0] + parts[..., 1] if parts.shape[2] == 2 else parts.sum(2)


Scale = Literal["probabilities", "logits", "numbers"]
SUM_TOLERANCE = 1e-4  # how far the probabilities of all classes may miss 1: some models round to float16


def infer_scale(decision: Decision, scores: Tensor) -> Scale:
    """Return the scale of scores, inferred from those of some rows, (n, outputs).

    Probabilities lie between 0 and 1, and those of several classes add up to 1. Other scores of classes are logits, and
    so is a single score with the threshold 0. Anything else is a number in its own unit. So are scores that are only
    0 and 1, or -1 and 1, which are decisions.

    >>> [infer_scale(Decision(), torch.tensor([scores])) for scores in ([0.2, 0.8], [-1.0, 3.0])]
    ['probabilities', 'logits']
    """
    if bool(((scores.abs() == 1) | (scores == 0)).all()):
        return "numbers"
    within = bool(((scores >= 0) & (scores <= 1)).all())
    if decision.kind == "argmax":
        if within:
            return "probabilities" if bool(((scores.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()) else "numbers"
        return "logits"
    if decision.kind == "threshold" and within and 0 < decision.value < 1:
        return "probabilities"
    return "logits" if decision.kind == "threshold" and decision.value == 0 and scores.shape[-1] == 1 else "numbers"


class PairProbabilities(NamedTuple):
    """The probability of one class for each row and for its twin."""

    label: Tensor  # (n,): the number of that class
    row: Tensor  # (n,)
    twin: Tensor  # (n,)


def find_probabilities(
    decision: Decision, scale: Scale, scores: Tensor, others: Tensor, favourable: int | None = None
) -> PairProbabilities | None:
    """Return the probability of the favourable class for rows and their twins; None where scores are only numbers.

    Where neither decision is the favourable class, or none is known, it is the class of the row's own decision.
    """
    if scale == "numbers":
        return None
    row, twin = decision.decide(scores), decision.decide(others)
    label = row if favourable is None else torch.where((row == favourable) | (twin == favourable), favourable, row)
    by_class = (_class_probabilities(decision, scale, side.double()) for side in (scores, others))
    return PairProbabilities(label, *(probabilities.gather(-1, label[:, None])[:, 0] for probabilities in by_class))


def _class_probabilities(decision: Decision, scale: Scale, scores: Tensor) -> Tensor:
    """Return the probability of every class: (n, classes)."""
    if decision.kind == "argmax":
        return scores if scale == "probabilities" else scores.softmax(-1)
    positive = scores[:, -1] if scale == "probabilities" else scores[:, -1].sigmoid()
    return torch.stack([1 - positive, positive], 1)
