"""What an audit says of the layers of a network. The comments behind the fields are their documentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """How a layer reacts to the sensitive attributes."""

    name: str
    neurons: int
    auc: float  # area under the AS curve
    cut: float  # T_d, where the AS curve meets y = x
    biased: tuple[int, ...]  # neurons whose reaction exceeds the cut
    act_diff: tuple[float, ...]  # ActDiff of each neuron
    curve: tuple[tuple[float, float], ...]  # the AS curve: threshold and share of neurons above it


@dataclass(frozen=True)
class Interpretation:
    """Which layers and neurons react."""

    worst: str  # the most biased layer
    layers: tuple[LayerReport, ...]

    @property
    def worst_auc(self) -> float | None:
        """The area of the most biased layer; None where it is not among the layers."""
        return next((layer.auc for layer in self.layers if layer.name == self.worst), None)
