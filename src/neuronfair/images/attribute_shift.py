"""Δ_senatt: the smallest change of a picture that flips its sensitive attribute, as an attribute classifier sees it.

FGSM (Goodfellow, Shlens and Szegedy 2015): Δ = ε · sign(∇_x J(x, y)), with y the class that the classifier gives the
picture. The paper takes the true class; on a picture that the classifier gets wrong, that would push it further away
from flipping. ε is the smallest of a schedule of whole grey levels with f(x) ≠ f(x + Δ), so that x + Δ is an 8-bit
picture too. With more than two classes any other class will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.images.detector import as_input, predictions
from neuronfair.model.layers import evaluating

SCHEDULE: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)  # ε in grey levels; 20 of 255 is 0.078
MOST = 127  # levels that a pixel may change by: a shift is held in 8 bits with a sign
BATCH = 256


@dataclass(frozen=True, eq=False)
class AttributeShift:
    """The shift of every picture, and the largest change of a pixel in it, 0 for a picture that nothing flips."""

    levels: Tensor  # (n, c, h, w), int8
    size: Tensor  # (n,), int64

    @property
    def flips(self) -> Tensor:
        """Whether the attribute of each picture flips: bool, (n,)."""
        return self.size > 0


def flip(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int] = SCHEDULE) -> AttributeShift:
    """Return the shift that flips the attribute of each 8-bit picture, with the smallest ε of the schedule."""
    parts = [_flip(classifier, part, sorted(schedule)) for part in torch.split(pictures, BATCH)]
    return AttributeShift(torch.cat([part.levels for part in parts]), torch.cat([part.size for part in parts]))


def _flip(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int]) -> AttributeShift:
    before = predictions(classifier, pictures)
    x = as_input(pictures).requires_grad_()
    with evaluating(classifier.modules()):
        (gradient,) = torch.autograd.grad(functional.cross_entropy(classifier(x), before, reduction="sum"), x)
    direction = gradient.sign()
    return smallest(classifier, pictures, before, schedule, lambda left, epsilon: epsilon * direction[left])


def smallest(
    classifier: nn.Module,
    pictures: Tensor,
    before: Tensor,
    schedule: Sequence[float],
    change: Callable[[Tensor, float], Tensor],
) -> AttributeShift:
    """Return for each picture the first change of the schedule that takes it out of its class `before`.

    `change` gives some of the pictures, by number, a change of a size, in grey levels; it is rounded to whole ones.
    """
    levels = torch.zeros(pictures.shape, dtype=torch.int8, device=pictures.device)
    left = torch.arange(len(pictures), device=pictures.device)
    for size in schedule:
        tried = change(left, size).round().clamp(-MOST, MOST).to(torch.int8)
        after = predictions(classifier, (pictures[left].to(torch.int16) + tried).clamp(0, 255))
        flips = after != before[left]
        levels[left[flips]] = tried[flips]
        left = left[~flips]
        if len(left) == 0:
            break
    return AttributeShift(levels, levels.to(torch.int64).abs().amax((1, 2, 3)))


def random_like(shift: AttributeShift, *, seed: int = 0) -> Tensor:
    """Return shifts of the same size in random directions: the control. int8, (n, c, h, w).

    Every pixel goes up or down by ε at random where the shift changes it, so that the norms are the same.
    """
    generator = torch.Generator().manual_seed(seed)
    up = torch.randint(0, 2, shift.levels.shape, generator=generator, dtype=torch.int8)
    return shift.levels.abs() * (2 * up - 1).to(shift.levels.device)
