"""Labels for pairs: the vote of networks that do not see the sensitive attribute."""

from __future__ import annotations

from dataclasses import replace

import torch

from experiments.repairs.labels import Ensemble
from neuronfair import Dataset
from neuronfair.domain.table import Target
from tests.planted.networks import domain, uniform_rows


def labelled(rows: int = 600) -> Dataset:
    """People whose label follows from their own values: the sum of a0 … a3 against 18; s plays no part."""
    space = replace(domain(), target=Target("y", ("low", "high")))
    codes = uniform_rows(space, rows)
    return Dataset("planted", space, codes, (codes[:, :4].sum(1) > 18).long())


def test_the_ensemble_learns_the_table_and_does_not_see_the_sensitive_attribute() -> None:
    data = labelled(300)
    ensemble = Ensemble(data.split(0))
    rows = uniform_rows(data.domain, 500, seed=1)
    labels = ensemble.labels(rows)
    assert ((rows[:, :4].sum(1) > 18).long() == labels).double().mean() > 0.9
    twins = rows.clone()
    twins[:, -1] = 1 - twins[:, -1]
    assert torch.equal(ensemble.labels(twins), labels)
