"""Neuron repair: turns down the neurons that react to the sensitive attribute, against as many random neurons."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from experiments.repairs.evaluate import RepairOutcome, outcomes
from neuronfair.domain.tables.dataset import Split
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import percent
from neuronfair.model.profile import BiasProfile
from neuronfair.model.train import list_linear_layers

import torch
from torch import nn

FACTORS = (0.0, 0.25, 0.5, 0.75)
SAMPLES = 4_000  # records drawn from the domain; with the validation rows, they choose the repair
PROOF = 10_000  # other records, on which the chosen ones are compared


@dataclass(frozen=True)
class Turn:
    """Neurons of one hidden layer whose activations are multiplied by a factor below 1."""

    layer: int  # from 0
    neurons: tuple[int, ...]
    factor: float

    def apply(self, module: nn.Sequential) -> nn.Sequential:
        """Return a copy of a network with these neurons turned down.

        The weights that lead on from them are scaled, which is the same for every activation function.
        """
        turned = copy.deepcopy(module)
        with torch.no_grad():
            list_linear_layers(turned)[self.layer + 1].weight[:, list(self.neurons)] *= self.factor
        return turned


@dataclass(frozen=True)
class NeuronRepair:
    """The repaired network, and the outcomes of turning down as many random neurons.

    `before`, `after` and `random` are measured on test rows and drawn records that played no part in the choice.
    `random` holds one outcome for each draw of random neurons; where no strength helped, that of the network as it was.
    """

    module: nn.Sequential
    turn: Turn
    before: RepairOutcome
    after: RepairOutcome
    random: tuple[RepairOutcome, ...]


def repair_neurons(
    module: nn.Sequential,
    profile: BiasProfile,
    parts: Split,
    *,
    max_loss: float = 0.01,
    draws: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> NeuronRepair:
    """Turn down the neurons that react most, in the layer, number and strength that validation rows choose.

    The choice has the fewest flips, among the validation rows and drawn records, and costs at most `max_loss` of the
    accuracy. The control takes as many random neurons of the same layer, `draws` times, and chooses their strength in
    the same way.
    """
    generator = torch.Generator().manual_seed(seed)
    domain = parts.train.domain
    module = copy.deepcopy(module).to(domain.device)
    people = torch.cat([parts.validation.rows, domain.sample(SAMPLES, generator)])
    (start,) = outcomes([module], parts.validation, people)

    def best(turns: list[Turn]) -> Turn | None:
        """Return the turn that helps most; None where none helps at the price."""
        results = outcomes([turn.apply(module) for turn in turns], parts.validation, people)
        allowed = [
            (result.rate, -result.accuracy, number)
            for number, result in enumerate(results)
            if result.accuracy >= start.accuracy - max_loss and result.rate < start.rate
        ]
        return turns[min(allowed)[2]] if allowed else None

    turn = best(_turns(profile))
    if turn is None:
        raise NeuronFairError(
            f"no way of turning down biased neurons lowers discrimination and costs at most {percent(max_loss)} of the "
            "accuracy. Allow more with --max-loss, or repair with --how retrain"
        )
    others: list[Turn | None] = []
    for done in range(1, draws + 1):
        drawn = torch.randperm(len(profile.layers[turn.layer].act_diff), generator=generator)[: len(turn.neurons)]
        others.append(best([Turn(turn.layer, tuple(drawn.tolist()), factor) for factor in FACTORS]))
        if progress is not None:
            progress(done, draws)
    networks = [module, turn.apply(module), *(module if t is None else t.apply(module) for t in others)]
    before, after, *random = outcomes(networks, parts.test, domain.sample(PROOF, generator))
    return NeuronRepair(networks[1], turn, before, after, tuple(random))


def _turns(profile: BiasProfile) -> list[Turn]:
    """Return what is tried: in every layer 1, 2, 4, … of the biased neurons and all of them, the strongest first."""
    turns = []
    for number, layer in enumerate(profile.layers):
        strongest = torch.argsort(layer.reaction, descending=True).tolist()
        biased = len(layer.biased)
        counts = [*(1 << i for i in range(biased.bit_length()) if 1 << i < biased), biased]
        turns += [Turn(number, tuple(strongest[:count]), factor) for count in counts for factor in FACTORS]
    return turns
