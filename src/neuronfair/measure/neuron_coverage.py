"""Which biased neurons the findings activate (Figure 6 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.measure.stats import check_rows
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.network import Network

ACTIVE = 0.5  # a neuron whose normalised activation exceeds this is active


@dataclass(frozen=True)
class Coverage:
    """How many rows activate each biased neuron of one layer."""

    layer: str
    biased: tuple[int, ...]
    active: tuple[int, ...]  # rows that activate each of them
    rows: int

    @property
    def covered(self) -> int:
        """How many biased neurons at least one row activates."""
        return sum(count > 0 for count in self.active)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of rows that activate each biased neuron; 0 without rows."""
        return tuple(count / self.rows if self.rows else 0.0 for count in self.active)


def covered(network: Network, domain: TableDomain, profile: BiasProfile, rows: Tensor) -> Coverage:
    """Count which biased neurons of the most biased layer are activated by rows: by findings, or by misses.

    The paper says "normalize the activation values" and refers to DeepXplore (Pei et al., SOSP 2017), which scales the
    activations of each row linearly so that the layer's smallest is 0 and its largest 1. So it is done here; where all
    neurons of a row are alike, none is active. One row is enough to cover a neuron, hence many rows cover much;
    `shares` does not grow with their number.
    """
    layer = profile.worst
    check_rows(domain, rows, "coverage")
    if network.neurons.get(layer.name) != len(layer.act_diff):
        raise ModelError(
            f"the profile's most biased layer is '{layer.name}' with {len(layer.act_diff)} neurons, and this network "
            "has no such layer. Interpret this network first"
        )
    counts = torch.zeros(len(layer.biased), dtype=torch.int64)
    for part in torch.split(rows, ROWS_PER_PASS) if len(rows) else ():
        f = network.activations(part.long(), (layer.name,))[layer.name]
        low, high = f.amin(1, keepdim=True), f.amax(1, keepdim=True)
        counts += (f[:, list(layer.biased)] - low > ACTIVE * (high - low)).sum(0).cpu()
    return Coverage(layer.name, layer.biased, tuple(counts.tolist()), len(rows))
