"""Families of people: who is compared with whom, and in passes of what size."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from neuronfair import Decision, judge
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.network import judge as judging
from tests.planted import networks


class Counted(nn.Module):
    """A module that remembers how many rows it was given at a time."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.batches = module, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        return self.module(x)


def test_rows_and_twins_are_judged_in_passes_that_fit(monkeypatch):
    domain = networks.sex_and_race()  # families of ten
    module = Counted(networks.random_module(domain).double())
    network, rows = networks.network(module.double(), domain), networks.uniform_rows(domain, 50)
    module.batches.clear()
    whole = judge(network, domain, rows)
    assert module.batches == [500]
    monkeypatch.setattr(judging, "BATCH", 128)
    module.batches.clear()
    parts = judge(network, domain, rows)
    assert module.batches == [120, 120, 120, 120, 20]
    assert torch.allclose(whole.twin_scores, parts.twin_scores, rtol=1e-12)
    for name in ("differs", "partner", "twin", "twins"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))
    monkeypatch.setattr(judging, "BATCH", 1 << 15)
    monkeypatch.setattr(judging, "NUMBERS", 40 * network.encoding.width)  # of wide rows few make a pass
    module.batches.clear()
    judge(network, domain, rows)
    assert set(module.batches) == {40, 20}


def test_a_judgement_does_not_hold_the_rows_of_all_twins():
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(40)]
    domain = TableDomain("many", (*columns, Attribute("s", "ordinal", low=0, high=99)), ("s",))
    network = networks.network(networks.random_module(domain), domain)
    found = judge(network, domain, networks.uniform_rows(domain, 30))
    kept = [value for value in (getattr(found, f.name) for f in fields(found)) if isinstance(value, Tensor)]
    assert max(tensor.numel() for tensor in kept) == 30 * 100 * 2  # the scores
    every = torch.arange(30)
    assert torch.equal(found.twin, found.twins[every, found.partner])
    assert torch.equal(found[every[:3]].twin, found.twin[:3])


@pytest.mark.parametrize("decision", [Decision(), Decision("threshold", 0.1), Decision("tolerance", 5.0)])
def test_the_farthest_twin_that_is_decided_otherwise_is_the_partner(decision):
    domain = networks.sex_and_race()
    network = networks.network(networks.random_module(domain), domain)
    found = judge(network, domain, networks.uniform_rows(domain, 200), decision)
    assert 0 < int(found.discriminates.sum()) < 200
    for i in range(200):
        gaps = decision.gap(found.scores[i], found.twin_scores[i])
        chosen = found.differs[i] if found.differs[i].any() else torch.ones(9, dtype=torch.bool)
        assert gaps[found.partner[i]] == gaps[chosen].max()
        assert chosen[found.partner[i]]
