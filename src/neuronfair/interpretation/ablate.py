"""Do the biased neurons carry the bias? Switch them off and look, beside equally many random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.network.adapter import Network
from neuronfair.network.judge import families, judge


@dataclass(frozen=True)
class Outcome:
    """How a network behaves: the share of rows it discriminates, and its accuracy on them."""

    rate: float
    accuracy: float


@dataclass(frozen=True)
class Ablation:
    """The network as it is, with the named neurons switched off, and with random ones instead."""

    layer: str
    neurons: tuple[int, ...]
    before: Outcome
    after: Outcome
    random: tuple[Outcome, ...]

    @property
    def random_mean(self) -> Outcome:
        """The mean over the random draws."""
        n = len(self.random)
        return Outcome(sum(o.rate for o in self.random) / n, sum(o.accuracy for o in self.random) / n)


def ablate(
    network: Network,
    domain: TableDomain,
    rows: Tensor,
    labels: Tensor,
    layer: str,
    neurons: Sequence[int],
    *,
    draws: int = 10,
    seed: int = 0,
) -> Ablation:
    """Set neurons of one layer to 0 and measure discrimination and accuracy again.

    The control switches off equally many neurons of the same layer, drawn at random, `draws` times.
    """
    if draws < 1:
        raise ModelError(f"the control needs at least one draw, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(network.neurons[layer], generator=generator)[: len(neurons)].tolist() for _ in range(draws)]
    return Ablation(
        layer,
        tuple(neurons),
        _outcome(network, domain, rows, labels),
        _without(network, domain, rows, labels, layer, neurons),
        tuple(_without(network, domain, rows, labels, layer, some) for some in drawn),
    )


def _without(
    network: Network, domain: TableDomain, rows: Tensor, labels: Tensor, layer: str, neurons: Sequence[int]
) -> Outcome:
    with network.ablated(layer, neurons) as smaller:
        return _outcome(smaller, domain, rows, labels)


def _outcome(network: Network, domain: TableDomain, rows: Tensor, labels: Tensor) -> Outcome:
    found = right = 0
    for part, truth in zip(*families(network.encoding, domain, rows, labels), strict=True):
        judgement = judge(network, domain, part)
        found += int(judgement.discriminates.sum())
        right += int((judgement.scores.argmax(-1) == truth.to(part.device)).sum())
    return Outcome(found / len(rows), right / len(rows))
