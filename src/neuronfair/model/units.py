"""Standardised inputs: how a network is trained on them, and takes plain ones afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuronfair.errors import ModelError

# Divided by its small deviation, a rare flag would shout down all other inputs, with weights that few rows correct. So
# a deviation counts as at least this share of the range, and the first layer starts small. Chosen by validation loss.
MIN_DEVIATION = 0.2
FIRST_SCALE = 0.1


@dataclass(frozen=True)
class Units:
    """Mean and scale (deviation) of each input, and how to move them in and out of a linear layer."""

    mean: Tensor
    scale: Tensor

    @staticmethod
    def of(x: Tensor) -> Units:
        """Return the units of these inputs."""
        x = x.double()
        deviation, mean = torch.std_mean(x, dim=0, correction=0)
        scale = torch.maximum(deviation, MIN_DEVIATION * (x.amax(dim=0) - x.amin(dim=0)))
        return Units(mean, torch.where(scale > 0, scale, 1.0))  # a constant column stays 0

    def standardise(self, x: Tensor) -> Tensor:
        """Return inputs in these units, in float64."""
        return (x.double() - self.mean) / self.scale

    def enter(self, layer: nn.Linear, x: Tensor, *, fresh: bool) -> None:
        """Make a first layer ready for standardised inputs: a new one starts small, a trained one does what it did."""
        if x.shape[1] != layer.in_features:
            raise ModelError(f"the module expects rows of width {layer.in_features}, got {x.shape[1]}")
        if fresh:
            layer.weight.data *= FIRST_SCALE
        else:
            self.unfold(layer)

    @torch.no_grad()
    def fold(self, layer: nn.Linear) -> None:
        """Let a layer that takes standardised inputs take plain ones: W (x - m) / s + b = (W / s) x + b - (W / s) m."""
        weight = layer.weight.double() / self.scale
        layer.bias.copy_(layer.bias.double() - weight @ self.mean)
        layer.weight.copy_(weight)

    @torch.no_grad()
    def unfold(self, layer: nn.Linear) -> None:
        """Let a layer that takes plain inputs take standardised ones: the inverse of `fold`."""
        layer.bias.copy_(layer.bias.double() + layer.weight.double() @ self.mean)
        layer.weight.copy_(layer.weight.double() * self.scale)


def first_linear(module: nn.Module) -> nn.Linear | None:
    """Return the trainable linear layer that surely meets the input first, if there is one."""
    first: nn.Module = module
    while type(first) is nn.Sequential and len(first):  # one with a forward of its own may do anything before it
        first = first[0]
    # Weights that are computed from others (weight norm, pruning) cannot be set.
    if type(first) is not nn.Linear or first.bias is None or first._forward_pre_hooks:
        return None
    return first if first.weight.requires_grad and first.bias.requires_grad else None
