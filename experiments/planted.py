"""Detectors for drawn pictures whose bias is known, because their weights are written by hand.

Detectors see the mean colour only: green, and red minus blue, the cast.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

BOUNDARY = 0.40  # mean brightness above which a picture counts as a face


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
