"""Small boxes are decided exactly: everybody in them is asked."""

from __future__ import annotations

import torch
from torch import Tensor

from neuronfair.proof.boxes.space import Boxes, Space
from neuronfair.proof.problem import Problem

ROWS = 1 << 18  # people with their twins that are asked at once
LARGEST = 2.0**62  # combinations of codes that are counted in 64 bits


def combinations(boxes: Boxes) -> Tensor:
    """Return how many combinations of places each box has, about: float64 (n,)."""
    return (boxes.high - boxes.low + 1).double().prod(1)


def varied(space: Space, boxes: Boxes) -> Tensor:
    """Return how many combinations of codes each box has on the axes of which it has several places: float64 (n,)."""
    return torch.where(boxes.high > boxes.low, space.sizes(boxes), 1).double().prod(1)


def can_ask(space: Space, boxes: Boxes, most: int) -> Tensor:
    """Return which boxes have few enough places, and codes at these that can be counted: bool, (n,)."""
    return (combinations(boxes) <= most) & (varied(space, boxes) < LARGEST)


def ask_everybody(subject: Problem, boxes: Boxes, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Return of how many combinations of codes all twins are decided alike, and of how many not: int64 (n,) each.

    Only axes of which a box has several places are counted: with the others each count multiplies. Whose margin is
    within rounding of the boundary is neither.
    """
    counts = torch.zeros(2, len(boxes), dtype=torch.int64, device=boxes.low.device)
    sizes = combinations(boxes).long()
    per_pass = max(1, ROWS // subject.people.valid.shape[1])
    groups = ((sizes.cumsum(0) - 1) // per_pass).cpu()
    for part in torch.split(torch.arange(len(boxes), device=boxes.low.device), torch.bincount(groups).tolist()):
        if len(part):
            counts[:, part] = _asked(subject, boxes[part], pattern[part])
    return counts[0], counts[1]


def members(boxes: Boxes) -> tuple[Tensor, Tensor]:
    """Return everybody in boxes: the number of their box, and their places."""
    extent = boxes.high - boxes.low + 1
    sizes, device = extent.prod(1), extent.device
    box = torch.arange(len(boxes), device=device).repeat_interleave(sizes)
    number = torch.arange(len(box), device=device) - (sizes.cumsum(0) - sizes)[box]
    most = int((extent > 1).sum(1).max()) if len(boxes) else 0
    extent, axes = extent.topk(most, dim=1)  # the others have one place
    places = boxes.low[box]
    for length, axis in zip(extent.T, axes.T, strict=True):
        places.scatter_add_(1, axis[box, None], (number % length[box])[:, None])
        number = number // length[box]
    return box, places


def _asked(subject: Problem, boxes: Boxes, pattern: Tensor) -> Tensor:
    owner, places = members(boxes)
    weight = torch.ones_like(owner)
    for axis, _, _ in subject.space.tables:
        count = subject.space.axes[axis].count.to(owner.device)[places[:, axis]]
        weight = weight * torch.where((boxes.high > boxes.low)[owner, axis], count, 1)
    margins = subject.margins(places)
    fair, flips = subject.question.asked(margins, subject.slack, subject.people.valid[pattern[owner]])
    zero = torch.zeros(len(boxes), dtype=torch.int64, device=owner.device)
    return torch.stack([zero.scatter_add(0, owner, torch.where(some, weight, 0)) for some in (fair, flips)])
