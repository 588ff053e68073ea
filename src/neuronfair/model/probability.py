"""What scores say as probabilities: as they are, through a softmax or a sigmoid, or nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.model.decision import Decision

Scale = Literal["probabilities", "logits", "numbers"]
NEAR = 1e-4  # how far the probabilities of all classes may miss 1: some models round to float16


def scale_of(decision: Decision, scores: Tensor) -> Scale:
    """Return what scores are taken for, judged by those of some rows, (n, outputs).

    Probabilities lie between 0 and 1, and those of several classes add up to 1. Other scores of classes are logits, and
    so is a single score with the threshold 0. Anything else is a number in a unit of its own, and so are answers that
    are nothing but 0 and 1, or -1 and 1: those are decisions.

    >>> scale_of(Decision(), torch.tensor([[0.2, 0.8], [0.7, 0.3]])), scale_of(Decision(), torch.tensor([[-1.0, 3.0]]))
    ('probabilities', 'logits')
    """
    if bool(((scores.abs() == 1) | (scores == 0)).all()):
        return "numbers"
    within = bool(((scores >= 0) & (scores <= 1)).all())
    if decision.kind == "argmax":
        if within:
            return "probabilities" if bool(((scores.sum(-1) - 1).abs() <= NEAR).all()) else "numbers"
        return "logits"
    if decision.kind == "threshold" and within and 0 < decision.value < 1:
        return "probabilities"
    return "logits" if decision.kind == "threshold" and decision.value == 0 and scores.shape[-1] == 1 else "numbers"


class Chances(NamedTuple):
    """How probable one class is for each person and for the twin."""

    of: Tensor  # (n,): the number of that class
    own: Tensor  # (n,)
    twin: Tensor  # (n,)


def chances(
    decision: Decision, scale: Scale, scores: Tensor, others: Tensor, favourable: int | None = None
) -> Chances | None:
    """Return how probable the favourable class is for people and their twins; None where scores are only numbers.

    Where the decision for neither is the favourable class, or none is known, it is the class decided for the person.
    """
    if scale == "numbers":
        return None
    own, twin = decision.chosen(scores), decision.chosen(others)
    of = own if favourable is None else torch.where((own == favourable) | (twin == favourable), favourable, own)
    both = (_probabilities(decision, scale, one.double()) for one in (scores, others))
    return Chances(of, *(every.gather(-1, of[:, None])[:, 0] for every in both))


def _probabilities(decision: Decision, scale: Scale, scores: Tensor) -> Tensor:
    """Return the probability of every class: (n, classes)."""
    if decision.kind == "argmax":
        return scores if scale == "probabilities" else scores.softmax(-1)
    reached = scores[:, -1] if scale == "probabilities" else scores[:, -1].sigmoid()
    return torch.stack([1 - reached, reached], 1)
