from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import BlackBox, Decision, NeuronFairError, TableDomain, evaluate
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.searches.shrink import shrink
from tests.conftest import PEOPLE
from tests.planted import networks


def test_by_hand():
    # A row is split where its digits add up to 19 or 20. The seed adds up to 16, the finding to 20.
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    seed, found = torch.tensor([[4, 4, 4, 4, 0]]), torch.tensor([[9, 7, 0, 4, 0]])
    shrunk = shrink(network, domain, found, seed)
    assert evaluate(network, domain, shrunk).discriminates.all()
    assert (shrunk - seed).abs().sum() == 3  # from 16 to 19: no row is nearer


def test_a_seed_that_discriminates_is_its_own_smallest_change():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    seed, found = torch.tensor([[5, 5, 5, 4, 1]]), torch.tensor([[9, 1, 0, 9, 0]])
    assert shrink(network, domain, found, seed).tolist() == [[5, 5, 5, 4, 0]]


def test_rows_that_do_not_discriminate_stay():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    rows = torch.tensor([[0, 0, 0, 0, 0], [9, 9, 9, 9, 1]])
    assert torch.equal(shrink(network, domain, rows, torch.full_like(rows, 1)), rows)


def test_nothing_to_shrink_and_unequal_lengths():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    nothing = torch.empty(0, 5, dtype=torch.int64)
    assert shrink(network, domain, nothing, nothing).shape == (0, 5)
    with pytest.raises(NeuronFairError, match="got 2 findings and 1 seeds"):
        shrink(network, domain, torch.ones(2, 5, dtype=torch.int64), torch.ones(1, 5, dtype=torch.int64))


def test_a_wide_attribute_is_brought_near_in_a_few_steps():
    """A million values: eight bisections bring it to a 256th of its range; to the last value it would take twenty."""
    wide = TableDomain("wide", (Attribute("x", "ordinal", high=1_000_000), Attribute("s", "flag")), ("s",))
    asked: list[int] = []

    def ask(rows: torch.Tensor) -> np.ndarray:
        asked.append(len(rows))
        x, s = rows.numpy().T
        return np.stack([np.full(len(x), 0.5), (x >= 123_456) * s], 1).astype(np.float64)

    shrunk = shrink(BlackBox(ask, wide), wide, torch.tensor([[900_000, 1]]), torch.tensor([[0, 1]]))
    assert 123_456 <= int(shrunk[0, 0]) <= 123_456 + 1_000_000 / 256
    assert len(asked) < 30


def test_a_score_with_a_tolerance():
    domain = networks.domain()
    network = networks.network(networks.biased_score(), domain)
    found, seed = torch.tensor([[9, 7, 3, 1, 1]]), torch.tensor([[2, 2, 2, 2, 1]])
    shrunk = shrink(network, domain, found, seed, Decision("tolerance", 1.5))
    assert shrunk.tolist() == [[8, 2, 2, 2, 1]]  # the gap is the part of a0 above 6: 8 is the least that exceeds 1.5


DOMAIN = parse_domain(PEOPLE)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_shrunk_rows_are_small_valid_and_still_discriminate(seed):
    network = networks.network(networks.random_module(DOMAIN, seed=seed), DOMAIN)
    rows = networks.uniform_rows(DOMAIN, 200, seed)
    rows = rows[evaluate(network, DOMAIN, rows).discriminates]
    seeds = networks.uniform_rows(DOMAIN, len(rows), seed + 1)
    shrunk = shrink(network, DOMAIN, rows, seeds)
    sensitive = list(DOMAIN.sensitive_columns)
    assert torch.equal(shrunk[:, sensitive], rows[:, sensitive])
    seeds[:, sensitive] = rows[:, sensitive]
    assert evaluate(network, DOMAIN, shrunk).discriminates.all()
    assert DOMAIN.valid(shrunk).all()
    between = (shrunk >= torch.minimum(rows, seeds)) & (shrunk <= torch.maximum(rows, seeds))
    one_of_both = (shrunk == rows) | (shrunk == seeds)
    assert torch.where(DOMAIN.is_ordered, between, one_of_both).all()
    for column in range(len(DOMAIN.names)):  # no single attribute can be given back
        back = shrunk.clone()
        back[:, column] = seeds[:, column]
        holds = DOMAIN.valid(back) & evaluate(network, DOMAIN, back).discriminates
        assert not (holds & (shrunk[:, column] != seeds[:, column])).any()
    assert torch.equal(shrink(network, DOMAIN, shrunk, seeds), shrunk)
