"""Biased neurons: ablation, and how many of them the findings activate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS, families
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile
from neuronfair.searches.evaluate import evaluate

ACTIVE = 0.5  # a neuron whose normalised activation exceeds this is active


@dataclass(frozen=True)
class AblationOutcome:
    """The flip rate of a network, and its accuracy where labels are known."""

    rate: float
    accuracy: float | None


@dataclass(frozen=True)
class Ablation:
    """The network as it is, with the named neurons switched off, and with random ones instead."""

    layer: str
    neurons: tuple[int, ...]
    before: AblationOutcome
    after: AblationOutcome
    random: tuple[AblationOutcome, ...]

    @property
    def random_mean(self) -> AblationOutcome:
        """The mean over the random draws."""
        right = [o.accuracy for o in self.random if o.accuracy is not None]
        return AblationOutcome(fmean(o.rate for o in self.random), fmean(right) if right else None)


def ablate(
    network: Network,
    data: Dataset,
    layer: str,
    neurons: Sequence[int],
    *,
    decision: Decision | None = None,
    draws: int = 10,
    seed: int = 0,
) -> Ablation:
    """Set neurons of one layer to 0 and measure discrimination and accuracy again.

    The control switches off equally many random neurons of the same layer, `draws` times. There is no accuracy where
    labels are unknown, or are not the classes of the decision.
    """
    decision = decision or Decision()
    if draws < 1:
        raise ModelError(f"the control needs at least one draw, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(network.neurons[layer], generator=generator)[: len(neurons)].tolist() for _ in range(draws)]

    def without(some: Sequence[int]) -> AblationOutcome:
        with network.ablated(layer, some) as smaller:
            return _outcome(smaller, data, decision)

    return Ablation(layer, tuple(neurons), without(()), without(neurons), tuple(map(without, drawn)))


def _outcome(network: Network, data: Dataset, decision: Decision) -> AblationOutcome:
    found = right = 0
    for part, truth in zip(*families(network.encoding, data.domain, data.rows, data.labels), strict=True):
        evaluation = evaluate(network, data.domain, part, decision)
        found += int(evaluation.discriminates.sum())
        right += int((decision.chosen(evaluation.scores) == truth.to(part.device)).sum())
    known = bool(((data.labels >= 0) & (data.labels < decision.classes(network.outputs))).all())
    return AblationOutcome(found / len(data), right / len(data) if known else None)


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
    """Count the rows that activate each biased neuron of the most biased layer.

    The paper says "normalize the activation values" and refers to DeepXplore (Pei et al., SOSP 2017): the activations
    of each row are scaled linearly so that the layer's smallest is 0 and its largest 1. Where all are equal, no neuron
    is active. Coverage grows with the number of rows; `shares` does not.
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
