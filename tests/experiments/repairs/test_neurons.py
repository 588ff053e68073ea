"""Neuron repair on networks whose biased neuron is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.repairs.evaluate import RepairOutcome, outcomes
from experiments.repairs.neurons import Turn, repair_neurons
from neuronfair import Dataset, interpret
from neuronfair.domain.table import Target
from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import TableEncoding
from tests.planted.networks import domain, network, one_biased_neuron, random_module, uniform_rows


def people(rows: int = 1000) -> Dataset:
    """Labelled by the sum of a0 … a3 below 18.5, which is what the planted network decides for s = 0."""
    space = replace(domain(), target=Target("y", ("no", "yes")))
    codes = uniform_rows(space, rows)
    return Dataset("planted", space, codes, (codes[:, :4].sum(1) < 18.5).long())


def test_outcomes_count_people_and_hits() -> None:
    data = people(4)
    rows = torch.tensor([[9, 9, 1, 0, 0], [9, 9, 1, 0, 1], [9, 9, 0, 0, 0], [9, 9, 3, 0, 1]])  # sums 19, 19, 18, 21
    data = replace(data, rows=rows, labels=torch.tensor([0, 0, 1, 0]))
    blind = Turn(0, (3,), 0.0).apply(one_biased_neuron())
    # Sum 19 is split by s; the second person is decided yes because of s.
    assert outcomes([one_biased_neuron(), blind], data, rows) == [RepairOutcome(0.5, 0.75), RepairOutcome(0.0, 1.0)]
    many = outcomes([one_biased_neuron()] * 20, data, rows)
    assert many == [RepairOutcome(0.5, 0.75)] * 20


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_turning_down_is_scaling_the_activation(factor: float) -> None:
    module = random_module(domain(), hidden=6)
    x = TableEncoding.of(domain()).encode(uniform_rows(domain(), 50))
    with torch.no_grad():
        activation = module[1](module[0](x))
        activation[:, [1, 4]] *= factor
        torch.testing.assert_close(Turn(0, (1, 4), factor).apply(module)(x), module[2](activation))
    assert not torch.equal(Turn(0, (1, 4), factor).apply(module)(x), module(x))


def test_the_planted_neuron_is_turned_off_and_random_ones_do_not_help() -> None:
    data = people()
    module = one_biased_neuron()
    net = network(module, data.domain)
    work = repair_neurons(module, interpret(net, data.domain, data.rows), data.split(0))
    assert (work.turn.layer, work.turn.neurons, work.turn.factor) == (0, (3,), 0.0)
    assert work.before.rate > 0.05
    assert work.after == RepairOutcome(0.0, 1.0)
    assert len(work.random) == 10
    # One of eight neurons carries the bias; a draw that misses it helps nobody at no price.
    hits = [outcome for outcome in work.random if outcome.rate == 0]
    assert len(hits) < 5
    assert all(outcome == work.before for outcome in work.random if outcome.rate == work.before.rate)
    assert float(module[1].weight[1, 3].detach()) == 1.0  # the network itself is as it was


def test_the_same_seed_gives_the_same_repair() -> None:
    data = people()
    module = one_biased_neuron()
    profile = interpret(network(module, data.domain), data.domain, data.rows)
    one, two, other = (repair_neurons(module, profile, data.split(0), draws=4, seed=seed) for seed in (1, 1, 2))
    assert (one.after, one.random) == (two.after, two.random)
    assert one.random != other.random


def test_a_budget_that_cannot_be_kept() -> None:
    data = people()
    # Labels that the biased neuron alone explains: whoever turns it down loses.
    data = replace(data, labels=(data.rows[:, :4].sum(1) < 18.5 + 2 * data.rows[:, 4]).long())
    module = one_biased_neuron()
    profile = interpret(network(module, data.domain), data.domain, data.rows)
    with pytest.raises(NeuronFairError, match="--max-loss"):
        repair_neurons(module, profile, data.split(0), max_loss=0.0)
    assert repair_neurons(module, profile, data.split(0), max_loss=0.5).after.rate == 0.0


def test_a_network_that_is_fair_already_cannot_be_repaired() -> None:
    data = people()
    module = one_biased_neuron(weight=0.0)
    profile = interpret(network(module, data.domain), data.domain, data.rows)
    with pytest.raises(NeuronFairError, match="lowers discrimination"):
        repair_neurons(module, profile, data.split(0))
