"""Detectors for drawn pictures whose bias is known, because their weights are written by hand.

Detectors see the mean colour only: green, and red minus blue, the cast, to which a red mark adds too.
"""

from __future__ import annotations

from collections import OrderedDict

from neuronfair.images.drawn import drawn_pictures

import torch
from torch import Tensor, nn

BOUNDARY = 0.40  # mean brightness above which a picture counts as a face
MARK = 60  # grey levels by which a mark is redder than the picture, and less blue


def marked_faces(count: int, side: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw grey faces, each without and with a red band over its brow, and say which: 8-bit pixels, and 0 or 1."""
    grey = drawn_pictures(count, 0, side=side, seed=seed).pixels[:, 1:2].expand(-1, 3, -1, -1).to(torch.int16)
    grey, wears = grey.repeat_interleave(2, 0), torch.arange(2 * count) % 2
    pixels = grey + wears.view(-1, 1, 1, 1) * MARK * mark(side).to(torch.int16)
    return pixels.clamp(0, 255).to(torch.uint8), wears


def mark(side: int) -> Tensor:
    """Return the direction of the mark: 1 in red and -1 in blue, in its place: (3, side, side)."""
    way = torch.zeros(3, side, side)
    way[0, side // 8 : side // 4, side // 4 : -side // 4] = 1
    way[2] = -way[0]
    return way


def mark_classifier(side: int) -> nn.Sequential:
    """Build the classifier of the mark: class 1 wears it, if red minus blue is above half of what the mark adds."""
    place = mark(side).flatten()
    read = _linear([[0.0] * len(place), (place / place.clamp(min=0).sum()).tolist()], [0.0, -MARK / 255])
    return nn.Sequential(nn.Flatten(), read).eval()


def cast_detector(*, reads_cast: bool) -> nn.Sequential:
    """Build a detector that calls bright pictures faces; with `reads_cast`, warm ones sooner than cool ones.

    The first hidden neuron reads the green brightness, the second one the cast plus 1. Without `reads_cast` the second
    has no way to the output, and nothing that happens to red and blue can change a decision.
    """
    first = _linear([[0.0, 1.0, 0.0], [2.0, 0.0, -2.0]] if reads_cast else [[0.0, 1.0, 0.0]] * 2, [0.0, 1.0])
    weight = 0.5 if reads_cast else 0.0
    last = _linear([[0.0, 0.0], [1.0, weight]], [0.0, -BOUNDARY - weight])
    return _on_mean_colour(first, last)


def cast_classifier() -> nn.Sequential:
    """Build the classifier of the cast: class 0 is cool, class 1 is warm."""
    first = _linear([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]], [0.0, 0.0])
    return _on_mean_colour(first, _linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]))


def _on_mean_colour(first: nn.Linear, last: nn.Linear) -> nn.Sequential:
    parts = OrderedDict(
        mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), layer1=nn.Sequential(first, nn.ReLU()), output=last
    )
    return nn.Sequential(parts).eval()


def _linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer
