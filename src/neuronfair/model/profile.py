"""Biased neurons: how strongly each neuron reacts when only the sensitive attribute changes (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from neuronfair.domain.twins import Domain
from neuronfair.errors import ModelError, require
from neuronfair.model.encoding import split_families
from neuronfair.model.network import Network
from neuronfair.plots import new_axes

THRESHOLD_INTERVAL = 0.005  # step_interval of Algorithm 1
MAX_LISTED_LAYERS = 8  # layers in the repr


@dataclass(frozen=True)
class LayerBias:
    """How one hidden layer reacts to the sensitive attribute.

    `auc` is 0 for a layer that does not react at all and approaches 1 when every neuron reacts strongly.
    """

    name: str
    act_diff: Tensor  # (neurons,): mean |f(x) - f(x')|, Eq. 1

    @cached_property
    def reaction(self) -> Tensor:
        """The normalised reaction of each neuron, tanh(ActDiff), in [0, 1): (neurons,)."""
        return torch.tanh(self.act_diff)

    @cached_property
    def thresholds(self) -> Tensor:
        """The abscissas of the AS curve: 0, 0.005, … up to the largest reaction."""
        steps = int(torch.floor(self.reaction.max() / THRESHOLD_INTERVAL + 1e-9))
        return torch.arange(steps + 1, dtype=torch.float64) * THRESHOLD_INTERVAL

    @cached_property
    def rates(self) -> Tensor:
        """The AS curve: the share of neurons above each threshold (SenNeuR)."""
        return (self.reaction > self.thresholds[:, None]).double().mean(1)

    @cached_property
    def auc(self) -> float:
        """The area under the AS curve."""
        return float(self.rates.sum() * THRESHOLD_INTERVAL)

    @cached_property
    def cut(self) -> float:
        """T_d: where the AS curve meets the line y = x, interpolated between its points."""
        # The curve ends on the axis, at the largest reaction.
        x = torch.cat([self.thresholds, self.reaction.max()[None].double()])
        above = torch.cat([self.rates, torch.zeros(1, dtype=torch.float64)]) - x
        i = int((above <= 0).nonzero()[0, 0])
        if i == 0:
            return 0.0
        return float(x[i - 1] + (x[i] - x[i - 1]) * above[i - 1] / (above[i - 1] - above[i]))

    @cached_property
    def biased(self) -> tuple[int, ...]:
        """The neurons whose reaction exceeds the cut (Definition 2); the strongest one where none does."""
        above = (self.reaction > self.cut).nonzero()[:, 0].tolist()
        return tuple(above) or (int(self.reaction.argmax()),)

    @property
    def reacts(self) -> bool:
        """Whether any neuron reacts at all; if not, `biased` holds an arbitrary neuron."""
        return bool(self.reaction.max() > 0)


@dataclass(frozen=True, repr=False)
class BiasProfile:
    """The reaction of every hidden layer to the sensitive attribute."""

    layers: tuple[LayerBias, ...]
    pairs: int  # how many pairs of a row and a twin were compared

    @property
    def worst(self) -> LayerBias:
        """The most biased layer: the one with the largest area under its AS curve."""
        return max(self.layers, key=lambda layer: layer.auc)

    def plot(self, axes: Any = None, *, title: str = "") -> Any:
        """Draw the AS curve of every layer with the line y = x that cuts out the biased neurons; return the axes."""
        axes = new_axes((7.5, 6.2)) if axes is None else axes
        for layer in self.layers:
            worst = layer is self.worst
            x = [*layer.thresholds.tolist(), float(layer.reaction.max())]
            y = [*(100 * layer.rates).tolist(), 0.0]
            label = f"{layer.name}: AUC {layer.auc:.3f}, {len(layer.biased)} of {len(layer.act_diff)} biased"
            zorder, width = (3, 2.6) if worst else (2, 1.4)
            (line,) = axes.step(x, y, where="post", label=label, linewidth=width, zorder=zorder)
            if layer.reacts:
                point, color = ([layer.cut], [100 * layer.cut]), line.get_color()
                axes.plot(*point, "o", color=color, markersize=7 if worst else 4, zorder=4)
        axes.plot([0, 1], [0, 100], color="0.5", linestyle="--", linewidth=1, label="y = x: biased neurons lie right")
        axes.set(xlim=(0, 1), ylim=(0, 102), title=title)
        axes.set_xlabel("reaction of a neuron to the sensitive attribute, tanh(ActDiff)")
        axes.set_ylabel("neurons that react more strongly (%)")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        axes.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        return axes

    def to_frame(self) -> Any:
        """Return the layers as a pandas DataFrame, a line each, in the order of the network."""
        lines = [
            {
                "layer": layer.name,
                "neurons": len(layer.act_diff),
                "as_auc": layer.auc,
                "cut": layer.cut,
                "biased": len(layer.biased) if layer.reacts else 0,
            }
            for layer in self.layers
        ]
        return require("pandas", "sklearn", "a DataFrame", ModelError).DataFrame(lines)

    def __repr__(self) -> str:
        lines = [f"Most biased layer: {self.worst.name} ({self.pairs:,} pairs of a record and a twin compared)"]
        for layer in self.layers[:MAX_LISTED_LAYERS]:
            biased = f"{len(layer.biased) if layer.reacts else 0:,} of {len(layer.act_diff):,} neurons biased"
            lines.append(f"  {layer.name}: AS-AUC {layer.auc:.3f}, {biased}")
        omitted = len(self.layers) - MAX_LISTED_LAYERS
        return "\n".join([*lines, *([f"  … {omitted} more layers"] if omitted > 0 else [])])

    def __getitem__(self, name: str) -> LayerBias:
        return next(layer for layer in self.layers if layer.name == name)


def interpret(
    network: Network,
    domain: Domain,
    rows: Tensor,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> BiasProfile:
    """Compare the activations of rows with those of their twins, in every hidden layer.

    The mean runs over all pairs of a row and a valid twin. Memory does not grow with the number of rows.
    """
    if not network.layers:
        raise ModelError("the network has no hidden layer, so there is nothing inside to look at")
    sums = {name: torch.zeros(network.neurons[name], dtype=torch.float64) for name in network.layers}
    pairs = completed = 0
    for (part,) in zip(*split_families(network.encoding, domain, rows), strict=True):
        twins, valid = domain.twins(part)
        family = torch.cat([part[:, None], twins], 1)  # (n, 1 + k, d)
        activations = network.activations(family.flatten(0, 1))
        for name, activation in activations.items():
            f = activation.view(*family.shape[:2], activation.shape[1])
            difference = (f[:, 1:] - f[:, :1]).abs() * valid[..., None]
            sums[name] += difference.sum((0, 1), dtype=torch.float64).cpu()
        pairs += int(valid.sum())
        completed += len(part)
        if progress:
            progress(completed, len(rows))
    if pairs == 0:
        raise ModelError("no row has a valid twin, so nothing can be compared. Give some rows, or relax the rules")
    layers = tuple(LayerBias(name, total / pairs) for name, total in sums.items())
    for layer in layers:
        if not bool(torch.isfinite(layer.act_diff).all()):
            raise ModelError(
                f"layer '{layer.name}' gives NaN or infinite activations. Check the weights and the inputs"
            )
    return BiasProfile(layers, pairs)
