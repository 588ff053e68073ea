from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair import interpret
from neuronfair.errors import DomainError, ModelError
from neuronfair.measure import diversity as module
from neuronfair.measure.diversity import Coverage, measure_coverage
from neuronfair.model.profile import BiasProfile, LayerBias
from tests.planted import networks

DOMAIN = networks.domain(attributes=2)


def planted():
    """Three neurons that show the two digits and four times the sensitive bit, as they are."""
    eye = networks.linear([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 4.0]], [0.0] * 3)
    out = networks.linear([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [0.0, 9.0])
    return networks.network(nn.Sequential(eye, nn.ReLU(), out), DOMAIN)


def profile(*act_diff: float, name: str = "1") -> BiasProfile:
    return BiasProfile((LayerBias(name, torch.tensor(act_diff, dtype=torch.float64)),), 1)


def test_counts_by_hand(monkeypatch):
    rows = torch.tensor(
        [
            [8, 0, 1],  # activations 8, 0, 4: scaled 1, 0, 0.5, which is not above 0.5
            [6, 0, 1],  # 6, 0, 4: scaled 1, 0, 2/3
            [9, 7, 1],  # 9, 7, 4: scaled 1, 0.6, 0
            [0, 0, 0],  # all alike: nobody is active
            [1, 3, 0],  # 1, 3, 0: scaled 1/3, 1, 0
        ]
    )
    both = profile(0.0, 3.0, 3.0)
    assert both.worst.biased == (1, 2)
    expected = Coverage("1", (1, 2), (2, 1), 5)
    assert measure_coverage(planted(), DOMAIN, both, rows) == expected
    assert (expected.covered, expected.shares) == (2, (0.4, 0.2))
    monkeypatch.setattr(module, "ROWS_PER_PASS", 2)
    assert measure_coverage(planted(), DOMAIN, both, rows.to(torch.int8)) == expected
    assert measure_coverage(planted(), DOMAIN, both, rows[:1]).covered == 0


def test_nothing_found_covers_nothing():
    nobody = measure_coverage(planted(), DOMAIN, profile(0.0, 3.0, 3.0), torch.empty(0, 3, dtype=torch.int64))
    assert (nobody.covered, nobody.rows, nobody.shares) == (0, 0, (0.0, 0.0))


def test_the_planted_neuron_is_covered_by_those_it_reads():
    network = planted()
    rows = DOMAIN.sample(500, torch.Generator().manual_seed(0))
    found = interpret(network, DOMAIN, rows)
    assert found.worst.biased == (2,)
    assert measure_coverage(network, DOMAIN, found, rows[rows[:, 2] == 1]).covered == 1
    assert measure_coverage(network, DOMAIN, found, rows[rows[:, 2] == 0]).covered == 0


def test_a_profile_of_another_network_is_refused():
    rows = torch.zeros(1, 3, dtype=torch.int64)
    for strange in (profile(0.0, 3.0, 3.0, name="layer7"), profile(0.0, 3.0)):
        with pytest.raises(ModelError, match="Interpret this network first"):
            measure_coverage(planted(), DOMAIN, strange, rows)
    with pytest.raises(DomainError, match="3 columns"):
        measure_coverage(planted(), DOMAIN, profile(0.0, 3.0, 3.0), rows[:, :2])
