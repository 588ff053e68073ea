"""Do the biased neurons carry the bias? Switch them off and look, beside equally many random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import families
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import evaluate


@dataclass(frozen=True)
class AblationOutcome:
    """How a network behaves: the share of rows it discriminates, and its accuracy on them, where that is known."""

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

    The control switches off equally many neurons of the same layer, drawn at random, `draws` times. Where the labels
    are not known, or are not the classes that the decision tells apart, there is no accuracy.
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
