"""Before and after: the same questions to two networks."""

from __future__ import annotations

from dataclasses import replace

from experiments.repairs.evaluate import measure_network
from experiments.repairs.neurons import Turn
from neuronfair import Dataset
from neuronfair.domain.table import Target
from tests.planted.networks import domain, one_biased_neuron, uniform_rows


def test_a_fair_network_has_better_metrics() -> None:
    space = replace(domain(), target=Target("y", ("no", "yes")))
    codes = uniform_rows(space, 500)
    parts = Dataset("planted", space, codes, (codes[:, :4].sum(1) < 18.5).long()).split(0)
    before = measure_network(one_biased_neuron(), parts, seed=1)
    after = measure_network(Turn(0, (3,), 0.0).apply(one_biased_neuron()), parts, seed=1)
    low, high = before.rate.interval
    assert 0.05 < low < before.rate.rate < high
    assert after.rate.flips == 0 < before.rate.flips
    assert (before.test.sampled, after.test.flips) == (100, 0)
    assert after.accuracy == {"train": 1.0, "validation": 1.0, "test": 1.0}
    assert before.accuracy["test"] < 1.0
    assert [group.codes for group in before.groups] == [(0,), (1,)]
    # For s = 1 the boundary lies higher, so more records are accepted; for s = 0 nothing changes.
    assert before.groups[0].selection == after.groups[0].selection
    assert before.groups[1].selection[1] > after.groups[1].selection[1]
    # The neuron still reacts; it is the way on from it that is closed.
    assert (before.layer, before.auc) == (after.layer, after.auc)
    assert measure_network(one_biased_neuron(), parts, seed=1) == before
